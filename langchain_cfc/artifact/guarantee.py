"""The promises of an artifact in words: for its answer sets, and for its bot.

Every sentence about what is promised, assumed and not promised is built here from the artifact, or in
`langchain_cfc.guarantee` from a certificate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from langchain_cfc.artifact.content import ArtifactContent
from langchain_cfc.errors import InputError
from langchain_cfc.features import GuaranteedWeight, separates_difficulty
from langchain_cfc.guarantee import (
    AnsweredBatch,
    Binding,
    Guarantee,
    GuaranteeKind,
    PeopleCertificate,
    Weighting,
    WrongRateCertificate,
    format_share,
    state_event,
)
from langchain_cfc.support.text import format_percent
from langchain_cfc.thresholds import compute_tau

_INDEPENDENT = (
    "{}s are independent and identically distributed: a confidence needs more than exchangeability. "
    "Settings were chosen without figures from the labels that certify."
)
_BINDINGS = {
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
_AFTER_DRIFT = "Nothing is promised after drift: other {}s, another model, another verifier."
_WEIGHTING_KINDS = {"indicator": "group", "hat": "soft weighting", "bernstein": "soft weighting"}


def build_guarantee(
    artifact: ArtifactContent, alpha: str, binding: Binding | None, stated_alpha: str | None
) -> Guarantee:
    """Build the guarantee of an artifact at one of its levels; see `CalibrationArtifact.make_guarantee`."""
    named = artifact.feature_map.list_guaranteed_weights() if _is_covered(artifact) else ()
    kind: GuaranteeKind = "conditional" if named else "heuristic"
    target = float(compute_tau(alpha))
    coverages = _list_coverages(artifact, alpha, stated_alpha)
    stated = coverages or (target,)
    claim = _state_claim(artifact, target, coverages)
    scope = [*_state_scope(artifact, named)]
    if kind == "heuristic":
        aim = f"the aim is that in {format_share(target)} of cases {state_event(artifact.set_rule)}"
        claim, scope = f"No guarantee: {aim}, but no theorem guarantees it.", []
    confidence = None if kind == "heuristic" else artifact.confidence
    certificate = next((one for one in artifact.certificates if one.alpha == alpha), None)
    people = _find_people(artifact, "sets", alpha, None)
    assumed = _list_assumptions(
        artifact,
        binding,
        independent=bool(confidence or certificate or people),
        chosen="level" if artifact.parsed_set_rule.option == "alpha" else "rate",
    )
    return Guarantee(
        kind=kind,
        claim=claim,
        sentence=" ".join([claim, *scope, *(one.sentence for one in people)]),
        alpha=alpha,
        target_coverage=target,
        stated_coverage=stated[0] if kind != "heuristic" and len(stated) == 1 else None,
        set_rule=artifact.set_rule,
        weightings=tuple([Weighting(name=one.name, kind=one.kind, words=one.words) for one in named]),
        assumptions=assumed,
        not_promised=tuple(_list_exclusions(artifact, kind, is_certified=bool(people))),
        calibration_size=artifact.calibration.size,
        failure_probability=None if confidence is None else float(confidence.delta),
        heuristics=(
            () if artifact.pac is None else (artifact.pac.statement(alpha, artifact.calibration.size),)
        ),
        certificate=certificate,
        people=people,
        subject=artifact.subject,
        binding=binding or _find_binding(artifact),
        artifact_digest=artifact.digest,
    )


def build_bot_guarantee(
    artifact: ArtifactContent, certificate: WrongRateCertificate, binding: Binding | None
) -> Guarantee:
    """Build the guarantee about the answers of a bot, which its certificate alone gives."""
    people = _find_people(artifact, "answers", certificate.alpha, certificate.cut)
    traits = artifact.traits
    return Guarantee(
        kind="certified",
        claim=certificate.claim,
        sentence=" ".join([certificate.sentence, *(one.sentence for one in people)]),
        alpha=certificate.alpha,
        target_coverage=float(compute_tau(certificate.alpha)),
        set_rule=artifact.set_rule,
        assumptions=_list_assumptions(artifact, binding, independent=True, chosen="rate"),
        not_promised=(
            f"Nothing is promised about one {traits.single} by itself, or about how many are {traits.shown}.",
            f"Nothing is promised for a group of {traits.prompt}s, unless the rate is certified in it.",
            _AFTER_DRIFT.format(artifact.traits.prompt),
            *traits.excluded,
            *filter(None, [certificate.uncertified]),
        ),
        calibration_size=artifact.calibration.size,
        failure_probability=float(certificate.delta),
        wrong_answers=certificate,
        people=people,
        subject=artifact.subject,
        binding=binding or _find_binding(artifact),
        artifact_digest=artifact.digest,
    )


def build_batch_guarantee(
    artifact: ArtifactContent, answered: AnsweredBatch, binding: Binding | None
) -> Guarantee:
    """Build the guarantee about the answers of a batch; see `artifact.batch` for the theorem."""
    share = format_share(float(answered.max_wrong_share))
    claim = (
        f"Of the questions of a batch that are answered, at most {share} get a wrong answer, on average over "
        "calibration sets and batches."
    )
    labelled = 0 if artifact.batch is None else artifact.batch.prompts
    counts = (
        f"Here {answered.answered:,} of {answered.questions:,} distinct questions are answered, by the "
        f"scores of {labelled:,} labelled prompts."
    )
    return Guarantee(
        kind="batch",
        claim=claim,
        sentence=f"{claim} {counts}",
        alpha=answered.max_wrong_share,
        target_coverage=float(compute_tau(answered.max_wrong_share)),
        set_rule=artifact.set_rule,
        assumptions=_list_assumptions(artifact, binding, independent=False, chosen="share"),
        not_promised=(
            (
                "Nothing is promised about one answer by itself, or about this batch alone: its share of "
                "wrong answers may be larger, and that of all batches with this artifact may be."
            ),
            "Nothing is promised about how many questions are answered, or for a group of questions.",
            _AFTER_DRIFT.format(artifact.traits.prompt),
        ),
        calibration_size=labelled,
        batch=answered,
        subject=artifact.subject,
        binding=binding or _find_binding(artifact),
        artifact_digest=artifact.digest,
    )


def list_conditions(artifact: ArtifactContent) -> Iterator[tuple[str, str]]:
    """Yield what the promises rest on, each with a name: tests, assumptions, and what is within reach."""
    facts, traits, is_heuristic = artifact.calibration, artifact.traits, not _is_covered(artifact)
    yield from _list_tests(artifact)
    if artifact.levels and not (is_heuristic or artifact.confidence or artifact.certificates):
        yield "confidence", "On average over calibration sets; `langchain-cfc certify` bounds this artifact."
    if artifact.pac is not None:
        yield from (("heuristic", artifact.pac.statement(alpha, facts.size)) for alpha in artifact.alphas)
    if not is_heuristic:
        alike = f"New {traits.prompt}s are like those calibrated on"
        yield "holds if", f"{alike}, the labels are right, and what is promised was chosen beforehand."
    attainable = f"{format_percent(facts.attainable_coverage)} of the calibration {traits.prompt}s"
    if not artifact.is_bot_alone:
        yield "attainable", f"{attainable} can keep the promise; where too few can, there is no answer."
    elif artifact.parsed_set_rule.option == "alpha" and traits.is_fixed_count:
        yield "attainable", f"{attainable} {traits.attainable.format(artifact.n)}."
    if artifact.batch is not None:
        yield "batch", f"Serves `ask --batch`, by the scores of {artifact.batch.prompts:,} labelled prompts."


def _list_tests(artifact: ArtifactContent) -> Iterator[tuple[str, str]]:
    """Yield the tests behind rates, levels and certificates, and why a rate is not certified."""
    bot, confidence = artifact.bot, artifact.confidence
    for one in () if bot is None else bot.certificates:
        yield f"at most {format_share(float(one.max_wrong_rate))} wrong", one.test_words
    for rate, reason in () if bot is None else bot.refused.items():
        yield f"at most {format_share(float(rate))} wrong", reason
    if bot is not None and len(bot.certificates) > 1:
        yield "rates", "Each holds separately, with its confidence: choose one before serving."
    if confidence is not None:
        yield "confidence", confidence.test_words
    for made in artifact.certificates:
        level = f"{artifact.parsed_set_rule.option} = {made.alpha}: " if artifact.levels[1:] else ""
        yield "certified", f"{level}{made.sentence}"


def _is_covered(artifact: ArtifactContent) -> bool:
    """Return whether a theorem covers the sets: none covers a penalised constant."""
    return artifact.pac is None or artifact.pac.ridge == 0.0


def _find_binding(artifact: ArtifactContent) -> Binding:
    return "unbound" if artifact.provenance is None else "unchecked"


def _find_people(
    artifact: ArtifactContent, about: str, alpha: str, cut: float | None
) -> tuple[PeopleCertificate, ...]:
    return tuple([one for one in artifact.people_certificates if one.subject == (about, alpha, cut)])


def _list_coverages(artifact: ArtifactContent, alpha: str, stated_alpha: str | None) -> tuple[float, ...]:
    """List the coverages that may be stated, or the one stated; none if levels are not adaptive."""
    levels = artifact.list_stated_levels(alpha)
    if stated_alpha is not None and stated_alpha not in levels:
        msg = f"the artifact states the levels {', '.join(levels)} at {alpha}, not {stated_alpha}"
        raise InputError(msg)
    if artifact.feature_map.adaptive_alpha is None:
        return ()
    stated = reversed(levels) if stated_alpha is None else [stated_alpha]
    return tuple([float(compute_tau(one)) for one in stated])


def _state_claim(artifact: ArtifactContent, target: float, coverages: Sequence[float]) -> str:
    """State how often the event happens that is promised, or at which coverages, ascending, if stated."""
    if artifact.parsed_set_rule.option == "max_wrong_of_all":
        average = "" if artifact.confidence is not None else ", on average over calibration sets"
        return artifact.traits.rate_of_all.format(format_share(round(1.0 - target, 12)), average)
    often = f"With probability at least {format_share(target)}"
    if coverages:
        stated = f"{format_share(coverages[0])} for this question"
        if len(coverages) > 1:
            stated = f"from {format_share(coverages[0])} to {format_share(coverages[-1])}"
        elif coverages[0] < target:
            stated += f"; the target is {format_share(target)}, and hard questions get less"
        often = f"At least as often as is stated ({stated})"
    return f"{often}, {state_event(artifact.set_rule)}."


def _state_scope(artifact: ArtifactContent, covered: Sequence[GuaranteedWeight]) -> Iterator[str]:
    """Yield sentences about the prompts for which it holds, and about its confidence."""
    like = f"the {artifact.calibration.size:,} calibrated on"
    yield f"It holds for new {artifact.traits.prompt}s like {like}: {_state_where(covered)}."
    if artifact.feature_map.adaptive_alpha is not None:
        yield "This is not promised for the questions of one stated level alone."
    if artifact.confidence is not None:
        sure = format_share(1.0 - float(artifact.confidence.delta))
        yield f"With confidence {sure} it holds for this very artifact, not only on average."


def _state_where(covered: Sequence[GuaranteedWeight]) -> str:
    parts = ["on average over all"]
    groups = Counter(
        "easy as well as hard ones" if separates_difficulty(one.name) else _WEIGHTING_KINDS[one.kind]
        for one in covered
        if one.kind != "constant"
    )
    for name, count in groups.items():
        counted = f"each of {count} {name}{'s'[: count > 1]}"
        parts.append(f"over {counted if name in _WEIGHTING_KINDS.values() else name}")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts)}, and over any mix of them"


def _list_assumptions(
    artifact: ArtifactContent, binding: Binding | None, *, independent: bool, chosen: str
) -> tuple[str, ...]:
    """List what a promise depends on; `chosen` was chosen before drawing: a level, a rate or a share."""
    facts, prompt = artifact.calibration, artifact.traits.prompt
    alike = (
        f"New {prompt}s are exchangeable with the calibration {prompt}s (one per cluster, if there are "
        "clusters)."
    )
    fitted = "Features, cut-offs and everything else were fitted on a split that calibration never saw."
    if facts.map_came_fitted:
        fitted = (
            "The feature map was already fitted; it is assumed that no calibration prompt was used to fit it."
        )
    before = f"The {chosen} was chosen before anything was drawn."
    if chosen == "share":
        before = (
            "The share and all settings were chosen before labels of calibration prompts were seen, and the "
            "questions before anything was drawn for them and without looking at their right answers."
        )
    elif artifact.feature_map.adaptive_alpha is not None:
        before = (
            "The smallest error level was chosen before anything was drawn. The level stated for a prompt is "
            "a function of its scores, which was fitted on a split that calibration never saw."
        )
    fewer = artifact.draws is None and artifact.n < facts.recorded_candidates
    alone = "The verifier scores each candidate separately: more were recorded than the n used to calibrate."
    described = (
        f"The metadata of a {prompt} come from the same function as in calibration, which is not checked."
    )
    rule = f"The rule that stops drawing was fixed before the records were seen: {artifact.draws}."
    uses_fit = (bool(artifact.levels) or artifact.at_most is not None) and chosen != "share"
    held = {
        alike: True,
        _INDEPENDENT.format(prompt.capitalize()): independent,
        fitted: uses_fit,
        alone: fewer,
        rule: artifact.draws is not None,
        described: bool(artifact.feature_map.metadata_keys) and chosen != "share",
        "The labels of the calibration records are right.": True,
        before: True,
        _BINDINGS[binding or _find_binding(artifact)]: True,
    }
    return tuple([sentence for sentence, is_held in held.items() if is_held])


def _list_exclusions(artifact: ArtifactContent, kind: GuaranteeKind, *, is_certified: bool) -> Iterator[str]:
    """Yield what a promise about sets does not cover; `is_certified` by people without a theorem."""
    traits, of_groups = artifact.traits, "Nothing is promised for groups not listed above."
    if kind == "heuristic":
        nothing = "Nothing is promised about sets: coverage may be lower, on average and in any group."
        yield of_groups if is_certified else nothing
        return
    is_bot = artifact.parsed_set_rule.option == "max_wrong_of_all"
    if is_bot:
        yield (
            f"Nothing is promised about one {traits.single} by itself, about how many {traits.prompt}s are "
            f"{traits.shown}, or about the share of wrong {traits.single}s among those {traits.shown}, which "
            "is larger."
        )
        yield from traits.excluded
    elif artifact.at_most is None:
        yield "Nothing is promised about one answer by itself."
    else:
        yield (
            "Nothing is promised about one claim by itself, or about how many claims are left: an answer "
            "that loses all of them keeps the promise."
        )
        yield from traits.excluded
    if artifact.feature_map.adaptive_alpha is not None:
        yield (
            "Nothing is promised for the prompts of one stated coverage alone: they may keep the promise "
            "less often than is stated for them, and others more often."
        )
    yield of_groups
    yield _AFTER_DRIFT.format(traits.prompt)
    if artifact.at_most is None and not is_bot:
        yield (
            "Nothing is promised about how often an answered prompt gets a wrong answer; that needs a "
            "separate certificate."
        )
        yield (
            "If no candidate reaches the threshold, the set is the best candidate alone, which is a miss if "
            "that candidate is wrong."
        )
    if artifact.confidence is None:
        average = "The rate is" if is_bot else "The probability is"
        yield (
            f"{average} over calibration sets as well as {traits.prompt}s: for this one artifact it may be "
            f"{'higher' if is_bot else 'lower'}."
        )
