"""Make all labels of a store again, with another labeler, answer extractor or metadata function.

References, metadata and clusters are taken from the dataset as it is now. The old labels are deleted only
after three checks: the rest of the configuration is unchanged, the budget has room for new labels, and
(without batches) one prompt could be relabelled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import null, update

from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.records import Example
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc_collect.costs import Budget, Stage
from langchain_cfc_collect.executor import Executor
from langchain_cfc_collect.failures import is_transient
from langchain_cfc_collect.journal import StoreJournal
from langchain_cfc_collect.run import MAX_CONSECUTIVE_FAILURES, list_candidates_to_score
from langchain_cfc_collect.store import Store, Writer, calls, dataset, schema

# Keys that affect only labels, in a configuration and in its part `made_by`. A new version of the dataset
# (`source`) is among them, because the inputs are compared prompt by prompt.
_LABEL_KEYS = ("labeler", "reads", "answer", "metadata", "source")
_MADE_BY = "made_by"


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
        msg = "the budget does not allow new labels, so the old ones were kept: raise max_tokens or max_cost"
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
    settled = canonical_json(_replace_label_settings(known, given))
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
    error: CFCError | None = None
    writer = Writer(store)
    try:
        for prompt in islice(store.read_finished(), MAX_CONSECUTIVE_FAILURES):
            candidates = list_candidates_to_score(store.unit, prompt.draws or (), prompt.claims)
            if not candidates:
                continue
            journal = StoreJournal(writer, prompt, Stage.LABELLED, 0)
            example = matched.get(prompt.position, prompt.example)
            outcome = await executor.label(example, candidates, journal)
            usage = journal.total_usage(outcome.usage)
            await writer.write(calls.insert_calls(prompt.position, Stage.LABELLED, usage))
            if not isinstance(outcome.result, CFCError):
                return
            error = outcome.result
            if is_transient(error):  # still after all retries, so other prompts would fail as well
                break
    finally:
        await writer.close()
    if error is not None:
        msg = (
            "the new labels cannot be made, so the old ones were kept. The last prompt that was tried failed "
            f"with {type(error).__name__}: {error}"
        )
        raise CollectionError(msg) from error


def _check_configuration(store: Store, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as it would be stored; raise if it differs from the store's beyond labels."""
    given: dict[str, Any] = json.loads(canonical_json(configuration))
    store.check_configuration(_replace_label_settings(given, store.configuration))
    return given


def _replace_label_settings(configuration: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose label-related parts are taken from `source`."""
    replaced = _replace_label_keys(configuration, source)
    if _MADE_BY in configuration:
        replaced[_MADE_BY] = _replace_label_keys(configuration[_MADE_BY], source.get(_MADE_BY, {}))
    return replaced


def _replace_label_keys(values: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if name not in _LABEL_KEYS}
    return {**kept, **{name: source[name] for name in _LABEL_KEYS if name in source}}
