"""The sentences that state a guarantee, its assumptions and its limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from langchain_cfc.guarantee.certified import (
    PeopleCertificate,
    WrongRateCertificate,
    format_share,
    format_unsupported,
)
from langchain_cfc.guarantee.model import Binding, Guarantee, GuaranteeKind, Weighting

NOT_CERTIFIABLE = (
    "The threshold reached the cap: with n candidates, no set can be certified for a prompt like this. Or "
    "the prompt is so unlike the calibration prompts that the calibration data kept in the artifact does not "
    "determine its threshold. The prompt is flagged, gets no answer, and a promise counts it as kept: the "
    "guaranteed event is 'covered or flagged'."
)
NOTHING_ABOUT_ANSWERS = (
    "Nothing is promised about how often an answered prompt gets a wrong answer; that needs a separate "
    "certificate."
)
ON_AVERAGE = (
    "The probability is over calibration sets as well as prompts: for this one artifact it may be lower."
)
INDEPENDENT_PROMPTS = (
    "Prompts are independent and identically distributed: a confidence needs more than exchangeability. "
    "Settings were chosen without figures from the labels that certify."
)
BEST_ALONE = (
    "If no candidate reaches the threshold, the set is the best candidate alone, which is a miss if that "
    "candidate is wrong."
)
NOT_CERTIFIABLE_CLAIMS = (
    "No claim's confidence is high enough for a prompt like this. Or the prompt is so unlike the calibration "
    "prompts that the calibration data kept in the artifact does not determine its threshold. All claims are "
    "dropped."
)
NOTHING_KEPT_IS_KEPT = (
    "Nothing is promised about how many claims are left: an answer that loses all claims keeps the promise."
)
NOTHING_LEFT_OUT = (
    "Nothing is promised about what an answer omits, or about whether the remaining claims fit together."
)
NOT_PROMISED_BESIDES_ANSWERS = (
    "Nothing is promised for groups of prompts outside the weightings listed.",
    "Nothing is promised after drift: other prompts, another model, another verifier.",
)
NOT_PROMISED = (*NOT_PROMISED_BESIDES_ANSWERS, NOTHING_ABOUT_ANSWERS)
NOT_AFTER_A_CHOICE = (
    "What holds on average over calibration sets, such as a promise for groups, holds before labels choose a "
    "level. It is not promised for the level that they chose."
)
NOT_BY_LEVEL = (
    "Nothing is promised for the prompts of one stated coverage alone: they may keep the promise less often "
    "than is stated for them, and others more often."
)
NOTHING_PROMISED = ("Nothing is promised about sets: coverage may be lower, on average and in any group.",)
FITTED_ELSEWHERE = "Features, cut-offs and everything else were fitted on a split that calibration never saw."
CHOSEN_BEFORE = "The level was chosen before {} drawn."
ADAPTIVE_LEVELS = (
    "The smallest error level was chosen before {} drawn. The level stated for a prompt "
    "is a function of its scores, which was fitted on a split that calibration never saw."
)
_BINDING_SENTENCES = {
    "unchecked": "Generator and verifier are the ones calibrated: serving compares their fingerprints.",
    "matched": "Generator and verifier are the ones calibrated: their fingerprints match the artifact's.",
    "unverified": (
        "Generator and verifier are assumed to be the ones calibrated: not all of their fingerprints can be "
        "compared."
    ),
    "unbound": (
        "Generator and verifier are assumed to be the ones calibrated: the artifact is unbound, because its "
        "records do not name them."
    ),
}
_WEIGHTING_KINDS = {"indicator": "group", "hat": "soft weighting", "bernstein": "soft weighting"}


def count_weightings(weightings: Sequence[Weighting]) -> str:
    """Count the groups and soft weightings besides all prompts, in words; empty if there are none.

    Examples:
        >>> count_weightings([Weighting(name="a", kind="hat", words="soft", coefficients=(1.0,))] * 2)
        '2 soft weightings'
    """
    number = Counter(_WEIGHTING_KINDS[one.kind] for one in weightings if one.kind != "constant")
    return " and ".join(f"{count} {kind}{'s'[: count > 1]}" for kind, count in number.items())


def format_how_often(target_coverage: float, adaptive: Sequence[float] = ()) -> str:
    """Format the minimum probability with which the promise is kept.

    Args:
        target_coverage: 1 - alpha.
        adaptive: With adaptive levels, the coverage stated for the prompt, or the possible ones, ascending;
            otherwise empty.

    Examples:
        >>> format_how_often(0.9)
        'with probability at least 90 %'
        >>> format_how_often(0.9, [0.62])
        'at least as often as is stated (62 % for this prompt)'
        >>> format_how_often(0.9, [0.35, 0.9])
        'at least as often as is stated (from 35 % to 90 %)'
    """
    if not adaptive:
        return f"with probability at least {format_share(target_coverage)}"
    stated = f"{format_share(adaptive[0])} for this prompt"
    if len(adaptive) > 1:
        stated = f"from {format_share(adaptive[0])} to {format_share(adaptive[-1])}"
    return f"at least as often as is stated ({stated})"


def state_guarantee(
    kind: GuaranteeKind,
    target_coverage: float,
    calibration_size: int,
    weightings: tuple[Weighting, ...],
    *,
    adaptive: Sequence[float] = (),
    weighted: bool = False,
    listed: bool = True,
    at_most: int | None = None,
) -> str:
    """State the guarantee in a sentence.

    Args:
        kind: The kind of guarantee.
        target_coverage: 1 - alpha.
        calibration_size: Number N of calibration prompts.
        weightings: The weightings covered.
        adaptive: Stated coverages, see `format_how_often`.
        weighted: Whether calibration prompts were chosen to be labelled with unequal probabilities.
        listed: Whether to list every weighting, or only their number.
        at_most: Maximum number of unsupported claims left in an answer; None for sets of answers.
    """
    percent = format_share(target_coverage)
    if kind == "heuristic":
        aim = "coverage" if at_most is None else f"of answers in which {format_unsupported(at_most)}"
        return f"No guarantee: the threshold aims at {percent} {aim}, but no theorem guarantees it."
    calibrated = f"the {calibration_size} calibration prompts"
    who = f"exchangeable with {calibrated}"
    if weighted:
        who = f"exchangeable with the prompts from which {calibrated} were chosen for labelling"
    about = f"For {'new prompts' if adaptive else 'a new prompt'} {who},"
    event = "the answer set holds a correct answer, or the prompt is flagged as not certifiable"
    if at_most is not None:
        event = f"{format_unsupported(at_most)} in the answer"
    sentence = f"{about} {event}, {format_how_often(target_coverage, adaptive)}"
    by_level = " This is not promised for the prompts of one stated level alone." if adaptive else ""
    if kind == "marginal":
        hard = "nothing is promised for hard prompts in particular"
        return f"{sentence}, on average over all prompts; {hard}.{by_level}"
    others = [weighting.words for weighting in weightings if weighting.kind != "constant"]
    if not others:
        return f"{sentence}, on average over all prompts.{by_level}"
    if not listed:
        each = f"{count_weightings(weightings)} and any mix of them"
        return f"{sentence}: on average, and over each of {each}.{by_level}"
    each = f"these and any mix of them: {'; '.join(others)}"
    return f"{sentence}: on average over all prompts, and over each of {each}.{by_level}"


def state_confidence(delta: float, weightings: Sequence[Weighting]) -> str:
    """State that the guarantee holds with confidence 1 - delta for this artifact, under all weightings."""
    also = count_weightings(weightings)
    scope = "over all prompts" + (f" and over each of {also}" if also else "")
    return (
        f"With confidence {format_share(1.0 - delta)} it holds for this very artifact, not only on average "
        f"over calibration sets: {scope}."
    )


SAME_METADATA_FUNCTION = (
    "The metadata of a prompt come from the same function as in calibration, which is not checked."
)


def list_assumptions(
    *,
    binding: Binding,
    map_came_fitted: bool = False,
    fewer_than_recorded: bool = False,
    independent: bool = False,
    weighted: bool = False,
    adaptive: bool = False,
    draws: str | None = None,
    claims: bool = False,
    described: bool = False,
) -> tuple[str, ...]:
    """List the assumptions of a guarantee; the last one is about the binding."""
    exchangeable = (
        "New prompts are exchangeable with the calibration prompts (one per cluster, if there are clusters)."
    )
    if weighted:
        exchangeable = (
            "New prompts are exchangeable with all prompts from which the calibration prompts were chosen "
            "for labelling. The probability with which each was chosen is as stated, does not depend on what "
            "labels say, its own or others', and would not be smaller for any new prompt."
        )
    fitted = (
        "The feature map was already fitted; it is assumed that no calibration prompt was used to fit it."
        if map_came_fitted
        else FITTED_ELSEWHERE
    )
    alone = "The verifier scores each candidate separately: more were recorded than the n used to calibrate."
    return (
        exchangeable,
        *([INDEPENDENT_PROMPTS] if independent else []),
        fitted,
        *([alone] if fewer_than_recorded else []),
        *([f"The rule that stops drawing was fixed before the records were seen: {draws}."] if draws else []),
        *([SAME_METADATA_FUNCTION] if described else []),
        "The labels of the calibration records are right.",
        (ADAPTIVE_LEVELS if adaptive else CHOSEN_BEFORE).format(
            "the answer was" if claims else "the candidates were"
        ),
        _BINDING_SENTENCES[binding],
    )


def list_exclusions(
    kind: GuaranteeKind,
    *,
    confident: bool = False,
    chosen: bool = False,
    claims: bool = False,
    adaptive: bool = False,
) -> tuple[str, ...]:
    """List what a guarantee does not cover.

    Args:
        kind: The kind of guarantee.
        confident: Whether it holds with confidence for this artifact.
        chosen: Whether labels chose a level.
        claims: Whether it is about the claims of an answer.
        adaptive: Whether prompts have error levels of their own.
    """
    if kind == "heuristic":
        return NOTHING_PROMISED
    about_sets = (*NOT_PROMISED, BEST_ALONE)
    about_claims = (*NOT_PROMISED_BESIDES_ANSWERS, NOTHING_LEFT_OUT, NOTHING_KEPT_IS_KEPT)
    return (
        *([NOT_AFTER_A_CHOICE] if chosen else []),
        *([NOT_BY_LEVEL] if adaptive else []),
        *(about_claims if claims else about_sets),
        *([] if confident else [ON_AVERAGE]),
    )


def add_people(guarantee: Guarantee, certificates: Sequence[PeopleCertificate]) -> Guarantee:
    """Add what people's labels certify to a guarantee and its sentence."""
    if not certificates:
        return guarantee
    excluded = guarantee.not_promised
    if any(one.about == "sets" for one in certificates) and excluded[:1] == NOTHING_PROMISED:
        excluded = (NOT_PROMISED[0], *excluded[1:])
    return guarantee.model_copy(
        update={
            "sentence": " ".join([guarantee.sentence, *(one.sentence for one in certificates)]),
            "assumptions": _add_independence(guarantee.assumptions),
            "not_promised": excluded,
            "people": (*guarantee.people, *certificates),
        }
    )


