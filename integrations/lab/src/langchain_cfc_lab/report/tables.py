"""Tables of the page as data; every number has its interval beside it, if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from langchain_cfc.artifact import CalibrationArtifact, CertifiedBot
from langchain_cfc.certificates.batches import REPETITIONS
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.evaluation import (
    AnswersReport,
    ClaimsFigures,
    EvaluationReport,
    GroupReport,
    MethodReport,
)
from langchain_cfc.features import describe_group, name_group
from langchain_cfc.guarantee import (
    CertifiedShare,
    CoverageCertificate,
    format_bound,
    format_share,
)
from langchain_cfc.support.text import format_limit, pluralize
from langchain_cfc.support.units import Unit
from langchain_cfc_lab.report._text import METHOD_NAMES, NO_BREAK, format_interval, to_percent
from langchain_cfc_lab.report.hardest import HardAnswer, HardPrompt

Tone: TypeAlias = Literal["", "good", "bad"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a number or a few words."""

    text: str
    detail: str = ""  # its interval or a remark, in small type
    tone: Tone = ""  # shown as a colour; `text` or `detail` has to say the same in words
    kind: Literal["number", "word", "words"] = "number"  # `words` makes the column wide


@dataclass(frozen=True)
class Row:
    """A row of a table; a strong one is emphasised."""

    head: str
    cells: tuple[Cell, ...]  # one for each column but the first
    strong: bool = False
    detail: str = ""  # a remark on the head, in small type


@dataclass(frozen=True)
class Table:
    """A table with its caption and a note."""

    id: str
    caption: str
    head: tuple[str, ...]  # headings of all columns, the first one included
    rows: tuple[Row, ...]
    note: str = ""


_KEPT_OF_ALL = "A question keeps the promise if it is answered rightly or not at all."
_CLAIMS_HEADINGS = ("Claims kept", "No claim left", "Unsupported, of the claims shown")


def tabulate_overall(report: EvaluationReport) -> Table:
    """Tabulate the results over all test prompts, under the artifact's rule and the marginal one."""
    methods = list(report.methods.values())

    def make_share_row(head: str, value: str, interval: str | None, *, strong: bool = False) -> Row:
        cells = (
            Cell(
                to_percent(getattr(one, value), 1),
                "" if interval is None else format_interval(getattr(one, interval), 1),
            )
            for one in methods
        )
        return Row(head, tuple(cells), strong)

    def make_size_row(head: str, value: str) -> Row:
        return Row(head, tuple(Cell(f"{getattr(one, value):.2f}") for one in methods))

    def make_claims_row(head: str, value: str) -> Row:
        return Row(head, tuple(Cell(to_percent(getattr(one.claims, value), 1)) for one in methods))

    flagged = "not_certifiable_rate", "not_certifiable_ci"
    kept = f"Promise kept (target {format_share(report.target_coverage)})"
    rows = [make_share_row(kept, "kept_promise", "kept_promise_ci", strong=True)]
    if any(one.stated_levels for one in methods):
        rows.insert(0, make_share_row("Stated on average", "stated_coverage", None))
    note = "Beside each share of answers is its 95 % interval."
    if report.promise == "max_wrong_of_all":
        rows.append(make_share_row("Answered", "mean_set_size", None))
        note = f"{_KEPT_OF_ALL} Beside its share is its 95 % interval."
    elif any(one.claims is None for one in methods):
        rows.append(make_share_row("Set holds a correct answer", "coverage", "coverage_ci"))
        rows.append(make_share_row("Flagged: cannot be certified", *flagged))
        if any(one.refused_rate > 0.0 for one in methods):
            rows.append(make_share_row("Of these, because too few prompts were kept", "refused_rate", None))
        rows += [
            make_share_row("No answer: flagged, or the set is empty", "abstention_rate", "abstention_ci"),
            make_size_row("Candidates per set", "mean_set_size"),
            make_size_row("Distinct answers per set", "mean_distinct_answers"),
        ]
        note = "Beside each share is its 95 % interval. Sizes are means over these prompts, with empty sets."
    else:
        rows.append(make_claims_row("Claims kept", "kept"))
        rows.append(make_share_row("Answers with no claim left", "abstention_rate", "abstention_ci"))
        if any(one.not_certifiable_rate > 0.0 for one in methods):
            rows.append(make_share_row("Of these, because nothing can be certified", *flagged))
        rows += [
            make_claims_row("Unsupported, of the claims shown", "unsupported_kept"),
            make_claims_row("Unsupported, of all claims", "unsupported"),
        ]

    return Table(
        id="overall",
        caption=f"Over all {report.n_test:,} test prompts",
        head=("", *(METHOD_NAMES.get(name, name).capitalize() for name in report.methods)),
        rows=tuple(rows),
        note=note,
    )


