"""Explain a decision to the end user of a bot: no feature names, no thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_cfc.features import place_question
from langchain_cfc.features.statistics import format_key
from langchain_cfc.no_answers import describe_unscored
from langchain_cfc.support.display import Summary, shorten
from langchain_cfc.support.text import escape_controls, pluralize
from langchain_cfc.support.units import UNITS

if TYPE_CHECKING:
    from langchain_cfc.runnable.result import CFCResult, ScoredCandidate

# A level above the threshold by no more than this counts as equal to it (rounding error).
_ROUND_OFF = 1e-9
_NOT_SHOWN = "(not shown)"
# Characters of a summary without its table, and those kept for the answer.
_LONGEST_SUMMARY, _SHORTEST_ANSWER = 300, 20
_BECAUSE = {
    "failed": "a call to the model or the verifier failed",
    "only_blank_answers": "all that the model answered is blank, refused or not judged",
    "not_certifiable": (
        "nothing can be promised for a question like this: the calibration had too few such questions, or "
        "the model answered too few of them correctly"
    ),
    "mean_score_too_high": "what the model answered does not look reliable enough on average",
    "no_claim_kept": "no claim of the model's answer passed the check",
    "no_claims": "the model's answer makes no claim",
}


def explain_reason(result: CFCResult) -> str:
    """Return one sentence that explains why the result is an answer or an abstention."""
    claims = getattr(result, "claims", None)
    traits = UNITS[result.guarantee.subject or "answers"]
    if result.unknown_categories and result.abstained and result.reason not in {"failed", "no_claims"}:
        return f"{traits.unshown}, because {_name_unknown(result)}, which did not occur in the calibration."
    if result.reason in traits.reasons:
        kept = [one.kept for one in claims or ()]
        return traits.reasons[result.reason].format(sum(kept), len(kept))
    if result.reason in _BECAUSE:
        return f"No answer, because {_BECAUSE[result.reason]}."
    if claims is not None:
        return _explain_claims(
            len(claims), sum(one.kept for one in claims), sum(one.start is None for one in claims)
        )
    return f"{_explain_answer(result)}."


def explain_result(result: CFCResult) -> str:
    """Return the reason for answering or abstaining, the kind of question, and the promise, as text."""
    unscored = (result.unscored if result.guarantee.subject is None else None) or {}
    missing = describe_unscored(unscored, len(result.candidates) or None)
    parts = [explain_reason(result), *missing, _describe_question(result), _describe_promise(result)]
    return " ".join(filter(None, parts))


def summarise_result(result: CFCResult) -> Summary:
    """Return the answer, the reason and the promise, with a table of the distinct answers or the claims.

    Without the table it has at most 300 characters: what is promised is never cut.
    """
    binding = result.guarantee.binding
    kind = "Promise" if binding == "matched" else f"Promise ({binding})"
    promise = f"{kind}: {result.guarantee.claim}"
    room = _LONGEST_SUMMARY - len(promise) - 2
    reason = shorten(explain_reason(result), room if result.abstained else room - _SHORTEST_ANSWER)
    table, folded = _tabulate_answers(result)
    if result.abstained:
        return Summary(reason, (promise,), folded, table)
    return Summary(shorten(" | ".join(result.answers), room - len(reason)), (reason, promise), folded, table)


def _tabulate_answers(result: CFCResult) -> tuple[list[tuple[str, ...]], str]:
    """Return rows of the claims or of the distinct answers, with headings, and what they are."""
    claims = getattr(result, "claims", None)
    if claims is not None:
        kept = [(one.text or _NOT_SHOWN, f"{one.score:.3g}", "yes" if one.kept else "no") for one in claims]
        return [("claim", "score", "kept"), *kept], pluralize(len(kept), "claim")
    same: dict[int, list[ScoredCandidate]] = {}
    for one in result.candidates:
        same.setdefault(one.same_as, []).append(one)
    rows: list[tuple[str, ...]] = []
    for several in sorted(same.values(), key=lambda group: min(one.score for one in group)):
        shown = next((text for one in several if (text := one.answer or one.text)), _NOT_SHOWN)
        score = min(one.score for one in several)
        rows.append((shown, f"{len(several)}", f"{score:.3g}", "yes" if shown in result.answers else "no"))
    headings = ("answer", "times", "score (lower is better)", "answered")
    return [headings, *rows], f"{pluralize(len(rows), 'different answer')}, {len(result.candidates)} in all"


def _explain_claims(total: int, kept: int, not_located: int) -> str:
    """Return a sentence that says how many claims of the answer were kept."""
    total -= not_located
    if not_located:
        which, they = pluralize(not_located, "claim"), "it" if not_located == 1 else "them"
        return (
            f"{kept} of the {total} claims found in the model's answer passed the check; {which} could not "
            f"be checked, and what is left may still imply {they}."
        )
    if kept == total:
        which = "The only claim" if total == 1 else f"All {total} claims"
        return f"{which} of the model's answer passed the check."
    return f"{kept} of the {total} claims of the model's answer passed the check; the others are left out."


def _name_unknown(result: CFCResult) -> str:
    """Return the prompt's categories that do not occur in the calibration data, as text."""
    return " and ".join(f"{key} is {result.metadata[key]!r}" for key in result.unknown_categories)


