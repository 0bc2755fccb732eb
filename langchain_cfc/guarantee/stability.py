"""`PaperStability`: the slack of the paper's CFC-PAC as frozen data, labelled as a heuristic.

The rule runs at alpha - eps instead of alpha, with eps = C sqrt(log(1 / delta) / N). The paper's Theorem on
CFC-PAC leaves C open. With its constants worked out, the proof gives the following, for |Phi| <= R, a ridge
lambda on every coefficient, and success scores whose distribution function is L-Lipschitz given the prompt:

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
    eps for C = sqrt(2) L R^2 / lambda.

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
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from langchain_cfc.errors import InputError
from langchain_cfc.guarantee.certified import Delta
from langchain_cfc.thresholds import Level, format_alpha, format_delta
from langchain_cfc.thresholds.base import MAX_DECIMALS

if TYPE_CHECKING:
    from typing_extensions import Self


DELTA = "0.9"  # from the paper's tables
# Larger numbers overflow when they are multiplied.
LARGEST_NUMBER = 1e150
# Round-off in 60 digits is far below 1e-50; bounds are rounded up by that factor.
_DIGITS = 60
_ROUND_UP = 1 + Decimal("1e-50")
_NOT_PROVEN = (
    "Not proven: the proof needs a penalty, but takes expected coverage from a theorem that holds without "
    "one. It needs independent, identically distributed prompts and success scores whose distribution has no "
    "jump, but prompts without a correct candidate create one. It is about all prompts together, not groups."
)


class PaperStability(BaseModel):
    """The slack eps = C sqrt(log(1 / delta) / N) of the paper's CFC-PAC, and the alpha that it leaves.

    Created by `from_constant` or `from_theorem`. A heuristic: the module docstring says what the proof shows
    and where it fails. Use a certificate if you need a guarantee.

    Attributes:
        delta: Failure probability as canonical decimal text: the claim has probability 1 - delta.
        constant: C, above 0.
        radius: R, the bound on the Euclidean norm of features that C was derived from; None, like the next
            two, if C was given directly.
        ridge: lambda that C was derived from, in the units of the rule with `penalised="all"`.
        lipschitz: L that C was derived from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    delta: Delta = DELTA
    constant: float = Field(default=1.0, gt=0)
    radius: float | None = Field(default=None, gt=0)
    ridge: float | None = Field(default=None, gt=0)
    lipschitz: float | None = Field(default=None, gt=0)

    @field_validator("constant")
    @classmethod
    def _does_not_overflow(cls, value: float) -> float:
        if value > LARGEST_NUMBER:
            msg = f"expected a constant of at most {LARGEST_NUMBER}, got {value}"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _is_derived(self) -> PaperStability:
        # Refuse a constant that does not follow from the numbers it claims to be derived from.
        radius, ridge, lipschitz = self.radius, self.ridge, self.lipschitz
        if radius is None and ridge is None and lipschitz is None:
            return self
        if radius is None or ridge is None or lipschitz is None:
            msg = "expected all of radius, ridge and lipschitz, or none of them"
            raise ValueError(msg)
        constant = _compute_theorem_constant(radius, ridge, lipschitz)
        if self.constant != constant:
            msg = f"expected the constant derived from the other numbers, {constant}, got {self.constant}"
            raise ValueError(msg)
        return self

    @classmethod
    def from_constant(cls, constant: float = 1.0, delta: Level = DELTA) -> Self:
        """Create the slack with a given constant; the paper's tables must have used 1.

        Args:
            constant: C, a finite number above 0.
            delta: Failure probability, 0 < delta < 1, read as a decimal. The paper's 0.9 claims coverage for
                one calibration set in ten.

        Returns:
            The slack.

        Raises:
            InputError: If a number is out of range.
        """
        return cls._create(delta=format_delta(delta), constant=constant)

    @classmethod
    def from_theorem(cls, radius: float, ridge: float, lipschitz: float, delta: Level = DELTA) -> Self:
        """Create the slack with the constant of the paper's proof: C = sqrt(2) L R^2 / lambda.

        Args:
            radius: R, an upper bound on the Euclidean norm of the features of any prompt: 1 for indicators of
                disjoint groups, sqrt(3) for [1, T, T^2] with T in [0, 1].
            ridge: lambda of the rule, which penalises every coefficient (`penalised="all"`).
            lipschitz: L, an upper bound on the slope of the distribution function of success scores given the
                prompt, that is, on their density. It cannot be derived from data.
            delta: Failure probability, 0 < delta < 1, read as a decimal.

        Returns:
            The slack; the constant is rounded up to a float.

        Raises:
            InputError: If a number is out of range.

        Examples:
            >>> round(PaperStability.from_theorem(radius=1.0, ridge=0.01, lipschitz=1.0).slack(10_000), 3)
            0.459
        """
        given: dict[str, Any] = {"radius": radius, "ridge": ridge, "lipschitz": lipschitz}
        for name, number in given.items():
            if not isinstance(number, (int, float)) or not 0.0 < number < math.inf:
                msg = f"{name} must be a finite number above 0, got {number!r}"
                raise InputError(msg)
        constant = _compute_theorem_constant(radius, ridge, lipschitz)
        return cls._create(delta=format_delta(delta), constant=constant, **given)

    @classmethod
    def _create(cls, **fields: Any) -> Self:
        try:
            return cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            msg = f"invalid slack {fields}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise InputError(msg) from error

    def slack(self, size: int) -> float:
        """Compute the slack eps from the number of calibration prompts.

        Examples:
            >>> round(PaperStability.from_constant().slack(10_000), 6)
            0.003246
        """
        return float(self._compute_exact_slack(size))

    def effective_alpha(self, alpha: Level, size: int) -> str:
        """Compute the level that remains, max(0, alpha - eps), rounded down to 12 decimals.

        `0` means that nothing remains and no set can be certified; the paper then accepts every candidate.

        Examples:
            >>> PaperStability.from_constant().effective_alpha("0.1", 10_000)
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
        origin = f"N = {size} calibration prompts and {self._describe_origin()}"
        slack = f"The slack is {self.slack(size):.4g}, from {origin}."
        outcome = (
            f"Nothing is left of alpha = {level}: the claim is vacuous, and every prompt is flagged as not "
            "certifiable."
            if left == "0"
            else f"The rule runs at alpha = {left} instead of {level}."
        )
        return f"{claim} {slack} {outcome} {_NOT_PROVEN}"

    def _describe_origin(self) -> str:
        """Describe where the constant comes from."""
        if self.radius is None:
            return f"C = {self.constant:.4g}, which was given and does not follow from the theorem"
        return (
            f"C = {self.constant:.4g}, the theorem's sqrt(2) L R^2 / lambda for R = {self.radius:.4g}, "
            f"lambda = {self.ridge:.4g} and L = {self.lipschitz:.4g}"
        )

    def _compute_exact_slack(self, size: int) -> Decimal:
        """Compute eps, rounded up by less than one part in 1e49."""
        if type(size) is not int or size < 1:  # True would pass for 1
            msg = f"size must be a number of calibration prompts, at least 1; got {size!r}"
            raise InputError(msg)
        with localcontext(Context(_DIGITS, ROUND_FLOOR)):
            return Decimal(self.constant) * (-Decimal(self.delta).ln() / size).sqrt() * _ROUND_UP


def _compute_theorem_constant(radius: float, ridge: float, lipschitz: float) -> float:
    """Compute the smallest float not below sqrt(2) L R^2 / lambda."""
    with localcontext(Context(_DIGITS, ROUND_FLOOR)):
        exact = Decimal(2).sqrt() * Decimal(lipschitz) * Decimal(radius) ** 2 / Decimal(ridge) * _ROUND_UP
    nearest = float(exact)
    return math.nextafter(nearest, math.inf) if Decimal(nearest) < exact else nearest


def _format_complement(share: str) -> str:
    """Format one minus a share in percent."""
    return f"{(100 * (1 - Decimal(share))).normalize():f} %"
