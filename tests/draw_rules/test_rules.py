"""Draw rules: their text, and that the number of draws is a function of the prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.draw_rules import DrawRule, parse_draw_rule
from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import IntArray

RULES = [
    "fixed(8)",
    "lead(1, at_most=8)",
    "lead(3, at_most=8)",
    "lead(2, rounds=3+1+4)",
    "below(0.3, at_most=8)",
    "below(0.3, rounds=2+6)",
    "agree(0.8, rounds=2+2+4)",
]
N = 8
PROMPTS = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.1, 0.3, 0.9])), min_size=N, max_size=N),
    min_size=1,
    max_size=4,
)
Prompt = Sequence[tuple[str, float]]


def make_batch(prompts: Sequence[Prompt]) -> CandidateBatch:
    return CandidateBatch.from_arrays(
        [[score for _, score in prompt] for prompt in prompts],
        [[answer for answer, _ in prompt] for prompt in prompts],
    )


def draw_one_by_one(text: str, prompt: Prompt) -> int:
    """Stop as the documentation of `parse_draw_rule` says, without the library."""
    name, rest = text.rstrip(")").split("(")
    value, _, bound = rest.partition(", ")
    sizes = [int(one) for one in bound.partition("=")[2].split("+") if one]
    if name == "fixed":
        return int(value)
    if bound.startswith("at_most"):
        sizes = [1] * sizes[0]
    for drawn in np.cumsum(sizes).tolist():
        answers = Counter(answer for answer, _ in prompt[:drawn]).most_common()
        first, second = [count for _, count in [*answers, ("", 0)][:2]]
        if (
            (name == "lead" and first - second >= int(value))
            or (name == "agree" and 10 * first >= round(10 * float(value)) * drawn)
            or (name == "below" and min(score for _, score in prompt[:drawn]) < float(value))
        ):
            return int(drawn)
    return sum(sizes)


@pytest.mark.parametrize("text", RULES)
@given(prompts=PROMPTS)
def test_draw_rule_stops_as_documented(text: str, prompts: list[list[tuple[str, float]]]) -> None:
    found = parse_draw_rule(text).count_draws(make_batch(prompts))
    assert found.tolist() == [draw_one_by_one(text, prompt) for prompt in prompts]


def is_function_of_prefix(rule: DrawRule, prompt: Prompt, other: Prompt) -> bool:
    """Whether other candidates behind the last draw leave the number of draws as it is."""
    drawn = int(rule.count_draws(make_batch([prompt]))[0])
    return bool(rule.count_draws(make_batch([[*prompt[:drawn], *other[drawn:]]]))[0] == drawn)


@pytest.mark.parametrize("text", RULES)
@given(prompts=PROMPTS, other=PROMPTS)
def test_draw_rule_depends_only_on_the_prefix(
    text: str, prompts: list[list[tuple[str, float]]], other: list[list[tuple[str, float]]]
) -> None:
    assert is_function_of_prefix(parse_draw_rule(text), prompts[0], other[0])


@dataclass(frozen=True)
class StopsAtTheBest(DrawRule):
    """An invalid rule: it stops at the lowest score of all recorded candidates, drawn or not."""

    def count_draws(self, recorded: CandidateBatch) -> IntArray:
        return np.asarray(1 + recorded.scores.argmin(axis=1), dtype=np.int64)


def test_draw_rule_that_reads_later_draws_is_noticed() -> None:
    rng = np.random.default_rng(0)
    prompts = [[("a", float(score)) for score in rng.random(N)] for _ in range(40)]
    peeking = StopsAtTheBest("below", "0.3", (1,) * N)
    assert not all(is_function_of_prefix(peeking, a, b) for a, b in pairwise(prompts))


def test_lead_rule_draws_in_waves_without_a_draw_too_many() -> None:
    rule = parse_draw_rule("lead(3, at_most=10)")
    prefixes = [CandidateBatch.from_arrays([[0.5] * len(one)], [list(one)]) for one in ("aab", "aabaa")]
    sizes = [rule.first_wave, *(int(rule.choose_next_wave(prefix)[0]) for prefix in prefixes)]
    assert sizes == [3, 2, 0]


@pytest.mark.parametrize("text", RULES)
def test_parse_draw_rule_reads_its_canonical_text(text: str) -> None:
    rule = parse_draw_rule(text.replace(", ", ","))
    assert rule.text == text
    assert rule.at_most == N


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lead", "unknown rule"),
        ("first(3, at_most=10)", "unknown rule"),
        ("fixed(0)", "at least 1"),
        ("fixed(3, at_most=10)", "takes a number of draws"),
        ("lead(3)", "at_most=. or .rounds="),
        ("lead(3, rounds=0+4)", "of at least one draw each"),
        ("lead(0.5, at_most=4)", "a lead is a whole number"),
        ("lead(5, at_most=4)", "a lead is a whole number"),
        ("below(1.5, at_most=4)", "must be above 0"),
        ("agree(0.8, at_most=4)", "agrees with itself"),
        ("agree(0.8, rounds=1+4)", "agrees with itself"),
        ("below(0.1, at_most=99999999)", "of at least one draw each"),
    ],
)
def test_parse_draw_rule_refuses_invalid_text(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_draw_rule(text)
