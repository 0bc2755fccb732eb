"""Randomised thresholds: coverage of exactly tau for continuous scores, from a random linear term.

Notation as in `_simplex`. Let the prompt have weight w and score s, and let eta_s in w [tau - 1, tau] be its
dual variable in the regression on the calibration data *and* itself. With U uniform on (tau - 1, tau), drawn
for this prompt alone, the randomised rule keeps the scores with eta_s < w U (Gibbs, Cherian and Candes 2023,
their randomised prediction set).

*It is one more regression with a linear term.* Fix the prompt's dual variable at t and let V(t) be the
optimum of the others, V(t) = max S' eta subject to X' eta = -t phi and the box, which is the minimum over
beta of sum_i w_i rho_tau(S_i - x_i' beta) - t phi' beta (+ ridge). V is concave, and -V' is the fit at the
prompt: q(t) is the smallest phi' beta at t, and q(t+), its limit from the right, the largest. Neither falls
in t. They bound the scores that t answers: t maximises V(t) + s t, and is an eta_s, where q(t) <= s <= q(t+).
Hence

    s < q(wU)   every eta_s lies below wU;      s > q(wU)   none does,

and the closure of the randomised set is s <= q(wU): the threshold is the smallest phi' beta of the regression
with linear term w U phi. The solver multiplies its argument by tau, so it is called with (w U / tau) phi.
U -> tau gives the deterministic threshold. For a constant and for disjoint groups it is the order statistic
of rank ceil(tau N + U), which is floor((N + 1) tau) or one more, with expectation (N + 1) tau.

*Equality.* The N + 1 dual variables balance: sum_i f_i eta_i = 0 for every f in the span, of any sign. Where
success scores are continuous given the features the dual optimum is unique, so exchanging prompts exchanges
its entries, and P(eta < U | eta) = tau - eta gives E f (kept - tau) = -E f eta = 0. (With weights the new
prompt is prompt i with probability proportional to w_i, P(kept | i) = tau - eta_i / w_i, and the sum is the
same. With a ridge sum_i f_i eta_i is gamma' D beta, zero for the constant if it is not penalised.)

*Ties and atoms.* With ties there are several dual optima. One of them treats all prompts alike (the one of
least norm), and by the two cases above its set contains s < q(wU) and lies in s <= q(wU). So for every
f >= 0 in the span

    E f 1{S < threshold}  <=  tau E f  <=  E f 1{S <= threshold}:

coverage is never too low, and too high only where scores tie with the threshold. The cap is such an atom.

*Negative terms.* For U < 0 the solver is called with a = c phi, c < 0, and the smallest phi' beta is the
largest a' beta. This end of the optimal face is the limit of linear terms a little longer than a, whereas the
simplex takes the limit of terms a little shorter. Apart from the balance, the features of the prompt enter
only the face rule, so the solvers for `negative` terms negate phi there. The proofs of `_windows` hold
for any linear term, but the fit at a part of a negative term lies *above* the fit at all of it, so it is no
lower bound.

*Unbounded problems.* X' eta = -t phi has solutions at t = 0, so the t that have one form an interval with 0.
If the problem is unbounded at t < 0, q(t) = -inf: eta_s never falls so low, and nothing is kept. Outside the
span of the calibration features only t = 0 is left, so eta_s = 0: all is kept if U > 0, and else nothing.
With a ridge the problem is bounded there too; but nothing was calibrated on such prompts, so all is kept.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from langchain_cfc.support.arrays import FloatArray

# Replaces a factor of 0: below the round-off of any balance, but keeps the direction of the face search.
TINY_FACTOR = 2.0**-100


def compute_factors(uniforms: FloatArray, alphas: FloatArray, tau: Fraction) -> FloatArray:
    """Compute each prompt's factor U / tau, with U = u - alpha for (m,) uniforms u in (0, 1).

    `alphas` are the (m,) error levels of the prompts, `tau` the coverage of which targets are multiples.
    """
    drawn = uniforms - alphas  # exact where it is small
    return np.where(drawn == 0.0, -TINY_FACTOR, drawn / float(tau))
