"""Reports that tests share."""

from __future__ import annotations

import pytest

from integrations.lab.tests.report.cases import Case, make_case, make_hostile_answers, make_hostile_records
from langchain_cfc.demo import ALPHA, FEATURES, SET_RULE, TEST_FRACTION, load_recording

HOSTILE_FEATURES = "mean_score + group(topic)"


@pytest.fixture(scope="session")
def facts() -> Case:
    """The recording that ships, as the demo calibrates it."""
    source = load_recording()
    return make_case(
        list(source),
        alpha=ALPHA,
        features=FEATURES,
        set_rule=SET_RULE,
        test_fraction=TEST_FRACTION,
        provenance=source.provenance,
    )


@pytest.fixture(scope="session")
def bot() -> Case:
    """The same with a bot beside the sets."""
    source = load_recording()
    return make_case(
        list(source),
        alpha=["0.2", "0.3"],
        features="mean_score",
        set_rule=SET_RULE,
        max_wrong_rate="0.1",
        provenance=source.provenance,
    )


@pytest.fixture(scope="session")
def hostile() -> Case:
    return make_case(make_hostile_records(), features=HOSTILE_FEATURES)


@pytest.fixture(scope="session")
def claims() -> Case:
    return make_case(make_hostile_answers(), unit="claims", at_most=1, features=HOSTILE_FEATURES)
