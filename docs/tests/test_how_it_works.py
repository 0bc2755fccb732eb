"""The percentages of `docs/how-it-works.md` are those of the recording."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_lab import compare

from langchain_cfc import calibrate
from langchain_cfc.demo import TEST_FRACTION, load_recording
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.records import tabulate

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works.md"
# Which share the page speaks of: the rule, the fifth from easy to hard, what is counted, and the words.
SAID = [
    ("marginal", 0, "broken", r"over-covering easy questions: (\d+) % of the easiest fifth"),
    ("marginal", 4, "broken", r"go wrong, and (\d+) % of the hardest"),
    ("marginal", 4, "kept", r"was promised\s+80 % and got (\d+) %"),
    ("conditional", 1, "broken", r"The second and third fifth end at (\d+) % and"),
    ("conditional", 2, "broken", r"The second and third fifth end at \d+ % and (\d+) %"),
    ("conditional", 4, "none", r"Conditional thresholds return none for (\d+) % of the hardest fifth"),
    ("conditional", 4, "flagged", r"(\d+) % of the hardest fifth is flagged"),
]


@pytest.mark.filterwarnings(f"ignore::{AttainabilityWarning.__module__}.{AttainabilityWarning.__name__}")
def test_how_it_works_states_percentages_of_the_recording() -> None:
    report = compare(
        load_recording(),
        alpha=0.2,
        methods=["conditional", "marginal"],
        features="bins(mean_score, 5)",
        set_rule="unique(all)",
    )
    page = PAGE.read_text(encoding="utf-8")
    for method, fifth, counted, words in SAID:
        found = re.search(words, page)
        assert found, words
        group = report.methods[method].groups[fifth]
        share = {
            "kept": group.kept_promise,
            "broken": 1.0 - group.kept_promise,
            "none": 1.0 - group.coverage,
            "flagged": group.not_certifiable_rate,
        }[counted]
        assert round(100 * share) == int(found[1]), words


def test_how_it_works_states_figures_of_the_bots() -> None:
    records = list(load_recording())
    artifact = calibrate(records, max_wrong_rate=[0.05, 0.1], test_fraction=TEST_FRACTION)
    table = tabulate(records)
    test = table.take(artifact.calibration.split.list_rows(table)["test"])
    means = test.draws.scores.mean(axis=1)
    wrong = ~test.correct[np.arange(len(means)), test.draws.scores.argmin(axis=1)]
    fifths = np.digitize(means, np.quantile(means, [0.2, 0.4, 0.6, 0.8]))
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"| 100 % | {100 * wrong.mean():.1f} % | 100, 100, 100, 100, 100 % |" in page
    for certificate in artifact.certified_bot.certificates:
        name = f"at most {100 * float(certificate.max_wrong_rate):.0f} % wrong"
        answered = means <= certificate.max_mean_score
        shares = ", ".join(f"{100 * answered[fifths == fifth].mean():.0f}" for fifth in range(5))
        row = f"| {100 * answered.mean():.0f} % | {100 * wrong[answered].mean():.1f} % | {shares} % |"
        assert f"| {name} {row}" in page
        assert f"{name}: cut {certificate.max_mean_score:.2f}" in page
    total = artifact.certified_bot.certificates[0].groups[0]
    assert f"answers {total.answered} of the {total.prompts} questions, {total.wrong} of them" in page
    asked = re.findall(r"\| (What [^|]*\?) \| ([\d.]+) \|", page)
    assert len(asked) == 3
    for question, mean in asked:
        (recorded,) = (one for one in records if one.input == question)
        assert mean == f"{np.mean([one.score for one in recorded.candidates]):.2f}"
