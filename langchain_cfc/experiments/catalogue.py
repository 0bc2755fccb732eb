"""Which methods there are, by name: ours, those of the paper's tables, and two from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from langchain_cfc.errors import InputError
from langchain_cfc.experiments.methods import (
    DELTA,
    OURS,
    PAPER,
    BackOff,
    Method,
    Sampling,
    ThresholdMethod,
    TopK,
)
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.set_rules import parse_set_rule

KNOWN = ("conditional", "marginal", "confident", "learned")
OURS_SHOWN = (*KNOWN, "conditional:best_prefix", "marginal:rank")
_NO_THEOREM = "nothing: no theorem covers it"
_TOGETHER = "all prompts together, on average over calibration sets"
_NO_MORE = "what CFC-FULL does; the confidence claimed for it is not proven"
_LESS = "less than the paper says: a set without a correct candidate counts as covered where S = 1"


def ours(name: str) -> Method:
    """Return one of our methods by name: a kind of `KNOWN`, and perhaps a set rule after a colon."""
    kind, colon, set_rule = name.partition(":")
    served = parse_set_rule(set_rule).text if colon else None
    sets = "" if served is None else f"; sets by {served}"

    def made(
        rule: Literal["conditional", "marginal", "confident", "learned"], words: str, promise: str
    ) -> Method:
        return ThresholdMethod(
            name, words + sets, promise, "ours", rule=rule, convention=OURS, set_rule=served
        )

    if kind == "conditional":
        every = "every weighting that the features span, on average over calibration sets"
        return made("conditional", "exact conditional thresholds (CFC with its cures)", every)
    if kind == "marginal":
        return made("marginal", "one threshold for all prompts (ICP with its cures)", _TOGETHER)
    if kind == "confident":
        held = f"all prompts together, with confidence {1 - float(DELTA):g} for the calibration set at hand"
        return made("confident", "one threshold, of a rank that holds with confidence", held)
    if kind == "learned":
        return made("learned", "plain quantile regression, without correction", _NO_THEOREM)
    listed = ", ".join(one.name for one in (*paper(), *outside()))
    msg = (
        f"unknown method {name!r}; known are the families ours, paper and outside, {', '.join(KNOWN)}, each "
        f"perhaps with a set rule of its own, such as conditional:best_prefix, and {listed}"
    )
    raise InputError(msg)


def paper(learned_features: str | None = None, grid: tuple[int, ...] | None = None) -> tuple[Method, ...]:
    """Return the methods of the paper's tables, in its own conventions.

    TopK comes in both readings, over the K of `grid` or all up to n; Learnt CP has its own feature map where
    one is given.
    """
    slack = PaperStability.from_constant()

    def full(name: str, words: str, promise: str = _LESS, **settings: Any) -> Method:
        return ThresholdMethod(name, words, promise, "paper", convention=PAPER, set_rule="all", **settings)

    def truncated(name: str, words: str, **settings: Any) -> Method:
        # Kept for the tables: the theorem does not cover a set that was cut after calibration.
        return ThresholdMethod(
            name,
            words,
            _NO_THEOREM,
            "paper",
            rule="conditional",
            convention=PAPER,
            set_rule="best_prefix",
            calibrated_on="all",
            **settings,
        )

    return (
        TopK("TopK", "the K best, K of coverage nearest to the target", _NO_THEOREM, "paper", False, grid),
        TopK(
            "TopK-reaching",
            "the K best, the smallest K that reaches the target",
            _NO_THEOREM,
            "paper",
            True,
            grid,
        ),
        full("ICP", "one threshold for all prompts", rule="marginal"),
        full("Learnt CP", "quantile regression", _NO_THEOREM, rule="learned", features=learned_features),
        truncated("CFC", "conditional thresholds, sets cut after the best candidate"),
        full("CFC-FULL", "conditional thresholds", rule="conditional"),
        truncated("CFC-PAC", "CFC at a level made stricter by the paper's slack", stability=slack),
        full("CFC-PAC-FULL", "CFC-FULL at that level", _NO_MORE, rule="conditional", stability=slack),
    )


def outside() -> tuple[Method, ...]:
    """Return conformal language modelling's sampling rule, and claim-level back-off."""
    held = f"all prompts together, with confidence {1 - float(DELTA):g}, or else everything is flagged"
    other = "another thing: that nothing returned is wrong, on average over all prompts; empty sets count"
    drawn = "drawn one by one, rejected above one score, stopped at another (conformal language modelling)"
    kept = "candidates below a quantile of the lowest wrong scores (claim-level back-off)"
    return (
        Sampling("sampling", drawn, held, "outside"),
        BackOff("back-off", kept, other, "outside"),
    )


def methods_named(names: str | Sequence[str | Method]) -> tuple[Method, ...]:
    """Methods by name.

    Args:
        names: One or several: families (`ours`, `paper`, `outside`), names of their methods, names that
            `ours` takes, and methods as they are.

    Returns:
        The methods, each once, in this order.

    Raises:
        InputError: If a name is unknown, there is none, or two methods share a name.
    """
    families = {"ours": tuple(map(ours, OURS_SHOWN)), "paper": paper(), "outside": outside()}
    listed = {one.name: one for one in (*families["paper"], *families["outside"])}
    found: dict[str, Method] = {}
    for name in [names] if isinstance(names, str) else names:
        if isinstance(name, Method):
            several: tuple[Method, ...] = (name,)
        elif not isinstance(name, str):
            msg = f"methods are names or `Method`s, got {name!r}"
            raise InputError(msg)
        else:
            several = families.get(name) or ((listed[name],) if name in listed else (ours(name),))
        for method in several:
            if found.setdefault(method.name, method) != method:
                msg = f"two methods are called {method.name!r}"
                raise InputError(msg)
    if not found:
        msg = "at least one method is needed"
        raise InputError(msg)
    return tuple(found.values())
