"""Certificates about one frozen artifact, as data; the package `certificates` computes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from langchain_cfc.support.serialization import OmitsDefaults
from langchain_cfc.support.text import format_limit
from langchain_cfc.thresholds import Level, format_alpha, format_delta


def _require_canonical(to_text: Callable[[Level], str]) -> AfterValidator:
    """Build a validator that accepts only canonical decimal text."""

    def check(text: str) -> str:
        if to_text(text) != text:
            msg = f"expected canonical decimal text such as 0.05, got {text!r}"
            raise ValueError(msg)
        return text

    return AfterValidator(check)


Alpha: TypeAlias = Annotated[str, _require_canonical(format_alpha)]
Delta: TypeAlias = Annotated[str, _require_canonical(format_delta)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]


class Certified(BaseModel):
    """Base class of certificates and their parts: frozen, without infinities and unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _CertifiedGroup(Certified):
    """A weighting of prompts, and the number of held-out prompts with a positive weight."""

    name: str
    words: str
    prompts: Count


class CertifiedShare(OmitsDefaults, _CertifiedGroup):
    """Lower bounds for one weighting of prompts.

    Attributes:
        name: Name of the weighting; `1` is all prompts.
        words: The weighting in plain English.
        prompts: Number of held-out prompts that the weighting covers.
        kept: Number of these that are covered, or flagged as not certifiable.
        kept_at_least: Lower bound on the probability of being covered or flagged.
        covered: Number of these whose set held a correct answer.
        coverage_at_least: Lower bound on the probability of being covered.
        stated: Mean coverage stated for these prompts if levels are adaptive; otherwise None.
    """

    kept: Count
    kept_at_least: Share
    covered: Count
    coverage_at_least: Share
    stated: Share | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> CertifiedShare:
        if not self.covered <= self.kept <= self.prompts:
            msg = "expected covered <= kept <= prompts"
            raise ValueError(msg)
        return self


class Certificate(Certified):
    """Base class of certificates, each about one level of one frozen artifact.

    Attributes:
        alpha: Error level of the sets as decimal text.
        delta: Probability that any certified statement is wrong, as decimal text.
        prompts: Number of held-out prompts used.
        records_digest: Digest of these prompts, their scores and labels.
        artifact_digest: Digest of the artifact without certificates, which was frozen beforehand.
    """

    alpha: Alpha
    delta: Delta
    prompts: Count
    records_digest: str
    artifact_digest: str


def format_unsupported(at_most: int) -> str:
    """Format the guaranteed event for the claims of an answer.

    Examples:
        >>> format_unsupported(0), format_unsupported(2)
        ('no unsupported claim is left', 'at most 2 unsupported claims are left')
    """
    if at_most == 0:
        return "no unsupported claim is left"
    return f"at most {at_most} unsupported claim{'s are' if at_most > 1 else ' is'} left"


class DroppedClaims(Certified):
    """The share of an answer's claims that are dropped, with an upper bound.

    Attributes:
        at_most: Maximum number of unsupported claims left.
        mean: Mean share of an answer's claims that are dropped.
        mean_at_most: Upper bound on the expected share.
    """

    at_most: Count
    mean: Share
    mean_at_most: Share


class TestedCertificate(Certificate):
    """Base class of certificates from a test, which counts among all attempts on the same labels.

    Attributes:
        attempt: k: how many attempts on these labels there were, this one included.
        level: Level of the test: delta, times the share of attempt k, divided among what is tested together.
    """

    attempt: Annotated[int, Field(ge=1)]
    level: Annotated[float, Field(gt=0.0, lt=1.0)]

    @property
    def attempt_words(self) -> str:
        """Which attempt on these labels it is, and which part of delta it uses, in a sentence."""
        return describe_attempt(self.attempt, self.level, self.delta)