def _explain_answer(result: CFCResult) -> str:
    """Return why an answer was given and how many candidates agree on it, without a full stop."""
    n, accepted = len(result.candidates), sum(one.accepted for one in result.candidates)
    if len(result.answers) > 1:
        which = f"All {n}" if accepted == n else f"{accepted} of the {n}"
        return f"{which} answers passed the check; {len(result.answers)} of them are different"
    is_about_best = result.guarantee.is_about_best
    is_best_alone = not is_about_best and _is_best_alone(result)
    if n == 1:
        if is_about_best:
            return "The only answer looks reliable"
        return f"The only answer {'did not pass' if is_best_alone else 'passed'} the check"
    agreeing = _count_agreeing(result)
    same = f"All {n} answers agree" if agreeing == n else f"{agreeing} of the {n} answers say this"
    if is_about_best:
        return f"{same}; on average the {n} look reliable"
    if is_best_alone:
        return f"{same}; none passed the check, and this is the best one"
    passed = "the best one" if accepted == 1 else "all" if accepted == agreeing else f"{accepted} of them"
    return f"{same}; {passed} passed"


def _count_agreeing(result: CFCResult) -> int:
    """Return how many candidates give the best answer, accepted or not."""
    accepted = [one for one in result.candidates if one.accepted]
    best = min(accepted, key=lambda one: (one.score, one.slot)).same_as
    return sum(one.same_as == best for one in result.candidates)


def _is_best_alone(result: CFCResult) -> bool:
    """Return whether the set holds only the best candidate, added although it is above the threshold."""
    lowest = min(one.level for one in result.candidates if one.accepted and one.level is not None)
    return result.threshold is not None and lowest - result.threshold > _ROUND_OFF


def _describe_question(result: CFCResult) -> str:
    """Return a sentence on the question's difficulty and groups; empty if neither is known."""
    groups = [
        f"{key}: {escape_controls(str(value))}"
        for key, value in result.metadata.items()
        if any(
            name.startswith(f"group({format_key(key)})=") and value == 1.0
            for name, value in result.features.items()
        )
    ]
    difficulty = place_question(result.features)
    if difficulty is None:
        return f"Its {', '.join(groups)}." if groups else ""
    kind = f"{'an' if difficulty == 'easy' else 'a'} {difficulty} question"
    if difficulty == "medium":
        kind = "a question of medium difficulty"
    return f"It counts as {', '.join([kind, *groups])}."


def _describe_promise(result: CFCResult) -> str:
    """Return what is promised, what the promise does not say about a single answer, and what is assumed."""
    guarantee = result.guarantee
    assumed = [] if guarantee.binding == "matched" else guarantee.assumptions[-1:]
    return " ".join([guarantee.summary, guarantee.not_promised[0], *assumed])
