"""Scores of a prompt's first candidates, for draw rules that keep only those.

If the verifier scores each candidate separately, the recorded scores stay valid. If it compares all
candidates of a prompt, serving will see other scores: three candidates that agree are half of six draws, but
all of them if drawing stops after three. Reusing such scores would void the guarantee, so they are recomputed
from the candidates kept. If the records do not say which kind of verifier made the scores, they are refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from langchain_cfc.candidates import CandidateBatch, LabelledBatch, score_by_agreement
from langchain_cfc.draw_rules import (
    SELF_CONSISTENCY,
    DrawRule,
    Rescore,
    get_verifier_name,
    is_separate_verifier,
    replay,
)
from langchain_cfc.errors import InputError
from langchain_cfc.records import Provenance

_TOO_MANY_RECORDED = (
    "draws: self-consistency gives other scores if fewer candidates are drawn than recorded: record exactly "
    "that many"
)


def has_separate_scores(provenance: Provenance | None) -> bool | None:
    """Return whether the verifier scores each candidate separately; None if unknown."""
    if provenance is None or provenance.separate_scores is not None:
        return None if provenance is None else provenance.separate_scores
    return is_separate_verifier(provenance.verifier)


def are_drawn_by(rule: DrawRule, provenance: Provenance | None) -> bool:
    """Return whether records were drawn by this rule, so that they hold no other candidates."""
    return provenance is not None and provenance.draws == rule.text


def find_rescore(provenance: Provenance | None) -> Rescore | None:
    """Return a function that rescores the candidates kept, without padding; None if scores stay valid.

    Raises:
        InputError: If scores cannot be recomputed from the records, or nothing says how they were made.
    """
    separate = has_separate_scores(provenance)
    if separate:
        return None
    verifier = {} if provenance is None or provenance.verifier is None else provenance.verifier
    if separate is None:
        msg = (
            f"draws: the records do not say whether their verifier ({dict(verifier) or 'not named'}) scores "
            "each candidate separately; if not, its scores change when fewer are drawn. If it does, say so "
            'in the first line of the records: "separate_scores": true'
        )
        raise InputError(msg)
    if get_verifier_name(verifier) != SELF_CONSISTENCY or verifier.get("agreement") != "equal":
        msg = (
            "draws: the verifier compares the candidates of a prompt, so its scores of fewer candidates "
            "cannot be computed from the records. That works only for one SelfConsistency by equal answers"
        )
        raise InputError(msg)
    return _rescore_by_agreement


def check_first_candidates(labelled: LabelledBatch, provenance: Provenance | None) -> None:
    """Refuse to use fewer candidates than recorded if their scores depend on all that were recorded.

    Args:
        labelled: N labelled prompts with the candidates used.
        provenance: Provenance of these records, or of the artifact's records.

    Raises:
        InputError: If fewer candidates than recorded are used, and a verifier compared them all.
    """
    if labelled.recorded in (None, labelled.draws.n):
        return
    if has_separate_scores(provenance) is False:
        msg = (
            f"n = {labelled.draws.n}: the verifier compares the candidates of a prompt, so "
            f"{labelled.draws.n} candidates get other scores in serving than among the {labelled.recorded} "
            f"recorded: record {labelled.draws.n}"
        )
        raise InputError(msg)


def replay_prefixes(rule: DrawRule, labelled: LabelledBatch, provenance: Provenance | None) -> LabelledBatch:
    """Shorten recorded prompts to the candidates that a rule would have drawn, scored as in serving.

    Args:
        rule: The draw rule.
        labelled: N labelled prompts with all recorded candidates.
        provenance: Provenance of these records, or of the artifact's records.

    Returns:
        The prompts with the candidates drawn.

    Raises:
        InputError: As in `find_rescore`; if the recorded answers are not those that the verifier compared; if
            the rule looks at the agreement of a single candidate with itself; or if fewer candidates than the
            rule may draw were recorded.
    """
    is_fixed = rule.stored_text is None
    if is_fixed and rule.at_most == labelled.draws.n:
        return labelled
    if are_drawn_by(rule, provenance):
        # The recorded scores are those of the candidates drawn. If the verifier compares candidates, the
        # scores that stopped the rule were not recorded, so the prompts are trusted as they are.
        is_known = not rule.needs_scores or has_separate_scores(provenance)
        return replay(rule, labelled) if is_known else labelled
    rescore = find_rescore(provenance)
    if rescore is not None and is_fixed:
        raise InputError(_TOO_MANY_RECORDED)
    check_first_wave(rule, provenance)
    if rescore is not None and labelled.draws.drawn is None:
        _check_recorded_scores(labelled)
    return replay(rule, labelled, rescore)


def check_first_wave(rule: DrawRule, provenance: Provenance | None) -> None:
    """Refuse a rule that looks at the agreement of a single candidate with itself."""
    if rule.needs_scores and rule.first_wave == 1 and has_separate_scores(provenance) is False:
        msg = (
            f"draws = {rule.text} always stops after one draw, because a single candidate agrees with "
            "itself. Draw at least 2 at first, such as "
            f"{rule.condition}({rule.value}, rounds=2+2+4), or use lead or agree"
        )
        raise InputError(msg)


def _check_recorded_scores(labelled: LabelledBatch) -> None:
    """Refuse recorded scores that differ from self-consistency computed on the recorded answers.

    They differ if the verifier grouped answers more finely or more coarsely than the records do. Scores of n
    candidates are multiples of 1 / n, so one that is off by less than a tenth of that was only rounded, to
    fewer digits or in the last bit, as 1 - c / n and (n - c) / n are.
    """
    errors = np.abs(_rescore_by_agreement(labelled.draws).scores - labelled.draws.scores)
    differing = np.any(errors > 0.1 / labelled.draws.n, axis=1)
    if labelled.recorded != labelled.draws.n or differing.any():
        where = f", first in record {labelled.ids[int(differing.argmax())]!r}" if differing.any() else ""
        msg = (
            f"draws: the recorded scores are not those of self-consistency on the recorded answers{where}. "
            "So scores of fewer candidates cannot be computed: record as `answer` what the verifier compares"
        )
        raise InputError(msg)


def _rescore_by_agreement(draws: CandidateBatch) -> CandidateBatch:
    if draws.answer_codes is None:
        msg = "draws: the verifier compares answers, but these candidates have only scores"
        raise InputError(msg)
    codes = draws.answer_codes if draws.blank is None else np.where(draws.blank, -1, draws.answer_codes)
    return replace(draws, scores=score_by_agreement(codes), precomputed={})
