"""Labels for a monitor, read from people's feedback on served results in LangSmith."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qsl
from uuid import UUID

from langchain_cfc_monitor import Label, parse_label
from langsmith import Client
from langsmith.schemas import Feedback

from langchain_cfc.errors import CFCWarning, InputError
from langchain_cfc_langsmith.asking import make_client, translate_errors

# Maximum number of runs per request, because their ids are part of the URL.
_MAX_RUNS = 25


def read_feedback_labels(
    names: Sequence[str], key: str = "correct", *, probability: float = 1.0, client: Client | None = None
) -> list[Label]:
    """Return labels from the feedback on runs, for `CFCMonitor.label`.

    A score of 1 or 0 says whether the best answer is correct. A value such as
    `{"correct": [true, false, ...], "probability": 0.2}` labels all candidates, as `Label` does. If a run has
    several feedbacks, the first one counts.

    Args:
        names: Names of results, such as `monitor.list_unlabelled()`; those that are run ids are looked up.
        key: Key of the feedback.
        probability: Probability, in (0, 1], with which a result was selected for labelling, unless the
            feedback's value states it.
        client: The client; by default configured by the environment.

    Returns:
        The labels found.

    Raises:
        CollectionError: If LangSmith cannot be reached, or refuses.
        InputError: If the probability is out of range.

    Warns:
        CFCWarning: If feedback has neither form; it is left out.
    """
    if not 0.0 < probability <= 1.0:
        msg = f"the probability must lie in (0, 1], got {probability}"
        raise InputError(msg)
    service = make_client(client)
    runs = [name for name in names if _is_run(name)]
    found: dict[str, Feedback] = {}
    for start in range(0, len(runs), _MAX_RUNS):
        with translate_errors(f"reading feedback {key!r}"):
            page = list(service.list_feedback(run_ids=runs[start : start + _MAX_RUNS], feedback_key=[key]))
        for one in sorted(page, key=lambda one: one.created_at):
            found.setdefault(str(one.run_id), one)
    return list(_make_labels(found, probability))


def plugged_labels(rest: str, names: Sequence[str]) -> list[Label]:
    """Return the labels for `langchain-cfc monitor labels ... langsmith:KEY` or `KEY?probability=0.2`.

    Args:
        rest: The text after `langsmith:`.
        names: Names of results that have no label yet.

    Returns:
        The labels found.

    Raises:
        InputError: If an option is unknown or out of range.
        CollectionError: If LangSmith cannot be reached, or refuses.
    """
    key, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    text = options.pop("probability", "1")
    if options or not key:
        msg = f"langsmith:{rest}: expected KEY or KEY?probability=P"
        raise InputError(msg)
    try:
        probability = float(text)
    except ValueError as error:
        msg = f"langsmith:{rest}: probability must be a number in (0, 1]"
        raise InputError(msg) from error
    return read_feedback_labels(names, key, probability=probability)


def _make_labels(found: dict[str, Feedback], probability: float) -> Iterator[Label]:
    odd = []
    for name, one in found.items():
        said = one.value
        try:
            if isinstance(said, dict):
                yield parse_label({"probability": probability, **said, "id": name})
            elif one.score in {0, 1}:
                yield Label(name, bool(one.score), probability)
            else:
                odd.append(f"that of run {name} has the score {one.score!r}")
        except InputError as error:
            odd.append(f"that of run {name}: {error}")
    if odd:
        msg = (
            f"LangSmith: {len(odd)} feedbacks are not labels and are left out; {odd[0]}; expected the score "
            '1 or 0 for the best answer, or a value {"correct": [true, false, ...]} for all candidates'
        )
        warnings.warn(msg, CFCWarning, stacklevel=3)


def _is_run(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
