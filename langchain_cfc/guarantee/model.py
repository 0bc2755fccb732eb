"""`Guarantee`: a guarantee as data, which every result carries."""

from __future__ import annotations

from typing import Literal

from langchain_cfc.guarantee.certified import (
    Alpha,
    Count,
    CoverageCertificate,
    GuaranteeData,
    PeopleCertificate,
    WrongRateCertificate,
)
from langchain_cfc.set_rules import parse_set_rule

GuaranteeKind = Literal["conditional", "certified", "batch", "heuristic"]
Binding = Literal["unchecked", "matched", "unverified", "unbound"]


class Weighting(GuaranteeData):
    """A non-negative weighting of prompts with guaranteed coverage.

    Attributes:
        name: Short name, such as `group(topic)=capital`; `FeatureMap.list_guaranteed_weights` computes the
            weights under this name.
        kind: `constant`, `indicator` (a group), `hat` or `bernstein` (soft groups).
        words: The weighting in plain English.
    """

    name: str
    kind: str
    words: str


class AnsweredBatch(GuaranteeData):
    """What is promised about the answers of a batch, and how many there are.

    Attributes:
        max_wrong_share: The largest expected share of wrong answers among those given, as decimal text.
        questions: Number m of distinct questions.
        answered: Number of these that are answered.
    """

    max_wrong_share: Alpha
    questions: Count
    answered: Count


class Guarantee(GuaranteeData):
    """A guarantee as data: its level, what it covers, and its assumptions.

    Attributes:
        kind: `conditional` (under every listed weighting), `certified` (what the certificate of a
            bot states), `batch` (about the answers of a batch) or `heuristic` (no theorem).
        claim: What is promised, in one sentence.
        sentence: The claim, the prompts for which it holds, and what people certify, in a few sentences.
        alpha: Error level as decimal text; of a bot that answers by a cut, and of a batch, its rate.
        target_coverage: 1 - alpha.
        stated_coverage: The coverage stated for the prompt: `target_coverage`, or less for a hard prompt with
            adaptive levels, where it is kept on average over prompts of all stated coverages. None if nothing
            is guaranteed about sets, or if it differs between prompts and the guarantee is not that of a
            single prompt.
        set_rule: The rule that computes the set from the threshold.
        weightings: Generators of the weightings covered; every non-negative combination is covered as well.
        assumptions: What the guarantee depends on.
        not_promised: What it does not cover.
        calibration_size: Number N of calibration prompts.
        failure_probability: delta, if the guarantee holds with confidence 1 - delta for this artifact; None
            if it holds on average over calibration sets and the prompt. It holds for all weightings jointly.
        heuristics: Claims without a theorem.
        certificate: What held-out prompts certify about the sets; None without a certificate.
        wrong_answers: What is certified about the answers of a bot; None for a guarantee about sets.
        batch: What is promised about a batch; None for all other promises.
        people: What people's labels certify about sets and answers.
        subject: What it speaks of if that is `runs` or `calls` of an agent; None for answers and claims.
        binding: Whether generator and verifier are known to be those calibrated: `unchecked` (not serving
            yet), `matched`, `unverified` (one has no fingerprint) or `unbound` (the records had none).
        artifact_digest: Digest of the artifact with the threshold.
    """

    kind: GuaranteeKind
    claim: str
    sentence: str
    alpha: str
    target_coverage: float
    stated_coverage: float | None = None
    set_rule: str
    weightings: tuple[Weighting, ...] = ()
    assumptions: tuple[str, ...]
    not_promised: tuple[str, ...]
    calibration_size: int
    failure_probability: float | None = None
    heuristics: tuple[str, ...] = ()
    certificate: CoverageCertificate | None = None
    wrong_answers: WrongRateCertificate | None = None
    batch: AnsweredBatch | None = None
    people: tuple[PeopleCertificate, ...] = ()
    subject: Literal["runs", "calls"] | None = None
    binding: Binding
    artifact_digest: str

    @property
    def is_about_best(self) -> bool:
        """Whether it is about the best answer alone, as of a bot, and not about an answer set or claims."""
        certificate = self.wrong_answers
        if certificate is not None:
            return certificate.max_mean_score is not None
        return self.batch is not None or parse_set_rule(self.set_rule).option == "max_wrong_of_all"

    @property
    def summary(self) -> str:
        """What a user of a bot needs: the sentence, for a bot without details of the test."""
        if self.wrong_answers is None:
            return self.sentence
        return " ".join([self.wrong_answers.summary, *(one.sentence for one in self.people)])
