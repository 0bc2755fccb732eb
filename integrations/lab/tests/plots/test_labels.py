"""Labels of groups are short and different."""

from __future__ import annotations

import string

import numpy as np
import pytest
from langchain_cfc_lab.report.drawing import (
    FONT_SIZE,
    LONGEST_LABEL,
    estimate_width,
    label_groups,
    to_single_line,
    wrap_text,
)
from matplotlib.textpath import TextPath

from tests.lengths import repetitions


@pytest.mark.parametrize(
    ("words", "title", "labels"),
    [
        (
            [
                "prompts whose mean score is below 0.123456",
                "prompts whose mean score lies in [0.123456, 0.5)",
                "prompts whose mean score is at least 0.5",
            ],
            "mean score",
            ["below 0.123", "[0.123, 0.5)", "at least 0.5"],
        ),
        (["prompts whose topic is 'sums'", "prompts whose topic is 'law'"], "topic", ["sums", "law"]),
        # What follows the property is the name of one category, however it begins.
        (
            ["prompts whose city is 'new york'", "prompts whose city is 'new delhi'"],
            "city",
            ["new york", "new delhi"],
        ),
        (["mean score: 1 of 2", "mean score: 2 of 2"], "mean score", ["1 of 2", "2 of 2"]),
        (
            ["all prompts", "mean score: 1 of 2", "mean score: 2 of 2"],
            "mean score",
            ["all prompts", "1 of 2", "2 of 2"],
        ),
        (["easy prompts", "hard prompts"], "group", ["easy prompts", "hard prompts"]),
        (
            [
                "prompts weighted by how near their mean score is to 0.25 or less (falling to zero at 0.5)",
                "prompts weighted smoothly by how near their mean score is to 0.75",
            ],
            "mean score near",
            ["0.25 or less", "0.75"],
        ),
        (["prompts whose topic is 'sums'"], "", ["topic: sums"]),
        (["all prompts"], "", ["all prompts"]),
    ],
)
def test_label_groups_moves_common_words_to_the_title(
    words: list[str], title: str, labels: list[str]
) -> None:
    assert label_groups(words) == (title, labels)


def test_label_groups_keeps_different_numbers_different() -> None:
    words = [f"prompts whose mean score is {place}" for place in ("below 0.12341", "at least 0.12349")]
    assert label_groups(words)[1] == ["below 0.1234", "at least 0.1235"]
    alike = [f"prompts whose mean score is {place}" for place in ("below 0.12341", "at least 0.12341")]
    assert label_groups(alike)[1] == ["below 0.123", "at least 0.123"]
    close = [f"place {place}" for place in ("0.123456789012", "0.123456789013")]
    assert label_groups(close) == ("place", ["0.123456789012", "0.123456789013"])


def test_label_groups_shortens_long_labels_and_keeps_them_different() -> None:
    words = [f"prompts whose topic is 'a name that goes on and on: {end} of the kind'" for end in "ab"]
    title, labels = label_groups(words)
    assert title == "topic"
    assert labels[0].startswith("a name that goes")
    assert labels[0].endswith("kind (1)")
    assert labels[1].endswith("kind (2)")
    assert max(map(len, labels)) <= LONGEST_LABEL + len(" (2)")


def test_to_single_line_removes_unprintable_characters() -> None:
    assert to_single_line(" a\nb\tc\x00d\ud800  ") == "a b c d"
    assert label_groups(["topic is 'a\nb'", "topic is 'c'"])[1] == ["'a b'", "'c'"]


def test_wrap_text_breaks_lines_between_words() -> None:
    room = estimate_width("one two")
    assert wrap_text("one two one two three", room) == "one two\none two\nthree"
    assert wrap_text("incomprehensibilities are long", room) == "incomprehensibilities\nare\nlong"
    assert not wrap_text("", room)


def test_estimate_width_is_an_upper_bound() -> None:
    signs = string.ascii_letters + string.digits + string.punctuation.replace("$", "") + " …—αéü"
    for sign in signs.replace(" ", ""):
        assert TextPath((0, 0), sign, size=FONT_SIZE).get_extents().width <= estimate_width(sign), sign
    rng = np.random.default_rng(0)
    for _ in range(repetitions(200, share=0.1)):
        text = "".join(rng.choice(list(signs), 12)).strip()
        assert TextPath((0, 0), text, size=FONT_SIZE).get_extents().width <= estimate_width(text), text
    # A bound that tells something: at most half as wide again for plain words.
    assert (
        estimate_width("at least half of them")
        < 1.5 * TextPath((0, 0), "at least half of them", size=FONT_SIZE).get_extents().width
    )
