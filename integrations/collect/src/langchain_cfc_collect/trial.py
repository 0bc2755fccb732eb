"""`try_first`: draw, score and label a prompt live, before batches are paid for that may take a day.

What a setting gets wrong (a model that returns no log-probabilities, a parser that drops them, a judge that
cannot be read, a limit that cuts every answer off) is wrong for every prompt. Live runs find it at their
first prompt; batches would find it once all draws are paid for. The same models give two candidates live,
which are thrown away: a record holds candidates of one way of drawing only. Their usage counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from itertools import islice
from typing import Any

from langchain_cfc.claims import make_claim_candidates
from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.no_answers import describe_unscored
from langchain_cfc_collect.calls import CallPolicy
from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.executor import Components, Executor
from langchain_cfc_collect.stages import Journal, Outcome
from langchain_cfc_collect.store import Store, StoredPrompt
from langchain_cfc_collect.store.batches import read_open_batches
from langchain_cfc_collect.store.calls import announce_requests, insert_calls

# Prompts without any answer after which a run stops: one may be refused or filtered for itself.
MOST_WITHOUT_ANSWER = 3
# Candidates of a trial: some verifiers compare them.
_CANDIDATES = 2


def make_trial_executor(components: Components, policy: CallPolicy, config: Any) -> Executor:
    """Return an executor that makes live calls for few candidates of a prompt."""
    few = min(components.n or _CANDIDATES, _CANDIDATES)
    return Executor(replace(components, n=few, draws=None), policy, config)


async def try_first(store: Store, executor: Executor) -> None:
    """Take a prompt through all stages live, unless the store holds candidates or batches already.

    Args:
        store: The store, which holds the prompts; only the usage is written to it.
        executor: Of `make_trial_executor`.

    Raises:
        CollectionError: If a stage fails, or no candidate of the first three prompts is an answer.
    """
    with store.begin_read() as connection:
        is_begun = bool(read_open_batches(connection))
    if is_begun or any(stage is not Stage.OPEN and count for stage, count in store.count_stages().items()):
        return
    missing: Counter[Any] = Counter()
    total = 0
    for prompt in islice(store.read_unfinished(), MOST_WITHOUT_ANSWER):
        kinds = await _run(store, executor, prompt)
        total += len(kinds)
        missing.update(kind for kind in kinds if kind is not None)
        if None in kinds:
            return
    if total:
        raise make_no_answers_error(missing, total, "run again")


def make_no_answers_error(kinds: Counter[Any], total: int, then: str) -> CollectionError:
    """Return the error of a run whose first prompts got no answer, with the settings that help."""
    causes = " ".join(describe_unscored(kinds, total))
    return CollectionError(
        f"stopped because the model gave no answer to the first prompts. {causes} Change this, then {then}"
    )


async def _run(store: Store, executor: Executor, prompt: StoredPrompt) -> list[Any]:
    """Draw, score and label; return for each candidate why it is no answer, None if it is one.

    Of the stages only the usage is stored.
    """

    async def take(stage: Stage, work: Awaitable[Outcome], announced: int = 0) -> Any:
        outcome = await work
        usage = outcome.usage
        writes = announce_requests(prompt.position, stage, usage.answered - announced)
        await asyncio.to_thread(store.write, [*writes, *insert_calls(prompt.position, stage, usage)])
        if isinstance(outcome.result, CFCError):
            error = outcome.result
            msg = (
                f"stopped before any batch, because a trial of the first prompt failed with "
                f"{type(error).__name__}: {error}. Fix the cause, then run again"
            )
            raise CollectionError(msg) from error
        return outcome.result

    example = prompt.example
    # A kill leaves them as requests without an answer, which the budget charges.
    expected: int = executor.configuration["n"]
    await asyncio.to_thread(store.write, announce_requests(prompt.position, Stage.DRAWN, expected))
    draws = await take(Stage.DRAWN, executor.draw(example, Journal()), expected)
    given, answers = draws, None
    if store.unit == "claims":
        spans = await take(Stage.SCORED, executor.split(draws[0], Journal()))
        given, answers = make_claim_candidates(draws[0], spans), draws
    if given:  # an answer may have no claims
        await take(Stage.SCORED, executor.score(example, given, Journal(), answers))
        await take(Stage.LABELLED, executor.label(example, given, Journal()))
    return [one.no_answer for one in draws]
