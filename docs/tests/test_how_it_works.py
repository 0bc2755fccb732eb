"""The percentages of `docs/how-it-works.md` are those of the recording, as its pictures show them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from langchain_cfc_lab import compare

from langchain_cfc.demo import load_recording
from langchain_cfc.errors import AttainabilityWarning

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
