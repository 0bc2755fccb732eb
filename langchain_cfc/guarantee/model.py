"""`Guarantee`: what is promised, as data that travels with every result."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from langchain_cfc.guarantee.certified import CoverageCertificate, WrongRateCertificate

GuaranteeKind = Literal["conditional", "marginal", "certified", "heuristic"]
Binding = Literal["unchecked", "matched", "unverified", "unbound"]


class Weighting(BaseModel):
    """A non-negative weighting of prompts, f(X) = features(X) @ coefficients; coverage is promised under it.

    Attributes:
        name: Short name, such as `group(topic)=capital`.
        kind: `constant`, `indicator` (a group), `hat` or `bernstein` (soft groups).
        words: The same for people.
        coefficients: (d,) coefficients over the features.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    words: str
    coefficients: tuple[float, ...]


class Guarantee(BaseModel):
    """A promise, its level, what it covers and what it rests on.

    Attributes:
        kind: `conditional` (under every listed weighting), `marginal` (on average over prompts only),
            `certified` (what held-out prompts certify, and nothing else) or `heuristic` (no theorem).
        sentence: The promise for people.
        alpha: Error level as decimal text.
        target_coverage: 1 - alpha.
        threshold_rule: How the threshold came from calibration data.
        set_rule: How the set comes from the threshold.
        weightings: Generators of the non-negative weightings covered: every sum of them with non-negative
            factors is, too.
        feature_names: Names of the d features that the coefficients refer to.
        not_certifiable: What the flag `not_certifiable` means.
        assumptions: What the promise rests on.
        not_promised: What it does not say.
        calibration_size: Number N of calibration prompts.
        failure_probability: delta, where the promise holds with confidence 1 - delta for this very artifact;
            None where it is on average over calibration sets and the prompt.
        confident: Names of the weightings for which it holds with this confidence; all of them together.
        estimated_slack: By name of a weighting, by how much a ridge is estimated to take its coverage below
            the target: an estimate, not a bound, and none of these weightings is promised.
        heuristics: What is claimed elsewhere and has no theorem here.
        certificate: What held-out prompts certify about the sets; None where nobody has looked.
        wrong_answers: What is certified about the best answer, where a certified policy answers; None
            elsewhere.
        binding: Whether generator and verifier are known to be those calibrated: `unchecked` (not serving
            yet), `matched`, `unverified` (one does not say what it is) or `unbound` (the records did not
            say).
        artifact_digest: Digest of the artifact that the threshold came from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: GuaranteeKind
    sentence: str
    alpha: str
    target_coverage: float
    threshold_rule: str
    set_rule: str
    weightings: tuple[Weighting, ...]
    feature_names: tuple[str, ...]
    not_certifiable: str
    assumptions: tuple[str, ...]
    not_promised: tuple[str, ...]
    calibration_size: int
    failure_probability: float | None = None
    confident: tuple[str, ...] = ()
    estimated_slack: dict[str, float] = {}
    heuristics: tuple[str, ...] = ()
    certificate: CoverageCertificate | None = None
    wrong_answers: WrongRateCertificate | None = None
    binding: Binding
    artifact_digest: str
