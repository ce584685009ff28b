"""A picture of a report page for the docs: `python scripts/docs/screenshot.py report.html OUT.png --from gaming`.

Headless Chromium at a fixed width, light theme, in 256 colours, so that a picture stays well under 200 KB. Not part of
the site's build: it needs playwright and Chromium (`make test-browser` installs both).
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

DRAWN = """async () => {
    for (let y = 0; y < document.documentElement.scrollHeight; y += 400) {
        scrollTo(0, y);
        await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
    }
    scrollTo(0, 0);
}"""


def picture(page_file: Path, start: str, width: int, height: int) -> bytes:
    with sync_playwright() as playwright:
        binary = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
        page.goto(page_file.resolve().as_uri())
        page.evaluate(DRAWN)
        top = page.locator(f"#{start}").bounding_box()["y"]
        clip = {"x": 0, "y": max(0, top - 12), "width": width, "height": height}
        taken = page.screenshot(clip=clip, full_page=True)
        browser.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="start", default="top", help="id of the section at the top of the picture")
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--height", type=int, default=1100)
    options = parser.parse_args()
    taken = picture(options.page, options.start, options.width, options.height)
    few = Image.open(io.BytesIO(taken)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(options.out, optimize=True)
    print(f"{options.out}: {options.out.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
