"""Readable names of groups."""

from __future__ import annotations

import pytest

from langchain_cfc.features import FeatureMap, name_group, place_question
from langchain_cfc.features.naming import DIFFICULTIES
from langchain_cfc.records import tabulate
from tests.recordings import list_facts


def list_group_names(text: str) -> list[str]:
    fitted = FeatureMap.parse(text).fit(tabulate(list_facts()).draws)
    return [name_group(one.words, one.name) for one in fitted.list_guaranteed_weights()]


@pytest.mark.parametrize("text", ["hat(mean_score, 5)", "bins(mean_score, 5)", "mean_score^4"])
def test_name_group_goes_from_very_easy_to_very_hard(text: str) -> None:
    assert list_group_names(text) == ["all prompts", *(f"{one} questions" for one in DIFFICULTIES)]


def test_name_group_reverses_names_of_a_falling_statistic() -> None:
    named = list_group_names("bins(top_share, 2)")
    assert named[1:] == ["hard questions (by top share)", "easy questions (by top share)"]


def test_name_group_names_topics_and_numbers_more_than_five_groups() -> None:
    assert "topic: capital" in list_group_names("group(topic)")
    named = list_group_names("hat(mean_score, 7)")
    assert len(set(named)) == 8
    assert all("mean score near" in one for one in named[1:])


def test_name_group_keeps_the_order_of_merged_groups() -> None:
    places = [
        DIFFICULTIES.index(one.split(" questions")[0])
        for one in list_group_names("hat(distinct_answers, 5)")[1:]
    ]
    assert places == sorted(set(places))
    assert (places[0], places[-1]) == (0, len(DIFFICULTIES) - 1)


def test_place_question_follows_the_features() -> None:
    assert place_question(
        {"hat(mean_score, 3)[0]": 0.0, "hat(mean_score, 3)[1]": 0.1, "hat(mean_score, 3)[2]": 0.9}
    ) == ("very hard")
    assert place_question({"hard(entropy, 0.9)=easy": 1.0, "hard(entropy, 0.9)=hard": 0.0}) == "easy"
    assert place_question({"group(topic)=capital": 1.0}) is None
