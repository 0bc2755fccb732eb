"""What people see of results, artifacts and reports: short, escaped, and true to the object."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from typing import Any, get_args

import numpy as np
import pytest
from matplotlib import pyplot as plt

from langchain_cfc import CalibrationArtifact, CFCResult, calibrate, evaluate
from langchain_cfc.decision import Reason
from langchain_cfc.errors import InputError, MissingExtraError
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.guarantee import Binding
from langchain_cfc.support.curves import RiskCurve
from langchain_cfc.support.display import Displayed
from tests.claims.chains import make_chain as make_claims_chain
from tests.factories import make_artifact, make_chain
from tests.fakes import ScriptedModel
from tests.recordings import list_facts

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e & \n\n" + 200 * "long "


class Reader(HTMLParser):
    """Collects the tags of a page, and checks that they are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def list_results() -> list[CFCResult]:
    """Results of every reason, with and without a match of the parts, for answers, sets and claims."""
    result = make_chain(
        make_artifact(), generator=ScriptedModel(texts=("lima|0.1", "quito|0.2", "lima|0.3", "x|0.9"))
    ).invoke("x")
    changed = [
        result.model_copy(update={"abstained": one != "answered", "reason": one, "best": None, "answers": ()})
        for one in get_args(Reason)
    ]
    hostile = result.model_copy(update={"best": HOSTILE, "answers": (HOSTILE, "b")})
    bound = [
        one.model_copy(update={"guarantee": one.guarantee.model_copy(update={"binding": binding})})
        for one in (result, hostile)
        for binding in get_args(Binding)
    ]
    return [*changed[1:], *bound, make_claims_chain(show_rejected=True).invoke("x")]


@pytest.fixture(scope="module")
def bot() -> CalibrationArtifact:
    return calibrate(list_facts(), max_wrong_rate=[0.05, 0.1], test_fraction=0.3)


@pytest.fixture(scope="module")
def report(bot: CalibrationArtifact) -> EvaluationReport:
    return evaluate(bot, list_facts())


@pytest.mark.parametrize("result", list_results(), ids=repr)
def test_text_of_a_result_is_short_and_states_the_whole_promise(result: CFCResult) -> None:
    text = str(result)
    assert len(text) <= 300
    assert len(text.splitlines()) <= 3
    assert result.guarantee.claim in text
    assert ("No answer" in text) == result.abstained
    assert (result.guarantee.binding in text) == (result.guarantee.binding != "matched")
    assert not any(ord(sign) < 32 and sign != "\n" for sign in text + repr(result))
    assert len(repr(result)) < 120


@pytest.mark.parametrize("result", list_results(), ids=repr)
def test_html_of_a_result_is_escaped_and_folds_its_table(result: CFCResult) -> None:
    read = Reader(result._repr_html_())
    assert set(read.tags) <= {"div", "strong", "bdi", "details", "summary", "table", "tr", "th", "td"}
    assert read.tags.count("details") == 1
    assert "\x1b" not in read.text
    assert "\u202e" not in read.text


def test_html_shows_no_withheld_text() -> None:
    chain = make_chain(
        make_artifact(), generator=ScriptedModel(texts=("lima|0.1", "SECRET|0.9", "b|0.9", "c|0.9"))
    )
    assert "SECRET" not in chain.invoke("x")._repr_html_()
    shown = make_chain(
        make_artifact(),
        generator=ScriptedModel(texts=("lima|0.1", "SECRET|0.9", "b|0.9", "c|0.9")),
        show_rejected=True,
    )
    assert "SECRET" in shown.invoke("x")._repr_html_()


def test_every_part_of_an_artifact_and_report_has_short_texts(
    bot: CalibrationArtifact, report: EvaluationReport
) -> None:
    guarantee = bot.make_guarantee(max_wrong_rate=0.05)
    shown: list[Displayed] = [bot, report, guarantee, bot.certified_bot, *bot.certified_bot.certificates]
    shown += [*bot.certified_bot.curve[:2], *report.answers, report.curve, bot.calibration]
    for one in shown:
        assert len(repr(one)) < 260
        assert "\n" not in repr(one)
        assert Reader(one._repr_html_()).tags.count("table") == 1
    assert "at most 5 % get a wrong answer" in str(bot)


