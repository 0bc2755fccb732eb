"""Layout of an answer in Markdown: what is one unit, what is never cut, and what governs what follows.

`markdown-it-py` parses blocks and inline marks. A *unit* is what sentences are searched in: the lines of a
paragraph that run on, a row of a table, a whole block of code or HTML. A unit is *whole* if it is not split.
Inside a unit, links, images, code, formulas and HTML elements are *atoms*: shown as a whole or not at all.
Marks of emphasis are shown in pairs.

A *governor* says what the text after it is about, so that text would say something else without it:

- a heading, or a line in bold, governs everything up to the next heading of its rank or above;
- a line that ends with a colon or question mark governs the lines, list, table or code after it, and so does
  the last line before a list or table;
- the first row of a table governs the others;
- words in bold that open a line and end with a colon, or up to three that end with a full stop, govern it, as
  do words with a colon before a list within a line; words in bold that open a later sentence and end with a
  colon govern what follows in their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from langchain_cfc.support.imports import require

_LINE_END = re.compile(r"\r\n?|\n")
# Marks of lists and quotations before a block that is not parsed for inline marks.
_MARGIN = re.compile(r"(?:[ \t>]|[-+*][ \t]|\d{1,9}[.)][ \t])*")
_INDENT = re.compile(r"[ \t]*")
_FORMULA = re.compile(
    r"\$\$.+?\$\$|\\\[.+?\\\]|\\\(.+?\\\)|(?<![\\$\w])\$(?=\S)[^$\n]*[^$\s]\$(?![\d$])", re.DOTALL
)
_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\](?=:)")
_COLONS, QUESTIONS = (":", "\uff1a"), ("?", "\uff1f", "\u061f")
_STOPS = (".", "!", "\u2026", "\u3002", "\uff01")
_LABEL = re.compile(r"\(?\w{1,4}[.)]\s")
_LIST_IN_LINE = re.compile(r"(?<=[:\uff1a])\s+(?=\(?(?:\d{1,2}|[A-Za-z])[.)]\s)")
_MARKS = "*_~ \t\r\n"
# Lines of this width and more may be prose that was wrapped.
_WRAPPED_WIDTH = 40
_RUN_IN_WORDS = 3
# Of marks and blanks between a sentence and the words in bold that open the next one.
_MOST_BLANKS = 8
# Of a line in bold, below six ranks of headings.
_TITLE_RANK = 7
_CONTAINERS = ("blockquote", "bullet_list", "ordered_list", "list_item")
Range = tuple[int, int]


class Unit(NamedTuple):
    """A part of an answer in which sentences are searched.

    Attributes:
        start: Position of its first character, after marks such as `- ` or `# `.
        end: Position after its last character.
        is_whole: Whether it is one claim, however long.
        atoms: Ranges that are shown as a whole or not at all.
        emphasis: Ranges of text with marks around it, each with the length of one mark; inner ones first.
    """

    start: int
    end: int
    is_whole: bool = False
    atoms: tuple[Range, ...] = ()
    emphasis: tuple[tuple[int, int, int], ...] = ()


class Governor(NamedTuple):
    """Text in [start, end) that governs [first, last); if `is_tail`, only its last sentence or claim does."""

    start: int
    end: int
    first: int
    last: int
    is_tail: bool = False


@dataclass(frozen=True)
class _Part:
    """A heading, a line or another block among its siblings."""

    kind: str
    start: int
    end: int
    rank: int = 0
    is_lead: bool = False
    paragraph: int = -1


@dataclass
class _Container:
    kind: str
    parts: list[_Part] = field(default_factory=list)
    first_margin: int = 0


@cache
def _make_parser() -> Any:
    """Return a parser whose inline rules note in `env` where their marks are, which its tokens do not say."""
    parser = require("markdown_it", "claims", "reading the layout of an answer").MarkdownIt("commonmark")
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.disable("inline")
    rules = require("markdown_it.rules_inline", "claims", "reading the layout of an answer")
    for name in ("backticks", "link", "image", "autolink", "html_inline"):
        parser.inline.ruler.at(name, _note_atom(name, getattr(rules, name.removesuffix("s"))))
    for name in ("emphasis", "strikethrough"):
        parser.inline.ruler.at(name, _note_marks(getattr(rules, name).tokenize))
    return parser


def _note_atom(name: str, rule: Callable[[Any, bool], bool]) -> Callable[[Any, bool], bool]:
    def run(state: Any, silent: bool) -> bool:
        start, atoms = state.pos, state.env["atoms"]
        known = len(atoms)
        is_found = rule(state, silent)
        if is_found and not silent:
            del atoms[known:]  # those inside, which count from another start in an image
            atoms.append((start, state.pos, name))
        return is_found

    return run


def _note_marks(rule: Callable[[Any, bool], bool]) -> Callable[[Any, bool], bool]:
    def run(state: Any, silent: bool) -> bool:
        known = len(state.tokens)
        is_found = rule(state, silent)
        place = state.pos
        for token in reversed(state.tokens[known:] if is_found and not silent else ()):
            place -= len(token.content)
            token.meta["place"] = place
        return is_found

    return run


class Layout:
    """What an answer in Markdown, with tables, or in plain text consists of.

    Attributes:
        units: All parts that may make claims, in the order of the parser.
        governors: What governs what, outer ones first.
        margins: Ranges of marks at the start of lines, such as `> ` and `- `, in order, each with the end of
            the item of a list that it begins, or its own end.
        definitions: Ranges of the targets of links and footnotes, each with what refers to it.

    Raises:
        MissingExtraError: If markdown-it-py is not installed.
    """

    def __init__(self, answer: str) -> None:
        self.units: list[Unit] = []
        self.governors: list[Governor] = []
        self.margins: list[tuple[int, int, int]] = []
        self.definitions: list[tuple[int, int, str]] = []
        self._answer = answer
        ends = [found.span() for found in _LINE_END.finditer(answer)]
        # The start of each line, and its end without the line break.
        self._lines = list(
            zip([0, *(end for _, end in ends)], [*(start for start, _ in ends), len(answer)], strict=True)
        )
        self._read()
        self.governors.sort(key=lambda one: (one.start, -one.last))
        self.margins.sort()

    def _read(self) -> None:
        env: dict[str, Any] = {}
        stack = [_Container("answer")]
        opened: Any = None
        rows: list[Sequence[int]] = []
        for token in _make_parser().parse(self._answer, env):
            kind, _, step = token.type.rpartition("_")
            if kind in _CONTAINERS and step == "open":
                stack.append(_Container(kind, first_margin=len(self.margins)))
            elif kind in _CONTAINERS:
                self._close(stack.pop(), stack[-1])
            elif token.type == "inline" and opened.type in {"heading_open", "paragraph_open"}:
                rank = int(opened.tag[1:]) if opened.type == "heading_open" else 0
                stack[-1].parts += self._read_lines(token.content, rank, opened.map)
            elif token.type == "tr_open":
                rows.append(token.map)
            elif token.type == "table_close":
                stack[-1].parts.append(self._read_table(rows, len(stack) > 1))
                rows = []
            elif token.type in {"fence", "code_block", "html_block", "hr"}:
                stack[-1].parts += self._read_whole(token, len(stack) > 1)
            if step == "open":
                opened = token
        self._govern(stack[0].parts)
        for label, target in env.get("references", {}).items():
            start, end = self._find_block(target["map"], inside=False)
            self.definitions.append((start, end, f"[{label.casefold()}]"))

    def _close(self, container: _Container, outer: _Container) -> None:
        """Note what governs what in a container, and add it to the outer one."""
        if not container.parts:
            return
        self._govern(container.parts)
        start, end = container.parts[0].start, container.parts[-1].end
        if container.kind == "list_item" and container.first_margin < len(self.margins):
            self.margins[container.first_margin] = (*self.margins[container.first_margin][:2], end)
        outer.parts.append(_Part("list" if container.kind.endswith("list") else "block", start, end))

    def _find_block(self, lines: Sequence[int], inside: bool) -> Range:
        """Return where a block begins after its margin, which is noted, and where it ends."""
        first, last = self._lines[lines[0]], self._lines[min(lines[1], len(self._lines)) - 1]
        found = (_MARGIN if inside else _INDENT).match(self._answer, *first)
        start = first[0] if found is None else found.end()
        if start > first[0]:
            self.margins.append((first[0], start, start))
        return start, start + len(self._answer[start : last[1]].rstrip())

    def _read_whole(self, token: Any, inside: bool) -> list[_Part]:
        start, end = self._find_block(token.map, inside)
        if token.type == "hr":
            self.margins.append((start, end, end))
            return []
        self.units.append(Unit(start, end, is_whole=True))
        return [_Part("block", start, end)]

    def _read_table(self, lines: Sequence[Sequence[int]], inside: bool) -> _Part:
        (start, _), *rows = [self._find_block(one, inside) for one in lines]
        # With the line below the first row, which says where the columns are.
        end = self._lines[lines[0][0] + 1][1]
        self.units += [Unit(*one, is_whole=True) for one in [(start, end), *rows]]
        if rows:
            self.governors.append(Governor(start, end, rows[0][0], rows[-1][1]))
        return _Part("list", start, rows[-1][1] if rows else end)

    def _read_lines(self, content: str, rank: int, whole: Sequence[int]) -> list[_Part]:
        """Return the lines of a heading or paragraph; those that run on are one."""
        pieces = content.split("\n")
        # Where each line of the content begins in the answer, and where each of its characters is.
        begins: list[int] = []
        places: list[int] = []
        for piece, (start, end) in zip(pieces, self._lines[whole[0] : whole[1]], strict=False):
            found = self._answer[start:end].replace("\0", "\ufffd").rfind(piece.rstrip())
            if found < 0:  # tabs that were replaced
                block = self._find_block(whole, inside=True)
                self.units.append(Unit(*block, is_whole=True))
                return [_Part("line", *block, rank)]
            begins.append(start + found)
            places += range(start + found, start + found + len(piece) + 1)
            if found:
                self.margins.append((start, start + found, start + found))
        inline, marked = _find_inline(content)
        atoms = [(places[start], places[end - 1] + 1) for start, end in inline]
        emphasis = [(places[start], places[end - 1] + 1, size) for start, end, size in marked]
        bound = [*atoms, *((start, end) for start, end, _ in emphasis)]
        width = max(map(len, pieces))
        parts: list[_Part] = []
        first = 0
        for line, piece in enumerate(pieces):
            is_last = line + 1 == len(pieces)
            if not is_last and (
                rank
                or any(start < begins[line + 1] < end for start, end in bound)
                or _runs_on(piece, pieces[line + 1], width)
            ):
                continue
            start = begins[first]
            end = self._lines[whole[1] - 1][1] if rank else begins[line] + len(piece.rstrip())
            first = line + 1
            unit = Unit(
                start,
                start + len(self._answer[start:end].rstrip()),
                False,
                tuple(one for one in atoms if start <= one[0] < end),
                tuple(one for one in emphasis if start <= one[0] < end),
            )
            parts += self._read_unit(unit, rank, whole[0])
        return parts

    def _read_unit(self, unit: Unit, rank: int, paragraph: int) -> list[_Part]:
        text = self._answer[unit.start : unit.end]
        footnote = _FOOTNOTE.match(text)
        if footnote is not None:
            self.definitions.append((unit.start, unit.end, footnote[0].casefold()))
            return []
        self.units.append(unit)
        bold = next((one for one in unit.emphasis if one[0] == unit.start and one[2] > 1), None)
        listed = _LIST_IN_LINE.search(text)
        if listed is not None:
            first = unit.start + listed.start()
            self.governors.append(Governor(unit.start, first, first, unit.end, is_tail=True))
        is_lead = text.rstrip(_MARKS).endswith((*_COLONS, *QUESTIONS))
        if bold is not None and not rank:
            words = self._answer[bold[0] : bold[1]].strip(_MARKS)
            after = self._answer[bold[1] : unit.end]
            if not after.strip("".join((_MARKS, *_COLONS))) and not words.endswith(_STOPS):
                rank = _TITLE_RANK
        if not rank:
            for one, following in pairwise([*self._find_labels(unit), (unit.end, unit.end)]):
                self.governors.append(Governor(*one, one[1], following[0]))
        return [_Part("line", unit.start, unit.end, rank, is_lead, paragraph)]

    def _find_labels(self, unit: Unit) -> list[Range]:
        """Return the words in bold that open a unit or one of its sentences, and govern what follows."""
        found = []
        for start, end, size in sorted(unit.emphasis):
            words = self._answer[start:end].strip(_MARKS)
            before = self._answer[max(unit.start, start - _MOST_BLANKS) : start].rstrip(_MARKS)
            is_first = start == unit.start
            has_colon = words.endswith(_COLONS) or self._answer.startswith(_COLONS, end)
            is_title = is_first and words.endswith(_STOPS) and len(words.split()) <= _RUN_IN_WORDS
            if size > 1 and (is_title or (has_colon and (is_first or before.endswith((*_STOPS, ";"))))):
                found.append((start, end + self._answer.startswith(_COLONS, end)))
        return found

    def _govern(self, parts: Sequence[_Part]) -> None:
        for place, part in enumerate(parts):
            governed = _find_governed(part, parts[place + 1 :])
            if governed:
                first, last = governed[0].start, governed[-1].end
                self.governors.append(Governor(part.start, part.end, first, last, is_tail=not part.rank))


def _find_governed(part: _Part, later: Sequence[_Part]) -> list[_Part]:
    """Return the siblings after a part that it governs, by the rules at the top."""
    if part.rank:
        return list(takewhile(lambda one: not one.rank or one.rank > part.rank, later))
    if part.kind != "line" or not later:
        return []
    follower = later[0]
    if follower.kind != "line":
        is_governed = part.is_lead or follower.kind == "list"
        return list(takewhile(lambda one: one.kind != "line", later)) if is_governed else []
    if not part.is_lead:
        return []
    is_same = follower.paragraph == part.paragraph
    return list(
        takewhile(
            lambda one: (
                not one.rank and not one.is_lead and not (is_same and one.paragraph != part.paragraph)
            ),
            later,
        )
    )


def _find_inline(content: str) -> tuple[list[Range], list[tuple[int, int, int]]]:
    """Return the ranges of a text that are shown as a whole, and those of emphasis with the size of marks."""
    parser = _make_parser()
    env: dict[str, Any] = {"atoms": []}
    open_marks: list[int] = []
    emphasis: list[tuple[int, int, int]] = []
    for token in parser.inline.parse(content, parser, env, []):
        size = len(token.markup)
        if token.type in {"em_open", "strong_open", "s_open"}:
            # The token of `**` stands at its second character, or at the first of two that close.
            open_marks.append(token.meta["place"] - (size - 1 if token.type == "strong_open" else 0))
        elif token.type in {"em_close", "strong_close", "s_close"}:
            emphasis.append((open_marks.pop(), token.meta["place"] + size, size))
    atoms = [(start, end) for start, end, _ in env["atoms"]]
    atoms += [found.span() for found in _FORMULA.finditer(content)]
    opened: list[tuple[str, int]] = []
    for start, end, name in env["atoms"]:
        tag = _TAG.match(content, start, end) if name == "html_inline" else None
        if tag is not None and not tag[1]:
            opened.append((tag[2].casefold(), start))
        elif tag is not None:
            first = next(
                (place for element, place in reversed(opened) if element == tag[2].casefold()), start
            )
            atoms.append((first, end))
    return _merge(atoms), emphasis


def _merge(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges of which those that overlap are one."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _runs_on(line: str, following: str, width: int) -> bool:
    """Return whether a line goes on in the next one, because it was wrapped or its sentence does not end."""
    if line.endswith(("  ", "\\")):
        return False
    opening = following.lstrip("*_~`(\"'\u201c\u2018\u00ab")[:1]
    if not opening.isalnum() or _LABEL.match(following):
        return not opening
    if opening.islower():
        return True
    # Wrapped lines end where the next word has no room.
    is_wrapped = len(line) + 1 + len(following.split(maxsplit=1)[0]) > width
    return (
        is_wrapped
        and width >= _WRAPPED_WIDTH
        and not line.rstrip(_MARKS).endswith((*_COLONS, *QUESTIONS, *_STOPS))
    )
