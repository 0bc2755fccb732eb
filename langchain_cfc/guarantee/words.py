"""`Guarantee`: what is promised, as data that travels with every result."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

GuaranteeKind = Literal["conditional", "marginal", "heuristic"]
Binding = Literal["unchecked", "matched", "unverified", "unbound"]

NOT_CERTIFIABLE = (
    "The threshold reached the cap: with n candidates, no set can be certified for a prompt like this. Or "
    "the prompt is so unlike those calibrated on that the calibration data kept in the artifact does not "
    "decide its threshold. It is flagged and abstained on, and a promise counts it as kept: the guaranteed "
    "event is 'covered or flagged'."
)
NOT_PROMISED = (
    "Nothing is promised for groups of prompts outside the weightings listed.",
    "Nothing is promised after drift: other prompts, another model, another verifier.",
    "Nothing is promised about how often an answered prompt is wrong; that needs a certificate of its own.",
    "A set left empty because the threshold is low counts as a miss of the promise.",
    "The probability is over calibration sets as well as prompts: for this one artifact it may be lower.",
)
NOTHING_PROMISED = ("Nothing is promised: coverage may be lower, on average and in any group.",)
_PROVEN: dict[str, GuaranteeKind] = {"conditional": "conditional", "marginal": "marginal"}
_BINDING = {
    "unchecked": "Generator and verifier are those calibrated: serving compares their fingerprints.",
    "matched": "Generator and verifier are those calibrated: their fingerprints match the artifact's.",
    "unverified": "Generator and verifier are assumed to be those calibrated: not all say what they are.",
    "unbound": (
        "Generator and verifier are assumed to be those calibrated: the artifact is unbound, its records "
        "did not say which they were."
    ),
}


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
        kind: `conditional` (under every listed weighting), `marginal` (on average only) or `heuristic` (no
            theorem).
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
        failure_probability: None: the promise is on average over calibration sets and the prompt, not with
            confidence 1 - delta.
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
    not_certifiable: str = NOT_CERTIFIABLE
    assumptions: tuple[str, ...]
    not_promised: tuple[str, ...] = NOT_PROMISED
    calibration_size: int
    failure_probability: float | None = None
    binding: Binding
    artifact_digest: str


def guarantee_kind(threshold_rule: str, *, exchangeable: bool) -> GuaranteeKind:
    """Which theorem stands behind a threshold rule.

    Args:
        threshold_rule: `conditional`, `marginal` or `learned`.
        exchangeable: Whether calibration used at most one prompt per cluster.

    Returns:
        The kind; `heuristic` where there is no theorem.
    """
    if not exchangeable:
        return "heuristic"
    return _PROVEN.get(threshold_rule, "heuristic")


def promise(
    kind: GuaranteeKind, target_coverage: float, calibration_size: int, weightings: tuple[Weighting, ...]
) -> str:
    """The promise in a sentence."""
    percent = f"{100 * target_coverage:.12g} %"
    if kind == "heuristic":
        return (
            f"No guarantee: the threshold aims at {percent} coverage, but no theorem says that it gets there."
        )
    event = (
        "the answer set holds a correct answer, or the prompt is flagged as not certifiable, with "
        "probability at least"
    )
    sentence = (
        f"For a new prompt exchangeable with the {calibration_size} calibration prompts, {event} {percent}"
    )
    if kind == "marginal":
        return f"{sentence}, on average over all prompts; nothing is said about hard prompts in particular."
    others = [weighting.words for weighting in weightings if weighting.kind != "constant"]
    if not others:
        return f"{sentence}, on average over all prompts."
    listed = "; ".join(others)
    return f"{sentence}: on average over all prompts, and over each of these and any mix of them: {listed}."


def assumptions(
    *,
    within_clusters: str,
    binding: Binding,
    map_came_fitted: bool = False,
    fewer_than_recorded: bool = False,
    combined: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """What the promise rests on; the last one speaks of the binding."""
    exchangeable = {
        "one": "New prompts are exchangeable with the calibration prompts (one per cluster where there "
        "are any).",
        "all": "Several calibration prompts share a cluster and are not exchangeable: no theorem covers "
        "that.",
    }[within_clusters]
    fitted = (
        "The feature map came fitted; it is assumed that no calibration prompt was used for it."
        if map_came_fitted
        else "Features, cut-offs and everything else fitted came from a split that calibration never saw."
    )
    alone = "The verifier scores each candidate by itself: more were recorded than the n calibrated on."
    together = (
        f"The score combines {', '.join(combined)} as fitted on a split that calibration never saw; all of "
        "them are those calibrated."
    )
    return (
        exchangeable,
        fitted,
        *([together] if combined else []),
        *([alone] if fewer_than_recorded else []),
        "The labels of the calibration records are right.",
        "The level was chosen before the candidates were drawn.",
        _BINDING[binding],
    )


def withholding(guarantee: Guarantee, max_answers: int | None) -> Guarantee:
    """The promise where larger sets are withheld.

    Args:
        guarantee: The promise about all sets.
        max_answers: Most distinct answers of a set that is returned; None for no limit.

    Returns:
        A promise that says what it does not cover any more.
    """
    if max_answers is None:
        return guarantee
    lost = (
        f"Sets of more than {max_answers} distinct answers are withheld, and the promise counts them as if "
        "they were not: a correct answer that such a set holds is lost, so that coverage falls by up to the "
        "share of prompts with the reason 'too_many_answers'."
    )
    return guarantee.model_copy(update={"not_promised": (*guarantee.not_promised, lost)})
