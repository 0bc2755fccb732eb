"""The table of a store equals the table of its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_cfc_collect import Store

from langchain_cfc import Candidate, PromptRecord, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import StoreError
from langchain_cfc.records import Example, Provenance, tabulate

N = 3
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@st.composite
def candidates(draw: st.DrawFn, *, extracted: bool) -> Candidate:
    content: dict[str, Any] = (
        {"text": draw(TEXTS)} if draw(st.booleans()) else {"message": {"name": draw(TEXTS), "args": {}}}
    )
    return Candidate(
        **content,
        score=draw(st.floats(0, 1)),
        correct=draw(st.booleans()),
        answer=draw(TEXTS) if extracted else None,
        scores={"judge": draw(st.floats(-9, 9)), "other": 1.0},
    )


@st.composite
def datasets(draw: st.DrawFn) -> list[PromptRecord]:
    extracted = draw(st.booleans())
    several = st.lists(candidates(extracted=extracted), min_size=N, max_size=N)
    return [
        PromptRecord(
            id=str(number),
            input=draw(TEXTS),
            metadata=draw(st.dictionaries(TEXTS, TEXTS | st.booleans() | st.floats(-9, 9), max_size=2)),
            cluster=draw(st.none() | st.just("c")),
            candidates=tuple(draw(several)),
        )
        for number in range(draw(st.integers(1, 9)))
    ]


def assert_equal(one: LabelledBatch, other: LabelledBatch) -> None:
    assert (one.ids, one.clusters, one.extracted) == (other.ids, other.clusters, other.extracted)
    assert [dict(row) for row in one.draws.metadata] == [dict(row) for row in other.draws.metadata]
    for name in ("scores", "answer_codes", "lengths"):
        np.testing.assert_array_equal(getattr(one.draws, name), getattr(other.draws, name))
    np.testing.assert_array_equal(one.correct, other.correct)


@pytest.mark.long
@given(records=datasets())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_store_table_equals_the_table_of_its_records(
    records: list[PromptRecord], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        pytest.MonkeyPatch.context() as patched,
        Store(tmp_path_factory.mktemp("store") / "s.db", create=True) as store,
    ):
        # Several pages, the last one not full.
        patched.setattr("langchain_cfc_collect.store.store._TABLE_PAGE_SIZE", 4)
        store.add_records(records, Provenance(n=N))
        assert list(store.read_records()) == records
        assert_equal(store.tabulate(), tabulate(records))


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")  # of hard prompts
def test_calibrate_gives_the_same_artifact_from_store_and_file(tmp_path: Path) -> None:
    source = load_recording()
    records = list(source)[:200]
    with Store(tmp_path / "s.db", create=True) as store:
        store.add_records(records, source.provenance)
        made = calibrate(store.tabulate(), alpha=0.3, provenance=store.read_provenance())
    read = calibrate(records, alpha=0.3, provenance=source.provenance)
    assert made.model_copy(update={"created_at": read.created_at}).digest == read.digest


def test_store_table_requires_a_finished_prompt(tmp_path: Path) -> None:
    record = next(iter(load_recording()))
    with Store(tmp_path / "s.db", create=True) as store:
        with pytest.raises(StoreError, match="nothing has been collected"):
            store.tabulate()
        store.set_configuration({"n": 10})
        store.add([Example(id="open", input="?")])
        with pytest.raises(StoreError, match="is finished yet"):
            store.tabulate()
        store.add_records([record], Provenance(n=10))
        assert store.tabulate().ids == (record.id,)
