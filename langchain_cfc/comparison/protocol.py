"""`Protocol`: what is done on every split; `Comparison`: a protocol on a pool of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from langchain_cfc._arrays import IntArray
from langchain_cfc.calibration.checks import check_answers
from langchain_cfc.comparison.groups import Groups, groups_of, properties
from langchain_cfc.comparison.measuring import Measured, measure
from langchain_cfc.comparison.methods import CAP, Method
from langchain_cfc.comparison.metrics import Slabs, slab_bins
from langchain_cfc.comparison.pool import Pool, Split
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import CalibrationError
from langchain_cfc.features import FeatureMap, naming
from langchain_cfc.records import Provenance
from langchain_cfc.splits import Part, SplitPlan, split_plan


@dataclass(frozen=True)
class Protocol:
    """What is done on every split.

    Attributes:
        methods: The methods.
        alphas: Error levels as decimal texts.
        features: The feature map of methods that name none of their own.
        set_rule: The set rule of such methods.
        groups: Feature text of the groups that coverage is looked at in. Bins and categories are those of all
            prompts; `hard(...)` is cut on the development prompts, as the paper does.
        combine: Names of verifiers whose raw outputs become the scores, by a combination that each split
            fits anew; None for the recorded scores. Groups and slabs are those of recorded scores all the
            same, so that protocols can be compared.
        splits: Number of splits.
        seed: What they are drawn by.
        test: Share of the prompts held out.
        fit: Share of the others that fits feature maps.
    """

    methods: tuple[Method, ...]
    alphas: tuple[str, ...]
    features: str
    set_rule: str
    groups: str
    combine: tuple[str, ...] | None
    splits: int
    seed: str
    test: float
    fit: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """A protocol on a pool of prompts.

    Attributes:
        pool: The prompts, of each cluster one.
        protocol: The protocol.
    """

    pool: Pool
    protocol: Protocol

    @classmethod
    def on(cls, labelled: LabelledDraws, protocol: Protocol) -> Comparison:
        """The comparison on labelled prompts; of each cluster, one prompt takes part.

        In the order of their ids: rounding follows the order, and a file's shall not change a bit.
        """
        alone = split_plan(protocol.seed, fit=0.0, test=0.0).one_per_cluster(labelled).tolist()
        return cls(Pool(labelled.take(np.array(sorted(alone, key=labelled.ids.__getitem__)))), protocol)

    def check(self, provenance: Provenance | None = None) -> None:
        """Refuse what would fail in every split, before any is measured.

        Args:
            provenance: Header of the records, which may name an answer extractor.

        Raises:
            InputError: If groups are no groups, labels make no sense under a set rule, or answers cannot be
                told apart where they must be.
            FeatureError: If a feature map does not suit the prompts.
        """
        labelled = self.pool.labelled
        asks = FeatureMap.parse(self.protocol.groups).needs_answers
        for method in self.protocol.methods:
            features, set_rule = self._read_by(method)
            asks = asks or FeatureMap.parse(features).needs_answers or set_rule.startswith("unique")
            asks = asks or method.tells_answers_apart
        check_answers(labelled, provenance, needed=asks and labelled.draws.answer_codes is not None)
        _ = self.groups
        for features, set_rule in {self._read_by(method) for method in self.protocol.methods}:
            self.pool.features(features, np.arange(len(labelled)))
            self.pool.success_scores(set_rule, CAP)

    def _read_by(self, method: Method) -> tuple[str, str]:
        return method.reads(self.protocol.features, self.protocol.set_rule)

    @cached_property
    def groups(self) -> Groups:
        """The groups, cut on all prompts."""
        with naming(self.pool.labelled.ids):
            return groups_of(self.protocol.groups, self.pool.draws, self.pool.draws)

    @cached_property
    def _needed(self) -> tuple[Part, ...]:
        """The parts that no split may leave empty."""
        maps = {self._read_by(method)[0] for method in self.protocol.methods}
        fitted = self.protocol.combine is not None or any(FeatureMap.parse(one).needs_fit for one in maps)
        return ("fit", "calibration", "test") if fitted else ("calibration", "test")

    @cached_property
    def properties(self) -> tuple[Groups, ...]:
        """Groups along everything that is known of prompts."""
        return properties(self.pool.draws)

    @cached_property
    def _bins(self) -> IntArray | None:
        return slab_bins(self.pool.draws)

    def plan(self, number: int) -> SplitPlan:
        """What assigns prompts to the parts of a split."""
        protocol = self.protocol
        return split_plan(f"{protocol.seed}/{number}", fit=protocol.fit, test=protocol.test)

    def measured(self, number: int) -> Measured:
        """The figures of split `number`, from 0."""
        rows = self.plan(number).rows(self.pool.labelled)
        for part in self._needed:
            if len(rows[part]) == 0:
                msg = (
                    f"the {part} part of split {number} is empty: bring more records, or change "
                    "test_fraction and fit_fraction"
                )
                raise CalibrationError(msg)
        protocol, draws = self.protocol, self.pool.draws
        pool = self.pool if protocol.combine is None else self.pool.combined(protocol.combine, rows["fit"])
        split = Split(
            pool,
            rows["fit"],
            rows["calibration"],
            rows["test"],
            protocol.features,
            protocol.set_rule,
        )
        groups = self.groups
        if groups.text.startswith("hard("):
            groups = groups_of(groups.text, draws.take(split.development), draws)
        slabs = None
        if self._bins is not None:
            # Ids are hashed anew for each split; which half a prompt is in has nothing to do with it.
            half = self.plan(number).uniforms("slab", [self.pool.labelled.ids[row] for row in split.test])
            slabs = Slabs(self._bins[split.test], half < 0.5)  # noqa: PLR2004
        return measure(
            split, protocol.methods, protocol.alphas, groups, properties=self.properties, slabs=slabs
        )
