"""Label what was drawn and scored again, with another labeler, extractor or metadata function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import delete, null, update

from langchain_cfc._internal.serialization import canonical_json
from langchain_cfc.collect.costs import Stage
from langchain_cfc.collect.store import schema
from langchain_cfc.collect.store.store import Store

# What of a configuration concerns labels alone, and the parts of `made_by` that do.
_LABELS = ("labeler", "reads", "answer", "metadata")
_MADE_BY = "made_by"


def discard_labels(store: Store, configuration: Mapping[str, Any]) -> None:
    """Delete all labels of a store, and take what makes new ones from a configuration.

    Candidates and scores stay, and so does what the old labels have cost. Raises `StoreError` if more than
    what concerns labels is different.
    """
    known = store.configuration
    if not known:
        return
    given: dict[str, Any] = json.loads(canonical_json(configuration))
    store.check_configuration(_replace_labels(given, known))
    settled = canonical_json(_replace_labels(known, given))
    prompts = schema.prompts
    with schema.report_damage(store.name), store.begin_write() as connection:
        connection.execute(delete(schema.labels))
        connection.execute(
            update(prompts)
            .where(prompts.c.stage == int(Stage.LABELLED))
            .values(stage=int(Stage.SCORED), labels_digest=null(), described=null())
        )
        # The old labeler may be why prompts failed that were scored.
        connection.execute(update(prompts).where(prompts.c.stage == int(Stage.SCORED)).values(error=null()))
        store.write_facts(connection, {"configuration": settled})
        schema.replace_seal(connection, replace(schema.read_seal(connection), finished=0, total=0))
        schema.seal_facts(connection)


def _replace_labels(configuration: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with what concerns labels as in another one."""
    replaced = _replace(configuration, source)
    if _MADE_BY in configuration:
        replaced[_MADE_BY] = _replace(configuration[_MADE_BY], source.get(_MADE_BY, {}))
    return replaced


def _replace(values: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if name not in _LABELS}
    return {**kept, **{name: source[name] for name in _LABELS if name in source}}
