"""`ArtifactContent`: the fields of an artifact, and properties that follow directly from them.

`CalibrationArtifact` adds validation, thresholds, saving and loading. The guarantee and the checks
of a loaded file are functions of this content alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import Self

from langchain_cfc.artifact import files
from langchain_cfc.artifact.batch import BatchScores
from langchain_cfc.artifact.facts import (
    ArtifactData,
    Attempt,
    CalibrationFacts,
    CertifiedBot,
    PackedArray,
    ReferenceHistogram,
)
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.draw_rules import DrawRule, parse_draw_rule
from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.features import FeatureMap, Statistic
from langchain_cfc.guarantee import Confidence, CoverageCertificate, PaperPAC, PeopleCertificate
from langchain_cfc.records import Provenance
from langchain_cfc.records.schema import name_part
from langchain_cfc.set_rules import SetRule, parse_set_rule
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.support.normalisation import NORMALISATION
from langchain_cfc.support.units import UNITS, Unit, UnitTraits
from langchain_cfc.thresholds import CAP, format_alpha


class LevelState(ArtifactData):
    """The fitted threshold rules at one error level; names of arrays refer to the artifact's `arrays`.

    Attributes:
        alpha: Error level as decimal text.
        rule: State of the artifact's own threshold rule.
        marginal: The one threshold for all prompts, kept for comparison; the cap if none can be certified.
        effective_alpha: The smaller level at which the artifact's own rule was fitted, as decimal text; None
            if it was fitted at alpha.
    """

    alpha: str
    rule: dict[str, str]
    marginal: Annotated[float, Field(ge=0.0, le=CAP)]
    effective_alpha: str | None = None

    @model_validator(mode="after")
    def _check_effective_alpha(self) -> LevelState:
        level = self.effective_alpha
        if level is not None and (format_alpha(level) != level or float(level) >= float(self.alpha)):
            msg = f"effective_alpha: expected decimal text below alpha = {self.alpha}, got {level!r}"
            raise ValueError(msg)
        return self


class ArtifactContent(ArtifactData):
    """The fields of a calibration artifact; `CalibrationArtifact` documents them."""

    # These two texts are printed without being parsed.
    library_version: Annotated[str, Field(pattern=files.RELEASE_PATTERN)]
    created_at: Annotated[str, Field(pattern=r"^[0-9-]{10}T[0-9:]{8}\+00:00$")]
    n: int
    set_rule: str
    features: dict[str, Any]
    levels: list[LevelState]
    arrays: dict[str, PackedArray]
    provenance: Provenance | None
    calibration: CalibrationFacts
    pac: PaperPAC | None = None
    confidence: Confidence | None = None
    certificates: list[CoverageCertificate] = Field(default=[])
    bot: CertifiedBot | None = None
    batch: BatchScores | None = None
    people_certificates: list[PeopleCertificate] = Field(default=[])
    reference: list[ReferenceHistogram] = Field(default=[])
    draws: str | None = None
    attempts: list[Attempt] = Field(default=[])

    @cached_property
    def draw_rule(self) -> DrawRule | None:
        """The parsed draw rule; None if n candidates are always drawn."""
        return None if self.draws is None else parse_draw_rule(self.draws)

    @cached_property
    def alphas(self) -> tuple[str, ...]:
        """The error levels held, ascending."""
        return tuple([level.alpha for level in self.levels])

    @cached_property
    def feature_map(self) -> FeatureMap:
        """The fitted feature map."""
        return FeatureMap.from_data(self.features)

    @cached_property
    def parsed_set_rule(self) -> SetRule:
        """The set rule."""
        return parse_set_rule(self.set_rule)

    @cached_property
    def unit(self) -> Unit:
        """What is kept or rejected: whole answers, or the claims of one answer."""
        return self.parsed_set_rule.unit

    @property
    def subject(self) -> Literal["runs", "calls"] | None:
        """What it speaks of if that is `runs` or `calls` of an agent; None for answers and claims."""
        return None if self.provenance is None else self.provenance.subject

    @property
    def traits(self) -> UnitTraits:
        """The parts of what it speaks of, and the words for it."""
        return UNITS[self.subject or self.unit]

    @property
    def at_most(self) -> int | None:
        """Maximum number of unsupported claims left in an answer; None if whole answers are kept."""
        return self.parsed_set_rule.at_most

    def name_part(self, part: str) -> str:
        """Return the name that the records give to a part, such as `generator` or `verifier`."""
        if self.provenance is None:
            return "unknown: not in the records (unbound)"
        known = getattr(self.provenance, part)
        return "none" if known is None else name_part(known)

    def list_stated_levels(self, alpha: str) -> tuple[str, ...]:
        """List the error levels that may be stated at `alpha`, ascending; only `alpha` if not adaptive."""
        adaptive = self.feature_map.adaptive_alpha
        return (alpha,) if adaptive is None else adaptive.list_levels(alpha)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the canonical form of the content."""
        return files.compute_digest(self.model_dump(mode="json"))

    @cached_property
    def frozen_digest(self) -> str:
        """Digest of what certificates are about: the artifact without them, and without counts for drift."""
        certified = ("attempts", "certificates", "people_certificates", "reference")
        bare: dict[str, Any] = {"bot": None, **{name: [] for name in certified}}
        return self.model_copy(update=bare).digest

    @property
    def needs_answers(self) -> bool:
        """Whether any part compares answers, so that serving must extract them as calibration did."""
        parts = (self.feature_map, self.parsed_set_rule, self.draw_rule)
        return any(part is not None and part.needs_answers for part in parts)

    def check_answers(self, *, extracted: bool, failure: type[CFCError]) -> None:
        """Raise `failure` if answers are compared in another way than in calibration."""
        facts = self.calibration
        if not self.needs_answers or (facts.normalised, bool(facts.extracted_answers)) == (
            NORMALISATION,
            extracted,
        ):
            return
        named = self.provenance.answer if self.provenance is not None else None
        was = "without an answer extractor"
        if facts.extracted_answers:
            was = f"with the answer extractor {named or 'of its records'}"
        if facts.normalised != NORMALISATION:
            was = f"on answers in the normal form {facts.normalised}"
        msg = (
            f"the artifact was calibrated {was}, and its set rule, features or draw rule look at distinct "
            "answers: use the same (answer=), or calibrate again"
        )
        raise failure(msg)

    @property
    def is_bot_alone(self) -> bool:
        """Whether every promise is about how often a bot is wrong, and none about sets."""
        return not self.levels or self.parsed_set_rule.option != "alpha"

    def compute_monitored_values(
        self, features: FloatArray, draws: CandidateBatch
    ) -> Mapping[str, FloatArray]:
        """Return (N,) values by name that a monitor compares with calibration: statistics and features.

        With a draw rule, the number of draws is among them.
        """
        # Features need not depend on the scores, so these two statistics are always monitored.
        values = {name: Statistic(name).compute_values(draws) for name in ("mean_score", "min_score")}
        if self.draws is not None:
            values["draws"] = draws.counts.astype(np.float64)
        return {**values, **dict(zip(self.feature_map.names, features.T, strict=True))}

    def unpack_state(self, names: Mapping[str, str]) -> dict[str, FloatArray]:
        """Return the arrays of a fitted rule, given their names in a `LevelState`."""
        missing = sorted(set(names.values()) - set(self.arrays))
        if missing:
            msg = f"array {missing[0]!r} is missing"
            raise InputError(msg)
        return {key: self.arrays[name].unpack() for key, name in names.items()}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy as pydantic does, but drop cached values such as the digest."""
        copied = super().model_copy(update=update, deep=deep)
        for name in set(copied.__dict__) - set(type(self).model_fields):
            del copied.__dict__[name]
        return copied
