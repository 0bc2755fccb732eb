"""Draw rules: when to stop drawing candidates for a prompt.

A draw rule is fixed beforehand and only sees the answers and scores of the candidates drawn so far, in the
order of their slots. So the number of draws tau is a stopping time, and the candidates of a prompt, Y_1, ...,
Y_tau, are a function g of its infinite sequence of draws. The same g is applied to every prompt: if the
sequences (X_i, Y_i1, Y_i2, ...) are exchangeable, then so are the shortened ones, and everything computed
from these: scores, features, levels and success scores. Every theorem and certificate about n draws therefore
holds word for word for tau draws. The price is attainable coverage: a correct candidate that would have been
drawn after tau counts as never drawn, for example if a wrong majority ends the drawing early.

Only `DrawRule.choose_next_wave` looks at candidates, and it is given only those drawn so far. `count_draws`
calls it on prefixes of recorded candidates, and serving calls it on the candidates of one prompt, so both
stop at the same slot. Candidates of one wave are drawn at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import numpy as np

from langchain_cfc.candidates import CandidateBatch, LabelledBatch, warn_if_sorted
from langchain_cfc.errors import InputError
from langchain_cfc.features import count_answers
from langchain_cfc.support.arrays import BoolArray, IntArray

Condition: TypeAlias = Literal["fixed", "lead", "agree", "below"]

# Verifiers of this library that score each candidate separately.
_SEPARATE_VERIFIERS = {
    "evaluator",
    "model-judge",
    "sequence-probability",
    "token-probability",
}
_SELF_CONSISTENCY = "self-consistency"

_NUMBER = r"\d+(?:\.\d+)?"
_GRAMMAR = re.compile(rf"([a-z]+)\(({_NUMBER})(?:,(at_most|rounds)=(\d+(?:\+\d+)*))?\)")
_EXAMPLES = (
    "fixed(10), lead(3, at_most=10), below(0.05, at_most=10), or waves: agree(0.8, rounds=4+4+8), "
    "lead(3, rounds=4+2+2), below(0.05, rounds=2+4+4)"
)
# A larger number of draws for one prompt is surely a typing error.
_MAX_DRAWS = 100_000


@dataclass(frozen=True)
class DrawRule:
    """A fixed rule that decides after each wave of draws whether another one follows; see `parse_draw_rule`.

    Attributes:
        condition: What stops the drawing: `lead` (the most frequent answer leads the next one by at least
            `value` candidates), `agree` (its share is at least `value`), `below` (a candidate scores less
            than `value`), or nothing before the last draw (`fixed`).
        value: The number in the condition, as decimal text.
        rounds: Sizes of the waves.
        in_rounds: Whether waves were given; otherwise the first draw that meets the condition is the last.
    """

    condition: Condition
    value: str
    rounds: tuple[int, ...]
    in_rounds: bool = False

    @property
    def at_most(self) -> int:
        """The largest number of draws, n."""
        return sum(self.rounds)

    @property
    def text(self) -> str:
        """The canonical text, which `parse_draw_rule` reads."""
        if self.condition == "fixed":
            return f"fixed({self.value})"
        bound = f"rounds={'+'.join(map(str, self.rounds))}" if self.in_rounds else f"at_most={self.at_most}"
        return f"{self.condition}({self.value}, {bound})"

    @property
    def stored_text(self) -> str | None:
        """The text that an artifact stores; None for a fixed number of draws, which is the artifact's n."""
        return None if self.condition == "fixed" else self.text

    @property
    def needs_answers(self) -> bool:
        """Whether the rule looks at distinct answers."""
        return self.condition in {"lead", "agree"}

    @property
    def needs_scores(self) -> bool:
        """Whether the rule looks at scores, so that candidates must be scored between waves."""
        return self.condition == "below"

    @property
    def first_wave(self) -> int:
        """The number of candidates drawn before the rule looks at any."""
        if self.condition == "lead" and not self.in_rounds:
            return min(int(self.value), self.at_most)
        return self.rounds[0]

    def choose_next_wave(self, drawn: CandidateBatch) -> IntArray:
        """Choose how many further candidates to draw for each prompt.

        Without given rounds, `lead(m)` stops at the first draw at which the lead is m. A draw adds at most
        one to the lead, so m minus the current lead are drawn at once: as many as singly, in fewer waves.

        Args:
            drawn: N prompts with the c >= 1 candidates each that were drawn so far, c < n.

        Returns:
            (N,) sizes of the next waves; 0 for a prompt whose drawing stops.

        Raises:
            InputError: If the rule needs answers and they are unknown.
        """
        left = self.at_most - drawn.n
        if self.condition == "lead" and not self.in_rounds:
            return np.minimum(np.maximum(int(self.value) - _measure_lead(drawn), 0), left)
        ends = list(accumulate(self.rounds))
        size = self.rounds[ends.index(drawn.n) + 1] if left else 0
        return np.where(self._is_condition_met(drawn), 0, size)

    def _is_condition_met(self, drawn: CandidateBatch) -> BoolArray:
        """Return (N,) whether the condition to stop is met."""
        if self.condition == "lead":
            return np.asarray(_measure_lead(drawn) >= int(self.value), dtype=np.bool_)
        if self.condition == "agree":
            needed = -(-Fraction(self.value) * drawn.n // 1)  # rounded up, in exact arithmetic
            return np.asarray(count_answers(drawn)[:, -1] >= int(needed), dtype=np.bool_)
        if self.condition == "below":
            return np.asarray(drawn.scores.min(axis=1) < float(self.value), dtype=np.bool_)
        return np.zeros(len(drawn), dtype=np.bool_)

    def count_draws(self, recorded: CandidateBatch) -> IntArray:
        """Count the draws after which the rule stops, by replaying prefixes of recorded candidates.

        Args:
            recorded: N prompts with their candidates, in the order of their slots.

        Returns:
            (N,) numbers of draws; above the prompt's recorded number if the rule asks for unrecorded ones.
        """
        held = recorded.counts
        counts = np.full(len(recorded), self.first_wave, dtype=np.int64)
        # Only prompts whose count equals `drawn` are asked; a smaller count means that drawing has stopped.
        for drawn in range(self.first_wave, self.at_most):
            rows = np.flatnonzero((counts == drawn) & (held >= drawn))
            if len(rows):
                counts[rows] += self.choose_next_wave(recorded.take(rows).keep_first_candidates(drawn))
        return counts


def parse_draw_rule(text: str) -> DrawRule:
    """Parse the text of a draw rule, such as `lead(3, at_most=10)`.

    Args:
        text: `fixed(n)`: always n draws. `lead(m, at_most=n)`: until the most frequent answer leads the next
            one by m candidates. `below(s, at_most=n)`: until a candidate scores less than s. `agree(p,
            rounds=a+b+c)`: waves of a, b and c draws, until at least the share p of the candidates give the
            same answer. `lead` and `below` accept `rounds` as well.

    Returns:
        The rule.

    Raises:
        InputError: If the text is not a draw rule, or a number in it is out of range.

    Examples:
        >>> parse_draw_rule("lead(3,at_most=10)").text
        'lead(3, at_most=10)'
        >>> parse_draw_rule("agree(0.8, rounds=4+4+8)").at_most
        16
    """
    found = _GRAMMAR.fullmatch(text.replace(" ", ""))
    if found is None or found[1] not in {"fixed", "lead", "agree", "below"}:
        raise _make_error(text, "unknown rule")
    name, value, kind, bound = found.groups()
    whole = int(value) if value.isdigit() else 0
    if name == "fixed":
        if kind is not None or not 1 <= whole <= _MAX_DRAWS:
            raise _make_error(text, "fixed takes a number of draws, at least 1")
        return DrawRule("fixed", str(whole), (whole,))
    numbers = [int(one) for one in (bound or "0").split("+")]
    if min(numbers) < 1 or sum(numbers) > _MAX_DRAWS or (kind == "at_most" and len(numbers) > 1):
        raise _make_error(text, f"{name} takes `at_most=` or `rounds=`, of at least one draw each")
    if name == "lead":
        if not 1 <= whole <= sum(numbers):
            raise _make_error(text, "a lead is a whole number from 1 to the largest number of draws")
        value = str(whole)
    elif not 0.0 < float(value) <= 1.0:
        raise _make_error(text, "a share or a score must be above 0 and at most 1")
    if name == "agree" and (kind == "at_most" or numbers[0] == 1):
        raise _make_error(
            text, "one candidate always agrees with itself: agree takes rounds=, the first above 1"
        )
    rounds = tuple(numbers) if kind == "rounds" else (1,) * numbers[0]
    condition: Condition = "lead" if name == "lead" else "agree" if name == "agree" else "below"
    return DrawRule(condition, value, rounds, in_rounds=kind == "rounds")


def _make_error(text: str, problem: str) -> InputError:
    return InputError(f"draws = {text!r}: {problem}; examples of draw rules: {_EXAMPLES}")


def _measure_lead(drawn: CandidateBatch) -> IntArray:
    """Return (N,) by how many candidates the most frequent answer leads the next one."""
    counts = count_answers(drawn)
    second = counts[:, -2] if drawn.n > 1 else 0
    return np.asarray(counts[:, -1] - second, dtype=np.int64)


def replay(rule: DrawRule, labelled: LabelledBatch) -> LabelledBatch:
    """Shorten recorded prompts to the candidates that a rule would have drawn.

    Args:
        rule: The draw rule.
        labelled: N labelled prompts with at least `rule.at_most` candidates each, or shortened by this rule.

    Returns:
        The prompts with the candidates drawn.

    Raises:
        InputError: If fewer candidates than the rule may draw were recorded, another rule has shortened the
            prompts, or the rule needs answers and they are unknown.
    """
    if labelled.draws.n < rule.at_most:
        msg = (
            f"draws = {rule.text} may draw {rule.at_most} candidates, but these prompts have "
            f"{labelled.draws.n}: record more, or lower its bound"
        )
        raise InputError(msg)
    counts = rule.count_draws(labelled.draws)
    if labelled.draws.drawn is not None:
        if (counts != labelled.draws.drawn).any():
            msg = (
                f"draws = {rule.text}: another rule has shortened these prompts, so their other candidates "
                "are unknown"
            )
            raise InputError(msg)
        return labelled
    warn_if_sorted(labelled)
    return labelled.keep_first_candidates(rule.at_most).keep_drawn(counts)


def is_separate_verifier(fingerprint: Mapping[str, Any] | None) -> bool | None:
    """Return whether a verifier of this library scores each candidate separately; None for any other."""
    stated = fingerprint or {}
    name = stated.get("method", stated.get("id"))
    return True if name in _SEPARATE_VERIFIERS else False if name == _SELF_CONSISTENCY else None
