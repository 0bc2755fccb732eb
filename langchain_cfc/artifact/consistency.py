"""Checks that an artifact does not contradict itself.

A matching digest shows that a file is unchanged since it was written, not that its content is true. So values
that follow from other content are recomputed when an artifact is made or loaded, with NumPy alone: bounds and
tests of certificates, attainable coverage, sizes, the ranks of fits and quantiles. Settings that follow from
nothing else, such as the set rule, are tied to each level by a digest of their own. None of this is a
signature: someone who recomputes everything can still forge a consistent file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise

import numpy as np

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.artifact import files
from langchain_cfc.artifact.content import ArtifactContent, LevelState
from langchain_cfc.artifact.facts import AttainableGroup, CertifiedPolicy, Confidence, TradeOff
from langchain_cfc.artifact.prefixes import find_compared_outputs, find_rescore, has_separate_scores
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import Certificate, CoverageCertificate, TestedCertificate, WrongRateCertificate
from langchain_cfc.guarantee.certified import compute_share, divide_delta
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    compute_confident_rank,
    compute_conformal_rank,
    compute_tau,
)

# Relative difference allowed between results of SciPy and NumPy, and between sums taken in another order.
TOLERANCE = 1e-6
# A calibration prompt lies on the fit if its residual, relative to the scores, is at most this.
FIT_TOLERANCE = 1e-7


def find_contradictions(artifact: ArtifactContent) -> Iterator[str]:
    """Yield a description of each contradiction between parts of an artifact."""
    yield from _check_references(artifact)
    yield from _check_combinations(artifact)
    yield from _check_header(artifact)
    yield from _check_attainable(artifact)
    yield from _check_histograms(artifact)
    for level in artifact.levels:
        if level.settings is not None and level.settings != compute_settings_digest(artifact, level):
            yield f"level {level.alpha}: the digest of its settings does not match"
        yield from _check_effective_alpha(artifact, level)
        yield from _check_fit(artifact, level)
        yield from _check_quantile(artifact, level)
    yield from _check_confidence(artifact)
    for one in artifact.certificates:
        yield from _check_coverage(artifact, one)
    yield from _check_attempts(artifact)
    if artifact.policy is not None:
        yield from _check_policy(artifact, artifact.policy)


def compute_settings_digest(artifact: ArtifactContent, level: LevelState) -> str:
    """Return the digest that ties a level to the settings that it was fitted with.

    A setting that was added to the format later enters the digest only if it differs from its default, so
    that older files keep their digests.
    """
    facts = artifact.calibration
    settings = {
        "level": level.model_dump(mode="json", exclude={"settings"}),
        "n": artifact.n,
        "cap": artifact.cap,
        "set_rule": artifact.set_rule,
        "threshold_rule": artifact.threshold_rule,
        "features": artifact.features,
        "ridge": None if artifact.ridge is None else artifact.ridge.model_dump(mode="json"),
        "stability": None if artifact.stability is None else artifact.stability.model_dump(mode="json"),
        "shift": artifact.shift,
        "randomised": artifact.randomised,
        "size": facts.size,
        "exchangeable": facts.exchangeable,
        "within_clusters": facts.within_clusters,
    }
    draws = {} if artifact.draws is None else {"draws": artifact.draws}
    return files.compute_digest(settings | draws | ({"never_empty": True} if artifact.never_empty else {}))


def compute_upper_tail(count: int, size: int, share: float) -> float:
    """Return P(Binomial(size, share) >= count), for 0 < share < 1, accurate to about 1e-8."""
    if count <= 0:
        return 1.0
    if count > size:
        return 0.0
    first = (
        math.lgamma(size + 1)
        - math.lgamma(count + 1)
        - math.lgamma(size - count + 1)
        + count * math.log(share)
        + (size - count) * math.log1p(-share)
    )
    counts = np.arange(count, size)
    steps = np.log((size - counts) / (counts + 1)) + math.log(share) - math.log1p(-share)
    return min(1.0, float(np.exp(first + np.concatenate([[0.0], np.cumsum(steps)])).sum()))


def compute_lower_tail(count: int, size: int, share: float) -> float:
    """Return P(Binomial(size, share) <= count), for 0 < share < 1."""
    return compute_upper_tail(size - count, size, 1.0 - share)


def _check_references(artifact: ArtifactContent) -> Iterator[str]:
    """Check that arrays, certificates and confidence refer to content that exists."""
    states = [state for level in artifact.levels for state in (level.rule, level.marginal)]
    for stray in sorted(set(artifact.arrays).difference(*(state.values() for state in states))):
        yield f"array {stray!r} belongs to no level"
    certified: list[Certificate] = [*artifact.certificates]
    if artifact.policy is not None:
        certified += [*artifact.policy.certificates, *artifact.policy.coverage]
    certified += artifact.people_certificates
    if any(one.artifact_digest != artifact.frozen_digest for one in certified):
        yield "a certificate is about another artifact"
    levels = [one.alpha for one in artifact.certificates]
    if len(set(levels)) < len(levels) or not {one.alpha for one in certified} <= set(artifact.alphas):
        yield "a certificate is about a level that the artifact does not hold, or two are about one level"
    if artifact.policy is not None:
        ignores_sets = artifact.policy.ignores_sets
        if [one.alpha for one in artifact.policy.coverage] != ([] if ignores_sets else list(artifact.alphas)):
            yield "a policy on sets must certify the sets of every level, and one that ignores sets none"
        if artifact.policy.certificate.policy.min_agreement > artifact.n:
            yield f"min_agreement exceeds the number of candidates, {artifact.n}"
    yield from _check_people(artifact)
    names = {one.name for one in artifact.feature_map.list_guaranteed_weights()}
    if artifact.confidence is not None and not set(artifact.confidence.names) <= names:
        yield "confidence is claimed for a weighting that the feature map does not have"


def _check_attempts(artifact: ArtifactContent) -> Iterator[str]:
    """Check that each test names an attempt of the ledger, and that they use at most its share."""
    numbers = [one.number for one in artifact.attempts if one.kind == "certificate"]
    for place, number in enumerate(numbers):
        if number is None or number > place + 1:
            yield f"attempt {place + 1} is numbered {number}, more than there are"
    certified = {one.number for one in artifact.attempts if one.certified}
    tested: list[TestedCertificate | Confidence] = [*artifact.certificates]
    tested += [] if artifact.confidence is None else [artifact.confidence] * len(artifact.levels)
    tested += [] if artifact.policy is None else [*artifact.policy.certificates, *artifact.policy.coverage]
    spent: dict[tuple[str | None, int, str], float] = {}
    for one in tested:
        if one.attempt not in certified:
            yield f"a certificate is of attempt {one.attempt}, which the ledger does not hold as certified"
        key = (one.records_digest, one.attempt, one.delta)
        spent[key] = spent.get(key, 0.0) + one.level
    for (_, attempt, delta), level in spent.items():
        if level > float(delta) * compute_share(attempt) * (1.0 + TOLERANCE):
            yield f"the tests of attempt {attempt} use more of delta = {delta} than its share"


def _check_people(artifact: ArtifactContent) -> Iterator[str]:
    """Check that people's certificates are about distinct subjects that the artifact holds."""
    certificates = [] if artifact.policy is None else artifact.policy.certificates
    answers = [(one.alpha, one.policy) for one in certificates]
    subjects = [(one.alpha, one.policy) for one in artifact.people_certificates]
    if any(subjects.count(one) > 1 for one in subjects):
        yield "two certificates by people are about the same sets or answers"
    for one in artifact.people_certificates:
        if one.policy is not None and (one.alpha, one.policy) not in answers:
            yield "a certificate by people is about a policy that the artifact does not hold"
        if one.unit != artifact.unit or (one.about == "sets" and one.unsupported != artifact.at_most):
            yield "a certificate by people is about sets of another kind"
    evident = [(evidence.alpha, evidence.policy) for evidence in artifact.people_evidence]
    prompts = {(one.alpha, one.policy): one.prompts for one in artifact.people_certificates}
    for evidence, subject in zip(artifact.people_evidence, evident, strict=True):
        if evident.count(subject) > 1 or prompts.get(subject) != len(evidence.outcomes):
            yield "evidence of people is about another certificate"