def _add_independence(assumed: tuple[str, ...]) -> tuple[str, ...]:
    return assumed if INDEPENDENT_PROMPTS in assumed else (assumed[0], INDEPENDENT_PROMPTS, *assumed[1:])


def restrict_to_answers(guarantee: Guarantee, certificate: WrongRateCertificate) -> Guarantee:
    """Return the guarantee about the answers of a bot, which its certificate alone gives.

    A bot uses no features, and its rate takes the place of the level.
    """
    claims = certificate.unit == "claims"
    assumed = tuple(
        one.replace("The level was chosen", "The rate was chosen")
        for one in _add_independence(guarantee.assumptions)
        if claims or one != FITTED_ELSEWHERE
    )
    return guarantee.model_copy(
        update={
            "kind": "certified",
            "sentence": certificate.sentence,
            "stated_coverage": None,
            "weightings": (),
            "assumptions": assumed,
            "not_promised": (
                "Nothing is promised about one answer by itself, or about how many are answered.",
                "Nothing is promised for a group of prompts, unless the rate is certified in it.",
                NOT_PROMISED_BESIDES_ANSWERS[1],
                *([NOTHING_LEFT_OUT] if claims else []),
                *filter(None, [certificate.state_uncertified()]),
            ),
            "failure_probability": float(certificate.delta),
            "confident": (),
            "heuristics": (),
            "certificate": None,
            "wrong_answers": certificate,
            "people": (),
        }
    )