class CoverageCertificate(OmitsDefaults, TestedCertificate):
    """Bounds on the sets of one artifact at one level, from held-out labelled prompts.

    All bounds hold together with confidence 1 - delta, for prompts independent and identically distributed
    with those held out.

    Attributes:
        shares: All prompts first, then every guaranteed weighting.
        mean_set_size: Mean number of candidates returned; None for claims.
        mean_set_size_at_most: Upper bound on the expected number; None for claims.
        claims: Share of claims dropped; None for sets of candidates.
    """

    shares: tuple[CertifiedShare, ...] = Field(min_length=1)
    mean_set_size: Annotated[float, Field(ge=0.0)] | None = None
    mean_set_size_at_most: Annotated[float, Field(ge=0.0)] | None = None
    claims: DroppedClaims | None = None

    @model_validator(mode="after")
    def _states_one_size(self) -> CoverageCertificate:
        sets = self.mean_set_size is not None and self.mean_set_size_at_most is not None
        if sets == (self.claims is not None):
            msg = "expected either the sizes of sets or the claims that are dropped"
            raise ValueError(msg)
        return self

    @property
    def sentence(self) -> str:
        """What is certified over all prompts, in a sentence."""
        everyone = self.shares[0]
        kept = format_bound(everyone.kept_at_least)
        if everyone.stated is not None:
            kept += f" ({format_share(everyone.stated)} is stated on average)"
        certified = (
            f"Certified on {self.prompts} held-out prompts, with confidence "
            f"{format_share(1 - float(self.delta))} for this very artifact: "
        )
        if self.claims is not None:
            dropped = math.ceil(100 * self.claims.mean_at_most)
            return (
                f"{certified}{format_unsupported(self.claims.at_most)} in an answer with probability at "
                f"least {kept}, and at most {dropped} % of its claims are dropped on average. "
                f"{self.attempt_words}"
            )
        largest = math.ceil(100 * (self.mean_set_size_at_most or 0.0)) / 100
        return (
            f"{certified}a set holds a correct answer or is flagged with probability at least {kept}, holds "
            f"a correct answer with probability at least {format_bound(everyone.coverage_at_least)}, and "
            f"has at most {largest:.2f} candidates on average. {self.attempt_words}"
        )


class CertifiedAnswers(_CertifiedGroup):
    """Numbers of answers and wrong answers in one group of the certification prompts.

    Attributes:
        name: Name of the weighting; `1` is all prompts.
        words: The weighting in plain English.
        prompts: Number of certification prompts that the weighting covers.
        answered: Number of these that were answered.
        wrong: Number of these with a wrong best answer; for claims, number of answers for which a claim drawn
            at random from those shown is unsupported.
        certified: Whether the wrong-answer rate is certified here.
    """

    answered: Count
    wrong: Count
    certified: bool

    @model_validator(mode="after")
    def _adds_up(self) -> CertifiedAnswers:
        if not self.wrong <= self.answered <= self.prompts:
            msg = "expected wrong <= answered <= prompts"
            raise ValueError(msg)
        return self