def _check_combinations(artifact: ArtifactContent) -> Iterator[str]:
    """Check that the threshold rule, its extras and the draw rule can be combined."""
    adaptive = artifact.feature_map.adaptive_alpha is not None
    extras = artifact.ridge is not None or artifact.shift is not None or artifact.randomised or adaptive
    if extras and artifact.threshold_rule != "conditional":
        yield "only the conditional rule has a ridge, a shift, randomised thresholds or adaptive levels"
    rule = artifact.draw_rule
    if rule is not None:
        if (rule.text, rule.at_most) != (artifact.draws, artifact.n) or rule.stored_text is None:
            yield f"draws: {artifact.draws} is not a rule of at most {artifact.n} draws in canonical form"
        try:
            if artifact.combination is None or has_separate_scores(artifact.provenance):
                find_rescore(artifact.provenance, combines=artifact.combination is not None)
            else:
                find_compared_outputs(rule, artifact.combination.names, artifact.provenance)
        except InputError as error:
            yield str(error)
    drawn, size = artifact.calibration.drawn_among, artifact.calibration.size
    if drawn is not None and (adaptive or artifact.policy or artifact.confidence or artifact.shift):
        yield "a guarantee given a correct candidate allows no adaptive levels, policy, confidence or shift"
    if drawn is not None and drawn < size:
        yield f"drawn_among: {size} of {drawn} calibration prompts have a correct candidate"
    stricter = artifact.ridge is not None or artifact.stability is not None or artifact.confidence is not None
    if adaptive and stricter:
        yield "adaptive levels cannot be combined with a ridge, a stability slack or confidence"


