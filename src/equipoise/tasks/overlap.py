"""Does a training prompt hold an evaluation problem's words? The 13-word rule.

Words are runs of letters and digits, lower-case; in scripts without spaces every character is a
word. A training prompt overlaps a problem if 13 words in a row are the same; for a problem of 8 to
12 words, if all of them stand in a row; for a shorter one, if the texts are the same up to case and
spaces (signs are no words, and "1+2" is not "1-2"). What stands in more than a tenth of an
evaluation set's problems, and in at least three, is its template and does not count.

Not covered: paraphrases, translations, the same problem with other numbers or names,
and overlap of the answers alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LONGEST, SHORTEST = 13, 8  # words
TEMPLATE_SHARE, TEMPLATE_LEAST = 0.1, 3

# Thai, Lao, kana, Chinese characters, Hangul
UNSPACED = r"\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")


@dataclass(frozen=True, slots=True)
class Hit:
    """`problem` counts from 1 in its evaluation set; `words` are those both texts have."""

    evaluation_set: str
    problem: int
    words: str


class Overlap:
    def __init__(self, evaluation_sets: Mapping[str, Sequence[str]]) -> None:
        self._same: dict[str, Hit] = {}
        self._grams: dict[str, Hit] = {}
        for name, texts in evaluation_sets.items():
            grams = [set(_grams(words(text))) for text in texts]
            often = Counter(gram for found in grams for gram in found)
            most = max(TEMPLATE_LEAST - 1, TEMPLATE_SHARE * len(texts))
            for number, (text, found) in enumerate(zip(texts, grams, strict=True), 1):
                self._same.setdefault(plain(text), Hit(name, number, text.strip()[:200]))
                for gram in found:
                    if often[gram] <= most:
                        self._grams.setdefault(gram, Hit(name, number, gram))
        # Every gram begins with SHORTEST words: one look-up per word of a training prompt settles
        # almost all of them.
        self._heads: dict[str, set[int]] = {}
        for gram in self._grams:
            parts = gram.split(" ")
            self._heads.setdefault(" ".join(parts[:SHORTEST]), set()).add(len(parts))

    def find(self, text: str) -> Hit | None:
        """The first overlap of a training prompt, if there is one."""
        if hit := self._same.get(plain(text)):
            return hit
        said = words(text)
        for k in range(len(said) - SHORTEST + 1):
            for length in self._heads.get(" ".join(said[k : k + SHORTEST]), ()):
                if hit := self._grams.get(" ".join(said[k : k + length])):
                    return hit
        return None


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def _grams(said: list[str]) -> list[str]:
    length = min(LONGEST, len(said))
    if length >= SHORTEST:
        return [" ".join(said[k : k + length]) for k in range(len(said) - length + 1)]
    return []
