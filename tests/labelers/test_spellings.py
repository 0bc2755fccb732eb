"""Frozen spellings of answers, more than half of them from models and from public test suites.

Each line of the files in `spellings` has the text of an answer, a reference, whether a careful reader calls
the answer right, and where the text is from. The spellings were written down before the readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc.labelers import ClosedSet, MultipleChoice, NormalisedMatch, NumericMatch
from langchain_cfc.labelers.matching import TextMatcher
from tests.calls import is_correct

FILES = [
    Path(__file__).parent / "spellings" / f"{name}.jsonl"
    for name in ("choices", "numbers", "held_out", "doubts")
]


def label_spelling(row: Mapping[str, Any]) -> bool:
    if "members" in row:
        labeler: TextMatcher = ClosedSet(row["members"])
    else:
        labeler = MultipleChoice(row.get("options")) if row["reference"].isalpha() else NumericMatch()
    return is_correct(labeler, row["reference"], row["text"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_readers_call_no_wrong_spelling_right_and_read_most_right_ones(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    right = [row for row in rows if row["right"]]
    wrongly_right = [row for row in rows if not row["right"] and label_spelling(row)]
    unread = [row["text"] for row in right if not label_spelling(row)]
    share = 1 - len(unread) / len(right)
    assert not wrongly_right, f"{len(wrongly_right)} wrong ones called right: {wrongly_right}"
    assert share >= 0.85, f"{share:.1%} of {len(right)} right ones read; not read: {unread}"


def test_spellings_are_mostly_from_models_and_public_test_suites() -> None:
    rows = [json.loads(line) for path in FILES for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 220
    assert sum(not row["source"].startswith("own") for row in rows) > len(rows) / 2


# Sentences that a careful reader calls wrong or right, with these references.
LABELERS = {
    "5": NumericMatch(),
    "Lima": NormalisedMatch(anywhere=True),
    "yes": ClosedSet(["yes", "no"]),
    "A": MultipleChoice(),
    "B": MultipleChoice(),
}
WRONG = {
    "5": """
        It is 5 degrees of frost. | Take 5. | Give me 5. | According to the myth the answer is 5. |
        When n = 5 | You might think the answer is 5. | Many sources claim it is 5. | The old total was 5. |
        log x = 5 | The answer to part (a) is 5. | The answer to the first question is 5. |
        The numerator is 5. | 1/x = 5 | So far we have 5. | One possibility is 5. | The first root is 5. |
        x = 5 (rejected) | Experts predicted 5. | The upper bound is 5. | Answer: 5. Edit: it is 6. |
        Answer: 5. Let me fix that: 6. | Here are 5 examples. | Answer: 5. That can't be right. |
        Answer: 5. Hold on, it's 6. | Answer: 5. I made an error above. | Answer: 5. My mistake: 6. |
        Answer: 5. This contradicts the first line. | Answer: 5. Make that 6. | She began with 5. |
        The exponent is 5. | Answer: 5. In fact it is 6. | Bob has 5, so Ann has half as many. |
        x = 5, which is impossible.
    """,
    "Lima": """
        The runner-up is Lima. | Others say: Lima. | The former capital is Lima. |
        It is often said to be Lima. | According to legend it is Lima. | Critics argue it is Lima. |
        In the film it is Lima. | One option is Lima. | A popular belief is that it is Lima. |
        I thought it was Lima. | It would have been Lima. | Such as Lima. | Lima, for example. |
        Lima, among others. | Callao, in Lima. | A museum in Lima. | As old as Lima. |
        It is the opera house in Lima. | Cusco is the answer. Lima is its rival. |
        Lima is large. It is Cusco. | Lima is the largest city, but Cusco is the capital. |
        Lima! Just kidding, Cusco. | Lima is a nice place. | Lima. Hold on, Cusco. | Second choice: Lima |
        Distractor: Lima | Früher war es Lima. | Lima Incorporated | It was inspired by Lima. |
        Lima followed by Cusco. | Cusco: Lima is in the east. | Loser: Lima | Among them is Lima. |
        Lima ceased to be it. | Cusco, surrounded by Lima.
    """,
    "yes": """
        Others say: yes | Cats: yes | Option 1: yes | First answer: yes | Yes, maybe. | Until 2006, yes. |
        Yes, it was until 2006. | At first glance, yes. | On paper, yes. | Before 1990, yes. | Yes, kind of. |
        Yes, in some cases. | Yes, I guess. | Yes, you are right to ask; it isn't. | Yes, great question. |
        Yes, I can help with that. | The author would answer yes. | The converse is true. | Yes. Hold on. |
        Yes, almost. | Yes, historically. | Yes, by some definitions. | Her answer was yes. |
        Yes, I suppose. | Yes, but the opposite holds in winter. | Expected answer: yes |
        Statement 1 is true. | Yes, after 1990. | Yes - at least in part. | Yes, roughly half the time. |
        Yes, so I hear. | Yes, were it not for one case. | Yes, give or take. | Yes, up to a point. |
        Yes, strictly speaking it has two.
    """,
    "B": """
        Others choose B. | Students often pick B. | Critics would select B. | Answer: B (wrong) |
        B. But C is right. | B looks right, but it isn't. | B. Let me check again: C. |
        The next best answer is B. | B. Alternatively C. | B. On reflection, C. | B. I take that back: C. |
        The trick answer is B. | B, provided n is odd.
    """,
}
RIGHT = {
    "5": """
        The area is $5 \\text{ cm}^2$. | Mary read 5 books last week. | It takes 5 hours. |
        I'd say the answer is 5. | The answer to the question is 5. |
        Answer: 5. Let me know if you have questions. | 合計5個です。
    """,
    "Lima": """
        I think it is Lima. | The capital is Lima; it was founded in 1535. | It is located in Lima. |
        In Lima. | Sure! The capital is Lima. | Lima was founded in 1535. | It took place in Lima. |
        It can be found in Lima. | I'm sure that it is Lima. | Definitely Lima. | Lima, of course. |
        It happened in Lima.
    """,
    "yes": """
        In short, yes. | According to the passage, yes. | Cats purr, so yes. | Yes, many birds can fly. |
        To answer your question: yes. | Yes. Let me explain: it has feathers. | Antwort: yes |
        Yes, absolutely.
    """,
    "B": """
        I choose B. | We should choose B. | Let's go with B. | Therefore, I pick B. | B is correct.
    """,
    "A": "A\n\nExplanation: it is on the coast.",
}


def list_sentences(table: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(reference, one.strip()) for reference, block in table.items() for one in block.split(" |")]


@pytest.mark.parametrize(("reference", "text"), list_sentences(WRONG))
def test_readers_refuse_sentences_that_say_something_else(reference: str, text: str) -> None:
    assert not is_correct(LABELERS[reference], reference, text)


@pytest.mark.parametrize(("reference", "text"), list_sentences(RIGHT))
def test_readers_read_sentences_that_give_an_answer(reference: str, text: str) -> None:
    assert is_correct(LABELERS[reference], reference, text)