class WrongRateCertificate(OmitsDefaults, TestedCertificate):
    """A certified upper bound on the share of answered prompts with a wrong answer.

    Wrong means that the best answer shown is incorrect. The bound holds with confidence 1 - delta for all
    groups that are certified together, for prompts independent and identically distributed with the
    certification prompts. Source: Learn then Test (Angelopoulos, Bates, Candes, Jordan and Lei 2021), fixed
    sequence testing with exact binomial p-values.

    Attributes:
        max_wrong_rate: The bound as decimal text.
        unit: What is shown. For `claims` the bound is on the expected share of unsupported claims among those
            that an answer shows.
        max_mean_score: The cut: prompts whose candidates have at most this mean score are answered, with the
            best candidate. None for claims, for which the level `alpha` is certified.
        groups: All prompts first, then the requested groups.
    """

    max_wrong_rate: Alpha
    unit: Literal["answers", "claims"] = "answers"
    max_mean_score: Share | None = None
    groups: tuple[CertifiedAnswers, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_cut(self) -> WrongRateCertificate:
        if (self.max_mean_score is None) != (self.unit == "claims"):
            msg = "expected a cut on the mean score for answers, and none for claims"
            raise ValueError(msg)
        return self

    def _state_bound(self, answered: str, also: str) -> str:
        rate = format_share(float(self.max_wrong_rate))
        event = f"Of the prompts {answered}, at most {rate} get a wrong best answer"
        if self.unit == "claims":
            event = f"Of the claims that an answer shows, at most {rate} are unsupported on average"
        return f"{event}{also}, with confidence {format_share(1 - float(self.delta))}"

    @property
    def brief(self) -> str:
        """The bound in one line, for a single answer."""
        return f"{self._state_bound('answered', '')}."

    def state_uncertified(self) -> str:
        """State in which requested groups the bound is not certified; empty if there is none."""
        wrong = "unsupported" if self.unit == "claims" else "wrong"
        named = [
            f"{group.words} ({group.wrong} of {group.answered} {wrong})"
            for group in self.groups[1:]
            if not group.certified
        ]
        if not named:
            return ""
        return (
            f"The rate is not certified in: {'; '.join(named)}. More of the {self.unit} may be {wrong} "
            "there, and such prompts are still answered."
        )

    @property
    def sentence(self) -> str:
        """The bound, its evidence, and where it is not certified, in sentences."""
        everyone, *others = self.groups
        certified = [group.words for group in others if group.certified]
        also = f", and in each of these groups: {'; '.join(certified)}" if certified else ""
        bound = f"{self._state_bound('that are answered', also)} for this very artifact."
        missing = f" {self.attempt_words} {self.state_uncertified()}".rstrip()
        if self.unit == "claims":
            return (
                f"{bound} At alpha = {self.alpha}, {everyone.answered} of {everyone.prompts} "
                "certification answers show claims; one claim was drawn from each of these, and "
                f"{everyone.wrong} of the claims drawn are unsupported.{missing}"
            )
        return (
            f"{bound} It answers {describe_cut(self.max_mean_score or 0.0)} with the best candidate: "
            f"{everyone.answered} of {everyone.prompts} certification prompts, {everyone.wrong} of them "
            f"wrongly.{missing}"
        )


class PeopleCertificate(Certificate):
    """A bound from people's labels of a random part of the prompts and a judge's labels of all of them.

    It holds with confidence 1 - delta no matter when people stopped labelling or how the judge errs, for
    prompts independent and identically distributed with those judged; see `certificates.judged`. Several
    such certificates do not hold jointly: each has its own confidence.

    Attributes:
        about: `sets` (a set keeps its promise) or `answers` (an answer of the bot is right).
        unit: What is kept or rejected.
        unsupported: Maximum number of unsupported claims left; None for sets of whole answers, and for a
            certificate about answers.
        max_mean_score: The cut below which the bot answers; None for sets, and for claims.
        labelled: Number of prompts that people labelled, of `prompts`.
        agreed: Number of these for which the judge's labels give the same outcome.
        at_least: Lower bound on the probability that the promise is kept, or that an answer is right.
    """

    about: Literal["sets", "answers"]
    unit: Literal["answers", "claims"] = "answers"
    unsupported: Count | None = None
    max_mean_score: Share | None = None
    labelled: Count
    agreed: Count
    at_least: Annotated[float, Field(gt=0.0, lt=1.0)]

    @model_validator(mode="after")
    def _adds_up(self) -> PeopleCertificate:
        sets = self.about == "sets"
        if not self.agreed <= self.labelled <= self.prompts:
            msg = "expected agreed <= labelled <= prompts"
            raise ValueError(msg)
        claims = self.unit == "claims"
        if (self.max_mean_score is None) == (not sets and not claims) or (
            (self.unsupported is None) == (sets and claims)
        ):
            msg = "expected a cut only for answers, and a number of unsupported claims only for claim sets"
            raise ValueError(msg)
        return self

    @property
    def subject(self) -> tuple[str, str, float | None]:
        """What it is about: sets or answers, of which level and which cut."""
        return self.about, self.alpha, self.max_mean_score

    @property
    def sentence(self) -> str:
        """What is certified and by which labels, in a sentence."""
        wrong = format_share(math.ceil(round(1000 * (1.0 - self.at_least), 6)) / 1000)
        if self.unsupported is not None:
            event = f"{format_unsupported(self.unsupported)} in an answer"
        else:
            event = "a set holds a correct answer or is flagged"
        claim = f"{event} with probability at least {format_bound(self.at_least)}"
        if self.about == "answers" and self.unit == "claims":
            claim = f"of the claims that an answer shows, at most {wrong} are unsupported on average"
        elif self.about == "answers":
            claim = f"of the prompts that are answered, at most {wrong} get a wrong best answer"
        return (
            f"Certified by people, with confidence {format_share(1 - float(self.delta))} for this very "
            f"artifact: {claim}. A judge labelled {self.prompts} prompts, people labelled a random "
            f"{self.labelled} of them, and they agreed on {self.agreed}."
        )


def describe_cut(max_mean_score: float) -> str:
    """Describe the prompts that a cut on the mean score answers."""
    return f"prompts whose candidates have a mean score of at most {format_limit(max_mean_score)}"


def format_share(share: float) -> str:
    """Format a share in percent with up to 12 significant digits, which hides round-off."""
    return f"{100 * share:.12g} %"


def format_bound(share: float) -> str:
    """Format a lower bound in percent with one decimal, rounded down."""
    return f"{int(1000 * share) / 10:.1f} %"


def compute_share(attempt: int) -> Fraction:
    """Return the share of delta of attempt k on the same labels; `artifact.attempts` has the theorem.

    Examples:
        >>> [float(compute_share(k)) for k in (1, 2, 3, 4)]
        [0.8, 0.1, 0.05, 0.025]
    """
    return Fraction(4, 5) if attempt == 1 else Fraction(1, 5 * 2 ** (attempt - 1))


def describe_attempt(attempt: int, level: float, delta: Level) -> str:
    """Describe which attempt on the same labels a test is, and at which part of delta it was made.

    Examples:
        >>> describe_attempt(2, 0.005, "0.05")
        'Second test on these labels, at 10 % of delta.'
    """
    names = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth", "Ninth", "Tenth")
    which = f"{names[attempt - 1]} test" if attempt <= len(names) else f"Test {attempt}"
    return f"{which} on these labels, at {100 * level / float(delta):.3g} % of delta."


def divide_delta(delta: float, groups: int) -> list[float]:
    """Divide delta: half of it for all prompts, the other half among the groups; all of it without groups."""
    return [delta / 2, *[delta / (2 * groups)] * groups] if groups else [delta]
