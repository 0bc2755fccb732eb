"""Scores of a prompt's first candidates, for draw rules that keep only those.

If the verifier scores each candidate separately, the recorded scores stay valid. If it compares all
candidates of a prompt, serving will see other scores: three candidates that agree are half of six draws, but
all of them if drawing stops after three. Reusing such scores would void the guarantee, so the records must
have been drawn by the rule. If they do not say which kind of verifier made the scores, they are refused, too.
"""

from __future__ import annotations

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.draw_rules import DrawRule, is_separate_verifier, replay
from langchain_cfc.errors import InputError
from langchain_cfc.records import Provenance


def has_separate_scores(provenance: Provenance | None) -> bool | None:
    """Return whether the verifier scores each candidate separately; None if unknown."""
    if provenance is None or provenance.separate_scores is not None:
        return None if provenance is None else provenance.separate_scores
    return is_separate_verifier(provenance.verifier)


def are_drawn_by(rule: DrawRule, provenance: Provenance | None) -> bool:
    """Return whether records were drawn by this rule, so that they hold no other candidates."""
    return provenance is not None and provenance.draws == rule.text


def check_separate_scores(provenance: Provenance | None, *, is_required: bool = True) -> None:
    """Raise an `InputError` for scores that depend on all candidates recorded, or by default that may."""
    is_separate = has_separate_scores(provenance)
    if is_separate is False:
        msg = (
            "draws: the verifier compares the candidates of a prompt, so its scores of fewer candidates are "
            "not in these records: collect that number, or by this rule (collect --draws)"
        )
        raise InputError(msg)
    if is_separate is None and is_required:
        named = None if provenance is None or provenance.verifier is None else dict(provenance.verifier)
        msg = (
            f"draws: the records do not say whether their verifier ({named or 'not named'}) scores each "
            "candidate separately; if not, its scores change when fewer are drawn. If it does, say so in the "
            'first line of the records: "separate_scores": true'
        )
        raise InputError(msg)


def replay_prefixes(
    rule: DrawRule | None, labelled: LabelledBatch, provenance: Provenance | None
) -> LabelledBatch:
    """Shorten recorded prompts to the candidates that a rule would have drawn, scored as in serving.

    Args:
        rule: The draw rule; None for prompts with the first candidates, which are used.
        labelled: N labelled prompts with all recorded candidates.
        provenance: Provenance of these records, or of the artifact's records.

    Returns:
        The prompts with the candidates drawn.

    Raises:
        InputError: If fewer candidates than recorded are used, and a verifier compared them all, or for a
            rule may have; or if the rule may draw more candidates than were recorded.
    """
    if rule is None:
        if labelled.recorded not in (None, labelled.draws.n):
            check_separate_scores(provenance, is_required=False)
        return labelled
    if rule.stored_text is None and rule.at_most == labelled.draws.n:
        return labelled
    if are_drawn_by(rule, provenance):
        # The recorded scores are those of the candidates drawn. If the verifier compares candidates, the
        # scores that stopped the rule were not recorded, so the prompts are trusted as they are.
        is_known = not rule.needs_scores or has_separate_scores(provenance)
        return replay(rule, labelled) if is_known else labelled
    check_separate_scores(provenance)
    return replay(rule, labelled)


def check_first_wave(rule: DrawRule, provenance: Provenance | None) -> None:
    """Refuse a rule that looks at the agreement of a single candidate with itself."""
    if rule.needs_scores and rule.first_wave == 1 and has_separate_scores(provenance) is False:
        msg = (
            f"draws = {rule.text} always stops after one draw, because a single candidate agrees with "
            "itself. Draw at least 2 at first, such as "
            f"{rule.condition}({rule.value}, rounds=2+2+4), or use lead or agree"
        )
        raise InputError(msg)
