from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError, SamplingWarning
from langchain_cfc.records import Candidate, PromptRecord, tabulate
from langchain_cfc.records.splits import SKETCH_SIZE, SplitPlan, digest_ids, digest_inputs, make_split_plan
from tests.lengths import repetitions

PLAN = make_split_plan(0, fit=0.25, test=0.3)
GOLDEN_PARTS = [
    "fit",
    "test",
    "calibration",
    "test",
    "calibration",
    "calibration",
    "test",
    "fit",
    "calibration",
    "calibration",
]
GOLDEN_CLUSTER_PARTS = [
    "fit",
    "fit",
    "test",
    "test",
    "calibration",
    "test",
    "calibration",
    "test",
    "test",
    "calibration",
]
GOLDEN_SKETCH = ("55711c4942c29d00", "9583e4e1460c85ab")
GOLDEN_DIGEST = "sha256:d332790baf490dead02bda4b57c699fc3b161a2f6744b2cfea4e2dfb5642cd6f"
NAMES = st.text(st.characters(), max_size=5)


def make_prompts(ids: list[str], clusters: list[str | None] | None = None) -> LabelledBatch:
    draws = CandidateBatch.from_arrays(np.full((len(ids), 1), 0.5))
    return LabelledBatch(
        draws, np.ones((len(ids), 1), dtype=np.bool_), tuple(ids), tuple(clusters or [None] * len(ids))
    )


def agrees_with_share(count: int, size: int, share: float) -> bool:
    """Whether a count is one that Binomial(size, share) gives: beyond are 1e-6 of its probability."""
    law = stats.binom(size, share)
    return bool(min(law.cdf(count), law.sf(count - 1)) > 5e-7)


def test_split_plan_parts_never_change_between_releases() -> None:
    # Written down once: with other hashes, artifacts saved before would not recognise their own records.
    assert [PLAN.find_part(f"p{row}", None) for row in range(10)] == GOLDEN_PARTS
    assert [PLAN.find_part("any", f"c{row}") for row in range(10)] == GOLDEN_CLUSTER_PARTS
    assert PLAN.compute_sketch(["p0", "p1"]) == GOLDEN_SKETCH
    assert digest_ids(["p0", "p1"]) == GOLDEN_DIGEST


def test_split_plan_gives_each_part_its_share() -> None:
    size = repetitions(20_000, share=0.4)
    parts = [PLAN.find_part(f"id {row}", None) for row in range(size)]
    assert agrees_with_share(parts.count("test"), size, 0.3)
    assert agrees_with_share(parts.count("fit"), size, 0.7 * 0.25)
    assert agrees_with_share(parts.count("calibration"), size, 0.7 * 0.75)
    assert not agrees_with_share(parts.count("fit"), size, 0.25)  # the share is that of what is not held out


@settings(derandomize=True)
@given(NAMES, NAMES, NAMES)
def test_split_plan_part_depends_on_the_cluster_or_else_the_id(one: str, other: str, cluster: str) -> None:
    assert PLAN.find_part(one, cluster) == PLAN.find_part(other, cluster)
    assert PLAN.find_part(one, None) == PLAN.find_part(one, None)


def test_split_plan_keeps_cluster_and_id_names_apart() -> None:
    names = [f"n{row}" for row in range(2000)]
    differ = sum(PLAN.find_part(name, None) != PLAN.find_part("x", name) for name in names)
    shares = np.array([0.3, 0.7 * 0.25, 0.7 * 0.75])
    assert agrees_with_share(differ, len(names), float(1.0 - shares @ shares))


def test_split_plan_with_another_seed_splits_independently() -> None:
    other = make_split_plan(1, fit=0.25, test=0.3)
    names = [f"n{row}" for row in range(2000)]
    both = sum(PLAN.find_part(name, None) == other.find_part(name, None) == "test" for name in names)
    assert agrees_with_share(both, len(names), 0.3 * 0.3)


def test_split_plan_share_of_zero_holds_no_prompt() -> None:
    names = [f"n{row}" for row in range(1000)]
    assert {make_split_plan(0, fit=0.0, test=0.0).find_part(name, None) for name in names} == {"calibration"}
    assert {make_split_plan(0, fit=0.5, test=0.0).find_part(name, None) for name in names} == {
        "fit",
        "calibration",
    }
    assert {make_split_plan(0, fit=0.0, test=0.5).find_part(name, None) for name in names} == {
        "test",
        "calibration",
    }