def _check_header(artifact: ArtifactContent) -> Iterator[str]:
    if not files.RELEASE_PATTERN.fullmatch(artifact.library_version):
        yield "library_version is not a version"
    try:
        is_utc = datetime.fromisoformat(artifact.created_at).utcoffset() == timedelta(0)
    except ValueError:
        is_utc = False
    if not is_utc:
        yield "created_at is not a time in UTC"


def _check_attainable(artifact: ArtifactContent) -> Iterator[str]:
    """Check the size and the attainable coverage of all prompts and of every weighting."""
    facts = artifact.calibration
    weights = artifact.feature_map.list_guaranteed_weights()
    if [(one.name, one.words) for one in weights] != [(one.name, one.words) for one in facts.groups]:
        yield "groups do not match the weightings of the feature map"
        return
    all_prompts = facts.groups[0]
    size = facts.size if facts.weight is None else facts.weight
    if not _is_close(all_prompts.size, size):
        yield f"size: {size:g} calibration prompts, but the group of all prompts has {all_prompts.size:g}"
    if artifact.shift is None and not _is_close(all_prompts.attainable, facts.attainable_coverage):
        yield "attainable_coverage differs from that of all prompts"
    for one in facts.groups:
        smallest = max(0.0, 1.0 - one.attainable * one.size / (one.size + 1.0))
        # Round-off may take the size or the coverage of a soft weighting slightly below 0.
        possible = -TOLERANCE <= one.attainable <= 1.0 and one.size >= -TOLERANCE
        if not possible or not _is_close(one.smallest_alpha, smallest):
            yield f"smallest_alpha of {one.name} does not follow from its size and attainable coverage"
    if facts.within_clusters == "one" and not facts.exchangeable:
        yield "exchangeable must be true, since one prompt of each cluster was used"


def _check_histograms(artifact: ArtifactContent) -> Iterator[str]:
    """Check the histograms that detect drift."""
    facts = artifact.calibration
    names = {one.name for one in facts.groups}
    # Without a fit split bins have equal widths, so there are always counts. `calibrate` adds them last.
    finished = all(level.settings is not None for level in artifact.levels)
    if finished and artifact.shift is None and facts.fit_size == 0:
        counted = {one.name for one in artifact.reference if facts.groups[0].name in one.counts}
        for name in sorted({"mean_score", "min_score"} - counted):
            yield f"reference counts of {name} are missing"
    for histogram in artifact.reference:
        name = histogram.name
        if not set(histogram.counts) <= names:
            yield f"reference counts of {name} are for a weighting that the feature map does not have"
        overall_counts = histogram.counts.get(facts.groups[0].name)
        if overall_counts is None:
            continue
        if any(np.any(np.array(one) > np.array(overall_counts)) for one in histogram.counts.values()):
            yield f"reference counts of {name} are larger in a group than over all prompts"
        total = sum(overall_counts)
        if histogram.alpha is not None and total > facts.held_out_size:
            yield f"reference counts of {name} cover more prompts than were held out"
        # Of weighted prompts only a fair sample is counted, and of each cluster only one prompt.
        size = facts.size if facts.drawn_among is None else facts.drawn_among
        differs = total > size or (not facts.sampled and (total == size) != facts.exchangeable)
        if histogram.alpha is None and differs:
            yield f"reference counts of {name} cover {total} prompts, but calibration used {size}"


