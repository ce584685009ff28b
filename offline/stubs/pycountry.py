"""A stand-in: nothing here asks for a language's name."""
languages = []
language_families = []
countries = []
currencies = []
scripts = []
subdivisions = []
