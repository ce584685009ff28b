"""Sphinx's settings. Nothing on a page comes from another host: Furo has its own scripts, the reader the fonts."""

import equipoise

project = "equipoise"
copyright = "The equipoise authors"
author = "The equipoise authors"
version = release = equipoise.__version__

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["figures/*.md"]

myst_heading_anchors = 4  # the anchors that forges give to headings
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]  # a shortened example is still an example
highlight_language = "none"

html_theme = "furo"
html_title = f"equipoise {version}"
html_show_sourcelink = False
html_copy_source = False
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_static_path = ["static"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b57a4", "color-brand-content": "#0b57a4"},
    "dark_css_variables": {"color-brand-primary": "#7db4f0", "color-brand-content": "#7db4f0"},
}