def _check_effective_alpha(artifact: ArtifactContent, level: LevelState) -> Iterator[str]:
    stability, confidence = artifact.stability, artifact.confidence
    tested = confidence is not None and confidence.prompts > 0
    if stability is not None:
        expected = stability.effective_alpha(level.alpha, artifact.calibration.size)
        if level.effective_alpha != expected:
            yield f"effective_alpha of {level.alpha}: expected {expected} from the slack"
    elif level.effective_alpha is not None and not tested:
        yield f"effective_alpha of {level.alpha}: nothing makes the level stricter"


def _check_fit(artifact: ArtifactContent, level: LevelState) -> Iterator[str]:
    """Check that the quantile fit to the calibration prompts has the rank that its level requires.

    Let c be coefficients with Phi c = 1 for all prompts. Optimality along c gives B <= tau W <= B + Z, where
    B is the weight of the prompts below the fit, Z of those on it, and W of all. A ridge either leaves c free
    of penalty, or it has no guarantee and is not checked.
    """
    state = artifact.unpack_state(level.rule)
    if not {"features", "rest", "centre"} <= set(state) or not len(state["features"]):
        return
    features, scores, centre = state["features"], state["success_scores"], state["centre"]
    weights = state["weights"] if len(state["weights"]) else np.ones(len(scores))
    if any((scores > 1.0) & (scores < artifact.cap)):
        yield f"level {level.alpha} has a success score between 1 and the cap"
    constant = _find_constant(state)
    if constant is None:
        return
    # With adaptive levels coverage differs between prompts: tau W is the sum of weights times coverages.
    low, total, _ = state["rest"]
    residuals = scores - features @ centre
    on_fit = np.abs(residuals) <= FIT_TOLERANCE * max(1.0, float(np.abs(scores).max()))
    below = float(low @ constant) + float(weights[(residuals < 0.0) & ~on_fit].sum())
    total_weight = float(total @ constant) + float(weights.sum())
    facts = artifact.calibration
    size = facts.size if facts.weight is None else facts.weight
    if artifact.shift is None and not _is_close(total_weight, size):
        yield f"level {level.alpha}: the fit uses {total_weight:g} prompts, but calibration used {size:g}"
    alpha = level.alpha if level.effective_alpha is None else level.effective_alpha
    rank, slack = float(compute_tau(alpha)) * total_weight, TOLERANCE * (1.0 + total_weight)
    if "targets" in state:
        unit = float(
            ConditionalThreshold(alpha, artifact.cap, levels=artifact.list_stated_levels(alpha)).unit
        )
        rank = unit * float(state["targets"].sum() + state["rest_target"] @ constant)
    if not below - slack <= rank <= below + float(weights[on_fit].sum()) + slack:
        yield f"level {level.alpha}: the fit does not have the rank that the level requires"
    if not state["rest"].any() and artifact.shift is None:
        reached = float(weights[scores < artifact.cap].sum()) / total_weight
        if not _is_close(reached, facts.attainable_coverage):
            yield "attainable_coverage differs from that of the calibration prompts"


def _find_constant(state: Mapping[str, FloatArray]) -> FloatArray | None:
    """Return (r,) coefficients of the constant 1; None if a ridge penalises it or the columns lack it."""
    features = state["features"]
    if "penalty" in state:
        first = np.eye(1, features.shape[1])[0]
        return first if len(state["penalty"]) and state["penalty"][0] == 0.0 else None
    coefficients = np.linalg.lstsq(features, np.ones(len(features)), rcond=None)[0]
    spans = np.abs(features @ coefficients - 1.0).max() <= FIT_TOLERANCE
    return np.asarray(coefficients, dtype=np.float64) if spans else None


def _check_quantile(artifact: ArtifactContent, level: LevelState) -> Iterator[str]:
    """Check the marginal quantile, if the artifact holds all calibration prompts."""
    state = artifact.unpack_state(level.rule)
    facts = artifact.calibration
    kept_all = "rest" in state and not state["rest"].any()
    if not kept_all or facts.sampled:
        return
    scores = state["success_scores"]
    weights = state["weights"] if len(state["weights"]) and artifact.shift is None else np.ones(len(scores))
    if not _is_close(float(weights.sum()), facts.size):
        return  # these weights do not count merged prompts
    ordered = np.repeat(scores, np.rint(weights).astype(np.int64))
    rank = compute_conformal_rank(len(ordered), compute_tau(level.alpha))
    expected = [float(np.sort(ordered)[rank - 1])] if rank <= len(ordered) else [artifact.cap]
    stated = artifact.unpack_state(level.marginal)["quantile"].tolist() or [artifact.cap]
    if min(stated[0], artifact.cap) != expected[0]:
        yield f"level {level.alpha}: the marginal quantile differs from that of the calibration prompts"