def tabulate_stated_levels(method: MethodReport) -> Table:
    """Tabulate the results by the coverage stated for the test prompts."""
    confidence = 1.0 - 0.05 / len(method.stated_levels)

    def make_row(level: GroupReport) -> Row:
        results = (
            [
                _make_share_cell(level.coverage, level.n, confidence),
                _make_share_cell(level.not_certifiable_rate, level.n, confidence),
            ]
            if level.claims is None
            else _make_claims_cells(level.claims, level.n, confidence)
        )
        cells = (Cell(f"{level.n:,.0f}"), _make_promise_cell(level, level.stated_coverage), *results)
        return Row(format_share(level.stated_coverage), cells)

    results = ("Set holds a correct answer", "Flagged") if method.claims is None else _CLAIMS_HEADINGS

    return Table(
        id="stated",
        caption="By stated coverage",
        head=("Stated", "Prompts", "Promise kept", *results),
        rows=tuple(make_row(one) for one in method.stated_levels),
        note=(
            "Less is stated for hard prompts. The stated coverage is kept on average over all prompts and "
            "over each group below, but not necessarily at each stated level."
        ),
    )


def tabulate_groups(artifact: CalibrationArtifact, report: EvaluationReport) -> Iterator[Table]:
    """Tabulate the results of each group; yield no table if the artifact names no groups."""
    own = report.methods["conditional"].groups
    if not own:
        return
    other = report.methods["marginal"].groups
    attainable = {group.name: (group.attainable, group.size) for group in artifact.calibration.groups}
    contradicted = set(report.contradicted)
    confidence = 1.0 - 0.05 / len(own)

    def make_row(place: int, group: GroupReport) -> Row:
        cells = [
            Cell(f"{group.n:,.0f}"),
            _make_promise_cell(group, group.stated_coverage, broken=group.name in contradicted),
            _make_promise_cell(other[place], other[place].stated_coverage),
        ]
        if report.promise == "max_wrong_of_all":
            cells.append(_make_share_cell(group.mean_set_size, group.n, confidence))
        elif group.claims is None:
            cells += [
                _make_share_cell(group.coverage, group.n, confidence),
                _make_share_cell(group.not_certifiable_rate, group.n, confidence),
                Cell(f"{group.mean_set_size:.2f}"),
                _make_share_cell(*attainable[group.name], confidence),
            ]
        else:
            cells += _make_claims_cells(group.claims, group.n, confidence, other[place].claims)
        return _make_group_row(group, tuple(cells))

    promised = {one.name for one in artifact.make_guarantee(str(report.alpha)).weightings}
    head = ("Group", "Prompts", "Promise kept", "Kept by one threshold for all")
    promise = "The promise covers each of these groups. " if own[0].name in promised else ""
    results: tuple[str, ...] = ("Set holds a correct answer", "Flagged", "Candidates per set", "Attainable")
    meant = (
        "Attainable is the share of the group's calibration prompts with a correct candidate: no threshold "
        "can cover more."
    )
    if report.promise == "max_wrong_of_all":
        results, meant = ("Answered",), _KEPT_OF_ALL
    elif own[0].claims is not None:
        results, meant = _CLAIMS_HEADINGS, "Shares of claims are of all claims of the group's answers"
        meant += "; those under one threshold for all are in brackets."
    yield Table(
        id="groups",
        caption="Group by group",
        head=(*head, *results),
        rows=tuple(make_row(place, group) for place, group in enumerate(own)),
        note=(
            f"{promise}The target is {format_share(report.target_coverage)}. Intervals of one column hold "
            "together with confidence 95 %; they are approximate for soft groups, in which every prompt has "
            f"a weight. {meant}"
        ),
    )


def _make_group_row(group: GroupReport | CertifiedShare, cells: tuple[Cell, ...]) -> Row:
    """Make a group's row, headed by its readable name, and its bounds if the name does not state them."""
    head, bounds = name_group(group.words, group.name), describe_group(group.words)
    said = head == bounds or ": " in head
    return Row(head, cells, detail="" if said else bounds)


def _make_promise_cell(group: GroupReport, target: float, *, broken: bool = False) -> Cell:
    """Make a cell of how often the promise was kept; red if `broken` or below the target."""
    low = group.kept_promise_ci[1] < target
    detail = format_interval(group.kept_promise_ci)
    if broken:
        detail += ", less often than chance explains"
    elif low:
        detail += ", below target"
    return Cell(to_percent(group.kept_promise), detail, "bad" if broken or low else "")


