"""Explain how the configuration of a store differs from that of a run, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_cfc.sampling.comparison import is_equal_or_named

_ENDPOINT_NAMES = {None: "by live calls (without --batch)", "batch": "through batches (--batch)"}
# Keys of a configuration that verifiers affect, beside their part of `made_by`.
VERIFIER_KEYS = ("verifier", "separate_scores")
MADE_BY = "made_by"


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
    if _is_other_verifier(known, given, different):
        return made_with + _advise_rescoring(name, given)
    return made_with + (
        "Its records and new ones would not be exchangeable: collect into another store, or go back to the "
        "old configuration. If only labels are affected, --relabel makes all of them again"
    )


def split_made_by(configuration: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of `made_by` that make verifiers, and the others."""
    parts = configuration.get(MADE_BY) or {}
    verifiers = {key: one for key, one in parts.items() if key.partition(".")[0] in {"verifier", "verifiers"}}
    return verifiers, {key: one for key, one in parts.items() if key not in verifiers}


def is_changed(name: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a key that two configurations have has different values."""
    if name == MADE_BY and not split_made_by(known)[0]:
        # A store that was rescored in Python names its verifier only by the fingerprint.
        return split_made_by(known)[1] != split_made_by(given)[1]
    return bool(known[name] != given[name])


def _is_other_verifier(known: Mapping[str, Any], given: Mapping[str, Any], different: Sequence[str]) -> bool:
    """Return whether nothing but the verifier differs."""
    is_same_otherwise = MADE_BY not in different or split_made_by(known)[1] == split_made_by(given)[1]
    return set(different) <= {*VERIFIER_KEYS, MADE_BY} and is_same_otherwise


def _advise_rescoring(name: str, given: Mapping[str, Any]) -> str:
    made = split_made_by(given)[0]
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