def _check_confidence(artifact: ArtifactContent) -> Iterator[str]:
    confidence, facts = artifact.confidence, artifact.calibration
    if confidence is None:
        return
    overall_name = facts.groups[0].name
    if artifact.threshold_rule == "learned":
        yield "confidence: the learned rule cannot have confidence"
    tested = artifact.threshold_rule == "conditional"
    if tested != (confidence.prompts > 0) or tested != (confidence.records_digest is not None):
        yield "confidence: levels must be tested on prompts for the conditional rule, and for no other"
    if confidence.prompts > facts.certification_size:
        yield f"confidence rests on {confidence.prompts} prompts, more than were held out for it"
    if artifact.threshold_rule != "grouped" and confidence.names != [overall_name]:
        yield "confidence is claimed for more than all prompts"
    if confidence.missed and not tested:
        yield "confidence: only the conditional rule has counts of missed prompts"
    if tested:
        yield from _check_tested_levels(artifact, confidence)
    elif artifact.threshold_rule in {"marginal", "grouped"}:
        yield from _check_order_statistics(artifact, confidence)


def _check_tested_levels(artifact: ArtifactContent, confidence: Confidence) -> Iterator[str]:
    """Check the exact binomial test of each level, from its number of missed prompts."""
    if set(confidence.missed) != set(artifact.alphas):
        yield "confidence: the counts are not for the levels that the artifact holds"
    for level in artifact.levels:
        missed = confidence.missed.get(level.alpha, 0)
        p_value = compute_lower_tail(min(missed, confidence.prompts), confidence.prompts, float(level.alpha))
        if p_value > confidence.level * (1.0 + TOLERANCE):
            yield f"confidence: {missed} of {confidence.prompts} prompts missed do not certify {level.alpha}"


def _check_order_statistics(artifact: ArtifactContent, confidence: Confidence) -> Iterator[str]:
    """Check that no threshold is smaller than the order statistic whose law gives the confidence.

    The artifact holds order statistics without their ranks, and scores may tie. So this detects a wrong delta
    only if it requires a rank beyond the number of scores below the cap, or, for the marginal rule, if the
    threshold is below a stored order statistic of at most the required rank. Smaller errors go unnoticed.
    """
    facts, grouped = artifact.calibration, artifact.threshold_rule == "grouped"
    share = Fraction(confidence.level) / (artifact.feature_map.dimension if grouped else 1)
    relaxed = min(share * Fraction(1.0 + TOLERANCE), (1 + share) / 2)
    marginal_quantiles = [
        (
            compute_conformal_rank(facts.size, compute_tau(one.alpha)),
            _read_quantiles(artifact, one.marginal)[0],
        )
        for one in artifact.levels
    ]
    for level in artifact.levels:
        served, tau = _read_quantiles(artifact, level.rule), compute_tau(level.alpha)
        for column, group in _list_groups(artifact) if grouped else [(0, facts.groups[0])]:
            size = min(round(group.size), facts.size)
            rank = compute_confident_rank(size, tau, relaxed)
            least = artifact.cap if rank > round(size * group.attainable) else 0.0
            if not grouped:
                least = max([least, *(score for other, score in marginal_quantiles if other <= rank)])
                least = math.inf if rank > size else least
            if served[column] < least:
                yield f"confidence: the threshold at {level.alpha} on {group.name} is too small for its delta"


def _list_groups(artifact: ArtifactContent) -> list[tuple[int, AttainableGroup]]:
    """List the groups that a feature column indicates, each with the index of its column."""
    weightings = artifact.feature_map.list_guaranteed_weights()
    return [
        (one.coefficients.index(1.0), group)
        for one, group in zip(weightings, artifact.calibration.groups, strict=False)
        if sorted(one.coefficients) == [0.0] * (len(one.coefficients) - 1) + [1.0]
    ]


