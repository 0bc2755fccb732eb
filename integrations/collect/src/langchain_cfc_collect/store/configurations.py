"""The configuration of a store: how it differs from that of a run, and the provenance of its records."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_cfc.records import Provenance
from langchain_cfc.sampling.comparison import is_equal_or_named

# Keys that only verifiers or only labels affect, in a configuration and in its part `made_by`.
VERIFIER_KEYS = ("verifier", "verifiers", "separate_scores")
# A new version of the dataset (`source`) is among them, because the inputs are compared prompt by prompt.
LABEL_KEYS = ("labeler", "answer", "metadata", "source")
_MADE_BY = "made_by"
# Number of differences to name.
_MOST_LISTED = 2
# The files that answers were imported from, each with its format. They do not affect records.
IMPORTED = "imported"
# Tables of the parts that `build_bot` chose, so that it can make them again. Their fingerprints are compared
# instead.
CHOICE = "choice"
# Known only from responses; it may change while the model's name stays the same.
MODEL_VERSION = "model_version"
# The part of an executor's configuration that becomes the provenance of records.
PROVENANCE_FIELDS = ("n", "generator", "verifier", "labeler", "answer", "unit", "splitter", "draws")


def add_given_ids(known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the ids that its components were given since.

    The user then vouches for the component that drew, scored or labelled before as well.
    """
    return {
        name: given[name] if name in given and is_equal_or_named(one, given[name]) else one
        for name, one in known.items()
    }


def explain_differences(
    name: str, known: Mapping[str, Any], given: Mapping[str, Any], different: Sequence[str]
) -> str:
    """Return the refusal of a run whose configuration differs in some keys from that of a store.

    Args:
        name: Path or URL of the store.
        known: Its configuration.
        given: That of the run.
        different: The keys, at least one.

    Returns:
        What differs, and what to do.
    """
    if list(different) == ["endpoint"]:
        how = "live" if known.get("endpoint") is None else "through batches"
        return (
            f"{name} was collected {how}, and a provider may serve batches (--batch) and live calls "
            "differently. Continue like that, or use another store"
        )
    # How a part is made says least: what it does differently has a key of its own.
    keys = sorted(different, key=lambda key: key == _MADE_BY)
    pairs = ((key, known.get(key), given.get(key)) for key in keys)
    lines = [line for pair in pairs for line in _list_differences(*pair)]
    more = f" and {len(lines) - _MOST_LISTED} more differences" if len(lines) > _MOST_LISTED else ""
    made_with = f"{name} was made with another configuration: {'; '.join(lines[:_MOST_LISTED])}{more}.\n"
    others = replace_parts(given, known, VERIFIER_KEYS)
    if all(known.get(key) == others.get(key) for key in different):  # only the verifier differs
        new = "NEW" if "://" in name else str(Path(name).with_name(f"{Path(name).stem}-rescored.db"))
        command = shlex.join(["langchain-cfc", "store", "rescore", name, "--out", new])
        return (
            f"{name} was made with another verifier ({lines[0]}). To score its answers again, add "
            f"--verifier or --config to this:\n{command}"
        )
    if list(different) == ["generator"] and IMPORTED in known:
        return made_with + (
            "If this generator drew the imported answers, name it, here and in the bot: "
            "generator_id= (on the command line --set generator.id=NAME)"
        )
    others = replace_parts(given, known, LABEL_KEYS)
    if all(known.get(key) == others.get(key) for key in different):
        return made_with + "To make its labels again: CollectionOptions(relabel=True)"
    return made_with + "Use another store, such as store='new.db', or the old settings"


def replace_parts(
    configuration: Mapping[str, Any], source: Mapping[str, Any], keys: Sequence[str]
) -> dict[str, Any]:
    """Return a configuration whose parts with some keys are taken from `source`."""

    def replace(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
        # Several verifiers are made by `verifiers.NAME`.
        kept = {name: one for name, one in values.items() if name.partition(".")[0] not in keys}
        return kept | {name: one for name, one in others.items() if name.partition(".")[0] in keys}

    replaced = replace(configuration, source)
    if _MADE_BY in configuration:
        replaced[_MADE_BY] = replace(configuration[_MADE_BY], source.get(_MADE_BY, {}))
    return replaced


def _list_differences(key: str, known: Any, given: Any) -> Iterator[str]:
    if isinstance(known, Mapping) and isinstance(given, Mapping):
        for name in {**known, **given}:
            if known.get(name) != given.get(name):
                yield from _list_differences(f"{key}.{name}", known.get(name), given.get(name))
    else:
        yield f"{key} was {known!r:.80} and is now {given!r:.80}"


def make_provenance(configuration: Mapping[str, Any], models: Sequence[str]) -> Provenance:
    """Return the provenance of records that an executor with this configuration made.

    `models` are the model names that responses reported; they become the generator's `model_version`.
    """
    # Stores of earlier releases do not say whether scores are separate.
    names = (*PROVENANCE_FIELDS, "separate_scores")
    fields: dict[str, Any] = {name: configuration.get(name) for name in names}
    if models:
        version = models[0] if len(models) == 1 else list(models)
        fields["generator"] = {**(fields["generator"] or {}), MODEL_VERSION: version}
    return Provenance(**fields)
