"""`build_guarantee`: build the `Guarantee` of an artifact at one of its levels."""

from __future__ import annotations

from langchain_cfc.artifact.content import ArtifactContent
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import (
    NOT_CERTIFIABLE,
    NOT_CERTIFIABLE_CLAIMS,
    Binding,
    Guarantee,
    GuaranteeKind,
    Weighting,
    add_people,
    describe_attempt,
    list_assumptions,
    list_exclusions,
    state_confidence,
    state_guarantee,
)
from langchain_cfc.thresholds import compute_tau


def build_guarantee(
    artifact: ArtifactContent, alpha: str, binding: Binding | None, stated_alpha: str | None
) -> Guarantee:
    """Build the guarantee of an artifact at one of its levels; see `CalibrationArtifact.make_guarantee`."""
    facts, pac = artifact.calibration, artifact.pac
    if binding is None:
        binding = "unbound" if artifact.provenance is None else "unchecked"
    is_penalised = pac is not None and pac.ridge > 0.0
    # No theorem covers a penalised constant, and without an alpha no level was asked for.
    named = () if is_penalised or artifact.is_bot_alone else artifact.feature_map.list_guaranteed_weights()
    weightings = tuple(
        Weighting(name=one.name, kind=one.kind, words=one.words, coefficients=one.coefficients)
        for one in named
    )
    kind: GuaranteeKind = "conditional" if weightings else "heuristic"
    confidence = None if kind == "heuristic" else artifact.confidence
    delta = None if confidence is None else float(confidence.delta)
    target = float(compute_tau(alpha))
    weighted = facts.weight is not None
    adaptive = _list_coverages(artifact, alpha, stated_alpha)
    stated = adaptive or (target,)
    sentence = state_guarantee(
        kind,
        target,
        facts.size,
        weightings,
        adaptive=adaptive,
        weighted=weighted,
        at_most=artifact.at_most,
    )
    if confidence is not None and delta is not None:
        attempt = describe_attempt(confidence.attempt, confidence.level, confidence.delta)
        sentence = f"{sentence} {state_confidence(delta, weightings)} {attempt}"
    certificate = next((one for one in artifact.certificates if one.alpha == alpha), None)
    guarantee = Guarantee(
        kind=kind,
        sentence=sentence,
        alpha=alpha,
        target_coverage=target,
        stated_coverage=stated[0] if kind != "heuristic" and len(stated) == 1 else None,
        set_rule=artifact.set_rule,
        weightings=weightings,
        feature_names=artifact.feature_map.names,
        not_certifiable=NOT_CERTIFIABLE if artifact.at_most is None else NOT_CERTIFIABLE_CLAIMS,
        assumptions=list_assumptions(
            binding=binding,
            map_came_fitted=facts.map_came_fitted,
            fewer_than_recorded=artifact.draws is None and artifact.n < facts.recorded_candidates,
            independent=delta is not None or certificate is not None,
            weighted=weighted,
            adaptive=bool(adaptive),
            draws=artifact.draws,
            claims=artifact.unit == "claims",
            described=bool(artifact.metadata_keys),
        ),
        not_promised=list_exclusions(
            kind,
            confident=delta is not None,
            chosen=artifact.has_used_certification,
            claims=artifact.unit == "claims",
            adaptive=bool(adaptive),
        ),
        calibration_size=facts.size,
        failure_probability=delta,
        heuristics=() if pac is None else (pac.statement(alpha, facts.size),),
        certificate=certificate,
        binding=binding,
        artifact_digest=artifact.digest,
    )
    about_sets = [one for one in artifact.people_certificates if one.subject == ("sets", alpha, None)]
    return add_people(guarantee, about_sets)


def _list_coverages(artifact: ArtifactContent, alpha: str, stated_alpha: str | None) -> tuple[float, ...]:
    """List the coverages that may be stated, or the one stated; none if levels are not adaptive."""
    coverages = artifact.list_adaptive_coverages(alpha)
    if stated_alpha is None:
        return coverages
    stated_alphas = artifact.list_stated_levels(alpha)
    if stated_alpha not in stated_alphas:
        msg = f"the artifact states the levels {', '.join(stated_alphas)} at {alpha}, not {stated_alpha}"
        raise InputError(msg)
    return (float(compute_tau(stated_alpha)),) if coverages else ()
