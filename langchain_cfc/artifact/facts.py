"""Data classes for the parts of an artifact: prompts, settings, arrays, certificates and histograms."""

from __future__ import annotations

import base64
import hashlib
import math
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from langchain_cfc.candidates import PromptKind
from langchain_cfc.errors import InputError
from langchain_cfc.features import AdaptiveAlpha
from langchain_cfc.guarantee import Alpha, Count, Delta, PaperPAC, Share, WrongRateCertificate
from langchain_cfc.records.splits import SplitPlan
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.support.curves import RiskCurve
from langchain_cfc.support.display import Displayed
from langchain_cfc.support.serialization import OmitsDefaults
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    GroupedThreshold,
    Level,
    format_alpha,
)

# Bytes of a hash in `Attempt`: two among 100,000 prompts are equal by chance with probability 2e-5.
HASH_BYTES = 6


class ArtifactData(Displayed, OmitsDefaults):
    """Base class of artifact data: frozen, strict, without infinities and unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class AttainableGroup(ArtifactData):
    """The attainable coverage under one guaranteed weighting.

    Attributes:
        name: Name of the weighting.
        words: The weighting in plain English.
        size: Sum of the weights over the calibration prompts.
        attainable: Weighted share of calibration prompts with a correct candidate that can enter the set.
        smallest_alpha: Smallest error level with a threshold below the cap under this weighting: 1 -
            attainable size / (size + 1); approximate for soft and for overlapping weightings.
    """

    name: str
    words: str
    size: float
    attainable: float
    smallest_alpha: float

    def is_attainable(self, alpha: float | str) -> bool:
        """Whether an error level is within reach under this weighting, up to round-off."""
        return float(alpha) >= self.smallest_alpha - 1e-12


class CalibrationFacts(ArtifactData):
    """Facts about the prompts that an artifact was made from, and the coverage that they allow.

    Attributes:
        size: Number N of calibration prompts.
        recorded_candidates: Number of candidates recorded per prompt, of which the first n were used.
        extracted_answers: Whether an extractor made the answers; None if only some have one extracted.
        map_came_fitted: Whether the feature map was passed in fitted, on prompts that are not known here.
        fit_size: Number of prompts in the fit split, which fits the feature map and, if needed, adaptive
            levels; none of them calibrated.
        held_out_size: Number of prompts held out for evaluation and certificates.
        split: The plan that assigns prompts to parts.
        digests: Digest of each part's ids.
        sketch: Keyed hashes of some ids and clusters of all splits but the held-out one, to recognise them
            later.
        attainable_coverage: Share of calibration prompts whose success score is below the cap.
        groups: Attainable coverage of every guaranteed weighting, all prompts first.
        allow_unattainable: The option `allow_unattainable` of `calibrate`.
        prompt_kinds: Kinds of the recorded prompts, `text`, `messages` and `object`, sorted; None if they are
            unknown, as for arrays.
        normalised: Version of the normal form in which answers were compared; None if nothing compares them.
    """

    size: int
    recorded_candidates: int
    extracted_answers: bool | None
    map_came_fitted: bool
    fit_size: int
    held_out_size: int
    split: SplitPlan
    digests: dict[str, str]
    sketch: list[str]
    attainable_coverage: float
    groups: list[AttainableGroup]
    allow_unattainable: bool = False
    prompt_kinds: list[PromptKind] | None = None
    normalised: str | None = None


class Attempt(ArtifactData):
    """One attempt to certify something, or a look at labels.

    Attributes:
        kind: `certificate`, or `look` at figures by setting from the labels.
        prompts: Hashes of the prompts' ids, clusters and inputs, 6 bytes each, ascending, in base64. They do
            not reveal the names, and are the same for every seed.
        records: Digest of the labelled prompts with their scores; changed labels are another attempt.
        settings: Digest of everything else that determines the test; for a look, what was printed.
        number: k, counted among the attempts on overlapping labels; None for a look.
        certified: Whether something was certified; None for a look.
    """

    kind: Literal["certificate", "look"]
    prompts: Annotated[str, Field(pattern="^([A-Za-z0-9+/]{8})*$")]
    records: str
    settings: str
    number: Annotated[int, Field(ge=1)] | None = None
    certified: bool | None = None

    @cached_property
    def names(self) -> frozenset[bytes]:
        """The hashes of the prompts' ids, clusters and inputs."""
        packed = base64.b64decode(self.prompts)
        return frozenset(packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES))

    @property
    def key(self) -> tuple[str, ...]:
        """What distinguishes it from other attempts."""
        return (self.kind, self.prompts, self.records, self.settings)


