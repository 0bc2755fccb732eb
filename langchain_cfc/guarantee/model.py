"""`Guarantee`: a guarantee as data, which every result carries."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from langchain_cfc.guarantee.certified import CoverageCertificate, PeopleCertificate, WrongRateCertificate
from langchain_cfc.support.serialization import OmitsDefaults

GuaranteeKind = Literal["conditional", "marginal", "certified", "heuristic"]
Binding = Literal["unchecked", "matched", "unverified", "unbound"]


class Weighting(BaseModel):
    """A non-negative weighting of prompts, f(X) = features(X) @ coefficients, with guaranteed coverage.

    Attributes:
        name: Short name, such as `group(topic)=capital`.
        kind: `constant`, `indicator` (a group), `hat` or `bernstein` (soft groups).
        words: The weighting in plain English.
        coefficients: (d,) coefficients over the features.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    words: str
    coefficients: tuple[float, ...]


class Guarantee(OmitsDefaults):
    """A guarantee as data: its level, what it covers, and its assumptions.

    Attributes:
        kind: `conditional` (under every listed weighting), `marginal` (only on average over prompts),
            `certified` (what the certificate of a bot states) or `heuristic` (no theorem).
        sentence: The guarantee in a sentence.
        alpha: Error level as decimal text.
        target_coverage: 1 - alpha.
        stated_coverage: The coverage stated for the prompt: `target_coverage`, or less for a hard prompt with
            adaptive levels, where it is kept on average over prompts of all stated coverages. None if nothing
            is guaranteed about sets, or if it differs between prompts and the guarantee is not that of a
            single prompt.
        set_rule: The rule that computes the set from the threshold.
        weightings: Generators of the weightings covered; every non-negative combination is covered as well.
        feature_names: Names of the d features that the coefficients refer to.
        not_certifiable: The meaning of the flag `not_certifiable`.
        assumptions: What the guarantee depends on.
        not_promised: What it does not cover.
        calibration_size: Number N of calibration prompts.
        failure_probability: delta, if the guarantee holds with confidence 1 - delta for this artifact; None
            if it holds on average over calibration sets and the prompt. It holds for all weightings jointly.
        heuristics: Claims without a theorem.
        certificate: What held-out prompts certify about the sets; None without a certificate.
        wrong_answers: What is certified about the answers of a bot; None for a guarantee about sets.
        people: What people's labels certify about sets and answers; omitted from the data if empty.
        binding: Whether generator and verifier are known to be those calibrated: `unchecked` (not serving
            yet), `matched`, `unverified` (one has no fingerprint) or `unbound` (the records had none).
        artifact_digest: Digest of the artifact with the threshold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    _omitted: ClassVar[tuple[str, ...]] = ("people",)

    kind: GuaranteeKind
    sentence: str
    alpha: str
    target_coverage: float
    stated_coverage: float | None
    set_rule: str
    weightings: tuple[Weighting, ...]
    feature_names: tuple[str, ...]
    not_certifiable: str
    assumptions: tuple[str, ...]
    not_promised: tuple[str, ...]
    calibration_size: int
    failure_probability: float | None = None
    heuristics: tuple[str, ...] = ()
    certificate: CoverageCertificate | None = None
    wrong_answers: WrongRateCertificate | None = None
    people: tuple[PeopleCertificate, ...] = ()
    binding: Binding
    artifact_digest: str

    @property
    def at_most(self) -> int | None:
        """Maximum number of unsupported claims left in an answer; None for sets of answers."""
        found = re.fullmatch(r"claims\((\d+)\)", self.set_rule)
        return None if found is None else int(found[1])
