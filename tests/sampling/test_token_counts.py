"""Usage that is not all integers: it is counted as far as it states numbers of tokens, and nothing fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser

from langchain_cfc import CFCChatModel
from langchain_cfc.sampling.token_counts import read_count, read_usage, sum_usage
from tests.calls import Invoke
from tests.factories import make_chain
from tests.fakes import TEXTS, N
from tests.sampling.usage_forms import FORMS, READABLE, FormModel


def token_counts(usage: Any) -> tuple[int, int, int]:
    return usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]


@pytest.mark.parametrize("is_parsed", [False, True])
def test_any_form_of_usage_is_served_and_counted(invoke: Invoke, is_parsed: bool) -> None:
    for name in FORMS:
        model = FormModel(texts=TEXTS, form=name)
        chain = make_chain(generator=model | StrOutputParser() if is_parsed else model)
        result = invoke(chain, "q")
        assert result.best == "lima|0.1", name
        if name in READABLE:
            assert token_counts(result.usage) == (3 * N, 2 * N, 5 * N), name
        written = json.loads(result.model_dump_json())["usage"]
        assert written == (None if result.usage is None else json.loads(json.dumps(result.usage))), name
        if not is_parsed:
            [batched] = chain.batch(["q"], return_exceptions=True)
            message = invoke(CFCChatModel(chain=chain, full_result=True), "q")
            assert batched.usage == message.usage_metadata == result.usage, name


def test_usage_of_a_verifiers_model_is_added_in_any_form() -> None:
    judge = FormModel(texts=["0.1"] * N, form="cost")
    verifier = judge | StrOutputParser() | float
    chain = make_chain(
        generator=FormModel(texts=TEXTS, form="list"),
        verifier=lambda question, candidates: [verifier.invoke(question) for _ in candidates],
    )
    result = chain.invoke("q")
    assert token_counts(result.usage) == (6 * N, 4 * N, 10 * N)
    assert result.usage is not None
    assert result.usage["total_cost"] == 0.01
    assert result.usage["prompt_tokens_details"] == READABLE["list"]["prompt_tokens_details"]


def test_sums_of_every_two_forms_are_usage_of_a_message() -> None:
    for first in FORMS.values():
        for second in FORMS.values():
            read = [read_usage(first), read_usage(second)]
            total = sum_usage(read)
            assert (total is None) == (not any(read))
            # The constructor validates it, and serialisation writes it.
            AIMessage("", usage_metadata=total).model_dump_json()
            known: Any = total or {"input_tokens": 0}
            assert known["input_tokens"] == sum(one.get("input_tokens", 0) for one in read)


def test_sum_adds_numbers_at_every_level_and_keeps_the_first_of_the_rest() -> None:
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        "tier": "a",
        "n": 2,
        "deep": {"in": {"n": 1, "cost": 0.5}},
    }
    other = {
        "input_tokens": 1,
        "output_tokens": 1,
        "tier": 3,
        "n": {"m": 1},
        "deep": {"in": {"n": 4}, "k": 6},
    }
    assert sum_usage([read_usage(usage), None, read_usage(other)]) == {
        "input_tokens": 2,
        "output_tokens": 2,
        "total_tokens": 4,
        "tier": 3,  # a number is never lost to what is none
        "n": 2,
        "deep": {"in": {"n": 5, "cost": 0.5}, "k": 6},
    }


@pytest.mark.parametrize(
    ("value", "count"),
    [(0, 0), (7, 7), (7.0, 7), (10**12, 10**12), (10**12 + 1, None), (-1, None), (True, None), ("7", None)],
)
def test_numbers_of_tokens_are_whole_and_credible(value: Any, count: int | None) -> None:
    assert read_count(value) == count
