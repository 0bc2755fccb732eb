"""The prompts to select on: the fit part of the split that `calibrate` will make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from langchain_cfc.comparison.pool import Pool
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.records import PromptRecord, Provenance, Records, tabulate, tabulate_raw
from langchain_cfc.splits import SplitPlan, ids_digest


@dataclass(frozen=True, eq=False)
class SelectionPrompts:
    """The prompts to select on.

    Attributes:
        plan: The split that `calibrate` will make.
        pool: M prompts of its fit part, of each cluster one.
        digest: Digest of all ids of the fit part.
        clustered: Number of prompts of that part that are left out, for there are others of their cluster.
        calibration: Number of prompts that will calibrate, of each cluster one.
    """

    plan: SplitPlan
    pool: Pool
    digest: str
    clustered: int
    calibration: int

    @classmethod
    def of(cls, table: LabelledDraws, plan: SplitPlan) -> SelectionPrompts:
        """The fit part of a split; of the other parts nothing is read but ids and clusters.

        Raises:
            CalibrationError: If it is empty.
        """
        rows = plan.rows(table)
        part = table.take(rows["fit"])
        if not len(part):
            msg = (
                "there are no prompts to select on, for the fit split is empty: raise fit_fraction, or bring "
                "more records (a cluster is never split, so many clusters are needed)"
            )
            raise CalibrationError(msg)
        alone = part.take(plan.one_per_cluster(part))
        return cls(
            plan,
            Pool(alone),
            ids_digest(part.ids),
            len(part) - len(alone),
            len(plan.one_per_cluster(table.take(rows["calibration"]))),
        )


def tabulated(
    records: Iterable[PromptRecord] | LabelledDraws,
    verifiers: Sequence[str] | None,
    *,
    n: int | None = None,
    provenance: Provenance | None = None,
) -> tuple[LabelledDraws, list[str]]:
    """Labelled records as a table with the raw outputs of the verifiers that may be combined, and no others.

    Args:
        records: Labelled records, or a table.
        verifiers: Names of verifiers; by default those whose output every candidate has.
        n: Number of candidates to use, the first n slots; by default all.
        provenance: Header of the records where they do not carry one themselves.

    Returns:
        The table, and what is to be said of verifiers that were left out.

    Raises:
        InputError: If a record cannot be used, or a candidate lacks the output of a verifier that was named.
    """
    notes: list[str] = []
    if not isinstance(records, (Records, LabelledDraws)):
        records = list(records)
    if verifiers is not None:
        names = tuple(verifiers)
        unwritable = [name for name in names if not _can_be_listed(name)]
        if unwritable:
            msg = (
                f"the verifier {unwritable[0]!r} cannot be named to `calibrate --combine`, which takes names "
                "between commas: rename it in the records"
            )
            raise InputError(msg)
    elif isinstance(records, LabelledDraws):
        names = tuple(records.raw)
    else:
        names, notes = _verifiers_of(records)
    notes += [
        f"The verifier {name!r} was left out: a list of names between commas cannot hold it."
        for name in names
        if not _can_be_listed(name)
    ]
    names = tuple(filter(_can_be_listed, names))
    if not names:
        table = tabulate(records, n=n, provenance=provenance)
    else:
        table, _ = tabulate_raw(records, names, n=n, provenance=provenance)
    return replace(table, raw={name: table.raw[name] for name in names}), notes


def _can_be_listed(name: str) -> bool:
    """Whether `calibrate --combine` reads the name as it is."""
    return "," not in name and name == name.strip() and bool(name)


def _verifiers_of(records: Iterable[PromptRecord]) -> tuple[tuple[str, ...], list[str]]:
    """The verifiers whose raw output every candidate has, and a note on each of the others."""
    found: Counter[str] = Counter()
    candidates = 0
    for record in records:
        for candidate in record.candidates:
            found.update((candidate.scores or {}).keys())
            candidates += 1
    everywhere = tuple(name for name, count in found.items() if count == candidates)
    notes = [
        f"The verifier {name!r} was left out: {count} of {candidates} candidates have its output, and a "
        "calibration needs all."
        for name, count in found.items()
        if count < candidates
    ]
    return everywhere, notes
