"""What the data are, a line each."""

from __future__ import annotations

from collections.abc import Iterator

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.comparison.report import ComparisonReport
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.report.words import counted, percent, percent_interval

_PARTS = (("generator", "Generator"), ("verifier", "Verifier"), ("answer", "Answer extractor"))


def artifact_facts(artifact: CalibrationArtifact, evaluation: EvaluationReport) -> Iterator[tuple[str, str]]:
    """What an artifact was made from and tested on, as terms and texts."""
    facts = artifact.calibration
    fitted = f", {facts.fit_size:,} others fitted what is fitted" if facts.fit_size else ""
    tested = f"{evaluation.n_test:,} tested them ({evaluation.test_prompts})"
    yield "Prompts", f"{facts.size:,}{facts.weighing} calibrated the thresholds{fitted}, and {tested}"
    yield "Candidates", f"{artifact.n} for each prompt"
    yield (
        "Attainable",
        _attainable(
            facts.attainable_coverage, facts.weight or facts.size, f"calibration prompts{facts.by_weight}"
        ),
    )
    for part, heading in _PARTS:
        yield heading, _identity(artifact, part)
    if artifact.combination is not None:
        named = zip(artifact.combination.names, artifact.combination.coefficients, strict=True)
        yield "Score", f"combines {', '.join(f'{name} ({weight:+.3g})' for name, weight in named)}"
    yield "Features", artifact.feature_map.text
    yield "Set rule", artifact.set_rule_words
    yield "Threshold rule", artifact.threshold_rule
    several = f"; this page is about {evaluation.alpha:g}" if len(artifact.alphas) > 1 else ""
    yield "Error level", f"alpha = {', '.join(artifact.alphas)}{several}"
    yield "Artifact", f"{artifact.digest}, made {artifact.created_at} by version {artifact.library_version}"


def comparison_facts(comparison: ComparisonReport) -> Iterator[tuple[str, str]]:
    """What a comparison was made on and how, as terms and texts."""
    data = comparison.data
    yield "Prompts", f"{data.prompts:,}, with {counted(comparison.n_candidates, 'candidate')} each"
    yield "Attainable", _attainable(data.attainable_coverage, data.prompts, "prompts")
    yield "Correct candidates", percent(data.correct_candidates)
    if data.distinct_answers is not None:
        yield "Distinct answers", f"{data.distinct_answers:.1f} for each prompt on average"
    if data.auroc is not None:
        yield "Scores", f"a correct candidate beats a wrong one with probability {data.auroc:.3f} (AUROC)"
    tested = percent(comparison.test_fraction)
    yield "Splits", f"{comparison.splits:,}, from seed {comparison.seed}; {tested} are tested on"
    fitted = percent(comparison.fit_fraction)
    yield "Fitted on", f"{fitted} of the others, which do not calibrate our methods"
    yield "Features", comparison.features
    yield "Set rule", comparison.set_rule
    yield "Groups", comparison.groups


def _attainable(share: float, size: float, prompts: str) -> str:
    interval = percent_interval(clopper_pearson(share * size, size))
    return f"{percent(share)} of the {prompts} ({interval}) have a correct candidate"


def _identity(artifact: CalibrationArtifact, part: str) -> str:
    if artifact.provenance is None:
        return "not known: the records did not say (unbound)"
    known = getattr(artifact.provenance, part) or {}
    return str(known.get("id") or known.get("model") or "not named")