class TradeOff(ArtifactData):
    """A cut on the mean score, with its numbers of answers and wrong answers.

    Attributes:
        max_mean_score: The cut: prompts whose candidates have at most this mean score are answered.
        answered: Number of certification prompts answered, at least 1.
        wrong: Number of these with a wrong best answer.
        wrong_rate_at_most: Upper bound on the wrong-answer rate; the bounds of all cuts listed hold together
            with confidence 1 - delta.
    """

    max_mean_score: Share
    answered: Annotated[int, Field(ge=1)]
    wrong: Count
    wrong_rate_at_most: Share


class Promise(NamedTuple):
    """One promise that a chain can serve, by the argument that names it.

    Attributes:
        option: `alpha` for answer sets; for a bot `max_wrong_rate`, among the answered prompts, or
            `max_wrong_of_all`, among all prompts.
        level: Error level or rate as decimal text.
    """

    option: str
    level: str

    @property
    def max_wrong_rate(self) -> str | None:
        """The certified rate; None for a promise of another kind."""
        return self.level if self.option == "max_wrong_rate" else None


class CertifiedBot(ArtifactData):
    """The rates that a bot was certified for, each by a cut on the mean score, or on the scores of claims.

    Attributes:
        certificates: A certificate for each rate that is certified, by rate ascending; empty if all are
            refused and the artifact promises something about sets as well.
        refused: The reason why a rate cannot be certified, by rate.
        curve: Cuts that were compared, by number of answered prompts, ascending; empty for claims.
        delta: Failure probability of all rates together, as decimal text.
        by_group: Whether the rates were tested in the groups of the feature map as well.
    """

    certificates: list[WrongRateCertificate]
    refused: dict[Alpha, str] = Field(default={})
    curve: list[TradeOff] = Field(default=[])
    delta: Delta
    by_group: bool = False

    @property
    def rates(self) -> tuple[str, ...]:
        """The rates that were asked for, certified or refused, ascending."""
        certified = [one.max_wrong_rate for one in self.certificates]
        return tuple(sorted([*certified, *self.refused], key=float))

    def with_certified_points(self) -> list[tuple[TradeOff, bool]]:
        """Return the curve together with the certified cuts; the flag tells which points are certified.

        A certified cut need not be among those compared; its bound is the certified rate.
        """
        certified = {}
        for one in self.certificates:
            if one.max_mean_score is not None:
                certified[one.max_mean_score] = TradeOff(
                    max_mean_score=one.max_mean_score,
                    answered=one.groups[0].answered,
                    wrong=one.groups[0].wrong,
                    wrong_rate_at_most=float(one.max_wrong_rate),
                )
        points = [(point, certified.pop(point.max_mean_score, None) is not None) for point in self.curve]
        points += [(point, True) for point in certified.values()]
        return sorted(points, key=lambda one: one[0].answered)

    @property
    def risk_curve(self) -> RiskCurve:
        """The curve with its bounds and the certified cuts as shares; without points for claims."""
        if not self.certificates:
            return RiskCurve(answered=[], wrong=[])
        prompts = self.certificates[0].prompts
        points = [(one, one.groups[0]) for one in self.certificates if one.max_mean_score is not None]
        return RiskCurve(
            labels=self.certificates[0].traits.axes,
            answered=[one.answered / prompts for one in self.curve],
            wrong=[one.wrong / one.answered for one in self.curve],
            at_most=[one.wrong_rate_at_most for one in self.curve],
            certified=[
                (group.answered / prompts, group.wrong / group.answered, float(one.max_wrong_rate))
                for one, group in points
                if group.answered
            ],
        )

    def find_certificate(self, max_wrong_rate: Level) -> WrongRateCertificate:
        """Return the certificate of a rate.

        Raises:
            InputError: If the rate is not certified.
        """
        held = ", ".join(one.max_wrong_rate for one in self.certificates) or "none"
        text = format_alpha(max_wrong_rate, "max_wrong_rate")
        for certificate in self.certificates:
            if certificate.max_wrong_rate == text:
                return certificate
        reason = self.refused.get(text, f"it was not requested; the certified rates are {held}")
        msg = f"max_wrong_rate = {text} is not certified: {reason}"
        raise InputError(msg)