def test_split_plan_larger_share_only_adds_to_its_part() -> None:
    names = [f"n{row}" for row in range(1000)]

    def members(part: str, **shares: float) -> set[str]:
        plan = make_split_plan(0, **{"fit": 0.2, "test": 0.2, **shares})
        return {name for name in names if plan.find_part(name, None) == part}

    assert members("test") < members("test", test=0.3)
    assert members("fit") < members("fit", fit=0.3)
    assert members("test") == members("test", fit=0.9)


@settings(derandomize=True)
@given(
    st.lists(
        st.tuples(NAMES, st.none() | st.sampled_from("abc")), max_size=30, unique_by=lambda pair: pair[0]
    )
)
def test_split_plan_rows_are_an_ordered_partition(pairs: list[tuple[str, str | None]]) -> None:
    labelled = make_prompts([name for name, _ in pairs], [cluster for _, cluster in pairs])
    rows = PLAN.list_rows(labelled)
    assert list(rows) == ["fit", "calibration", "test"]
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(pairs)))
    for part, own in rows.items():
        assert (np.diff(own) > 0).all()
        assert all(PLAN.find_part(*pairs[row]) == part for row in own)


@settings(derandomize=True)
@given(
    st.lists(
        st.tuples(NAMES, st.none() | st.sampled_from("abc")), max_size=30, unique_by=lambda pair: pair[0]
    ),
    st.randoms(use_true_random=False),
)
def test_one_per_cluster_does_not_depend_on_order(pairs: list[tuple[str, str | None]], chance: Any) -> None:
    def chosen(order: list[tuple[str, str | None]]) -> set[tuple[str, str | None]]:
        rows = PLAN.select_one_per_cluster(
            make_prompts([name for name, _ in order], [cluster for _, cluster in order])
        )
        assert (np.diff(rows) > 0).all()
        return {order[row] for row in rows}

    found = chosen(pairs)
    clusters = [cluster for _, cluster in found if cluster is not None]
    assert sorted(clusters) == sorted({cluster for _, cluster in pairs if cluster is not None})
    assert {pair for pair in pairs if pair[1] is None} <= found
    assert chosen(chance.sample(pairs, len(pairs))) == found


def test_one_per_cluster_chooses_uniformly() -> None:
    labelled = make_prompts([f"p{row}" for row in range(4000)], [f"c{row // 4}" for row in range(4000)])
    places = (PLAN.select_one_per_cluster(labelled) % 4).tolist()
    assert all(agrees_with_share(places.count(place), 1000, 0.25) for place in range(4))
    other = make_split_plan(1, fit=0.25, test=0.3).select_one_per_cluster(labelled)
    assert agrees_with_share(int((other == PLAN.select_one_per_cluster(labelled)).sum()), 1000, 0.25)


def test_compute_sketch_keeps_the_smallest_hashes_and_no_id() -> None:
    ids = [f"id {row}" for row in range(1000)]
    sketch = PLAN.compute_sketch(ids)
    assert len(sketch) == SKETCH_SIZE == 256
    assert sketch == tuple(sorted(PLAN.compute_sketch([one])[0] for one in ids)[:256])
    assert sketch == PLAN.compute_sketch(reversed(ids))
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in sketch)
    assert PLAN.compute_sketch(ids[:3]) != make_split_plan(1, fit=0.25, test=0.3).compute_sketch(ids[:3])
    assert PLAN.compute_sketch([]) == ()


def test_has_overlap_finds_exactly_the_ids_of_the_sketch() -> None:
    ids = [f"id {row}" for row in range(1000)]
    sketch = PLAN.compute_sketch(ids)
    met = [one for one in ids if PLAN.has_overlap(sketch, [one])]
    assert len(met) == 256
    assert not PLAN.has_overlap(sketch, [f"new {row}" for row in range(1000)])
    assert PLAN.has_overlap(sketch, ["new", *ids])
    assert not PLAN.has_overlap(sketch, [])
    assert not make_split_plan(1, fit=0.25, test=0.3).has_overlap(sketch, ids)


