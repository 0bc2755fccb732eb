"""`recompute_certificates`: compute the bounds of certificates again from the counts beside them.

The certifying functions compute each bound again, and find better ones as well as worse ones. All tests on
the same labels together may use no more of delta than the share of their attempt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from langchain_cfc.artifact import CalibrationArtifact, CertifiedBot
from langchain_cfc.certificates.bounds import binomial_p_value, lower_bound, upper_bound
from langchain_cfc.certificates.cuts import CURVE_POINTS
from langchain_cfc.guarantee import (
    Confidence,
    CoverageCertificate,
    TestedCertificate,
    WrongRateCertificate,
)
from langchain_cfc.guarantee.certified import compute_share, divide_delta

# Relative difference allowed between versions of SciPy.
_TOLERANCE = 1e-7


@dataclass(frozen=True)
class BoundCheck:
    """A bound of a certificate, compared with the one that its counts give.

    Attributes:
        certificate: Which certificate.
        bound: What is bounded.
        stated: The bound that the artifact states; for a test, its failure probability.
        recomputed: The bound from the counts, or the p-value of a test; None if the artifact holds too little
            to compute it. The stated value is then at most checked for being possible.
        agrees: Whether the counts give what is stated; for a test, whether it passes.
    """

    certificate: str
    bound: str
    stated: float
    recomputed: float | None
    agrees: bool


def recompute_certificates(artifact: CalibrationArtifact) -> list[BoundCheck]:
    """Compute every bound of an artifact's certificates again from the counts beside it.

    Args:
        artifact: The artifact.

    Returns:
        The bounds, certificate by certificate; none if nothing is certified. Bounds by people need their
        labels one by one, so they are not recomputed.

    Raises:
        MissingExtraError: If SciPy is not installed.
    """
    checks = [check for one in artifact.certificates for check in _recompute_coverage(one)]
    if artifact.bot is not None:
        checks += _recompute_bot(artifact.bot)
    for one in artifact.people_certificates:
        name, bound = f"{one.about} at alpha = {one.alpha}, by people", "promise kept at least"
        checks.append(BoundCheck(name, bound, one.at_least, None, agrees=True))
    return [*checks, *_add_up_levels(artifact)]


def _compare_bounds(certificate: str, bound: str, stated: float, recomputed: float) -> BoundCheck:
    agrees = math.isclose(stated, recomputed, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return BoundCheck(certificate, bound, stated, recomputed, agrees)


def _add_up_levels(artifact: CalibrationArtifact) -> Iterator[BoundCheck]:
    """Yield for each attempt the sum of the levels of its tests, which is at most its share of delta."""
    tested: list[Confidence] = [*artifact.certificates]
    tested += [] if artifact.confidence is None else [artifact.confidence] * len(artifact.levels)
    tested += [] if artifact.bot is None else artifact.bot.certificates
    attempts: dict[tuple[str | None, int], list[Confidence]] = {}
    for one in tested:
        # The law of an order statistic rests on calibration prompts, and names no records of its own.
        records = one.records_digest if isinstance(one, TestedCertificate) else None
        attempts.setdefault((records, one.attempt), []).append(one)
    for (_, attempt), tests in attempts.items():
        least, *others = sorted({one.delta for one in tests}, key=float)
        level, share = sum(one.level for one in tests), float(least) * float(compute_share(attempt))
        fits = not others and level <= share * (1.0 + _TOLERANCE)  # an attempt has one delta
        yield BoundCheck(f"attempt {attempt} at delta = {least}", "sum of levels", level, share, fits)


def _recompute_coverage(one: CoverageCertificate) -> Iterator[BoundCheck]:
    """Yield the bounds on sets, two over all prompts and two for every group."""
    name = f"sets at alpha = {one.alpha}"
    parts = divide_delta(one.level, len(one.shares) - 1)
    for share, part in zip(one.shares, parts, strict=True):
        kept = lower_bound(share.kept, share.prompts, part / 2)
        yield _compare_bounds(name, f"kept at least, {share.name}", share.kept_at_least, kept)
        covered = lower_bound(share.covered, share.prompts, part / 2)
        yield _compare_bounds(name, f"covered at least, {share.name}", share.coverage_at_least, covered)


def _recompute_bot(bot: CertifiedBot) -> Iterator[BoundCheck]:
    for certificate in bot.certificates:
        yield from _recompute_wrong_rate(certificate)
    for point in bot.curve:
        first = bot.certificates[0]
        level = float(Fraction(first.delta) * compute_share(first.attempt))
        yield _compare_bounds(
            "cuts compared",
            f"wrong at most, {point.answered} answered",
            point.wrong_rate_at_most,
            upper_bound(point.wrong, point.answered, level / CURVE_POINTS),
        )


def _recompute_wrong_rate(certificate: WrongRateCertificate) -> Iterator[BoundCheck]:
    """Yield the tests of a certified rate."""
    parts = divide_delta(certificate.level, len(certificate.groups) - 1)
    for one, failing in zip(certificate.groups, parts, strict=True):
        if one.certified:
            rate = certificate.max_wrong_rate
            p_value = binomial_p_value(one.wrong, one.answered, float(rate))
            name, bound = f"wrong rate of {rate}", f"p-value, {one.name}"
            yield BoundCheck(name, bound, failing, p_value, p_value <= failing)
