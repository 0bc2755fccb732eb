"""`PaperPAC`: the paper's second method, CFC-PAC, labelled as a heuristic.

The rule runs at alpha - eps instead of alpha, with eps = C sqrt(log(1 / delta) / N). The paper's Theorem on
CFC-PAC leaves C open; its tables must have used C = 1 and no ridge, and `PaperPAC` uses C = 1. With its
constants worked out, the proof gives the following, for |Phi| <= R, a ridge lambda on every coefficient, and
success scores whose distribution function is L-Lipschitz given the prompt:

1.  Above the fit the pinball loss of the test prompt is linear, so the threshold at phi is phi' beta, where
    beta minimises 1 / (N + 1) (sum_i rho_tau(S_i - Phi_i' beta) - tau phi' beta) + lambda / 2 |beta|^2.
2.  Replace one calibration prompt, which changes beta to beta*. At the minimisers, subgradients u and u* of
    the terms that both objectives share (all but that prompt's) satisfy u + g / (N + 1) = 0 and
    u* + g* / (N + 1) = 0, where g = -eta Phi_k, g* = -eta* Phi*_k and eta, eta* lie in [tau - 1, tau]. The
    shared part is lambda-strongly convex, so lambda |beta - beta*|^2 <= (u - u*)' (beta - beta*), and
    |beta - beta*| <= |g - g*| / (lambda (N + 1)) <= 2 max(tau, 1 - tau) R / (lambda (N + 1)).
    Each of g and g* has norm at most max(tau, 1 - tau) R, but they may point in opposite directions: the
    factor 2 stays, and the bound is attained.
3.  So the threshold moves by at most 2 max(tau, 1 - tau) R^2 / (lambda (N + 1)), and coverage given the
    calibration set by at most L times that. tau depends on eps, but max(tau, 1 - tau) < 1, so
    2 L R^2 / (lambda N) bounds the change at every level, and is tight as tau approaches 1.
4.  McDiarmid: if each of N prompts moves coverage by at most c, coverage falls below its mean by more than
    c sqrt(N log(1 / delta) / 2) with probability at most delta. With c = 2 L R^2 / (lambda N) that is
    eps for C = sqrt(2) L R^2 / lambda: at N = 10,000, R = L = 1 and lambda = 0.01 the slack is 0.459.

These steps are correct. The mean is the gap: the paper takes it to be at least tau, by its theorem for the
rule without a penalty. With a penalty, the share of prompts below the fit need not be tau. For Phi = 1 and
uniform success scores (R = L = 1, all assumptions met) thresholds converge to tau / (1 + lambda): at
alpha = 0.1, lambda = 0.1 and N = 10,000 eps is 0.046, and coverage is 0.86 where at least 0.90 is claimed.

Source: the paper's Theorem "PAC conditional coverage for CFC", its Algorithm "CFC-PAC Inference" and proof;
McDiarmid (1989), "On the method of bounded differences"; Bousquet and Elisseeff (2002), "Stability and
generalization".
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any

from pydantic import BaseModel, ConfigDict

from langchain_cfc.errors import InputError
from langchain_cfc.guarantee.certified import Delta
from langchain_cfc.thresholds import Level, format_alpha
from langchain_cfc.thresholds.base import MAX_DECIMALS

# Round-off in 60 digits is far below 1e-50; the slack is rounded up by that factor.
_DIGITS = 60
_ROUND_UP = 1 + Decimal("1e-50")
_NOT_PROVEN = (
    "Not proven: the proof needs a penalty, but takes expected coverage from a theorem that holds without "
    "one. It needs independent, identically distributed prompts and success scores whose distribution has no "
    "jump, but prompts without a correct candidate create one. It is about all prompts together, not groups."
)


class PaperPAC(BaseModel):
    """The paper's CFC-PAC: each level is made stricter by the slack eps = sqrt(log(1 / delta) / N).

    A heuristic: the module docstring says what the proof shows and where it fails. Use a certificate if you
    need a guarantee.

    Args:
        delta: Failure probability, 0 < delta < 1, read as a decimal. The paper's 0.9 claims coverage for one
            calibration set in ten.
        ridge: lambda >= 0, the strength of the penalty that the paper's proof needs; see
            `ConditionalThreshold`. Above 0 no theorem is left about the thresholds. The paper's tables use 0.

    Raises:
        InputError: If a number is out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    delta: Delta
    ridge: float

    def __init__(self, delta: Level = "0.9", ridge: float = 0.0, **unknown: Any) -> None:
        """Check the numbers, and convert delta to canonical decimal text."""
        if type(ridge) not in {int, float} or not 0.0 <= ridge < math.inf:
            msg = f"the ridge of PaperPAC must be a finite number, at least 0; got {ridge!r}"
            raise InputError(msg)
        super().__init__(delta=format_alpha(delta, "delta"), ridge=ridge, **unknown)

    def slack(self, size: int) -> float:
        """Compute the slack eps from the number of calibration prompts.

        Examples:
            >>> round(PaperPAC().slack(10_000), 6)
            0.003246
        """
        return float(self._compute_exact_slack(size))

    def effective_alpha(self, alpha: Level, size: int) -> str:
        """Compute the level that remains, max(0, alpha - eps), rounded down to 12 decimals.

        `0` means that nothing remains: `calibrate` refuses it, and the paper accepts every candidate.

        Examples:
            >>> PaperPAC().effective_alpha("0.1", 10_000)
            '0.09675407154'
        """
        with localcontext(Context(_DIGITS, ROUND_FLOOR)):
            left = Decimal(format_alpha(alpha)) - self._compute_exact_slack(size)
            unit = Decimal(1).scaleb(-MAX_DECIMALS)
            return format_alpha(left.quantize(unit)) if left >= unit else "0"

    def statement(self, alpha: Level, size: int) -> str:
        """State the claim, why it is not proven, and the slack, in a few sentences."""
        level, left = format_alpha(alpha), self.effective_alpha(alpha, size)
        claim = (
            "CFC-PAC, a heuristic. The paper claims: with probability at least "
            f"{_format_complement(self.delta)} over calibration sets (delta = {self.delta} is the "
            f"probability of failure), coverage over all prompts is at least {_format_complement(level)}."
        )
        slack = (
            f"The slack is {self.slack(size):.4g}, from N = {size} calibration prompts and the constant 1 of "
            "the paper's tables, which does not follow from its theorem."
        )
        return f"{claim} {slack} The rule runs at alpha = {left} instead of {level}. {_NOT_PROVEN}"

    def _compute_exact_slack(self, size: int) -> Decimal:
        """Compute eps, rounded up by less than one part in 1e49."""
        if type(size) is not int or size < 1:  # True would pass for 1
            msg = f"size must be a number of calibration prompts, at least 1; got {size!r}"
            raise InputError(msg)
        with localcontext(Context(_DIGITS, ROUND_FLOOR)):
            return (-Decimal(self.delta).ln() / size).sqrt() * _ROUND_UP


def _format_complement(share: str) -> str:
    """Format one minus a share in percent."""
    return f"{(100 * (1 - Decimal(share))).normalize():f} %"