class PackedArray(ArtifactData):
    """An array of finite floats, packed as base64 for JSON.

    Attributes:
        shape: Its shape.
        float64: Its numbers, little-endian IEEE 754 doubles in C order, in base64.
    """

    shape: list[int]
    float64: str

    @classmethod
    def pack(cls, array: FloatArray) -> PackedArray:
        """Pack an array."""
        raw = np.ascontiguousarray(array, dtype="<f8").tobytes()
        return cls(shape=list(array.shape), float64=base64.b64encode(raw).decode("ascii"))

    def unpack(self) -> FloatArray:
        """Return the array, bit for bit; an InputError if it is malformed or a number is not finite."""
        try:
            raw = base64.b64decode(self.float64, validate=True)
        except ValueError as error:  # also `binascii.Error`
            msg = "a packed array is not base64"
            raise InputError(msg) from error
        if any(size < 0 for size in self.shape) or len(raw) != 8 * math.prod(self.shape):
            msg = f"a packed array of shape {self.shape} holds {len(raw)} bytes"
            raise InputError(msg)
        array = np.frombuffer(raw, dtype="<f8").reshape(self.shape).astype(np.float64)
        if not np.isfinite(array).all():
            msg = "a packed array holds a number that is not finite"
            raise InputError(msg)
        return array

    @property
    def name(self) -> str:
        """A name derived from the content, so that equal arrays are stored once."""
        return hashlib.sha256(f"{self.shape}{self.float64}".encode()).hexdigest()[:16]


class ReferenceHistogram(ArtifactData):
    """The distribution of one quantity at calibration, which a monitor compares with traffic.

    Attributes:
        name: `mean_score`, `min_score`, `draws` (with a draw rule), the name of a feature, or `threshold` or
            `decision` of a promise.
        edges: Lower ends of all bins but the first, ascending; chosen on prompts that are not counted.
        counts: Number of prompts in each bin, by name of a guaranteed weighting; each prompt was counted with
            a probability equal to its weight.
        alpha: The level of the threshold or decision; None for scores, draws and features.
        max_wrong_rate: The certified wrong-answer rate under which the decision answers; None for answer
            sets.
    """

    name: str
    edges: list[float]
    counts: dict[str, list[Count]]
    alpha: Alpha | None = Field(default=None)
    max_wrong_rate: Alpha | None = Field(default=None)

    @model_validator(mode="after")
    def _check_bins(self) -> ReferenceHistogram:
        edges = np.array(self.edges)
        if len(edges) == 0 or (np.diff(edges) <= 0.0).any():
            msg = f"bins of {self.name}: expected edges, ascending"
            raise ValueError(msg)
        if any(len(one) != len(edges) + 1 for one in self.counts.values()):
            msg = f"counts of {self.name}: expected one number for each of {len(edges) + 1} bins"
            raise ValueError(msg)
        return self

    def find_bins(self, values: FloatArray) -> IntArray:
        """Return the (N,) bin of each value."""
        return np.asarray(np.searchsorted(np.array(self.edges), values, side="right"), dtype=np.int64)


def make_threshold_rule(
    alpha: str,
    effective_alpha: str | None,
    *,
    delta: str | None,
    pac: PaperPAC | None,
    adaptive: AdaptiveAlpha | None,
) -> ConditionalThreshold | GroupedThreshold:
    """Make an unfitted threshold rule: conditional, or with `delta` an order statistic for each group."""
    if delta is not None:
        return GroupedThreshold(alpha, delta=delta)
    levels = () if adaptive is None else adaptive.list_levels(alpha)
    ridge = 0.0 if pac is None else pac.ridge
    return ConditionalThreshold(effective_alpha or alpha, ridge=ridge, levels=levels)
