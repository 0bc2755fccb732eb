"""What an artifact promises, in half a screen: shared by the commands that show one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli.output import identity, percent
from langchain_cfc.guarantee import Guarantee, counted, share_text

# Characters of the digest that are shown where the whole of it would take a line.
DIGEST = 19


def promise_table(artifact: CalibrationArtifact) -> Table:
    """The promise and what it rests on, label by label."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _rows(artifact):
        table.add_row(label, escape(text))
    return table


def curve_table(artifact: CalibrationArtifact) -> Table:
    """Answered share against the certified wrong-answer rate, policy by policy; bot mode's own in bold."""
    policy = artifact.certified_policy
    certificate = policy.certificate
    sure = share_text(1.0 - float(certificate.delta))
    title = f"What answering more would cost (all bounds together with confidence {sure})"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("answered", "wrong at most", "wrong seen", "alpha", "distinct", "agreeing"):
        table.add_column(heading, justify="right")
    for point in policy.curve:
        own = (point.alpha, point.policy) == (certificate.alpha, certificate.policy)
        most = point.policy.max_answers
        table.add_row(
            percent(point.answered / certificate.prompts),
            f"{100 * point.wrong_rate_at_most:.1f} %",
            f"{point.wrong} of {point.answered}",
            point.alpha,
            "any" if most is None else f"<= {most}",
            f">= {point.policy.min_agreement}",
            style="bold" if own else "",
        )
    return table


def _rows(artifact: CalibrationArtifact) -> Iterator[tuple[str, str]]:
    promise, facts = artifact.guarantee(artifact.alphas[0]), artifact.calibration
    if promise.kind == "certified":
        for alpha in artifact.alphas:
            level = f"alpha = {alpha}: " if len(artifact.alphas) > 1 else ""
            yield "Promise", f"{level}{artifact.guarantee(alpha).sentence}"
    else:
        yield "Promise", _promise(artifact, promise)
    if promise.kind in {"conditional", "marginal"}:
        yield "Holds", _scope(artifact, promise)
        yield from _confidence_rows(artifact, promise)
    if promise.kind != "heuristic":
        yield "Rests on", _basis(artifact)
    for claim in promise.heuristics:
        yield "Heuristic", claim
    if artifact.policy is None:
        yield (
            "Answers",
            "How often an answered prompt is wrong is not certified (calibrate --max-wrong-rate).",
        )
    else:
        yield "Bot mode", artifact.policy.certificate.sentence()
    yield (
        "Flagged",
        (
            f"{percent(facts.attainable_coverage)} of the calibration prompts{facts.by_weight} have a "
            "correct candidate that can enter the set. Where too few do, prompts are flagged as not "
            f"certifiable and abstained on.{_refused(artifact)}"
        ),
    )
    yield (
        "Made from",
        (
            f"{facts.size} calibration prompts{facts.weighing}, {artifact.n} candidates each; features "
            f"{artifact.feature_map.text}; set rule {artifact.set_rule_words}; threshold rule "
            f"{artifact.threshold_rule}"
        ),
    )
    if artifact.combination is not None:
        named = zip(artifact.combination.names, artifact.combination.coefficients, strict=True)
        yield "Score", f"combines {', '.join(f'{name} {coefficient:+.3g}' for name, coefficient in named)}"
    yield (
        "Artifact",
        f"{artifact.digest[:DIGEST]}..., {artifact.created_at[:10]}, version {artifact.library_version}",
    )


def _refused(artifact: CalibrationArtifact) -> str:
    """What calibration found of prompts that are flagged for want of kept calibration prompts."""
    checks = [level.self_check for level in artifact.levels if level.self_check is not None]
    if not checks:
        return ""
    worst = max(checks, key=lambda check: check.refused / max(check.asked, 1))
    share = "None" if worst.refused == 0 else percent(worst.refused / worst.asked)
    return f" {share} of {worst.asked} asked in calibration are flagged because too few prompts were kept."


def _promise(artifact: CalibrationArtifact, promise: Guarantee) -> str:
    if promise.kind == "heuristic":
        return promise.sentence
    event = "the answer set holds a correct answer, or the prompt is flagged as not certifiable"
    if len(artifact.alphas) == 1:
        return f"With probability at least {share_text(promise.target_coverage)} {event}."
    return (
        f"With probability at least 1 - alpha {event}; alpha is {', '.join(artifact.alphas)}, chosen per "
        "call before anything is drawn."
    )


def _scope(artifact: CalibrationArtifact, promise: Guarantee) -> str:
    others = counted(promise.weightings)
    where = "where they are served, " if artifact.shift is not None else ""
    if others:
        return (
            f"{where}on average over new prompts, and over each of {others} and any mix of them (--details)."
        )
    slack = " (under other weightings about, see --details)" if promise.estimated_slack else ""
    return f"{where}on average over new prompts{slack}; nothing is said about hard ones in particular."


def _confidence_rows(artifact: CalibrationArtifact, promise: Guarantee) -> Iterator[tuple[str, str]]:
    if promise.failure_probability is not None:
        sure = f"{100 * (1.0 - promise.failure_probability):.12g} %"
        others = counted([one for one in promise.weightings if one.name in promise.confident])
        also = f" and over each of {others}" if others else ""
        yield "Confidence", f"{sure} that this very artifact keeps it over all prompts{also}."
    elif not artifact.certificates:
        yield (
            "Confidence",
            (
                "On average over calibration sets: this very artifact may do better or worse; `langchain-cfc "
                "certify` says how well."
            ),
        )
    for one in artifact.certificates:
        level = f"alpha = {one.alpha}: " if len(artifact.alphas) > 1 else ""
        yield "Certified", f"{level}{one.sentence()}"


def _basis(artifact: CalibrationArtifact) -> str:
    alike = "new prompts like those calibrated on (exchangeable)"
    if artifact.shift is not None:
        alike = f"new prompts differing from those calibrated on by the ratio {artifact.shift} only"
    elif artifact.calibration.weight is not None:
        alike = "new prompts like those of which some were chosen to be labelled, with known probabilities"
    named = [identity(artifact, part) for part in ("generator", "verifier", "answer")]
    bound = (
        "generator and verifier as calibrated (unbound: the records did not name them)"
        if artifact.provenance is None
        else f"generator {named[0]}, verifier {named[1]}, extractor {named[2]}, which serving compares"
    )
    return f"{alike}; right labels; a level chosen before drawing; {bound} (all: --details)."