def _make_share_cell(share: float, size: float, confidence: float) -> Cell:
    # For soft groups the sum of weights is below the effective sample size, so the interval is wide enough.
    return Cell(to_percent(share), format_interval(clopper_pearson(share * size, size, confidence)))


def _make_claims_cells(
    claims: ClaimsFigures, size: float, confidence: float, compared: ClaimsFigures | None = None
) -> list[Cell]:
    """Make the cells for `_CLAIMS_HEADINGS`, with shares under one threshold for all in brackets."""

    def make_cell(name: Literal["kept", "unsupported_kept"]) -> Cell:
        other = "" if compared is None else f"({to_percent(getattr(compared, name))})"
        return Cell(to_percent(getattr(claims, name)), other)

    return [
        make_cell("kept"),
        _make_share_cell(claims.emptied, size, confidence),
        make_cell("unsupported_kept"),
    ]


def tabulate_certificate(certificate: CoverageCertificate) -> Table:
    """Tabulate a certificate group by group: bounds on sets, or on the claims left."""
    is_about_sets = certificate.is_about_sets

    def make_cells(share: CertifiedShare) -> Iterator[Cell]:
        yield Cell(f"{share.prompts:,}")
        yield Cell(format_bound(share.kept_at_least), f"seen: {share.kept} of {share.prompts}")
        if is_about_sets:
            yield Cell(format_bound(share.coverage_at_least), f"seen: {share.covered} of {share.prompts}")

    note = (
        f"All bounds hold together with confidence {format_share(1.0 - float(certificate.delta))}, for "
        "prompts independent and identically distributed with those held out."
    )
    return Table(
        id="certificate",
        caption=f"Certified on {certificate.prompts:,} prompts",
        head=(
            *("Group", "Prompts", "Promise kept at least"),
            *(["Set correct at least"] if is_about_sets else []),
        ),
        rows=tuple(_make_group_row(share, tuple(make_cells(share))) for share in certificate.shares),
        note=note,
    )


def tabulate_rates(bot: CertifiedBot, reports: Sequence[AnswersReport]) -> Table:
    """Tabulate bot mode's wrong answers at each certified rate, on certification and test prompts."""
    rows = []
    claims = bot.certificates[0].unit == "claims"
    wrong, unsafe = ("unsupported", "with one unsupported") if claims else ("wrong", "wrong")
    for certificate, seen in zip(bot.certificates, reports, strict=True):
        everyone = certificate.groups[0]
        broken = seen.contradicted
        rows.append(
            Row(
                f"At most {format_share(seen.max_wrong_rate)} {wrong}",
                (
                    Cell(
                        f"{everyone.wrong:,} of {everyone.answered:,} {unsafe}",
                        f"{everyone.prompts:,} certification prompts",
                    ),
                    Cell(to_percent(seen.answered_rate), f"{seen.answered:,} prompts"),
                    Cell(
                        to_percent(seen.wrong_rate, 1),
                        format_interval(seen.wrong_rate_ci, 1),
                        "bad" if broken else "",
                    ),
                    Cell("more than chance explains" if broken else "not contradicted", kind="word"),
                ),
            )
        )
    caption, heads = "Wrong answers at each certified rate", ("Answered", "Wrong answers")
    note = "Answered and wrong are shares of the test prompts, with 95 % intervals."
    if claims:
        caption = "Unsupported claims among those shown, at the certified rate"
        heads = ("Answers with claims", "Unsupported")
        note = "Unsupported: of one claim drawn from each test answer that shows any."
    return Table(
        id="rates",
        caption=caption,
        head=("Rate", "Certified on", *heads, "Verdict"),
        rows=tuple(rows),
        note=note,
    )


