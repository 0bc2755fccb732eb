"""Claims of answers in Markdown: what is one claim, and what is left when claims are dropped."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from langchain_cfc.claims import SentenceSplitter, Span, restore_text

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# What each answer claims; `>` separates what governs a claim from its own words.
LAYOUTS = {
    "Lima is big. It is dry.": ["Lima is big.", "It is dry."],
    "Facts:\n- Lima is big\n- It is dry": ["Facts: > Lima is big", "Facts: > It is dry"],
    "Facts:\n\n* Lima is big. It is dry.\n* Peru is long": [
        "Facts: > Lima is big.",
        "Facts: > It is dry.",
        "Facts: > Peru is long",
    ],
    "1. Open it.\n2. Wait 5 min.\n3) Close it.": ["Open it.", "Wait 5 min.", "Close it."],
    "Facts:\n\u2013 Lima is big\n\u2013 It is dry": [
        "Facts: > \u2013 Lima is big",
        "Facts: > \u2013 It is dry",
    ],
    "\u2705 Lima is big\n\u274c It is wet": ["\u2705 Lima is big", "\u274c It is wet"],
    "(a) Lima is big\n(b) It is dry": ["(a) Lima is big", "(b) It is dry"],
    "Name: Ada Lovelace\nBorn: 1815\nDied: 1852": ["Name: Ada Lovelace", "Born: 1815", "Died: 1852"],
    "**Name:** Ada\n**Born:** 1815": ["**Name:** Ada", "**Born:** 1815"],
    "Lima is the capital of Peru,\nand it has 9 moons. It is big.": [
        "Lima is the capital of Peru,\nand it has 9 moons.",
        "It is big.",
    ],
    "The city on the dry coast of the country of\nPeru is Lima, with a harbour and with\nan airport.": [
        "The city on the dry coast of the country of\nPeru is Lima, with a harbour and with\nan airport."
    ],
    "# Peru\nLima is big.\n\n## Chile\nIt is long. It is dry.\n\n# Ecuador\nIt is high.": [
        "Peru > Lima is big.",
        "Peru > Chile > It is long.",
        "Peru > Chile > It is dry.",
        "Ecuador > It is high.",
    ],
    "Peru\n====\n\nLima is big.\n\nChile\n----\n\nIt is long.": [
        "Peru\n==== > Lima is big.",
        "Peru\n==== > Chile\n---- > It is long.",
    ],
    "**Lima**\n\nIt is big.\n\n**Quito**\n\nIt is high. It is old.": [
        "**Lima** > It is big.",
        "**Quito** > It is high.",
        "**Quito** > It is old.",
    ],
    "Myths:\n- Iron floats\n- Fish fly\n\nThese are facts:\n- Iron sinks": [
        "Myths: > Iron floats",
        "Myths: > Fish fly",
        "These are facts: > Iron sinks",
    ],
    "Myths:\n\nIron floats.\n\nFish fly.\n\nFacts:\n\nIron sinks.": [
        "Myths: > Iron floats.",
        "Myths: > Fish fly.",
        "Facts: > Iron sinks.",
    ],
    "It is old. The following are myths.\n\n1. Iron floats\n2. Fish fly": [
        "It is old.",
        "The following are myths. > Iron floats",
        "The following are myths. > Fish fly",
    ],
    "- Peru\n  - Lima is big\n  - It is dry\n- Chile\n  - It is long": [
        "Peru > Lima is big",
        "Peru > It is dry",
        "Chile > It is long",
    ],
    "- Lima is big.\n\n  It is dry.\n- Peru is long.": ["Lima is big.", "It is dry.", "Peru is long."],
    "Is it safe?\n\nIt is for adults.\n\nIs it cheap?\n\nIt is not.": [
        "Is it safe? > It is for adults.",
        "Is it cheap? > It is not.",
    ],
    "Q: Is it big? A: It is. Q: Is it old? A: It is not.": [
        "Q: Is it big? A: It is.",
        "Q: Is it old? A: It is not.",
    ],
    "Capitals are: 1. Lima. 2. Quito.": ["Capitals are: > 1. Lima.", "Capitals are: > 2. Quito."],
    "**Answer.** It is Lima. I am sure.": ["**Answer.** > It is Lima.", "**Answer.** > I am sure."],
    "**Pros:** It is cheap. **Cons**: It burns. It smells. Of **note: it** is red.": [
        "**Pros:** > It is cheap.",
        "**Cons**: > It burns.",
        "**Cons**: > It smells.",
        "**Cons**: > Of **note: it** is red.",
    ],
    "He came on Jan. 3. He left.": ["He came on Jan. 3. He left."],
    "**Harms of A:** It burns. It smells.": ["**Harms of A:** > It burns.", "**Harms of A:** > It smells."],
    "**Lima is the capital.** It is dry.": ["**Lima is the capital.**", "It is dry."],
    "It is dry. **Lima is big. It is old.** Done here.": [
        "It is dry.",
        "**Lima is big. It is old.**",
        "Done here.",
    ],
    "*Lima* is **big** and ***old***. It is ~~wet~~ dry.": [
        "*Lima* is **big** and ***old***.",
        "It is ~~wet~~ dry.",
    ],
    "> Lima is big. It is dry.\n> Peru is long.\n\nSo he said.": [
        "Lima is big.",
        "It is dry.",
        "Peru is long.",
        "So he said.",
    ],
    "> Facts:\n>\n> - Lima is big\n> - It is dry": ["Facts: > Lima is big", "Facts: > It is dry"],
    "| City | Size |\n|---|---|\n| Lima | Big. Dry. |\n| Quito | High. |": [
        "| City | Size |\n|---|---| > | Lima | Big. Dry. |",
        "| City | Size |\n|---|---| > | Quito | High. |",
    ],
    "Cities.\n\nCity | Size\n--- | ---\nLima | big\nQuito | high\n\nThat is all.": [
        "Cities. > City | Size\n--- | --- > Lima | big",
        "Cities. > City | Size\n--- | --- > Quito | high",
        "That is all.",
    ],
    "Use this:\n\n```python\nprint('Hi. Ho.')\n\nx = 1\n```\n\nIt greets. It ends.": [
        "Use this: > ```python\nprint('Hi. Ho.')\n\nx = 1\n```",
        "It greets.",
        "It ends.",
    ],
    "Run it.\n\n~~~\nls. a\n~~~\nThen stop.": ["Run it.", "~~~\nls. a\n~~~", "Then stop."],
    "- Run this:\n  ```sh\n  ls. a\n  ```\n- Stop then.": ["Run this: > ```sh\n  ls. a\n  ```", "Stop then."],
    "Call `f(x). y` now. It is `fast`.": ["Call `f(x). y` now.", "It is `fast`."],
    "Lima is big. [Peru](https://peru.example/a.b) is long.": [
        "Lima is big.",
        "[Peru](https://peru.example/a.b) is long.",
    ],
    "See it. [Atlas of Peru. Vol. 2][1] says so. Done.\n\n[1]: https://a.example": [
        "See it.",
        "[Atlas of Peru. Vol. 2][1] says so.",
        "Done.",
    ],
    "See it now. ![A map. Old.](https://a.example/m.png) Then go.": [
        "See it now.",
        "![A map. Old.](https://a.example/m.png)",
        "Then go.",
    ],
    "It rains [1](https://a.example/1). It snows [2](https://a.example/2).": [
        "It rains [1](https://a.example/1).",
        "It snows [2](https://a.example/2).",
    ],
    "It rains. [[1]](https://a.example/1) It snows. [[2]](https://a.example/2)": [
        "It rains. [[1]](https://a.example/1)",
        "It snows. [[2]](https://a.example/2)",
    ],
    "It rains.[^1] It snows.[^2]\n\n[^1]: Atlas.\n[^2]: Census.": ["It rains.[^1]", "It snows.[^2]"],
    "It rains. (Smith, 2004) It snows. (Lee et al., 2020)": [
        "It rains. (Smith, 2004)",
        "It snows. (Lee et al., 2020)",
    ],
    "It rains.[citation:1] It snows.[citation:2]": ["It rains.[citation:1]", "It snows.[citation:2]"],
    "It rains.<sup>1</sup> It snows.<sup>[2]</sup> Done now.": [
        "It rains.<sup>1</sup>",
        "It snows.<sup>[2]</sup>",
        "Done now.",
    ],
    "It rains \u30104:0\u2020source\u3011. It snows. \u30104:1\u2020source\u3011 Done now.": [
        "It rains \u30104:0\u2020source\u3011.",
        "It snows. \u30104:1\u2020source\u3011",
        "Done now.",
    ],
    "Yan et al. [2004] found it. They left.": ["Yan et al. [2004] found it.", "They left."],
    "See Fig. 3 too. It is approx. 5 km. They left.": [
        "See Fig. 3 too.",
        "It is approx. 5 km.",
        "They left.",
    ],
    "Louis XIV. ruled. He died.": ["Louis XIV. ruled.", "He died."],
    "In [13], Lee found it. [14] found both. See Fig. [2] too.": [
        "In [13], Lee found it.",
        "[14] found both.",
        "See Fig. [2] too.",
    ],
    "[1] Lima is big. [2] Quito is high.": ["[1] Lima is big.", "[2] Quito is high."],
    "He was born. [sic] He died.": ["He was born. [sic]", "He died."],
    "He died. [A later edition] gives no year.": ["He died.", "[A later edition] gives no year."],
    "Tasks:\n- [x] Water was boiled\n- [ ] Salt was added": [
        "Tasks: > [x] Water was boiled",
        "Tasks: > [ ] Salt was added",
    ],
    "$$x = 1. y = 2.$$ is given. It costs $5.50. It was $6.": [
        "$$x = 1. y = 2.$$ is given.",
        "It costs $5.50.",
        "It was $6.",
    ],
    "By \\(a. B\\) it holds. So it ends.": ["By \\(a. B\\) it holds.", "So it ends."],
    'He said "It is done. We won." Then he left.': ['He said "It is done. We won."', "Then he left."],
    "<ul><li>Lima is big.</li><li>It is dry.</li></ul>\n\nDone.": [
        "<ul><li>Lima is big.</li><li>It is dry.</li></ul>",
        "Done.",
    ],
    "It is <b>big. And dry</b>. It is old.": ["It is <b>big. And dry</b>.", "It is old."],
    "Lima is big.\r\nIt is dry.\r\n\r\n- One is odd.\r\n- Two is even.": [
        "Lima is big.",
        "It is dry. > One is odd.",
        "It is dry. > Two is even.",
    ],
    "Lima is big.\n\n---\n\nIt is dry.\n\n***\n\nIt is old.": ["Lima is big.", "It is dry.", "It is old."],
    "\u5229\u9a6c\u3002\n\n\u4e8b\u5b9e\uff1a\n- \u79d8\u9c81\n- \u4eba\u53e3": [
        "\u5229\u9a6c\u3002",
        "\u4e8b\u5b9e\uff1a > \u79d8\u9c81",
        "\u4e8b\u5b9e\uff1a > \u4eba\u53e3",
    ],
    "## Drug A\n\n### Harms\n\n- none known\n\n### Uses\n\n- pain\n\n## Drug B\n\n### Harms\n\n- rash": [
        "Drug A > Harms > none known",
        "Drug A > Uses > pain",
        "Drug B > Harms > rash",
    ],
    "1. **Lima**\n   - It is big\n2. **Quito**\n   - It is high": [
        "**Lima** > It is big",
        "**Quito** > It is high",
    ],
}


def list_claims(answer: str) -> list[str]:
    """The claims of an answer, with ` > ` after each thing that governs them."""
    shown = []
    for span in SentenceSplitter().split(answer):
        own = answer[span.start : span.end]
        text = own if span.text is None else span.text
        assert text.endswith(own)
        shown.append(text.removesuffix(own).replace("\n", " > ") + own)
    return shown


def normalise(claim: str) -> str:
    return " ".join(re.sub(r"\n[>\s]*| > ", " ", claim).split())


def count_marks(text: str) -> dict[str, int]:
    """How many marks a reader of the rendered text sees, which no one meant to show."""
    rendered = MARKDOWN.render(text)
    seen = re.sub(r"<code.*?</code>|<[^>]*>", "", rendered, flags=re.DOTALL)
    return {mark: seen.count(mark) for mark in ("**", "*", "~~", "`", "](", "[", "]")}


@pytest.mark.parametrize("answer", LAYOUTS)
def test_sentence_splitter_reads_layouts(answer: str) -> None:
    assert list(map(normalise, list_claims(answer))) == list(map(normalise, LAYOUTS[answer]))


@pytest.mark.parametrize("answer", LAYOUTS)
def test_text_without_some_claims_makes_the_others_and_no_other_one(answer: str) -> None:
    """Each claim is dropped in turn, then each is kept alone, and some together."""
    spans = SentenceSplitter().split(answer)
    claims = list_claims(answer)
    places = range(len(spans))
    assert restore_text(answer, spans, [True] * len(spans)) == answer
    marks = count_marks(answer)
    dropped = [{one} for one in places] + [set(places) - {one} for one in places]
    dropped += map(set, itertools.combinations(places, 2))
    for gone in dropped:
        left = restore_text(answer, spans, [place not in gone for place in places])
        kept = [claim for place, claim in enumerate(claims) if place not in gone]
        assert list(map(normalise, list_claims(left))) == list(map(normalise, kept))
        assert all(count <= marks[mark] for mark, count in count_marks(left).items())
        assert left.count("```") % 2 == left.count("$$") % 2 == 0


def test_old_rules_would_move_claims_under_another_heading() -> None:
    """The control: without what governs them, claims are made under another heading."""
    answer = "Harms of A:\n- rash\n\nHarms of B:\n- none"
    spans = [Span(0, 18), Span(20, 31), Span(32, 38)]
    left = answer[0:18] + "\n\n" + answer[32:38]
    assert normalise(list_claims(left)[-1]) == "Harms of A: none"
    assert restore_text(answer, spans, [True, False, True]) == answer[0:18]  # the rest goes with its heading


@pytest.mark.parametrize("start", range(0, 30, 3))
@pytest.mark.parametrize("length", [5, 12])
def test_spans_anywhere_leave_well_formed_text(start: int, length: int) -> None:
    answer = (
        "**Ada Lovelace** was born in *1815*, see [her *notes*](https://a.example/x) on `the engine`. Done."
    )
    for first, second in ((True, False), (False, True)):
        spans = [Span(start, start + length), Span(start + length, len(answer))]
        left = restore_text(answer, spans, [first, second])
        assert not any(count_marks(left).values())


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["- ", "# ", "> ", "**", "*", "`", "[a](b)", "\n", "\n\n", "A is b. ", "c:", "|", "x"]
        )
    )
)
def test_any_text_is_left_whole_if_all_is_kept_and_empty_if_none_is(pieces: list[str]) -> None:
    answer = "".join(pieces)
    spans = SentenceSplitter().split(answer)
    assert restore_text(answer, spans, [False] * len(spans)) == ""
    words = re.findall(r"\w+", restore_text(answer, spans, [True] * len(spans)))
    assert words == (re.findall(r"\w+", answer) if spans else [])
