"""Make all labels of a store again, with another labeler, answer extractor or metadata function.

References, metadata and clusters are taken from the dataset as it is now. The old labels are deleted only
after three checks: the rest of the configuration is unchanged, the budget has room for new labels, and
(without batches) one prompt could be relabelled.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import null, update

from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc_collect.costs import Budget, Stage
from langchain_cfc_collect.executor import Executor
from langchain_cfc_collect.failures import is_transient
from langchain_cfc_collect.journal import StoreJournal
from langchain_cfc_collect.run import MAX_CONSECUTIVE_FAILURES, list_candidates_to_score
from langchain_cfc_collect.stages import Outcome
from langchain_cfc_collect.store import Store, StoredPrompt, Writer, calls, dataset, schema
from langchain_cfc_collect.store.configurations import LABEL_KEYS, replace_parts


async def check_relabeling(
    store: Store,
    configuration: Mapping[str, Any],
    examples: Sequence[Example],
    executor: Executor,
    budget: Budget,
    *,
    try_first: bool,
) -> None:
    """Check that the labels of a store can be made again, before the old ones are deleted.

    Args:
        store: The store.
        configuration: The new configuration.
        examples: The dataset as it is now.
        executor: Makes the new labels.
        budget: Limits for all prompts together.
        try_first: Whether to label one prompt as a test; it is labelled again later. With batches this would
            take as long as labelling all prompts.

    Raises:
        StoreError: If the configurations differ in more than labels.
        CollectionError: If the budget is used up, a labeler cannot be reached, or the first 25 prompts could
            not be labelled.
    """
    if not store.configuration:
        return
    _check_configuration(store, configuration)
    if not store.track_budget(budget).allows(0):
        msg = "the budget allows no new labels, so the old ones were kept: raise its max_tokens or max_cost"
        raise CollectionError(msg)
    if try_first:
        with store.begin_read() as connection:
            stored = dataset.read_examples(store.name, connection)
        matched = dataset.match_examples(stored, examples)
        await _try_labeler(store, matched, executor)


def discard_labels(
    store: Store, configuration: Mapping[str, Any], examples: Sequence[Example]
) -> tuple[int, int]:
    """Delete all labels of a store, and update its references and the settings that affect labels.

    Candidates, scores and the usage of the old labels stay, and new examples are added. Nothing changes if
    the examples cannot be used.

    Args:
        store: The store.
        configuration: The new configuration.
        examples: The dataset as it is now, with the references to label by.

    Returns:
        The numbers of stored prompts whose reference has changed, and of those that are not in the dataset,
        which will be labelled by the reference that they have.

    Raises:
        StoreError: If the configurations differ in more than labels, the input of a prompt has changed, or it
            is not clear which stored prompt an example belongs to.
    """
    known = store.configuration
    if not known:
        return 0, 0
    given = _check_configuration(store, configuration)
    settled = canonical_json(replace_parts(known, given, LABEL_KEYS))
    prompts = schema.prompts
    with schema.report_damage(store.name), store.begin_write() as connection:
        corrected, missing = dataset.update_examples(store.name, connection, store.execute, examples)
        dataset.add_prompts(store.name, connection, store.execute, ((example, None) for example in examples))
        connection.execute(
            update(prompts)
            .where(prompts.c.stage == int(Stage.LABELLED))
            .values(stage=int(Stage.SCORED), labels=null())
        )
        # Retry prompts that failed after scoring, because the old labeler may have been the cause.
        connection.execute(update(prompts).where(prompts.c.stage == int(Stage.SCORED)).values(error=null()))
        store.write_facts(connection, {"configuration": settled})
        store.count_prompts(connection)
    return corrected, missing


async def _try_labeler(store: Store, matched: Mapping[int, Example], executor: Executor) -> None:
    """Label finished prompts until one succeeds, and store the usage; raise if none does."""
    writer = Writer(store)

    async def label(prompt: StoredPrompt, candidates: Sequence[DrawnCandidate]) -> Outcome:
        journal = StoreJournal(writer, prompt, Stage.LABELLED, 0)
        outcome = await executor.label(matched.get(prompt.position, prompt.example), candidates, journal)
        await writer.write(calls.insert_calls(prompt.position, Stage.LABELLED, outcome.usage))
        return outcome

    try:
        what = "the new labels cannot be made, so the old ones were kept"
        await try_stage(store, store.read_finished(), label, MAX_CONSECUTIVE_FAILURES, what)
    finally:
        await writer.close()


async def try_stage(
    store: Store,
    prompts: Iterable[StoredPrompt],
    run_stage: Callable[[StoredPrompt, Sequence[DrawnCandidate]], Awaitable[Outcome]],
    most: int,
    what: str,
) -> None:
    """Run a stage on at most so many stored prompts, one by one until one succeeds.

    Raises `CollectionError`, which begins with `what`, if none does. Prompts without claims are left out.
    """
    error: CFCError | None = None
    listed = ((one, list_candidates_to_score(store.unit, one.draws or (), one.claims)) for one in prompts)
    for prompt, candidates in islice((one for one in listed if one[1]), most):
        outcome = await run_stage(prompt, candidates)
        if not isinstance(outcome.result, CFCError):
            return
        error = outcome.result
        if is_transient(error):  # still after all retries, so other prompts would fail as well
            break
    if error is not None:
        msg = f"{what}. The last prompt that was tried failed with {type(error).__name__}: {error}"
        raise CollectionError(msg) from error


def _check_configuration(store: Store, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as it would be stored; raise if it differs from the store's beyond labels."""
    given: dict[str, Any] = json.loads(canonical_json(configuration))
    store.check_configuration(replace_parts(given, store.configuration, LABEL_KEYS))
    return given