def test_has_overlap_finds_a_shared_hundredth_as_often_as_stated() -> None:
    # A share p of the ids misses the sketch with probability about (1 - p)^256; here p = 0.01.
    ids = [f"id {row}" for row in range(10_000)]
    sketch = PLAN.compute_sketch(ids)
    missed = sum(not PLAN.has_overlap(sketch, ids[start::100]) for start in range(100))
    # The hundred shares are drawn without replacement: their misses vary less than independent ones.
    assert agrees_with_share(missed, 100, (1 - 0.01) ** 256)


def test_digest_ids_is_that_of_a_set() -> None:
    assert digest_ids(["a", "b", "c"]) == digest_ids(iter(["c", "a", "b"]))
    digests = {
        digest_ids(ids) for ids in ([], ["a"], ["b"], ["a", "b"], ["ab"], ["a", "b", "c"], ["a\nb"], [""])
    }
    assert len(digests) == 8
    assert all(len(one) == len("sha256:") + 64 for one in digests)


def test_split_plan_reads_seeds_as_text() -> None:
    assert make_split_plan(7, fit=0.1, test=0.1) == make_split_plan("7", fit=0.1, test=0.1)


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0, math.nan, math.inf, "much"])
@pytest.mark.parametrize("name", ["fit", "test"])
def test_split_plan_refuses_invalid_shares(name: str, share: Any) -> None:
    with pytest.raises(InputError, match=r"shares in \[0, 1\)"):
        make_split_plan(0, **{"fit": 0.1, "test": 0.1, name: share})


def test_split_plan_survives_json_and_refuses_invalid_data() -> None:
    assert SplitPlan.model_validate_json(PLAN.model_dump_json()) == PLAN
    for wrong in ({"seed": 0}, {"fit": 1.0}, {"surprise": 1}):
        with pytest.raises(ValueError, match="validation error"):
            SplitPlan.model_validate({**PLAN.model_dump(), **wrong})


def test_split_plan_accepts_names_with_lone_surrogates() -> None:
    # Half of a surrogate pair is no Unicode text, but reaches Python through file names and escapes.
    assert PLAN.find_part("\ud800", None) in {"fit", "calibration", "test"}
    assert digest_ids(["\ud800"]) != digest_ids(["\ud801"])


def make_record(name: str, asked: Any, cluster: str | None = None) -> PromptRecord:
    candidates = (Candidate(text="a", score=0.5, correct=True),)
    return PromptRecord(id=name, input=asked, cluster=cluster, candidates=candidates)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Capital of Peru?", "  Capital  of\nPeru?\u00a0", True),
        ({"q": "a ", "k": 1}, {"k": 1, "q": "a"}, True),
        (
            [{"role": "user", "content": "a", "id": "m1"}],
            [{"content": "a", "role": "user", "id": "m2"}],
            True,
        ),
        ({"id": "1", "q": "a"}, {"id": "2", "q": "a"}, False),
        ("Capital of Peru?", "capital of Peru?", False),
        ("a b", "ab", False),
        (["a"], "a", False),
        ([{"content": "a"}, {"content": "b"}], [{"content": "b"}, {"content": "a"}], False),
    ],
)
def test_digest_inputs_is_equal_for_inputs_that_say_the_same(one: Any, other: Any, same: bool) -> None:
    first, second = digest_inputs([one, other]).tolist()
    assert (first == second) == same


def test_tabulate_makes_one_cluster_of_repeated_inputs() -> None:
    records = [
        make_record("a", "Who?"),
        make_record("b", "Who? "),
        make_record("c", "When?"),
        make_record("d", "Where?"),
        make_record("e", " Where?", "x"),
        make_record("f", "Why?", "y"),
        make_record("g", "Why?", "z"),
    ]
    with pytest.warns(SamplingWarning, match="3 of 7 prompts .* are 2 distinct prompts"):
        table = tabulate(records)
    first, second, *others = table.clusters
    assert first == second is not None
    # Named clusters are the user's choice: "f" and "g" stay apart.
    assert others == [None, "x", "x", "y", "z"]
    assert len(PLAN.select_one_per_cluster(table)) == 5
    with pytest.warns(SamplingWarning):
        assert set(tabulate(records[::-1]).clusters) == set(table.clusters)
    assert tabulate(table).clusters == table.clusters  # without a second warning
