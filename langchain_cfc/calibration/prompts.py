"""The labelled prompts of a calibration: scored, split, and told of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from langchain_cfc._arrays import IntArray
from langchain_cfc.artifact import CalibrationFacts
from langchain_cfc.calibration.combining import fit_combination
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.calibration.fitting import Calibration
from langchain_cfc.combination import Combination
from langchain_cfc.draws import LabelledDraws, names_of
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.records import PromptRecord, Provenance, tabulate, tabulate_raw, with_scores
from langchain_cfc.splits import Part, SplitPlan, ids_digest
from langchain_cfc.thresholds import WINDOW


@dataclass(frozen=True)
class Prompts:
    """The labelled prompts of a calibration.

    Attributes:
        plan: What assigns prompts to parts.
        labelled: All of them, scored.
        combination: What made the scores out of several verifiers' raw outputs; None where one gave them.
        weighs: Whether those that calibrate keep their weights, where prompts have any. Of all other parts,
            and of that one otherwise, a fair sample is taken.
    """

    plan: SplitPlan
    labelled: LabelledDraws
    combination: Combination | None
    weighs: bool = False

    @classmethod
    def of(
        cls,
        records: Iterable[PromptRecord] | LabelledDraws,
        combine: Sequence[str] | None,
        plan: SplitPlan,
        *,
        n: int | None,
        provenance: Provenance | None,
        weighs: bool,
    ) -> Prompts:
        """Read records, scored by one verifier or by a combination that the fit split makes.

        Raises:
            InputError: If a record cannot be used.
            CalibrationError: If a combination is to be fitted to candidates of one kind.
        """
        if combine is None:
            return cls(plan, tabulate(records, n=n, provenance=provenance, weighted=True), None, weighs)
        labelled, raw = tabulate_raw(records, combine, n=n, provenance=provenance, weighted=True)
        fit = cls(plan, labelled, None).rows["fit"]
        combination = fit_combination(combine, raw[fit], labelled.take(fit))
        # The raw outputs have done their part, and would be copied with every part of the table.
        scored = replace(with_scores(labelled, combination.score_all(raw)), raw={})
        return cls(plan, scored, combination, weighs)

    @cached_property
    def rows(self) -> dict[Part, IntArray]:
        """Rows of each part that are used, by id: rounding follows the order, and no file's changes a bit."""
        ids = self.labelled.ids
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        fair = self.plan.stays(self.labelled)
        parts = self.plan.rows(self.labelled)
        used = {name: rows if self._weighs(name) else rows[fair[rows]] for name, rows in parts.items()}
        return {name: rows[np.argsort(place[rows])] for name, rows in used.items()}

    def part(self, name: Part) -> LabelledDraws:
        """The prompts of a part."""
        used = self.labelled.take(self.rows[name])
        return used if self._weighs(name) else replace(used, weights=None)

    def _weighs(self, name: Part) -> bool:
        return self.weighs and name == "calibration"

    def calibration(self, within_clusters: str) -> LabelledDraws:
        """The prompts that calibrate: `one` of each cluster, or `all`.

        Raises:
            InputError: If it is neither of the two.
            CalibrationError: If there are none.
        """
        if within_clusters not in {"one", "all"}:
            msg = f"within_clusters must be 'one' or 'all', got {within_clusters!r}"
            raise InputError(msg)
        part = self.part("calibration")
        if len(part) == 0:
            msg = (
                "the calibration split is empty: lower fit_fraction, certification_fraction and "
                "test_fraction, or bring more records"
            )
            raise CalibrationError(msg)
        return self.one_per_cluster(part) if within_clusters == "one" else part

    def certification(self) -> LabelledDraws:
        """The prompts of the third split, one of each cluster.

        Raises:
            CalibrationError: If there are none.
        """
        part = self.part("certification")
        if len(part) == 0:
            msg = "the split for certificates is empty: raise certification_fraction, or bring more records"
            raise CalibrationError(msg)
        return self.one_per_cluster(part)

    def one_per_cluster(self, prompts: LabelledDraws) -> LabelledDraws:
        """One hash-chosen prompt of each cluster."""
        rows = self.plan.one_per_cluster(prompts)
        return prompts if len(rows) == len(prompts) else prompts.take(rows)

    def facts(
        self,
        data: Calibration,
        config: CalibrationConfig,
        *,
        came_fitted: bool,
        recognised: bool,
    ) -> CalibrationFacts:
        """What an artifact says of them.

        Args:
            data: The calibration split in numbers.
            config: How the calibration was asked for.
            came_fitted: Whether the feature map was given fitted.
            recognised: Whether the third split is to be known again: where it can certify nothing any more,
                or never could.

        Returns:
            The facts.
        """
        used = [cluster for cluster in data.labelled.clusters if cluster is not None]
        labelled = self.labelled
        ids = {name: [labelled.ids[row] for row in rows.tolist()] for name, rows in self.rows.items()}
        known: tuple[Part, ...] = ("fit", "calibration")
        if recognised:
            known = (*known, "certification")
        clusters = [labelled.clusters[row] for name in known for row in self.rows[name].tolist()]
        sketched = names_of([one for name in known for one in ids[name]], clusters)
        return CalibrationFacts(
            size=len(data.labelled),
            sampled=labelled.weights is not None,
            weight=None if data.labelled.weights is None else float(data.labelled.weights.sum()),
            recorded_candidates=labelled.recorded or labelled.draws.n,
            extracted_answers=labelled.extracted,
            map_came_fitted=came_fitted,
            fit_size=len(ids["fit"]),
            held_out_size=len(ids["test"]),
            within_clusters=config.within_clusters,
            exchangeable=len(set(used)) == len(used),
            split=self.plan,
            digests={
                name: ids_digest(members)
                for name, members in ids.items()
                if members or name != "certification"
            },
            sketch=list(self.plan.sketch(sketched)),
            attainable_coverage=float(np.average(data.reachable, weights=data.labelled.weights)),
            groups=data.groups,
            certification_size=len(ids["certification"]),
            window=None if config.window == WINDOW else config.window or 0,
            allow_unattainable=config.allow_unattainable,
            prompt_kinds=None if labelled.prompt_kinds is None else sorted(labelled.prompt_kinds),
        )
