"""`CalibrationArtifact`: everything that serving needs, as frozen data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from langchain_cfc._arrays import FloatArray
from langchain_cfc._files import atomic_writer
from langchain_cfc.artifact import files
from langchain_cfc.artifact.facts import ArtifactData, CalibrationFacts
from langchain_cfc.artifact.packed import PackedArray
from langchain_cfc.combination import Combination
from langchain_cfc.errors import ArtifactFormatError, CFCError, InputError
from langchain_cfc.features import FeatureMap
from langchain_cfc.guarantee import (
    NOT_PROMISED,
    NOTHING_PROMISED,
    Binding,
    Guarantee,
    Weighting,
    assumptions,
    guarantee_kind,
    promise,
)
from langchain_cfc.records import Provenance
from langchain_cfc.set_rules import SetRule, parse_set_rule
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    LearnedThreshold,
    Level,
    MarginalThreshold,
    ThresholdRule,
    Thresholds,
    alpha_text,
)

ThresholdRuleName = Literal["conditional", "marginal", "learned"]
THRESHOLD_RULES: dict[ThresholdRuleName, type[ThresholdRule[Any]]] = {
    "conditional": ConditionalThreshold,
    "marginal": MarginalThreshold,
    "learned": LearnedThreshold,
}


class LevelState(ArtifactData):
    """The fitted threshold rules at one error level; arrays are named as in the artifact's `arrays`.

    Attributes:
        alpha: Error level as decimal text.
        rule: State of the artifact's own threshold rule.
        marginal: State of the marginal rule, kept to be compared with.
    """

    alpha: str
    rule: dict[str, str]
    marginal: dict[str, str]


class CalibrationArtifact(ArtifactData):
    """A calibrated threshold with everything it depends on. Data only: no code, no prompt or answer text.

    Made by `calibrate`, written by `save`, read by `load`.

    Attributes:
        library_version: Version of this library that made it.
        created_at: When, in ISO 8601, UTC.
        n: Number of candidates per prompt.
        cap: Success score of a prompt without a correct candidate.
        set_rule: Text form of the set rule.
        threshold_rule: `conditional`, `marginal` or `learned`.
        features: Data form of the fitted feature map.
        levels: One entry per error level, alpha ascending.
        arrays: The numbers that the levels refer to, by name.
        provenance: Header of the calibration records; None means unbound.
        calibration: Which prompts it was made from.
        combination: What makes one score out of several verifiers' raw outputs; None where one verifier gives
            it.
    """

    library_version: str
    created_at: str
    n: int
    cap: float
    set_rule: str
    threshold_rule: ThresholdRuleName
    features: dict[str, Any]
    levels: list[LevelState]
    arrays: dict[str, PackedArray]
    provenance: Provenance | None
    calibration: CalibrationFacts
    combination: Combination | None = None

    @model_validator(mode="after")
    def _can_serve(self) -> CalibrationArtifact:
        # Every part is rebuilt once, so that a file which cannot serve is refused when it is loaded and not
        # by a user's question.
        alphas = [level.alpha for level in self.levels]
        if self.n < 1 or not alphas or alphas != sorted({alpha_text(alpha) for alpha in alphas}, key=float):
            msg = "expected n >= 1 and at least one level, with alphas ascending in canonical form"
            raise ValueError(msg)
        dimensions = {
            rule.dimension for rules in (self._rules, self._marginal_rules) for rule in rules.values()
        }
        if dimensions != {self.feature_map.dimension}:
            msg = (
                f"threshold states for {sorted(dimensions)} features do not fit a map of "
                f"{self.feature_map.dimension}"
            )
            raise ValueError(msg)
        _ = self.parsed_set_rule
        states = [state for level in self.levels for state in (level.rule, level.marginal)]
        stray = sorted(set(self.arrays).difference(*(state.values() for state in states)))
        if stray:
            msg = f"array {stray[0]!r} belongs to no level"
            raise ValueError(msg)
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_none(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Artifacts without a combination keep the content and the digest that they had before there were any.
        data: dict[str, Any] = serialised(self)
        if self.combination is None:
            data.pop("combination", None)
        return data

    def __repr__(self) -> str:
        """What it is, in a line."""
        levels = ", ".join(self.alphas)
        return f"CalibrationArtifact({self.threshold_rule}, alpha={levels}, n={self.n}, {self.digest[:15]})"

    @property
    def alphas(self) -> tuple[str, ...]:
        """The error levels held, ascending."""
        return tuple(level.alpha for level in self.levels)

    @cached_property
    def feature_map(self) -> FeatureMap:
        """The fitted feature map."""
        return FeatureMap.from_data(self.features)

    @cached_property
    def parsed_set_rule(self) -> SetRule:
        """The set rule."""
        return parse_set_rule(self.set_rule)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the canonical form of the content."""
        return files.digest(self.model_dump(mode="json"))

    @property
    def needs_answers(self) -> bool:
        """Whether set rule or features look at distinct answers, which serving must then extract alike."""
        return self.feature_map.needs_answers or self.set_rule.startswith("unique")

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> CalibrationArtifact:
        """As pydantic copies, but without what was computed late from other content, such as the digest."""
        copied = super().model_copy(update=update, deep=deep)
        for name in set(copied.__dict__) - set(type(self).model_fields):
            del copied.__dict__[name]
        return copied

    @cached_property
    def _rules(self) -> dict[str, ThresholdRule[Any]]:
        rule = THRESHOLD_RULES[self.threshold_rule]
        return {
            level.alpha: rule(level.alpha, self.cap).restore(self._state(level.rule)) for level in self.levels
        }

    @cached_property
    def _marginal_rules(self) -> dict[str, ThresholdRule[Any]]:
        return {
            level.alpha: MarginalThreshold(level.alpha, self.cap).restore(self._state(level.marginal))
            for level in self.levels
        }

    def _state(self, names: Mapping[str, str]) -> dict[str, FloatArray]:
        missing = sorted(set(names.values()) - set(self.arrays))
        if missing:
            msg = f"array {missing[0]!r} is missing"
            raise InputError(msg)
        return {key: self.arrays[name].unpack() for key, name in names.items()}

    def level(self, alpha: Level | None = None) -> str:
        """The canonical text of a level that the artifact holds.

        Args:
            alpha: Error level; may be left out where there is only one.

        Returns:
            Its text, as in `alphas`.

        Raises:
            InputError: If the artifact was not calibrated at this level, or there are several to choose from.
        """
        held = ", ".join(self.alphas)
        if alpha is None:
            if len(self.alphas) == 1:
                return self.alphas[0]
            msg = (
                f"the artifact holds several levels ({held}): say which, with alpha=..., before the "
                "candidates are drawn"
            )
            raise InputError(msg)
        text = alpha_text(alpha)
        if text not in self.alphas:
            msg = f"the artifact was not calibrated at alpha = {text}; it holds {held}"
            raise InputError(msg)
        return text

    def rule(self, alpha: Level | None = None) -> ThresholdRule[Any]:
        """The fitted threshold rule of one level by itself.

        Args:
            alpha: Error level; may be left out where there is only one.

        Returns:
            The rule; served thresholds (`solve`) are the running maximum over levels.

        Raises:
            InputError: If the level is not held.
        """
        return self._rules[self.level(alpha)]

    def solve(
        self, features: FloatArray, alpha: Level | None = None, *, marginal: bool = False
    ) -> Thresholds:
        """Served thresholds: the running maximum over the levels from the largest alpha down to this one.

        Conditional thresholds at two levels may cross; with the running maximum a smaller alpha never gives
        a smaller set.

        Args:
            features: (m, d) features from `feature_map`.
            alpha: Error level; may be left out where there is only one.
            marginal: Whether to use the marginal rule instead of the artifact's own, to compare with.

        Returns:
            The m thresholds.

        Raises:
            InputError: If the level is not held, or the features do not fit.
        """
        text = self.level(alpha)
        rules = self._marginal_rules if marginal else self._rules
        solved = [rule.solve(features) for level, rule in rules.items() if float(level) >= float(text)]
        if len(solved) == 1:
            return solved[0]
        values = np.max([one.values for one in solved], axis=0)
        errors = np.max([one.errors for one in solved], axis=0)
        outside = np.any([one.outside for one in solved], axis=0)
        return Thresholds(values, np.where(np.isinf(values), 0.0, errors), outside)

    def guarantee(self, alpha: Level | None = None, binding: Binding | None = None) -> Guarantee:
        """The promise at a level.

        Args:
            alpha: Error level; may be left out where there is only one.
            binding: Whether generator and verifier are known to be those calibrated; by default `unbound` or
                `unchecked`.

        Returns:
            The promise as data.

        Raises:
            InputError: If the level is not held.
        """
        text = self.level(alpha)
        facts = self.calibration
        if binding is None:
            binding = "unbound" if self.provenance is None else "unchecked"
        kind = guarantee_kind(self.threshold_rule, exchangeable=facts.exchangeable)
        weightings = self._weightings[: {"conditional": None, "marginal": 1, "heuristic": 0}[kind]]
        target = self._rules[text].tau
        return Guarantee(
            kind=kind,
            sentence=promise(kind, target, facts.size, weightings),
            alpha=text,
            target_coverage=target,
            threshold_rule=self.threshold_rule,
            set_rule=self.set_rule,
            weightings=weightings,
            feature_names=self.feature_map.names,
            assumptions=assumptions(
                within_clusters="one" if facts.exchangeable else "all",
                binding=binding,
                map_came_fitted=facts.map_came_fitted,
                fewer_than_recorded=self.n < facts.recorded_candidates,
                combined=() if self.combination is None else self.combination.names,
            ),
            not_promised=NOTHING_PROMISED if kind == "heuristic" else NOT_PROMISED,
            calibration_size=facts.size,
            binding=binding,
            artifact_digest=self.digest,
        )

    @cached_property
    def _weightings(self) -> tuple[Weighting, ...]:
        return tuple(
            Weighting(name=w.name, kind=w.kind, words=w.words, coefficients=w.coefficients)
            for w in self.feature_map.guaranteed_weights()
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact atomically.

        Args:
            path: The file; replaced as a whole if it exists.

        Raises:
            InputError: If the folder is missing or cannot be written to.
        """
        data = files.encode(self.model_dump(mode="json"))
        with atomic_writer(path) as file:
            file.write(data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CalibrationArtifact:
        """Read an artifact, and refuse whatever is not byte for byte what `save` wrote.

        Args:
            path: The file.

        Returns:
            The artifact; its thresholds are bit-identical to those of the one saved.

        Raises:
            ArtifactFormatError: If the file is missing, not an artifact, truncated, of an unknown version,
                or has fields too many or few.
            ArtifactDigestError: If its content is not what was saved.
        """
        source = os.fspath(path)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            msg = (
                f"{source}: cannot be read ({error.strerror}); `langchain-cfc calibrate` or "
                "`artifact.save(path)` writes artifacts"
            )
            raise ArtifactFormatError(msg) from error
        content = files.decode(data, source)
        try:
            artifact = cls.model_validate(content)
            as_saved = artifact.digest == files.digest(content)
        except (ValueError, CFCError) as error:
            msg = f"{source}: not a valid artifact of version {files.VERSION}: {files.first_problem(error)}"
            raise ArtifactFormatError(msg) from error
        if not as_saved:  # such as 2 in place of 2.0, which `save` does not write
            msg = f"{source}: not in the form that artifacts of version {files.VERSION} are saved in"
            raise ArtifactFormatError(msg)
        return artifact