def test_frame_of_a_result_has_a_row_for_each_candidate() -> None:
    result = list_results()[-3]
    assert result.to_df()["score"].tolist() == [one.score for one in result.candidates]
    claims = list_results()[-1]
    assert claims.to_df()["kept"].tolist() == [one.kept for one in claims.claims]  # type: ignore[attr-defined]


def test_frame_of_an_evaluation_agrees_with_its_fields(report: EvaluationReport) -> None:
    frame = report.to_df()
    assert frame["limit"].tolist() == [0.05, 0.1]
    assert frame["wrong"].tolist() == [one.wrong_rate for one in report.answers]
    assert not frame.isna().to_numpy().any()


def test_curve_counts_wrong_answers_by_hand(bot: CalibrationArtifact, report: EvaluationReport) -> None:
    scores = np.array([0.3, 0.1, 0.3, 0.2, np.inf])
    curve = RiskCurve.from_scores(scores, np.array([True, False, False, True, True]))
    assert curve.answered == [0.2, 0.4, 0.8]
    assert curve.wrong == [0.0, 0.5, 0.5]
    # The certified points lie on the curve that the records give.
    for answered, wrong, _ in report.curve.certified:
        assert np.interp(answered, report.curve.answered, report.curve.wrong) == pytest.approx(
            wrong, abs=0.01
        )
    drawn = bot.certified_bot.risk_curve
    assert drawn.answered[-1] == 1.0
    assert all(low <= high for low, high in zip(drawn.wrong, drawn.at_most, strict=True))


def test_plots_draw_the_curve_and_mark_certified_points(
    bot: CalibrationArtifact, report: EvaluationReport
) -> None:
    for shown, curve in ((bot, bot.certified_bot.risk_curve), (report, report.curve)):
        ax: Any = shown.plot()
        assert ax.figure.number in plt.get_fignums()  # what notebooks show
        plt.close(ax.figure)
        lines = ax.get_lines()
        assert (
            np.array(lines[0].get_xydata()).tolist()
            == np.column_stack([curve.answered, curve.wrong]).tolist()
        )
        marked = [line for line in lines if line.get_marker() != "None"]
        points = [line.get_xydata().tolist() for line in marked]
        assert points == [[[answered, wrong]] for answered, wrong, _ in curve.certified]
        assert len({line.get_marker() for line in marked}) == len(marked) > 1
    assert shown.plot(ax) is ax


def test_text_plot_has_ten_lines_within_80_columns(bot: CalibrationArtifact) -> None:
    one_point = RiskCurve(answered=[1.0], wrong=[1.0], certified=[(1.0, 1.0, 1.0)])
    for curve in (bot.certified_bot.risk_curve, RiskCurve(answered=[0.5], wrong=[0.0]), one_point):
        lines = curve.draw_text()
        assert len([line for line in lines if line[6:8] == " |"]) == 10
        assert max(map(len, lines)) <= 72
        assert "".join(lines).isascii()
        assert "".join(lines).count("O") == len(curve.certified)


def test_artifact_without_a_curve_says_what_to_do() -> None:
    with pytest.raises(InputError, match="max_wrong_rate"):
        make_artifact().plot()
    with pytest.raises(InputError, match="no points"):
        RiskCurve(answered=[], wrong=[]).plot()


@pytest.mark.parametrize(("module", "call"), [("matplotlib.pyplot", "plot"), ("pandas", "to_df")])
def test_missing_library_is_named_with_its_command(
    report: EvaluationReport, monkeypatch: pytest.MonkeyPatch, module: str, call: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    command = "langchain-cfc\\[lab\\]" if call == "plot" else "pip install pandas"
    with pytest.raises(MissingExtraError, match=command):
        getattr(report, call)()


def test_displays_load_neither_matplotlib_nor_pandas() -> None:
    code = "import sys, langchain_cfc.runnable, langchain_cfc.evaluation; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "pandas"} & set(loaded.stdout.split())
