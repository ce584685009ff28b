"""The runs' colours, in both themes: visible on their card, and apart for the colour-blind.

Dichromats are simulated by the matrices of Viénot, Brettel and Mollon (1999) on linear RGB (tritans by a comparable
projection); distances are Euclidean in OKLab, where 0.02 is about the least that is noticed side by side.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from equipoise.report.page import PARTS

CSS = (Path(PARTS) / "page.css").read_text()
VARIABLES = {name: pair for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", CSS)}
VISION = {
    "all cones": np.eye(3),
    "protan": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "deutan": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
    "tritan": np.array([[1, 0.1506, -0.1506], [0, 0.8556, 0.1444], [0, 0.8556, 0.1444]]),
}  # fmt: skip


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def oklab(rgb):
    lms = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                    [0.0883024619, 0.2817188376, 0.6299787005]]) @ np.clip(rgb, 0, 1)  # fmt: skip
    return np.array([[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099],
                     [0.0259040371, 0.7827717662, -0.808675766]]) @ np.cbrt(lms)  # fmt: skip


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_run_is_visible_on_its_card(theme):
    for i in range(8):
        assert contrast(VARIABLES[f"run-{i}"][theme], VARIABLES["card"][theme]) >= 3


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_runs_differ_in_colour_for_the_colour_blind(theme, vision):
    seen = [oklab(VISION[vision] @ linear(VARIABLES[f"run-{i}"][theme])) for i in range(8)]
    distances = {(i, j): np.linalg.norm(seen[i] - seen[j]) for i, j in itertools.combinations(range(8), 2)}
    assert min(d for (_, j), d in distances.items() if j < 4) >= 0.08, distances
    assert min(distances.values()) >= 0.04, min(distances, key=distances.get)


def test_no_two_of_24_runs_share_colour_and_dash():
    looks = {(run % 8, (run + run // 8) % 8) for run in range(24)}
    assert len(looks) == 24
    script = (Path(PARTS) / "look.js").read_text()
    assert "colour: `run-${run % 8}`" in script
    assert "dash: DASHES[(run + Math.floor(run / 8)) % 8]" in script
    assert len(set(re.findall(r'"[^"]*"', script[script.index("const DASHES") : script.index("];")]))) == 8
