"""Certificates about one frozen artifact, as data; the package `certificates` computes them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from langchain_cfc.features import name_group
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.display import Displayed
from langchain_cfc.support.serialization import OmitsDefaults
from langchain_cfc.support.text import format_limit
from langchain_cfc.support.units import UNITS, Unit, UnitTraits
from langchain_cfc.thresholds import format_alpha


def _check_canonical(text: str) -> str:
    if format_alpha(text) != text:
        msg = f"expected canonical decimal text such as 0.05, got {text!r}"
        raise ValueError(msg)
    return text


# An error level, a rate or a failure probability, as decimal text.
Alpha: TypeAlias = Annotated[str, AfterValidator(_check_canonical)]
Delta: TypeAlias = Alpha
Count: TypeAlias = Annotated[int, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
_ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth", "Ninth", "Tenth")


class GuaranteeData(Displayed, OmitsDefaults):
    """Base class of guarantees, certificates and parts of them: frozen, finite, without unknown fields."""

    _omitted = ("max_score", "subject")

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _CertifiedGroup(GuaranteeData):
    """A weighting of prompts, and the number of held-out prompts with a positive weight."""

    name: str
    words: str
    prompts: Count


class CertifiedShare(_CertifiedGroup):
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


class Certificate(GuaranteeData):
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

    @property
    def _confidence(self) -> str:
        return f"with confidence {format_share(1.0 - float(self.delta))}"


def state_event(set_rule: str) -> str:
    """State the event that is guaranteed under a set rule.

    Examples:
        >>> state_event("claims(0)"), state_event("claims(2)")
        ('no unsupported claim is left in the answer', 'at most 2 unsupported claims are left in the answer')
        >>> state_event("best_answer")
        'the question is answered rightly or not at all'
    """
    rule = parse_set_rule(set_rule)
    if rule.option == "max_wrong_of_all":
        return "the question is answered rightly or not at all"
    at_most = rule.at_most
    if at_most is None:
        return "the answer set holds a correct answer, or the question is flagged as not certifiable"
    left = f"at most {at_most} unsupported claim{'s are' if at_most > 1 else ' is'} left"
    return f"{left if at_most else 'no unsupported claim is left'} in the answer"


class Confidence(GuaranteeData):
    """The confidence 1 - delta with which a test holds, which counts among all attempts on the same labels.

    Attributes:
        delta: Probability that any certified statement is wrong, as decimal text.
        attempt: k: how many attempts on these labels there were, this one included.
        level: Level of the test: delta, times the share of attempt k, divided among what is tested together.
    """

    delta: Delta
    attempt: Annotated[int, Field(ge=1)]
    level: Annotated[float, Field(gt=0.0, lt=1.0)]

    @property
    def test_words(self) -> str:
        """Which attempt on the same labels the test is, and with which error probability, in a sentence."""
        k = self.attempt
        which = f"{_ORDINALS[k - 1]} test" if k <= len(_ORDINALS) else f"Test {k}"
        return (
            f"{which} on these labels, wrong with probability at most {100 * self.level:.3g} % (all tests "
            f"together: {format_share(float(self.delta))})."
        )


class TestedCertificate(Certificate, Confidence):
    """Base class of certificates from a test."""


class CoverageCertificate(TestedCertificate):
    """Bounds on the sets of one artifact at one level, from held-out labelled prompts.

    All bounds hold together with confidence 1 - delta, for prompts independent and identically distributed
    with those held out.

    Attributes:
        shares: All prompts first, then every guaranteed weighting.
        set_rule: Text form of the set rule, which says what is promised.
    """

    shares: tuple[CertifiedShare, ...] = Field(min_length=1)
    set_rule: str

    @property
    def is_about_sets(self) -> bool:
        """Whether it is about answer sets, and not about claims or the best answer alone."""
        return parse_set_rule(self.set_rule).shows_best_alone

    @property
    def sentence(self) -> str:
        """What is certified over all prompts, for sets also how often they are right, and the attempt."""
        everyone = self.shares[0]
        stated = held = ""
        if everyone.stated is not None:
            stated = f" ({format_share(everyone.stated)} is stated on average)"
        if self.is_about_sets:
            covered = format_bound(everyone.coverage_at_least)
            held = f" A set holds a correct answer with probability at least {covered}."
        return (
            f"Certified on {self.prompts} held-out questions, {self._confidence} for this very artifact: "
            f"with probability at least {format_bound(everyone.kept_at_least)}{stated}, "
            f"{state_event(self.set_rule)}.{held} {self.test_words}"
        )


class CertifiedAnswers(_CertifiedGroup):
    """Numbers of answers and wrong answers in one group of the certification prompts.

    Attributes:
        name: Name of the weighting; `1` is all prompts.
        words: The weighting in plain English.
        prompts: Number of certification prompts that the weighting covers.
        answered: Number of these that were answered.
        wrong: Number of these with a wrong best answer; for claims, of which an unsupported one was drawn
            among those shown.
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


