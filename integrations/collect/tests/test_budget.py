"""`Budget`: limits on tokens and cost, and prompts that are not started beyond them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_cfc_collect import CallPolicy, Components, collect
from langchain_cfc_collect.costs import (
    ANY_MODEL,
    Budget,
    BudgetTracker,
    ModelCalls,
    Price,
    Stage,
    Usage,
)
from langchain_cfc_collect.store import Store
from langchain_core.language_models import FakeListLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda

from integrations.collect.tests.fakes import FakeExecutor, make_usage, run
from integrations.collect.tests.sharing import make_numbered_examples, make_silent_options
from langchain_cfc.errors import CollectionError, InputError
from langchain_cfc.verifiers import SelfConsistency
from tests.fakes import TEXTS, N, verify
from tests.lengths import repetitions
from tests.sampling.usage_forms import READABLE, UNREADABLE, FormModel


def make_labels(question: Any, reference: Any, candidates: Sequence[Any]) -> list[bool]:
    """Label everything correct."""
    del question, reference
    return [True] * len(candidates)


ONE = {ANY_MODEL: Price(input=1.0, output=1.0)}


@pytest.mark.parametrize(
    ("spent", "dearest", "under_way", "allowed"),
    [
        (0, None, 0, True),
        (0, None, 1, False),
        (99, None, 0, True),
        # An earlier run has spent it all.
        (100, None, 0, False),
        (150, None, 0, False),
        (80, 20, 0, True),
        (81, 20, 0, False),
        (60, 20, 1, True),
        (61, 20, 1, False),
        (0, 101, 0, False),
    ],
)
def test_budget_allows_a_prompt_only_if_the_dearest_would_fit(
    spent: int, dearest: int | None, under_way: int, allowed: bool
) -> None:
    for budget in (Budget(max_tokens=100), Budget(max_cost=1e-4, prices=ONE)):
        finished = [] if dearest is None else [Stage.LABELLED]
        tracker = BudgetTracker(budget, make_usage(spent), Usage(), finished)
        if dearest is not None:
            tracker.add_earlier(Stage.LABELLED, make_usage(dearest), 0)
        assert tracker.allows(under_way) == allowed


def test_budget_keeps_token_and_cost_limits_of_different_prompts() -> None:
    # Most tokens and highest cost need not be of one prompt.
    prices = {"cheap": Price(input=0.0, output=0.0), "dear": Price(input=1e6, output=1e6)}

    def allows(**limits: Any) -> bool:
        tracker = BudgetTracker(Budget(prices=prices, **limits), Usage(), Usage(), [Stage.LABELLED])
        for usage in (make_usage(90, "cheap"), make_usage(9, "dear")):
            tracker.add_earlier(Stage.LABELLED, usage, 0)
        return tracker.allows(0)

    assert not allows(max_tokens=80)
    assert not allows(max_cost=8.0)
    assert allows(max_tokens=90, max_cost=9.0)


def test_budget_prices_a_model_by_its_longest_matching_prefix() -> None:
    prices = {
        "gpt": Price(input=1.0, output=2.0),
        "gpt-4o-mini": Price(input=10.0, output=20.0),
        ANY_MODEL: Price(input=100.0, output=200.0),
    }
    budget = Budget(prices=prices)
    for model, factor in (("gpt-4o-mini-2024", 10), ("gpt-4o", 1), ("claude", 100), ("", 100)):
        assert budget.compute_cost(make_usage(2_000_000, model)) == pytest.approx(factor * 3.0)
    with pytest.raises(CollectionError, match="'claude' answered, but has no price"):
        Budget(prices={"gpt": prices["gpt"]}).compute_cost(make_usage(1, "claude"))


def test_budget_refuses_missing_prices_and_nonpositive_limits() -> None:
    with pytest.raises(InputError, match="prices"):
        Budget(max_cost=1.0)
    with pytest.raises(InputError, match="above 0"):
        CallPolicy(timeout="2")  # type: ignore[arg-type]  # what must be refused
    wrong: Any
    for wrong in (0, -1, "100"):
        with pytest.raises(InputError, match="above 0"):
            Budget(max_tokens=wrong)
        with pytest.raises(InputError, match="above 0"):
            Budget(max_cost=wrong, prices=ONE)
    with pytest.raises(InputError, match="above 0"):
        Budget(max_cost=float("nan"), prices=ONE)


def test_answers_that_a_stage_does_not_use_count_once() -> None:
    """Two answers of a batch were paid for, of which the stage that drew has used one."""
    seen, paid = (
        Usage((ModelCalls("m", drew, tokens, 0, 1),)) for drew, tokens in ((True, 90), (False, 120))
    )
    unused = paid - seen
    assert (unused.tokens, (seen - paid).tokens) == (30, 0)
    tracker = BudgetTracker(Budget(), paid, paid, ())
    tracker.add_stage(Stage.DRAWN, seen + unused, 0, paid)
    assert tracker.usage.tokens == 120


def test_missing_price_ends_the_run_and_keeps_finished_work(tmp_path: Path) -> None:
    executor, path = FakeExecutor(), tmp_path / "store.db"
    with pytest.raises(CollectionError, match="but has no price"):
        run(path, executor, 5, budget=Budget(max_cost=1.0, prices={"other": ONE[ANY_MODEL]}))
    run(path, executor)
    assert set(executor.done.values()) == {1}


@settings(max_examples=repetitions(30, share=0.3))
@given(
    costs=st.lists(st.integers(1, 100), min_size=1, max_size=40),
    limit=st.integers(1, 2000),
    at_once=st.integers(1, 8),
)
def test_budget_is_exceeded_at_most_by_prompts_under_way(
    memory: Path, costs: list[int], limit: int, at_once: int
) -> None:
    """Spent, less the limit, is at most what prompts under way took beyond the dearest one before them.

    With `at_once` of them that is at most `at_once` times the largest difference; and nothing where all cost
    the same, but for the first, of which nothing is known.
    """
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        executor = FakeExecutor(costs=lambda name: make_usage(costs[int(name[1:])]))
        ran = run(
            Path(folder) / "store.db", executor, len(costs), at_once=at_once, budget=Budget(max_tokens=limit)
        )
        spent = ran.status.usage.tokens
        assert spent == sum(costs[: executor.count("draw")])
        assert spent <= max(limit, costs[0]) + at_once * (max(costs) - min(costs))
        assert ran.complete == (executor.count("draw") == len(costs)) or spent + max(costs) > limit
        # A further run begins nothing where all is spent.
        again = FakeExecutor(costs=executor.costs)
        run(Path(folder) / "store.db", again, at_once=at_once, budget=Budget(max_tokens=limit))
        assert again.count("draw") <= (0 if spent >= limit else len(costs))


def test_a_stage_that_fails_is_charged_to_the_budget(tmp_path: Path) -> None:
    executor = FakeExecutor(
        costs=lambda name: make_usage(10),  # noqa: ARG005 - of all prompts
        fails={("draw", f"p{number}"): CollectionError("no") for number in range(1, 6)},
    )
    ran = run(tmp_path / "store.db", executor, 20, at_once=1, budget=Budget(max_tokens=100))
    assert not ran.complete
    assert (executor.count("draw"), ran.status.usage.tokens) == (10, 100)


@pytest.mark.parametrize("is_parsed", [False, True])
def test_budget_holds_for_any_form_of_usage(tmp_path: Path, is_parsed: bool) -> None:
    limit = 2 * N * 5  # tokens of two of four prompts
    for number, name in enumerate([*READABLE, *UNREADABLE]):
        model, path = FormModel(texts=TEXTS, form=name), tmp_path / f"{number}.db"
        parts = Components(
            model | StrOutputParser() if is_parsed else model,
            verify,
            make_labels,
            N,
            generator_id="m",
            verifier_id="v",
            labeler_id="l",
        )
        options = make_silent_options(budget=Budget(max_tokens=limit), call_policy=CallPolicy(1))
        if name in READABLE:
            found = collect(make_numbered_examples(4), parts, path, options)
            assert found.status.usage.tokens == limit, name
            assert len(model.drawn) == 2 * N, name
        else:
            with pytest.raises(CollectionError, match=f"{N} of {N} answers do not report how many tokens"):
                collect(make_numbered_examples(4), parts, path, options)
            assert len(model.drawn) == N, name
        # Stored messages can be read again.
        with Store(path) as store:
            assert all(one.draws is not None for one in store.read_unfinished() if one.row.stage)


@pytest.mark.parametrize(
    ("generator", "reason"),
    [
        (FakeListLLM(responses=[*TEXTS]), f"{N} of {N} answers do not report how many tokens"),
        (lambda question: f"about {question}", "calls no model that LangChain reports"),
    ],
)
def test_budget_is_refused_where_no_tokens_can_be_counted(
    tmp_path: Path, generator: Any, reason: str
) -> None:
    parts = Components(
        generator,
        verify,
        make_labels,
        N,
    )
    with pytest.raises(CollectionError, match=reason):
        collect(
            make_numbered_examples(2), parts, tmp_path / "store.db", make_silent_options(budget=Budget(1))
        )
    with Store(tmp_path / "store.db") as store:
        assert len(list(store.read_unfinished())) == 2


def test_answer_that_a_parser_cannot_read_is_charged_once(tmp_path: Path) -> None:
    read: list[Any] = []

    def parse(message: Any) -> str:
        read.append(message)
        if len(read) % 3 == 0:
            msg = "no answer in it"
            raise ValueError(msg)
        return str(message.content)

    model = FormModel(texts=TEXTS, form="plain")
    parts = Components(model | RunnableLambda(parse), SelfConsistency(), make_labels, N, generator_id="m")
    found = collect(make_numbered_examples(4), parts, tmp_path / "store.db", make_silent_options()).status
    assert found.usage.tokens == 5 * len(read)
    assert found.unanswered == 0