def tabulate_bot_promises(report: EvaluationReport) -> Table:
    """Tabulate what is answered and wrong under each promise of a bot that the artifact can serve."""

    def make_row(head: str, answered: tuple[float, str], wrong: tuple[float, str]) -> Row:
        return Row(head, tuple(Cell(to_percent(share, 1), detail) for share, detail in (answered, wrong)))

    def make_test_row(head: str, answered: float, wrong: float, remark: str = "") -> Row:
        count = answered * report.n_test
        intervals = (clopper_pearson(count, report.n_test), clopper_pearson(wrong * count, count))
        shown, missed = (format_interval(one, 1) for one in intervals)
        return make_row(head, (answered, shown), (wrong, missed + remark))

    rows = [
        make_test_row(
            f"At most {format_share(one.max_wrong_rate)} of the answered, certified",
            one.answered_rate,
            one.wrong_rate,
        )
        for one in report.answers
    ]
    if report.promise == "max_wrong_of_all":
        own = report.methods["conditional"]
        answered, missed = own.mean_set_size, 1.0 - own.kept_promise
        head, remark = f"At most {format_share(report.alpha)} of all", f"; {to_percent(missed, 1)} of all"
        rows.append(make_test_row(head, answered, missed / (answered or 1.0), remark))
    rows += [
        make_row(
            f"At most {format_share(one.max_wrong_share)} of a batch of {one.size}, on average",
            (one.answered, format_interval(one.answered_spread)),
            (one.wrong, format_interval(one.wrong_spread)),
        )
        for one in report.batches
    ]
    return Table(
        id="bot-promises",
        caption="Answered and wrong under each promise",
        head=("Wrong answers", "Questions answered", "Wrong, of the answered"),
        rows=tuple(rows),
        note=(
            f"On the test prompts. Beside a share is its 95{NO_BREAK}% interval; beside those of batches, "
            f"what the middle 80{NO_BREAK}% of {REPETITIONS} random batches lie between."
        ),
    )


def tabulate_cuts(bot: CertifiedBot) -> Table:
    """Tabulate prompts answered and wrong answers by cut; those of bot mode are marked."""
    prompts = bot.certificates[0].prompts
    return Table(
        id="cuts",
        caption="What answering more would cost",
        head=("Answered are", "Answered", "Wrong", "Wrong at most"),
        rows=tuple(
            Row(
                f"score up to {format_limit(point.max_mean_score)}" + (" (certified)" if own else ""),
                (
                    Cell(to_percent(point.answered / prompts)),
                    Cell(f"{point.wrong} of {point.answered}"),
                    Cell(to_percent(point.wrong_rate_at_most, 1)),
                ),
                own,
            )
            for point, own in bot.with_certified_points()
        ),
        note=f"On {pluralize(prompts, 'certification prompt')}; all bounds hold together with confidence "
        f"{format_share(1.0 - float(bot.delta))}; each certified rate of bot mode holds separately.",
    )


def tabulate_hard_prompt(place: int, prompt: HardPrompt, unit: Unit) -> Table:
    """Tabulate the answers or claims of the page's `place`-th hard prompt."""
    claims = unit == "claims"
    thing, right, wrong, inside, outside = "answer", "correct", "wrong", "in the set", "rejected"
    if claims:
        thing, right, wrong, inside, outside = "claim", "supported", "unsupported", "left in", "dropped"
    levels = any(one.level is not None and one.level != one.score for one in prompt.answers)
    by_level = levels and not claims

    def make_row(number: int, one: HardAnswer) -> Row:
        said = f"{thing.capitalize()} {number}" if one.answer is None else one.answer or "(empty)"
        cells = (
            Cell(right if one.correct else wrong, tone="good" if one.correct else "", kind="word"),
            Cell(inside if one.accepted else outside, kind="word"),
            Cell(f"{one.score:.3f}"),
            *([Cell("never enters" if one.level is None else f"{one.level:.3f}")] if by_level else []),
            *([] if claims else [Cell(str(one.times))]),
        )
        return Row(f"{said} — {one.text}" if one.text else said, cells, strong=one.accepted)

    heads = ("Score",) if claims else ("Lowest score", *(["Entry level"] if by_level else []), "Times")
    return Table(
        id=f"hard-{place}-{thing}s",
        caption=f"Its {thing}s, best first",
        head=(thing.capitalize(), "Label", "Decision", *heads),
        rows=tuple(make_row(number, one) for number, one in enumerate(prompt.answers, start=1)),
        note=f"{pluralize(prompt.left_out, f'more {thing}')} not listed." if prompt.left_out else "",
    )


def tabulate_bot_answers(prompts: Sequence[HardPrompt], outcome: str, caption: str) -> Table:
    """Tabulate a bot's best answers to the prompts with an outcome, `wrong` or `abstained`."""
    shown = [one for one in prompts if one.outcome == outcome]
    with_text = any(one.prompt is not None for one in shown)
    rows = []
    for one in shown:
        best = one.answers[0]
        said = [Cell(best.answer or "(empty)", kind="words"), Cell(one.reference or "", kind="words")]
        label = Cell("right" if best.correct else "wrong", kind="word")
        counted = [label, Cell(f"{one.right} of {one.drawn}"), Cell(f"{one.mean_score:.3f}")]
        rows.append(Row(one.prompt or one.id, (*(said if with_text else ()), *counted)))
    texts = ("Best answer", "Right answer") if with_text else ()
    head = ("Question", *texts, "It is", "Right of those drawn", "Score")
    return Table(id=f"{outcome}-answers", caption=caption, head=head, rows=tuple(rows))
