"""The top of the page: the promise, whether it was kept, and the key figures."""

from __future__ import annotations

from dataclasses import dataclass

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.evaluation import ClaimsFigures, EvaluationReport, MethodReport
from langchain_cfc.guarantee import Guarantee, format_share
from langchain_cfc.support.text import join_names, pluralize
from langchain_cfc_lab.report._text import format_interval, to_percent
from langchain_cfc_lab.report.tables import Table, Tone, tabulate_certificate


@dataclass(frozen=True)
class Promise:
    """What an artifact promises and does not promise, in words for the page."""

    heading: str
    claim: str  # the promise in a sentence, in large type
    scope: tuple[str, ...] = ()  # for which prompts and how surely it holds
    not_promised: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    full: str = ""  # the promise in full, if the claim is shorter
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Whether the promise was kept, with the figures."""

    headline: str
    words: str
    tone: Tone


@dataclass(frozen=True)
class Tile:
    """A key figure, with its interval or another detail."""

    label: str
    value: str
    detail: str


def find_guarantee(artifact: CalibrationArtifact, evaluation: EvaluationReport) -> Guarantee:
    """Return the guarantee that an evaluation is about: of its level, or of a bot alone."""
    if artifact.levels:
        return artifact.make_guarantee(artifact.select_level(str(evaluation.alpha)))
    return artifact.make_guarantee(max_wrong_rate=artifact.certified_bot.certificates[0].max_wrong_rate)


def describe_promise(artifact: CalibrationArtifact, guarantee: Guarantee) -> Promise:
    """Return the promise of an artifact at one level."""
    if not artifact.alphas:
        return _describe_certified_rates(artifact)
    certificate, promised = guarantee.certificate, guarantee.kind != "heuristic"
    rest = guarantee.sentence.removeprefix(guarantee.claim).strip()
    return Promise(
        heading="The promise",
        claim=guarantee.claim,
        scope=tuple(filter(None, (rest, *guarantee.heuristics))),
        not_promised=guarantee.not_promised,
        assumptions=guarantee.assumptions if promised else (),
        full=guarantee.sentence if promised else "",
        tables=() if certificate is None else (tabulate_certificate(certificate),),
    )


def _describe_certified_rates(artifact: CalibrationArtifact) -> Promise:
    """Return the promise of a bot: its certified rates of wrong answers."""
    first, *further = certificates = artifact.certified_bot.certificates
    promise = artifact.make_guarantee(max_wrong_rate=first.max_wrong_rate)
    others: tuple[str, ...] = ()
    if further:
        rates = join_names([format_share(float(one.max_wrong_rate)) for one in further])
        others = (
            f"At most {rates} is certified as well. Each rate holds separately; choose one before serving.",
        )
    return Promise(
        heading="The promise",
        claim=promise.claim,
        scope=(
            *others,
            "On the other questions it says that it does not know.",
            *(one.sentence for one in promise.people),
        ),
        not_promised=promise.not_promised,
        assumptions=promise.assumptions,
        full=" ".join(one.sentence for one in certificates),
    )


def describe_verdict(evaluation: EvaluationReport) -> Verdict:
    """Say whether the evaluation contradicts the promise."""
    on = f"On {pluralize(evaluation.n_test, 'question')} that were not used for calibration."
    if not evaluation.is_passed:
        advice = "" if evaluation.other_parts else " Do not serve it for questions like these."
        return Verdict(evaluation.verdict, f"{on}{advice}", "bad")
    promises_nothing = evaluation.guarantee == "heuristic" and not evaluation.answers
    return Verdict(evaluation.verdict, on, "" if promises_nothing else "good")


def make_tiles(artifact: CalibrationArtifact, evaluation: EvaluationReport) -> list[Tile]:
    """Return the key figures at the top of a page."""
    if not evaluation.methods:
        wrong = "wrong" if evaluation.claims is None else "unsupported"
        certified = artifact.certified_bot.certificates[0].prompts
        return [
            Tile("Certified on", f"{certified:,}", "questions"),
            Tile("Tested on", f"{evaluation.n_test:,}", "other questions"),
        ] + [
            Tile(
                f"Answered, at most {format_share(one.max_wrong_rate)} {wrong}",
                to_percent(one.answered_rate, 1),
                f"{one.wrong} of {one.answered} {wrong}: {to_percent(one.wrong_rate, 1)}",
            )
            for one in evaluation.answers
        ]

    own = evaluation.methods["conditional"]
    if own.claims is not None:
        return _make_claims_tiles(own, own.claims)
    if evaluation.promise == "max_wrong_of_all":
        low, high = (1.0 - bound for bound in reversed(own.kept_promise_ci))
        low_answered, high_answered = (1.0 - bound for bound in reversed(own.abstention_ci))
        return [
            _make_share_tile("Answered", 1.0 - own.abstention_rate, (low_answered, high_answered)),
            _make_share_tile("Answered wrongly, of all questions", 1.0 - own.kept_promise, (low, high)),
        ]

    size = evaluation.n_test
    attainable = clopper_pearson(round(evaluation.attainable_coverage * size), size)
    drawn = (
        f"{evaluation.n_candidates} candidates"
        if evaluation.mean_draws is None
        else f"the {evaluation.mean_draws:.1f} candidates drawn on average"
    )
    return [
        _make_share_tile("Promise kept", own.kept_promise, own.kept_promise_ci),
        _make_share_tile("Set holds a correct answer", own.coverage, own.coverage_ci),
        _make_share_tile("Flagged: cannot be certified", own.not_certifiable_rate, own.not_certifiable_ci),
        _make_share_tile("Attainable by any threshold", evaluation.attainable_coverage, attainable),
        Tile(
            "Distinct answers per set",
            f"{own.mean_distinct_answers:.2f}",
            f"{own.mean_set_size:.2f} of {drawn}, repeats included",
        ),
    ]


def _make_claims_tiles(own: MethodReport, claims: ClaimsFigures) -> list[Tile]:
    left = claims.kept * claims.per_answer
    return [
        _make_share_tile("Promise kept", own.kept_promise, own.kept_promise_ci),
        Tile(
            "Claims kept", to_percent(claims.kept, 1), f"{left:.1f} of {claims.per_answer:.1f} in an answer"
        ),
        _make_share_tile("Answers with no claim left", claims.emptied, own.abstention_ci),
        Tile(
            "Unsupported, of the claims shown",
            to_percent(claims.unsupported_kept, 1),
            f"{to_percent(claims.unsupported, 1)} of all claims",
        ),
    ]


def _make_share_tile(label: str, value: float, interval: tuple[float, float]) -> Tile:
    return Tile(label, to_percent(value, 1), format_interval(interval, 1))
