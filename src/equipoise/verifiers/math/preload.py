"""Imported before math workers are forked: loads SymPy and the LaTeX grammar for all."""

from equipoise.verifiers.math import equal

equal.slow("x + 1", r"\frac{y}{2}")
