"""How an artifact was asked for, to ask for another one like it."""

from __future__ import annotations

from typing import Any

from langchain_cfc.artifact import CalibrationArtifact


def recipe(artifact: CalibrationArtifact) -> dict[str, Any]:
    """What `calibrate` takes beside records to make an artifact like this one.

    A feature map that was fitted then is fitted anew; one that came fitted stays. A shift is left out, for
    records from where the artifact serves need none. Shares of the split are not part of it.

    Args:
        artifact: The artifact.

    Returns:
        Keyword arguments of `calibrate`.
    """
    confidence, ridge = artifact.confidence, artifact.ridge
    certificate = None if artifact.policy is None else artifact.policy.certificate
    level_chosen = artifact.policy is not None and artifact.policy.level_chosen
    # Both have the same one.
    deltas = [one.delta for one in (confidence, certificate) if one is not None]
    return {
        "alpha": None if level_chosen else list(artifact.alphas),
        "features": artifact.feature_map
        if artifact.calibration.map_came_fitted
        else artifact.feature_map.text,
        "set_rule": artifact.set_rule,
        "threshold_rule": artifact.threshold_rule,
        "combine": None if artifact.combination is None else list(artifact.combination.names),
        "cap": artifact.cap,
        "stability": artifact.stability,
        "randomised": artifact.randomised,
        "confident": confidence is not None,
        "max_wrong_rate": None if certificate is None else certificate.max_wrong_rate,
        "wrong_rate_groups": certificate is not None and len(certificate.groups) > 1,
        "seed": artifact.calibration.split.seed,
        "within_clusters": artifact.calibration.within_clusters,
        **({} if ridge is None else {"ridge": ridge.strength, "penalised": ridge.penalised}),
        **({"delta": deltas[0]} if deltas else {}),
    }