class WrongRateCertificate(TestedCertificate):
    """A certified upper bound on the share of answered prompts with a wrong answer.

    Wrong means that the best answer shown is incorrect. The bound holds with confidence 1 - delta for all
    groups that are certified together, for prompts independent and identically distributed with the
    certification prompts. Sources: `certificates.cuts` for answers, `certificates.shown_claims` for claims.

    Attributes:
        alpha: The rate again.
        max_wrong_rate: The bound as decimal text. For claims it is on the expected share of unsupported
            claims among those that an answer shows.
        max_mean_score: The cut: prompts whose candidates have at most this mean score are answered, with the
            best candidate. None for claims.
        max_score: The cut for claims: those with at most this score are shown. None for answers.
        groups: All prompts first, then the requested groups.
        subject: What it speaks of if that is `runs` or `calls` of an agent; None for answers and claims.
    """

    max_wrong_rate: Alpha
    max_mean_score: Share | None = None
    max_score: Share | None = None
    groups: tuple[CertifiedAnswers, ...] = Field(min_length=1)
    subject: Literal["runs", "calls"] | None = None

    @model_validator(mode="after")
    def _has_one_cut(self) -> WrongRateCertificate:
        if (self.max_mean_score is None) == (self.max_score is None):
            msg = "expected a cut on the mean score for answers, or on scores for claims"
            raise ValueError(msg)
        return self

    @property
    def unit(self) -> Unit:
        """What is shown: whole answers, or the claims of one answer."""
        return "claims" if self.max_mean_score is None else "answers"

    @property
    def traits(self) -> UnitTraits:
        """The words for what it speaks of."""
        return UNITS[self.subject or self.unit]

    @property
    def cut(self) -> float:
        """The cut, on the mean score or on the scores of claims."""
        return next(one for one in (self.max_mean_score, self.max_score) if one is not None)

    @property
    def claim(self) -> str:
        """The bound in one sentence."""
        bound = self.traits.rate.format(format_share(float(self.max_wrong_rate)))
        return f"{bound[0].upper()}{bound[1:]}, {self._confidence}."

    @property
    def uncertified(self) -> str:
        """In which requested groups the bound is not certified, in a sentence; empty if there is none."""
        traits = self.traits
        named = [
            f"{name_group(group.words, group.name)} ({group.wrong} of {group.answered} {traits.wrong})"
            for group in self.groups[1:]
            if not group.certified
        ]
        if not named:
            return ""
        return (
            f"The rate is not certified in: {'; '.join(named)}. More of the {self.subject or self.unit} may "
            f"be {traits.wrong} there, and such {traits.prompt}s are still {traits.shown}."
        )

    @property
    def summary(self) -> str:
        """The bound, its counts and groups in sentences, without details of the test."""
        everyone, *others = self.groups
        certified = [name_group(group.words, group.name) for group in others if group.certified]
        also = f"This holds in each of these groups, too: {'; '.join(certified)}." if certified else ""
        counts = self.traits.counts.format(everyone.prompts, everyone.answered, everyone.wrong)
        return " ".join(filter(None, [self.claim, counts, also, self.uncertified]))

    @property
    def sentence(self) -> str:
        """The bound, its counts and groups, the cut, and the attempt, in sentences."""
        return f"{self.summary} {self.test_words}"

    @property
    def test_words(self) -> str:
        """The cut and the attempt, in sentences."""
        return f"{self.traits.cut.format(format_limit(self.cut))} {super().test_words}"


class PeopleCertificate(Certificate):
    """A bound from people's labels of a random part of the prompts and a judge's labels of all of them.

    It holds with confidence 1 - delta no matter when people stopped labelling or how the judge errs, for
    prompts independent and identically distributed with those judged. The companion langchain-cfc-collect
    makes it and derives the bound. Several of them do not hold jointly: each has its own confidence.

    Attributes:
        about: `sets` (a set keeps its promise) or `answers` (an answer of the bot is right).
        set_rule: Text of the set rule, which says what is promised; None for a certificate about answers.
        max_mean_score: The cut below which the bot answers; None for sets, and for claims.
        max_score: The cut below which claims are shown; None for sets, and for whole answers.
        labelled: Number of prompts that people labelled, of `prompts`.
        agreed: Number of these for which the judge's labels give the same outcome.
        at_least: Lower bound on the probability that the promise is kept, or that an answer is right.
    """

    about: Literal["sets", "answers"]
    set_rule: str | None = None
    max_mean_score: Share | None = None
    max_score: Share | None = None
    labelled: Count
    agreed: Count
    at_least: Annotated[float, Field(gt=0.0, lt=1.0)]

    @model_validator(mode="after")
    def _adds_up(self) -> PeopleCertificate:
        if not self.agreed <= self.labelled <= self.prompts:
            msg = "expected agreed <= labelled <= prompts"
            raise ValueError(msg)
        of_sets = self.about == "sets"
        if of_sets != (self.set_rule is not None) or of_sets != (self.cut is None):
            msg = "expected a cut only for answers, and a set rule for sets alone"
            raise ValueError(msg)
        return self

    @property
    def unit(self) -> Unit:
        """What is kept or rejected: whole answers, or the claims of one answer."""
        if self.set_rule is not None:
            return parse_set_rule(self.set_rule).unit
        return "claims" if self.max_mean_score is None else "answers"

    @property
    def cut(self) -> float | None:
        """The cut of the bot, on the mean score or on the scores of claims; None for sets."""
        return self.max_score if self.max_mean_score is None else self.max_mean_score

    @property
    def subject(self) -> tuple[str, str, float | None]:
        """What it is about: sets or answers, of which level and which cut."""
        return self.about, self.alpha, self.cut

    @property
    def sentence(self) -> str:
        """What is certified and by which labels, in a sentence."""
        wrong = format_share(math.ceil(round(1000 * (1.0 - self.at_least), 6)) / 1000)
        event = UNITS[self.unit].rate.format(wrong)
        if self.set_rule is not None:
            event = f"with probability at least {format_bound(self.at_least)}, {state_event(self.set_rule)}"
        return (
            f"Certified by people, {self._confidence} for this very artifact: {event}. A judge labelled "
            f"{self.prompts} prompts, people labelled a random {self.labelled} of them, and they agreed on "
            f"{self.agreed}."
        )


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


def divide_delta(delta: float, groups: int) -> list[float]:
    """Divide delta: half of it for all prompts, the other half among the groups; all of it without groups."""
    return [delta / 2, *[delta / (2 * groups)] * groups] if groups else [delta]
