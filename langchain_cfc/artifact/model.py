"""`CalibrationArtifact`: everything that serving needs, as frozen data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from langchain_cfc._internal.arrays import BoolArray, FloatArray
from langchain_cfc._internal.files import atomic_writer, read_regular
from langchain_cfc.artifact import files
from langchain_cfc.artifact.consistency import contradictions, settings_digest
from langchain_cfc.artifact.facts import (
    ArtifactData,
    CalibrationFacts,
    CertifiedPolicy,
    Confidence,
    PackedArray,
    Ridge,
    ThresholdRuleName,
    Watched,
    likelihood_ratios,
    threshold_rule,
)
from langchain_cfc.artifact.promises import guarantee_of
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import ArtifactFormatError, CFCError, InputError
from langchain_cfc.features import FeatureMap, Statistic, parse_statistic
from langchain_cfc.guarantee import (
    Binding,
    Certificate,
    Count,
    CoverageCertificate,
    Guarantee,
    restrict_to_policy,
)
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.records import Provenance
from langchain_cfc.scoring import Combination
from langchain_cfc.set_rules import SetRule, parse_set_rule
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    Level,
    MarginalThreshold,
    ThresholdRule,
    Thresholds,
    format_alpha,
)


class SelfCheck(ArtifactData):
    """What calibration found when it asked its own prompts.

    Attributes:
        asked: How many calibration prompts were asked.
        refused: How many of them have no threshold, because the prompts kept do not decide it.
        kept: How many calibration prompts the conditional rule keeps, equal ones counted once.
    """

    asked: Count
    refused: Count
    kept: Count


class LevelState(ArtifactData):
    """The fitted threshold rules at one error level; arrays are named as in the artifact's `arrays`.

    Attributes:
        alpha: Error level as decimal text.
        rule: State of the artifact's own threshold rule.
        marginal: State of the marginal rule, kept to be compared with.
        effective_alpha: The smaller level that the artifact's own rule was fitted at, as decimal text; `0`
            where none is left and every prompt is flagged, None where it is alpha.
        slack: By name of a weighting, by how much a ridge is estimated to take its coverage below the target.
        settings: Digest of the level with the settings that it was fitted with, see `consistency`.
        self_check: What the conditional rule answers its own prompts; None for other rules, and in artifacts
            made before this was counted.
    """

    alpha: str
    rule: dict[str, str]
    marginal: dict[str, str]
    effective_alpha: str | None = None
    slack: dict[str, float] = Field(default={})
    settings: str | None = None
    self_check: SelfCheck | None = None

    @model_validator(mode="after")
    def _is_stricter(self) -> LevelState:
        level = self.effective_alpha
        if level in {None, "0"}:
            return self
        if format_alpha(str(level)) != level or float(level) >= float(self.alpha):
            msg = f"effective_alpha: expected decimal text below alpha = {self.alpha}, got {level!r}"
            raise ValueError(msg)
        return self


class CalibrationArtifact(ArtifactData):
    """A calibrated threshold with everything it depends on. Data only: no code, no prompt or answer text.

    Made by `calibrate`, written by `save`, read by `load`.

    Attributes:
        library_version: Version of this library that made it.
        created_at: When, in ISO 8601, UTC.
        n: Number of candidates per prompt.
        cap: Success score of a prompt without a correct candidate.
        set_rule: Text form of the set rule.
        threshold_rule: `conditional`, `marginal`, `grouped` or `learned`.
        features: Data form of the fitted feature map.
        levels: One entry per error level, alpha ascending.
        arrays: The numbers that the levels refer to, by name.
        provenance: Header of the calibration records; None means unbound.
        calibration: Which prompts it was made from.
        combination: What makes one score out of several verifiers' raw outputs; None where one verifier gives
            it.
        ridge: The penalty of a ridge, if there is one.
        stability: The paper's slack, by which levels were made stricter; None for none.
        confidence: With what confidence the promise holds for this very artifact; None where it is on average
            over calibration sets.
        shift: The statistic that says how much likelier a prompt is where it is served than where it was
            calibrated, such as `meta(ratio)`; None where they are equally likely.
        randomised: Whether thresholds are randomised: no more coverage than 1 - alpha for continuous scores,
            where sets may be empty.
        never_empty: Whether a prompt that is not flagged always gets a set: its best candidate alone where no
            candidate reaches the threshold. False in artifacts written before the field existed.
        certificates: What held-out prompts certify about the sets, at most one per level.
        policy: The policy of bot mode, with its certificate.
        reference: What prompts looked like, to tell drift by; empty where there is nothing to compare with.
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
    ridge: Ridge | None = None
    stability: PaperStability | None = None
    confidence: Confidence | None = None
    shift: str | None = None
    randomised: bool = False
    never_empty: bool = False
    certificates: list[CoverageCertificate] = Field(default=[])
    policy: CertifiedPolicy | None = None
    reference: list[Watched] = Field(default=[])

    @model_validator(mode="after")
    def _can_serve(self) -> CalibrationArtifact:
        # Every part is rebuilt once, so that a file which cannot serve is refused when it is loaded and not
        # by a user's question.
        alphas = [level.alpha for level in self.levels]
        if self.n < 1 or not alphas or alphas != sorted({format_alpha(alpha) for alpha in alphas}, key=float):
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
        self._check_promises()
        problem = next(contradictions(self), None)
        if problem is not None:
            msg = f"the content contradicts itself: {problem}"
            raise ValueError(msg)
        return self

    def _check_promises(self) -> None:
        """Refuse certificates of something else, and what no rule but the conditional one has."""
        certified: list[Certificate] = [*self.certificates]
        if self.policy is not None:
            certified += [self.policy.certificate, *self.policy.coverage]
        if any(one.artifact_digest != self.frozen_digest for one in certified):
            msg = "a certificate speaks of another artifact"
            raise ValueError(msg)
        levels = [one.alpha for one in self.certificates]
        if len(set(levels)) < len(levels) or not {one.alpha for one in certified} <= set(self.alphas):
            msg = "a certificate speaks of a level that the artifact does not hold, or two of the same"
            raise ValueError(msg)
        if self.policy is not None and [one.alpha for one in self.policy.coverage] != list(self.alphas):
            msg = "a policy comes with what is certified about the sets of every level"
            raise ValueError(msg)
        extras = self.ridge is not None or self.shift is not None or self.randomised
        if extras and self.threshold_rule != "conditional":
            msg = "only the conditional rule has a ridge, a shift or randomised thresholds"
            raise ValueError(msg)
        if self.confidence is not None and not set(self.confidence.names) <= {
            one.name for one in self.feature_map.guaranteed_weights()
        }:
            msg = "confidence is claimed for a weighting that the feature map does not have"
            raise ValueError(msg)
        if self.policy is not None and self.policy.certificate.policy.min_agreement > self.n:
            msg = f"min_agreement: {self.n} candidates cannot agree so often"
            raise ValueError(msg)
        _ = self._shift

    def __repr__(self) -> str:
        """What it is, in a line."""
        levels = ", ".join(self.alphas)
        return f"CalibrationArtifact({self.threshold_rule}, alpha={levels}, n={self.n}, {self.digest[:15]})"

    def __str__(self) -> str:
        """The same, or pydantic would write out everything."""
        return repr(self)

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

    @property
    def set_rule_words(self) -> str:
        """The set rule, and whether its sets may be empty."""
        return f"{self.set_rule}, {'never empty' if self.never_empty else 'may be empty'}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the canonical form of the content."""
        return files.digest(self.model_dump(mode="json"))

    @cached_property
    def frozen_digest(self) -> str:
        """Digest of the artifact without certificates and policy: what these speak of."""
        return self.model_copy(update={"certificates": [], "policy": None}).digest

    @property
    def needs_answers(self) -> bool:
        """Whether set rule, features or policy look at distinct answers, which serving must extract alike."""
        policy = None if self.policy is None else self.policy.certificate.policy
        asks = policy is not None and bool(policy.words)
        shift = self._shift is not None and self._shift.needs_answers
        return asks or shift or self.feature_map.needs_answers or self.set_rule.startswith("unique")

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """The metadata keys that every prompt must have, each once."""
        shift = () if self._shift is None or self._shift.key is None else (self._shift.key,)
        return tuple(dict.fromkeys([*self.feature_map.metadata_keys, *shift]))

    @cached_property
    def _shift(self) -> Statistic | None:
        return None if self.shift is None else parse_statistic(self.shift)

    def with_levels(self, levels: Sequence[LevelState], **update: Any) -> CalibrationArtifact:
        """The artifact with these levels only, and without the arrays and counts that are of no other."""
        named = {name for one in levels for state in (one.rule, one.marginal) for name in state.values()}
        arrays = {name: array for name, array in self.arrays.items() if name in named}
        held = {None, *(one.alpha for one in levels)}
        reference = [one for one in self.reference if one.alpha in held]
        return self.model_copy(
            update={"levels": list(levels), "arrays": arrays, "reference": reference, **update}
        )

    def with_settings(self) -> CalibrationArtifact:
        """Return the artifact with each level tied to the settings that it was fitted with."""
        levels = [one.model_copy(update={"settings": settings_digest(self, one)}) for one in self.levels]
        return self.model_copy(update={"levels": levels})

    @property
    def spent(self) -> bool:
        """Whether the labels of the third split have chosen a level or a policy.

        What is promised on average over calibration sets does not hold for those that let something be
        chosen; what holds with confidence does.
        """
        return self.policy is not None or (self.confidence is not None and self.confidence.prompts > 0)

    def other_parts(self, theirs: Provenance | None) -> list[str]:
        """Which of generator, verifier and answer extractor records name that are not those calibrated."""
        ours = self.provenance
        if theirs is None or ours is None:
            return []
        return [
            part
            for part in ("generator", "verifier", "answer")
            if getattr(theirs, part) != getattr(ours, part)
        ]

    def check_answers(self, labelled: LabelledBatch) -> None:
        """Refuse labelled prompts whose answers are not told apart as in calibration, where that matters."""
        if self.needs_answers and bool(labelled.extracted) != bool(self.calibration.extracted_answers):
            made = "with" if self.calibration.extracted_answers else "without"
            msg = (
                f"the artifact was calibrated {made} extracted answers, on which its set rule, features or "
                "policy depend, and these records are not: extract `answer` in the same way"
            )
            raise InputError(msg)

    def uniforms(self, labelled: LabelledBatch) -> FloatArray | None:
        """Random numbers of labelled prompts for randomised thresholds, the same each time; else None."""
        return self.calibration.split.uniforms("randomise", labelled.ids) if self.randomised else None

    def weights(self, draws: CandidateBatch) -> FloatArray | None:
        """How much likelier each prompt is where it is served than where it was calibrated.

        Args:
            draws: N prompts.

        Returns:
            (N,) weights above 0, in any unit; None where there is no shift.

        Raises:
            InputError: If one is not a finite number above 0, or is missing.
        """
        return None if self._shift is None else likelihood_ratios(self._shift, draws)

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
        delta = None if self.confidence is None or self.confidence.prompts else self.confidence.delta
        return {
            level.alpha: threshold_rule(
                self.threshold_rule,
                level.alpha,
                self.cap,
                effective_alpha=level.effective_alpha,
                delta=delta,
                ridge=self.ridge,
            ).restore(self._state(level.rule))
            for level in self.levels
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
        text = format_alpha(alpha)
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
        self,
        features: FloatArray,
        alpha: Level | None = None,
        *,
        weights: FloatArray | None = None,
        uniforms: FloatArray | None = None,
        marginal: bool = False,
    ) -> Thresholds:
        """Served thresholds: the running maximum over the levels from the largest alpha down to this one.

        Conditional thresholds at two levels may cross; with the running maximum a smaller alpha never gives
        a smaller set. A prompt of a category that was not calibrated on has an infinite threshold, except
        under the marginal rule, which looks at no features.

        Args:
            features: (m, d) features from `feature_map`.
            alpha: Error level; may be left out where there is only one.
            weights: (m,) what `weights` says, where the artifact has a shift.
            uniforms: (m,) independent uniform random numbers in (0, 1), where thresholds are randomised.
            marginal: Whether to use the marginal rule instead of the artifact's own, to compare with.

        Returns:
            The m thresholds.

        Raises:
            InputError: If the level is not held, the features do not fit, or weights or uniforms are missing
                or not wanted.
        """
        text = self.level(alpha)
        for name, given, wanted in (
            ("weights", weights, self.shift is not None),
            ("uniforms", uniforms, self.randomised),
        ):
            if (given is not None) != wanted:
                msg = f"thresholds of this artifact are asked for {'with' if wanted else 'without'} {name}"
                raise InputError(msg)
        rules = self._marginal_rules if marginal else self._rules
        if not marginal and self.threshold_rule != "marginal":
            unknown = self.feature_map.has_unknown_category(features)
            if unknown.any():
                return self._solve_known(features, text, ~unknown, weights, uniforms)
        solved = [
            rule.solve(features, weights, uniforms)
            if isinstance(rule, ConditionalThreshold)
            else rule.solve(features)
            for level, rule in rules.items()
            if float(level) >= float(text)
        ]
        if len(solved) == 1:
            return solved[0]
        values = np.max([one.values for one in solved], axis=0)
        errors = np.max([one.errors for one in solved], axis=0)
        outside = np.any([one.outside for one in solved], axis=0)
        return Thresholds(values, np.where(np.isinf(values), 0.0, errors), outside)

    def _solve_known(
        self,
        features: FloatArray,
        alpha: str,
        known: BoolArray,
        weights: FloatArray | None,
        uniforms: FloatArray | None,
    ) -> Thresholds:
        """Solve for prompts of known categories; the thresholds of all others are infinite."""
        values = np.full(len(features), np.inf)
        errors, outside = np.zeros(len(features)), np.zeros(len(features), dtype=np.bool_)
        if known.any():
            solved = self.solve(
                features[known],
                alpha,
                weights=None if weights is None else weights[known],
                uniforms=None if uniforms is None else uniforms[known],
            )
            values[known], errors[known], outside[known] = solved.values, solved.errors, solved.outside
        return Thresholds(values, errors, outside)

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
        return guarantee_of(self, self.level(alpha), binding)

    def bot_guarantee(self, binding: Binding | None = None) -> Guarantee:
        """Both promises of bot mode: about the sets that its policy answers from, and about its answers.

        Args:
            binding: As in `guarantee`.

        Returns:
            The promise as data.

        Raises:
            InputError: If the artifact holds no certified policy.
        """
        certificate = self.certified_policy.certificate
        return restrict_to_policy(self.guarantee(certificate.alpha, binding), certificate.policy, certificate)

    @property
    def certified_policy(self) -> CertifiedPolicy:
        """The policy of bot mode."""
        if self.policy is None:
            msg = (
                "the artifact holds no certified policy: calibrate with max_wrong_rate (on the command line "
                "--max-wrong-rate), or leave bot mode out"
            )
            raise InputError(msg)
        return self.policy

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact atomically.

        Args:
            path: The file; replaced as a whole if it exists.

        Raises:
            InputError: If the folder is missing or cannot be written to, or the disk is full.
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
            ArtifactFormatError: If the file is missing, no regular file, larger than 1 GiB, not an artifact,
                truncated, of an unknown version, or has fields too many or few.
            ArtifactDigestError: If its content is not what was saved.
        """
        source = os.fspath(path)
        try:
            data = read_regular(Path(path), files.MOST_BYTES)
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or error
            msg = (
                f"{source}: cannot be read ({reason}); `langchain-cfc calibrate` or `artifact.save(path)` "
                "writes artifacts"
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
