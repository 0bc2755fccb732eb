"""Explain how the configuration of a store differs from that of a run, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_cfc.sampling.comparison import is_equal_or_named

_ENDPOINT_NAMES = {None: "by live calls (without --batch)", "batch": "through batches (--batch)"}
# Keys that only verifiers or only labels affect, in a configuration and in its part `made_by`.
VERIFIER_KEYS = ("verifier", "verifiers", "separate_scores")
# A new version of the dataset (`source`) is among them, because the inputs are compared prompt by prompt.
LABEL_KEYS = ("labeler", "reads", "answer", "metadata", "source")
_MADE_BY = "made_by"
# The files that answers were imported from, each with its format. They do not affect records.
IMPORTED = "imported"
# Tables of the parts that `build_bot` or `init` chose, so that `build_bot` can make them again. Their
# fingerprints are compared instead.
CHOICE = "choice"


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
        return (
            f"{name} was collected {_ENDPOINT_NAMES[known.get('endpoint')]}, but this run would "
            f"continue {_ENDPOINT_NAMES[given.get('endpoint')]}: a provider may serve the two "
            "differently, so records of both would not be exchangeable. Continue as it was started, "
            "or collect into another store"
        )
    pairs = ((key, known.get(key), given.get(key)) for key in different)
    lines = (line for pair in pairs for line in _list_differences(*pair))
    made_with = f"{name} was made with another configuration: {'; '.join(lines)}. "
    others = replace_parts(given, known, VERIFIER_KEYS)
    if all(known.get(key) == others.get(key) for key in different):  # only the verifier differs
        return made_with + _advise_rescoring(name, given)
    if list(different) == ["generator"] and IMPORTED in known:
        return made_with + (
            "Its answers were imported. If this generator drew them, say so: name it by --set "
            "generator.id=NAME (generator_id= in Python), and give a bot the same id"
        )
    return made_with + (
        "Its records and new ones would not be exchangeable: collect into another store, or go back to the "
        "old configuration. If only labels are affected, --relabel makes all of them again"
    )


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


def is_changed(name: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a key that two configurations have has different values."""
    if name in {IMPORTED, CHOICE}:
        return False
    if name == _MADE_BY and not _list_verifiers(known):
        # A store that was rescored in Python names its verifier only by the fingerprint.
        given = replace_parts(given, known, VERIFIER_KEYS)
    return bool(known[name] != given[name])


def _list_verifiers(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return how verifiers are made, by name."""
    made = configuration.get(_MADE_BY) or {}
    return {name: one for name, one in made.items() if name.partition(".")[0] in VERIFIER_KEYS}


def _advise_rescoring(name: str, given: Mapping[str, Any]) -> str:
    made = _list_verifiers(given)
    options = [
        part.partition(".")[2] + "=" * ("." in part) + str(one["factory"]) for part, one in made.items()
    ]
    new = "NEW" if "://" in name else str(Path(name).with_name(f"{Path(name).stem}-rescored.db"))
    command = ["langchain-cfc", "store", "rescore", name, "--out", new]
    command += [word for option in options or ["MODULE:NAME"] for word in ("--verifier", option)]
    verifier = given.get("verifier") or {}
    has_arguments = any({"arguments", "model"} & set(one) for one in made.values())
    has_weights = "*" in str(verifier.get("method", verifier.get("id")))
    more = "Add its arguments and weights, by the same --config and --set. "
    return (
        "To score the answers that it holds with the new verifier, without drawing any again:\n"
        f"  {shlex.join(command)}\n"
        f"{more if has_arguments or has_weights else ''}Then run this again with --store {shlex.quote(new)}. "
        "In Python: rescore(STORE, verifier, NEW)"
    )


def _list_differences(key: str, known: Any, given: Any) -> Iterator[str]:
    if isinstance(known, Mapping) and isinstance(given, Mapping):
        for name in {**known, **given}:
            if known.get(name) != given.get(name):
                yield from _list_differences(f"{key}.{name}", known.get(name), given.get(name))
    elif known is None:
        yield f"{key} is now {given!r:.80}, and was not set before"
    else:
        yield f"{key} was {known!r:.80} and is now {given!r:.80}"
