"""Where words stand in a text: found by their letters and digits, whatever the marks, case and accents."""

from __future__ import annotations

import re
import unicodedata
from difflib import SequenceMatcher
from itertools import pairwise

from langchain_cfc.support.layout import Range
from langchain_cfc.support.normalisation import unify_characters

_SIGNS = ".!?\u2026\u3002\uff01\uff1f"
_ELLIPSIS = re.compile(r"\.{3}|\u2026")
# The share of a quote's letters that its place in the answer has, in at most so many times its length.
_MIN_SHARED, _MAX_STRETCH = 0.85, 1.3
_MIN_RUN = 4
# What no quote may add, leave out or change: a number or a negation.
_CHANGES = re.compile(
    r"\d|n[eo]?t|never|none?|without|nicht|kein|ohne|pas|sans|sin|nunca|jamais|нет?|ни|[不没沒無]|ない"
)


class Letters:
    """The letters and digits of a text, in one case and without accents, with their places.

    Attributes:
        folded: The letters and digits alone.
    """

    def __init__(self, text: str) -> None:
        self._text, self.folded, self._places = text, "", list[int]()
        self._found: dict[str, int] = {}
        for place, character in enumerate(text):
            plain = unicodedata.normalize("NFD", unify_characters(character).casefold())
            for letter in filter(str.isalnum, plain):
                self.folded += letter
                self._places.append(place)

    def find(self, words: str) -> Range | None:
        """Return where words stand, in this or another form; with `...` in them, from the first to the last.

        Letters and digits count alone. If they are not found, a place with nearly the same letters is, unless
        a number or a negation differs. The same words again are found at their next place.
        """
        parts = [letters for part in _ELLIPSIS.split(words) if (letters := Letters(part).folded)]
        joined = "".join(parts)
        if not parts:
            return None
        for begin in (self._found.get(joined, 0), 0):
            start = place = self._find_word(parts[0], begin)
            for part in parts[1:]:
                place = place if place < 0 else self._find_word(part, place)
            if place >= 0:
                self._found[joined] = end = place + len(parts[-1])
                return self._extend(start, end, words)
        return self._find_similar(joined)

    def _find_word(self, letters: str, begin: int) -> int:
        """Return where letters begin that are not a part of a longer word; -1 if nowhere."""
        start = self.folded.find(letters, begin)
        while start >= 0:
            last = start + len(letters) - 1
            sides = [(start, start - 1), (last, last + 1)]
            if not any(self._is_one_word(inner, outer) for inner, outer in sides):
                return start
            start = self.folded.find(letters, start + 1)
        return -1

    def _is_one_word(self, inner: int, outer: int) -> bool:
        if not 0 <= outer < len(self._places) or unicodedata.category(self.folded[inner]) == "Lo":
            return False  # scripts without spaces
        return abs(self._places[inner] - self._places[outer]) <= 1

    def _find_similar(self, letters: str) -> Range | None:
        matcher = SequenceMatcher(None, self.folded, letters, autojunk=False)
        blocks = [one for one in matcher.get_matching_blocks() if one.size >= _MIN_RUN]
        shared = sum(one.size for one in blocks)
        if not blocks or shared < _MIN_SHARED * len(letters):
            return None
        apart = [(letters, 0, blocks[0].b), (letters, blocks[-1].b + blocks[-1].size, len(letters))]
        for one, other in pairwise(blocks):
            apart += [(letters, one.b + one.size, other.b), (self.folded, one.a + one.size, other.a)]
        if any(_CHANGES.search(text[begin:end]) for text, begin, end in apart):
            return None
        start, end = blocks[0].a, blocks[-1].a + blocks[-1].size
        return self._extend(start, end, "") if end - start <= _MAX_STRETCH * len(letters) else None

    def _extend(self, start: int, end: int, words: str) -> Range:
        """Return the range in the text, with the signs at its end that the words have as well."""
        last = self._places[end - 1] + 1
        closing = words[len(words.rstrip(_SIGNS)) :]
        while closing and self._text[last : last + 1] == closing[0]:
            last, closing = last + 1, closing[1:]
        return self._places[start], last