def _read_quantiles(artifact: ArtifactContent, names: Mapping[str, str]) -> list[float]:
    """Return the order statistics of a rule; `[inf]` if it has none."""
    state = artifact.unpack_state(names)
    return state["quantiles" if "quantiles" in state else "quantile"].tolist() or [math.inf]


def _check_coverage(artifact: ArtifactContent, one: CoverageCertificate) -> Iterator[str]:
    """Check Clopper-Pearson bounds; the level is divided among groups as in `certify`."""
    all_prompts, *groups = one.shares
    named = [(weight.name, weight.words) for weight in artifact.feature_map.list_guaranteed_weights()]
    if [(share.name, share.words) for share in one.shares] != named or all_prompts.prompts != one.prompts:
        yield f"the certificate at {one.alpha} does not match the weightings of the feature map"
    if one.given_drawn != (artifact.calibration.drawn_among is not None):
        yield f"the certificate at {one.alpha} is not about the same prompts as the guarantee"
    yield from _check_stated_coverage(artifact, one)
    parts = divide_delta(one.level, len(groups))
    for share, part in zip(one.shares, parts, strict=True):
        failing = part / (3 if share is all_prompts else 2)
        for count, bound in ((share.kept, share.kept_at_least), (share.covered, share.coverage_at_least)):
            if not _is_lower_bound(bound, count, share.prompts, failing):
                yield f"the certificate at {one.alpha}: the bound for {share.name} contradicts its counts"
    yield from _check_sizes(artifact, one, parts[0] / 3)


def _check_sizes(artifact: ArtifactContent, one: CoverageCertificate, failing: float) -> Iterator[str]:
    """Check that the mean size is possible, and its bound large enough for a sample without variance."""
    if one.claims is not None:
        if f"claims({one.claims.at_most})" != artifact.set_rule:
            yield f"the certificate at {one.alpha} is not about the set rule {artifact.set_rule}"
        least, largest, stated = one.claims.mean, 1.0, one.claims.mean_at_most
    elif artifact.unit == "claims":
        yield f"the certificate at {one.alpha} is about sets, and the artifact about claims"
        return
    else:
        least, largest, stated = one.mean_set_size or 0.0, artifact.n, one.mean_set_size_at_most or 0.0
        total = least * one.prompts
        if not _is_close(total, round(total)) or total > (artifact.n + TOLERANCE) * one.prompts:
            yield f"the certificate at {one.alpha} states a mean set size that {one.prompts} sets cannot have"
    if one.prompts > 1:
        least += largest * 7.0 * math.log(2.0 / failing) / (3.0 * (one.prompts - 1))
    if stated < min(float(largest), least) * (1.0 - TOLERANCE):
        yield f"the certificate at {one.alpha} states a bound on set sizes that contradicts its mean"


def _check_stated_coverage(artifact: ArtifactContent, one: CoverageCertificate) -> Iterator[str]:
    """Check the mean stated coverage of each weighting, which only adaptive levels have."""
    possible = artifact.list_adaptive_coverages(one.alpha) if one.alpha in artifact.alphas else ()
    for share in one.shares:
        is_due = bool(possible) and share.prompts > 0
        if (share.stated is not None) != is_due:
            yield f"the certificate at {one.alpha}: stated coverage of {share.name} missing or unexpected"
        elif share.stated is not None and not (
            possible[0] - TOLERANCE <= share.stated <= possible[-1] + TOLERANCE
        ):
            yield f"the certificate at {one.alpha} states a coverage for {share.name} that no prompt has"


def _check_policy(artifact: ArtifactContent, policy: CertifiedPolicy) -> Iterator[str]:
    """Check the exact tests of wrong-answer rates, and the bounds of the curve."""
    curve, first = policy.curve, policy.certificate
    level = float(first.delta) * float(compute_share(first.attempt))
    rates = [one.max_wrong_rate for one in policy.certificates]
    if rates != sorted({*rates}.difference(policy.refused), key=float):
        yield "expected certificates of different rates, ascending, none of them refused"
    if policy.others and not all(one.policy.ignores_sets for one in policy.certificates):
        yield "a policy on sets can be certified for one rate only"
    for certificate in policy.certificates:
        yield from _check_wrong_rate(artifact, certificate)
        yield from _check_policy_choice(certificate, curve)
        if (certificate.delta, certificate.records_digest) != (first.delta, first.records_digest):
            yield "certificates of different rates have different prompts or a different delta"
    for trade in curve:
        bound = trade.wrong_rate_at_most
        if not _is_lower_bound(1.0 - bound, trade.answered - trade.wrong, trade.answered, level / len(curve)):
            yield f"a policy at {trade.alpha} states a bound that contradicts its counts"
    yield from _check_coverage_of_policy(artifact, policy)


