"""Make all labels of a store again, with another labeler, answer extractor or metadata function.

References, metadata and clusters are taken from the dataset as it is now. The old labels are deleted only
after three checks: the rest of the configuration is unchanged, the budget has room for new labels, and
(without batches) one prompt could be relabelled.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from sqlalchemy import null, update

from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.records import Example
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.support.text import pluralize
from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.executor import Executor
from langchain_cfc_collect.failures import is_transient
from langchain_cfc_collect.journal import StoreJournal
from langchain_cfc_collect.run import MAX_CONSECUTIVE_FAILURES, CollectionOptions
from langchain_cfc_collect.stages import Outcome
from langchain_cfc_collect.store import Store, StoredPrompt, Writer, calls, dataset, schema
from langchain_cfc_collect.store.configurations import LABEL_KEYS, replace_parts


async def relabel(
    store: Store,
    configuration: Mapping[str, Any],
    examples: Sequence[Example],
    executor: Executor,
    options: CollectionOptions,
    *,
    try_first: bool,
) -> None:
    """Delete all labels of a store, once they can be made again, for a run to make them.

    References and the settings that affect labels are updated, and new examples are added. Candidates, scores
    and the usage of the old labels stay. Nothing happens to a new store.

    Args:
        store: The store.
        configuration: The new configuration.
        examples: The dataset as it is now, with the references to label by.
        executor: Makes the new labels.
        options: Budget for all prompts together, and the function that is called with notices.
        try_first: Whether to label one prompt as a test; it is labelled again later. With batches this would
            take as long as labelling all prompts.

    Raises:
        StoreError: If the configurations differ in more than labels, the input of a prompt has changed, or it
            is not clear which stored prompt an example belongs to.
        CollectionError: If the budget is used up, a labeler cannot be reached, or the first 25 prompts could
            not be labelled.
    """
    known = store.configuration
    if not known:
        return
    given: dict[str, Any] = json.loads(canonical_json(configuration))
    store.check_configuration(replace_parts(given, known, LABEL_KEYS))
    if not store.track_budget(options.budget).allows(0):
        msg = "the budget allows no new labels, so the old ones were kept: raise its max_tokens or max_cost"
        raise CollectionError(msg)
    if try_first:
        await _try_labeler(store, examples, executor)
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
        settled = canonical_json(replace_parts(known, given, LABEL_KEYS))
        store.write_facts(connection, {"configuration": settled})
        store.count_prompts(connection)
    if corrected:
        options.on_notice(
            f"labelled by a corrected reference: {pluralize(corrected, 'prompt')}. If only prompts "
            "with answers labelled wrong were checked, certificates are too good: check a random "
            "sample, right ones included (langchain-cfc store export --sample-for-review)"
        )
    if missing:
        options.on_notice(
            f"labelled by the reference that they have, because the dataset does not hold them: "
            f"{pluralize(missing, 'stored prompt')}"
        )


async def _try_labeler(store: Store, examples: Sequence[Example], executor: Executor) -> None:
    """Label finished prompts until one succeeds, and store the usage; raise if none does."""
    with store.begin_read() as connection:
        matched = dataset.match_examples(dataset.read_examples(store.name, connection), examples)
    writer = Writer(store)

    async def label(prompt: StoredPrompt) -> Outcome:
        journal = StoreJournal(writer, prompt, Stage.LABELLED, 0)
        example = matched.get(prompt.position, prompt.example)
        outcome = await executor.label(replace(prompt, example=example), journal)
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
    run_stage: Callable[[StoredPrompt], Awaitable[Outcome]],
    most: int,
    what: str,
) -> None:
    """Run a stage on at most so many stored prompts, one by one until one succeeds.

    Raises `CollectionError`, which begins with `what`, if none does. Prompts without claims are left out.
    """
    error: CFCError | None = None
    is_split = store.unit == "claims"
    usable = (one for one in prompts if one.candidates and (one.claims is not None) == is_split)
    for prompt in islice(usable, most):
        outcome = await run_stage(prompt)
        if not isinstance(outcome.result, CFCError):
            return
        error = outcome.result
        if is_transient(error):  # still after all retries, so other prompts would fail as well
            break
    if error is not None:
        msg = f"{what}. The last prompt that was tried failed with {type(error).__name__}: {error}"
        raise CollectionError(msg) from error
