"""Checks that the parts of an artifact fit together, so that a loaded artifact does not fail while serving.

Arrays, levels, groups and certificates must refer to content that the artifact holds. What a certificate
states is not proved here: `inspect --verify` computes it again from its counts, and only a signature detects
someone who changes the counts too.
"""

from __future__ import annotations

from collections.abc import Iterator

from langchain_cfc.artifact.content import ArtifactContent
from langchain_cfc.artifact.facts import CertifiedBot
from langchain_cfc.artifact.prefixes import are_drawn_by, check_separate_scores
from langchain_cfc.guarantee import Certificate, Confidence, TestedCertificate


def find_problems(artifact: ArtifactContent) -> Iterator[str]:
    """Yield a description of each part of an artifact that does not fit the others."""
    yield from _check_references(artifact)
    yield from _check_weightings(artifact)
    yield from _check_draw_rule(artifact)
    if artifact.bot is not None:
        yield from _check_bot(artifact, artifact.bot)
    yield from _check_people(artifact)


def _check_references(artifact: ArtifactContent) -> Iterator[str]:
    """Check arrays, and which artifact, level and attempt each certificate is about."""
    for stray in sorted(set(artifact.arrays).difference(*(level.rule.values() for level in artifact.levels))):
        yield f"array {stray!r} belongs to no level"
    tested: list[TestedCertificate] = [*artifact.certificates]
    tested += [] if artifact.bot is None else artifact.bot.certificates
    certified: list[Certificate] = [*tested, *artifact.people_certificates]
    if any(one.artifact_digest != artifact.frozen_digest for one in certified):
        yield "a certificate is about another artifact"
    levels = [one.alpha for one in artifact.certificates]
    # A cut is certified at its rate, and needs no level.
    named = {*levels, *(one.alpha for one in artifact.people_certificates if one.about == "sets")}
    if len(set(levels)) < len(levels) or not named <= set(artifact.alphas):
        yield "a certificate is about a level that the artifact does not hold, or two are about one level"
    attempts = {one.number for one in artifact.attempts if one.certified}
    counted: list[Confidence] = [*tested]
    counted += [] if artifact.confidence is None else [artifact.confidence]
    for attempt in sorted({one.attempt for one in counted} - attempts):
        yield f"a certificate is of attempt {attempt}, which the ledger does not hold as certified"


def _check_weightings(artifact: ArtifactContent) -> Iterator[str]:
    """Check that whatever is stated for a group is for a guaranteed weighting of the feature map."""
    named = [(one.name, one.words) for one in artifact.feature_map.list_guaranteed_weights()]
    names = {name for name, _ in named}
    if [(one.name, one.words) for one in artifact.calibration.groups] != named:
        yield "groups do not match the weightings of the feature map"
    for histogram in artifact.reference:
        if not set(histogram.counts) <= names:
            yield f"reference counts of {histogram.name} are for a weighting that the feature map lacks"
    for one in artifact.certificates:
        if [(share.name, share.words) for share in one.shares] != named:
            yield f"the certificate at {one.alpha} does not match the weightings of the feature map"
        if one.set_rule != artifact.set_rule:
            yield f"the certificate at {one.alpha} is not about the set rule {artifact.set_rule}"


def _check_draw_rule(artifact: ArtifactContent) -> Iterator[str]:
    """Check that the draw rule stops after n draws, and that its records can be cut short."""
    rule = artifact.draw_rule
    if rule is None:
        return
    if (rule.text, rule.at_most) != (artifact.draws, artifact.n) or rule.stored_text is None:
        yield f"draws: {artifact.draws} is not a rule of at most {artifact.n} draws in canonical form"
    if not are_drawn_by(rule, artifact.provenance):
        check_separate_scores(artifact.provenance)


def _check_bot(artifact: ArtifactContent, bot: CertifiedBot) -> Iterator[str]:
    """Check which rates and groups the certificates of bot mode are about."""
    rates = [one.max_wrong_rate for one in bot.certificates]
    if rates != sorted({*rates}.difference(bot.refused), key=float):
        yield "expected certificates of different rates, ascending, none of them refused"
    named = [(one.name, one.words) for one in artifact.feature_map.list_guaranteed_weights()]
    for certificate in bot.certificates:
        stated = [(one.name, one.words) for one in certificate.groups]
        if stated not in (named, named[:1]) or certificate.unit != artifact.unit:
            yield "the bot does not match the weightings of the feature map or the unit of the artifact"
        if certificate.subject != artifact.subject:
            yield f"the bot is about {certificate.subject}, and the artifact about {artifact.subject}"
        if certificate.alpha != certificate.max_wrong_rate:
            yield f"the certificate of the rate {certificate.max_wrong_rate} is at {certificate.alpha}"
        if not certificate.groups[0].certified:
            yield "the bot is not certified over all prompts"


def _check_people(artifact: ArtifactContent) -> Iterator[str]:
    """Check that people's certificates are about distinct subjects that the artifact holds."""
    certificates = [] if artifact.bot is None else artifact.bot.certificates
    answers = [("answers", one.alpha, one.cut) for one in certificates]
    subjects = [one.subject for one in artifact.people_certificates]
    if any(subjects.count(one) > 1 for one in subjects):
        yield "two certificates by people are about the same sets or answers"
    for one in artifact.people_certificates:
        if one.about == "answers" and one.subject not in answers:
            yield "a certificate by people is about a rate that the artifact does not hold"
        if one.unit != artifact.unit or one.set_rule not in {None, artifact.set_rule}:
            yield "a certificate by people is about sets of another kind"