def _check_wrong_rate(artifact: ArtifactContent, certificate: WrongRateCertificate) -> Iterator[str]:
    """Check the exact binomial tests of one certificate."""
    all_prompts, *groups = certificate.groups
    named = [(weight.name, weight.words) for weight in artifact.feature_map.list_guaranteed_weights()]
    stated = [(one.name, one.words) for one in certificate.groups]
    if stated not in (named, named[:1]) or certificate.unit != artifact.unit:
        yield "the policy does not match the weightings of the feature map or the unit of the artifact"
    rate = float(certificate.max_wrong_rate)
    facts = artifact.calibration
    held_out = facts.certification_size
    if certificate.policy.ignores_sets:  # calibration and fit labels may certify it
        held_out += facts.size + facts.fit_size
    if not 0 < certificate.prompts <= held_out:
        yield f"the policy rests on {certificate.prompts} prompts, more than were held out for it"
    if all_prompts.prompts != certificate.prompts or not all_prompts.certified:
        yield "the policy is not certified over all prompts"
    parts = divide_delta(certificate.level, len(groups))
    for one, failing in zip(certificate.groups, parts, strict=True):
        p_value = 1.0 if one.wrong == one.answered else compute_lower_tail(one.wrong, one.answered, rate)
        if one.certified and p_value > failing * (1.0 + TOLERANCE):
            counts = f"{one.wrong} wrong of {one.answered} answers"
            yield f"{counts} do not certify a rate of {rate:g} on {one.name}"


def _check_policy_choice(certificate: WrongRateCertificate, curve: Sequence[TradeOff]) -> Iterator[str]:
    """Check that the certified policy agrees with the policies compared."""
    all_prompts, cut = certificate.groups[0], certificate.policy.max_mean_score
    if not certificate.policy.ignores_sets:
        chosen = (certificate.alpha, certificate.policy, all_prompts.answered, all_prompts.wrong)
        if chosen not in [(one.alpha, one.policy, one.answered, one.wrong) for one in curve]:
            yield "the policy is not among those compared"
        if not 1 <= certificate.policies_tested <= len(curve):
            yield f"policies_tested is {certificate.policies_tested}, but {len(curve)} policies were compared"
        return
    compared = [(one.policy.max_mean_score, one.answered, one.wrong) for one in curve]
    if not any(other == 1.0 for other, *_ in compared):
        yield "the policies compared do not include the one that answers every prompt"
    # A larger cut on the mean score answers at least what a smaller one does; equal cuts answer the same.
    counts = [*compared, (cut, all_prompts.answered, all_prompts.wrong)]
    ordered = sorted({(1.0 if other is None else other, *seen) for other, *seen in counts})
    rising = all(
        one[0] < other[0] and one[1] <= other[1] and 0 <= other[2] - one[2] <= other[1] - one[1]
        for one, other in pairwise(ordered)
    )
    if not rising:
        yield "the policy does not fit those compared: a larger cut must answer at least as many prompts"
    if not 1 <= certificate.policies_tested <= certificate.prompts:
        yield f"policies_tested is {certificate.policies_tested}, but there are {certificate.prompts} prompts"


def _check_coverage_of_policy(artifact: ArtifactContent, policy: CertifiedPolicy) -> Iterator[str]:
    """Check the certificates of the policy's sets, whose level is divided among the levels compared."""
    certificate = policy.certificate
    for coverage in policy.coverage:
        if (coverage.delta, coverage.prompts, coverage.records_digest) != (
            certificate.delta,
            certificate.prompts,
            certificate.records_digest,
        ):
            yield f"the policy and its sets at {coverage.alpha} have different prompts or a different delta"
        yield from _check_coverage(artifact, coverage)


def _is_lower_bound(bound: float, count: int, size: int, failing: float) -> bool:
    """Whether P(Binomial(size, share) >= count) <= `failing` for every true share up to the bound."""
    if bound <= 0.0:
        return True
    return bound < 1.0 and compute_upper_tail(count, size, bound) <= failing * (1.0 + TOLERANCE)


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
