from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.decision import decide
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import evaluate
from langchain_cfc.records import tabulate
from tests.artifact.files import make_records
from tests.lengths import mostly_long

LEVELS = ("0.1", "0.2", "0.3", "0.5")

# Groups of a few prompts cannot certify the smallest level.
pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@mostly_long("seed", range(5), quick=1)
def test_accepted_sets_are_nested_across_levels_though_thresholds_cross(seed: int) -> None:
    artifact = calibrate(
        make_records(seed, 60), alpha=LEVELS, features="mean_score^3 + group(topic)", allow_unattainable=True
    )
    draws = tabulate(make_records(seed + 100, 200)).draws
    features = artifact.feature_map.transform(draws)
    raw = [artifact._rules[level].solve(features).values for level in LEVELS]
    # The rules at two levels cross for some prompts, or there would be nothing to show.
    assert any((high < low).any() for high, low in pairwise(raw))
    served = [decide(artifact, draws, level) for level in LEVELS]
    for strict, loose in pairwise(served):
        assert (strict.thresholds >= loose.thresholds).all()
        assert (strict.not_certifiable >= loose.not_certifiable).all()
        assert (strict.accepted >= (loose.accepted & ~strict.not_certifiable[:, None])).all()
    # The running maximum and nothing more: the largest alpha is served as it is, the others no larger than
    # needed.
    for place in range(len(LEVELS)):
        np.testing.assert_array_equal(served[place].thresholds, np.max(raw[place:], axis=0))


def test_level_may_be_omitted_only_if_the_artifact_has_one() -> None:
    one = calibrate(make_records(0, 60), alpha=0.2, features="1")
    assert one.select_level() == one.select_level("0.20") == one.select_level(0.2) == "0.2"
    several = calibrate(make_records(0, 60), alpha=[0.3, "0.10"], features="1", allow_unattainable=True)
    assert several.alphas == ("0.1", "0.3")
    assert several.select_level(0.1) == "0.1"
    with pytest.raises(InputError, match=r"\(alpha=0\.1, alpha=0\.3\): name one as alpha=0.1$"):
        several.select_level()
    # Levels of any kind are named as `alpha` where prompts are measured.
    bots = calibrate(make_records(0, 60), max_wrong_of_all=[0.3, 0.2], features="1", allow_unattainable=True)
    with pytest.raises(InputError, match=r"max_wrong_of_all=0\.3\): name one as alpha=0\.2$"):
        evaluate(bots, make_records(1, 60))
    with pytest.raises(InputError, match="several promises"):
        several.make_guarantee()


def test_refused_level_names_levels_alone_and_a_level_excludes_a_rate() -> None:
    both = calibrate(
        make_records(0, 300), alpha=[0.2, 0.3], max_wrong_rate=0.6, features="1", allow_unattainable=True
    )
    with pytest.raises(InputError, match=r"several promises \(alpha=0\.2, alpha=0\.3\)"):
        both.select_level()  # a rate is no level
    with pytest.raises(InputError, match=r"not calibrated at alpha = 0\.25; it holds alpha=0\.2, alpha=0\.3"):
        both.select_level("0.25")
    with pytest.raises(InputError, match=r"several promises \(max_wrong_rate=0\.6, alpha=0\.2"):
        both.select_promise()
    assert both.make_guarantee(max_wrong_rate=0.6).kind == "certified"
    with pytest.raises(InputError, match=r"alpha = 0\.3 and max_wrong_rate = 0\.6 are different promises"):
        both.make_guarantee("0.3", max_wrong_rate="0.6")
    with pytest.raises(InputError, match=r"alpha = 0\.3 and max_wrong_rate = 0\.6 are different promises"):
        both.make_guarantee(max_wrong_rate="0.6", stated_alpha="0.3")


@pytest.mark.parametrize("alpha", [0.15, "0.25", "0.2000001"])
def test_solve_refuses_a_level_not_held_and_lists_those_held(
    alpha: float | str, artifact: CalibrationArtifact
) -> None:
    features = np.zeros((1, artifact.feature_map.dimension))
    with pytest.raises(InputError, match=r"not calibrated at alpha = .* it holds alpha=0\.2, alpha=0\.3"):
        artifact.solve(features, alpha)


def test_solve_refuses_features_of_another_dimension(artifact: CalibrationArtifact) -> None:
    with pytest.raises(InputError, match="features"):
        artifact.solve(np.zeros((1, artifact.feature_map.dimension + 1)), "0.2")
