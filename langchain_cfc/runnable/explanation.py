"""Explain a decision to the end user of a bot: no feature names, no thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_cfc.features import place_question
from langchain_cfc.features.statistics import format_key
from langchain_cfc.no_answers import describe_unscored
from langchain_cfc.support.text import escape_controls

if TYPE_CHECKING:
    from langchain_cfc.runnable.result import CFCResult

# A level above the threshold by no more than this counts as equal to it (rounding error).
_ROUND_OFF = 1e-9
# For prompts with a single candidate, for example after a draw rule that stopped early.
_SINGLE_ANSWER = "the only answer that the model gave"
_SINGLE_ANSWER_REASONS = {
    "only_blank_answers": f"{_SINGLE_ANSWER} is blank, refused or not judged",
    "mean_score_too_high": f"{_SINGLE_ANSWER} does not look reliable enough",
}


def explain_reason(result: CFCResult) -> str:
    """Return one sentence that explains why the result is an answer or an abstention."""
    claims = getattr(result, "claims", None)
    if claims is not None:
        return _explain_claims(result, len(claims), sum(one.kept for one in claims))
    if result.reason == "failed":
        return "Abstained, because a call to the model or the verifier failed."
    n = len(result.candidates)
    given = f"the {n} answers that the model gave" if n > 1 else _SINGLE_ANSWER
    accepted = [one for one in result.candidates if one.accepted]
    passed = f"{f'{len(accepted)} of {given}' if len(accepted) < n else given} passed the check"
    if not result.abstained:
        return f"Answered{_explain_answer(result, given, passed)}."
    if result.unknown_categories:
        return f"Abstained, because {_name_unknown(result)}, which did not occur in the calibration."
    because = {
        "only_blank_answers": f"all of {given} are blank, refused or not judged",
        "not_certifiable": (
            "nothing can be promised for a question like this: the calibration had too few such questions, "
            "or the model answered too few of them correctly"
        ),
        "mean_score_too_high": f"{given} do not look reliable enough on average",
        "no_claim_kept": "no claim of the model's answer passed the check",
        "no_claims": "the model's answer makes no claim",
    }
    if n == 1:
        because |= _SINGLE_ANSWER_REASONS
    return f"Abstained, because {because[result.reason]}."


def explain_result(result: CFCResult) -> str:
    """Return the reason for answering or abstaining, the kind of question, and the promise, as text."""
    return " ".join(
        filter(
            None,
            [
                explain_reason(result),
                *describe_unscored(result.unscored or {}, len(result.candidates) or None),
                _describe_question(result),
                _describe_promise(result),
            ],
        )
    )


def _explain_claims(result: CFCResult, total: int, kept: int) -> str:
    """Return a sentence that says how many claims of the answer were kept, or why none was."""
    if not total:
        return "Abstained, because the model's answer makes no claim."
    if result.unknown_categories:
        return f"Abstained, because {_name_unknown(result)}, which did not occur in the calibration."
    if not kept:
        return f"Abstained, because none of the {total} claims of the model's answer passed the check."
    if kept == total:
        which = "the only claim" if total == 1 else f"all {total} claims"
        return f"Answered with the whole answer, because {which} in it passed the check."
    return f"Answered with what passed the check: {kept} of the {total} claims of the model's answer."


def _name_unknown(result: CFCResult) -> str:
    """Return the prompt's categories that do not occur in the calibration data, as text."""
    return " and ".join(f"{key} is {result.metadata[key]!r}" for key in result.unknown_categories)


def _explain_answer(result: CFCResult, given: str, passed: str) -> str:
    """Return why an answer was given and how many candidates agree on it, to follow "Answered"."""
    if len(result.answers) > 1:
        return f", because {passed}; these are {len(result.answers)} different answers"
    if len(result.candidates) == 1:
        if result.guarantee.is_about_best:
            return f" with {given}, because it looks reliable"
        return (
            f" with {given}, although it did not pass the check"
            if _is_best_alone(result)
            else f", because {passed}"
        )
    accepted = sum(one.accepted for one in result.candidates)
    agreeing, n = _count_agreeing(result), len(result.candidates)
    same = f"; {agreeing} of the {n} say this" if agreeing < n else "; all of them say the same"
    if result.guarantee.is_about_best:
        return f" with the best of {given}, because these look reliable on average{same}"
    if _is_best_alone(result):
        return f" with the best of {given}, although none of them passed the check{same}"
    return f", because {passed}{' and say the same' if accepted == agreeing > 1 else same}"


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
