"""Whether one model both scores and labels, as far as fingerprints tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shared_judge(verifier: Mapping[str, Any], labeler: Mapping[str, Any]) -> str | None:
    """What is wrong with labels by the model that the verifier asks as well.

    Whatever fools the one fools the other: a wrong candidate with the best score is labelled correct, the
    records show a verifier that is better than it is, and the promise is about what the judge believes. In
    the words of `langchain_cfc.labelers.true_coverage`, its mistakes are not independent, so that only
    `true_coverage_at_worst` holds.

    Args:
        verifier: Fingerprint of the verifier, or of several together.
        labeler: Fingerprint of the labeler.

    Returns:
        A sentence for people; None unless both say that they ask a model of the same name. Of a judge that
        does not say which model it asks, nothing can be told.
    """
    shared = sorted(_models(verifier) & _models(labeler))
    if not shared:
        return None
    return (
        f"{', '.join(shared)} both scores and labels: what is promised then is what this model believes, and "
        "its agreement with itself. Label with another model, by matching, or by people"
    )


def _models(said: Mapping[str, Any]) -> set[str]:
    """The models that a fingerprint names, for itself or for its parts."""
    return {str(value) for key, value in said.items() if key.rpartition(".")[2] == "model"}
