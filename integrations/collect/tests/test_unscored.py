"""One odd draw of ten in `collect`: stored with its kind, counted with its cure, and calibrated."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_collect import CollectionOptions, Components, collect
from langchain_cfc_collect.status import CollectionStatus
from langchain_cfc_collect.store import Store
from langchain_core.runnables import RunnableLambda

from integrations.collect.tests.sharing import tabulate_store
from langchain_cfc import read_records
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.no_answers import NoAnswer
from langchain_cfc.records import Example, PromptRecord, tabulate, write_records
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.verifiers import SequenceProbability
from tests.cli.running import run
from tests.sampling.no_answer_server import ANSWER, PERIOD, Reply, make_choice, serve_odd_reply

SIZE = 4
EXAMPLES = [
    Example(id=str(number), input=f"Capital of Peru {number}?", reference=ANSWER) for number in range(SIZE)
]


def collect_records(path: Path, reply: Reply, verifier: Any) -> list[PromptRecord]:
    """Collect with one odd draw of ten, and return the records that the store holds."""
    with serve_odd_reply(reply) as model:
        components = Components(generator=model, verifier=verifier, labeler=NormalisedMatch(), n=PERIOD)
        ended = collect(EXAMPLES, components, path / "store.db", CollectionOptions())
    assert (ended.status.labelled, ended.status.failed) == (SIZE, 0)
    with Store(path / "store.db") as store:
        write_records(path / "records.jsonl", store.read_all(), store.read_provenance())
    return list(read_records(path / "records.jsonl"))


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("filtered", make_choice(None, "content_filter")),
        ("cut_off", make_choice("The capital of Peru is", "length")),
        ("refused", make_choice(None, refusal="I cannot say")),
        ("blank", make_choice("\u200b")),
    ],
)
def test_collect_keeps_questions_with_one_draw_that_is_no_answer(
    tmp_path: Path, kind: NoAnswer, reply: Reply
) -> None:
    records = collect_records(tmp_path, reply, SequenceProbability())
    odd = [one for record in records for one in record.candidates if one.no_answer is not None]
    assert [(one.text, one.score, one.correct, one.no_answer) for one in odd] == [
        ("", 1.0, False, kind)
    ] * SIZE
    with Store(tmp_path / "store.db") as store:
        counted = CollectionStatus.from_store(store)
        assert (counted.unscored, counted.drawn) == ({kind: SIZE}, SIZE * PERIOD)
        table = tabulate_store(store)
    blank = table.draws.blank
    assert blank is not None
    assert (blank.sum(), table.correct.sum()) == (SIZE, SIZE * (PERIOD - 1))


def test_collect_stores_candidates_without_a_verdict(tmp_path: Path) -> None:
    def judge(_: Any, candidates: list[DrawnCandidate]) -> list[float | None]:
        return [0.5] * (len(candidates) - 1) + [None]

    judge.fingerprint = {"id": "last-missing"}  # type: ignore[attr-defined]  # as a part may say
    records = collect_records(tmp_path, make_choice(ANSWER), judge)
    assert [record.candidates[-1].no_verdict for record in records] == [True] * SIZE
    assert {record.candidates[-1].score for record in records} == {1.0}
    with Store(tmp_path / "store.db") as store:
        assert CollectionStatus.from_store(store).unscored == {"no_verdict": SIZE}
    assert np.isinf(parse_set_rule("all").compute_levels(tabulate(records).draws)[:, -1]).all()
    assert np.isfinite(parse_set_rule("all").compute_levels(tabulate(records).draws)[:, :-1]).all()


@pytest.mark.parametrize("of_claims", [False, True])
def test_labels_that_cannot_be_read_are_counted_and_count_as_wrong(tmp_path: Path, of_claims: bool) -> None:
    components = Components(
        RunnableLambda(lambda _: "Lima is large. It is old."),
        verifier=lambda _, drawn: [0.5] * len(drawn),
        labeler=lambda _, __, drawn: [None, *[True] * (len(drawn) - 1)],
        n=1 if of_claims else 3,
        unit="claims" if of_claims else "answers",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # functions without ids, one text in all draws
        ended = collect(EXAMPLES, components, tmp_path / "store.db", CollectionOptions())
    each = 2 if of_claims else 3
    assert tuple(ended.status.candidates) == (SIZE, SIZE * (each - 1))
    with Store(tmp_path / "store.db") as store:
        store.check()
        assert CollectionStatus.from_store(store).unscored == {"no_label": SIZE}
        stored, provenance = tabulate_store(store), store.read_provenance()
        assert (~stored.correct).sum() == SIZE
        written = list(store.read_all())
    assert "without a readable label and count as wrong" in run("store", "status", tmp_path / "store.db").out
    write_records(tmp_path / "records.jsonl", written, provenance)
    records = list(read_records(tmp_path / "records.jsonl").read_all())
    assert records == written
    assert sum(record.model_dump_json().count('"no_label":true') for record in records) == SIZE
    table = tabulate(records, claims=of_claims)
    assert (table.correct == stored.correct).all()


def test_status_names_the_cure_of_what_is_no_answer(tmp_path: Path) -> None:
    collect_records(tmp_path, make_choice("The capital", "length"), SequenceProbability())
    shown = " ".join(run("store", "status", tmp_path / "store.db").out.split())
    assert f"{SIZE} of {SIZE * PERIOD} candidates were cut off: raise max_tokens" in shown
    found = run("store", "status", tmp_path / "store.db", "--json").data
    assert found["unscored"] == {"counts": {"cut_off": SIZE}, "total": SIZE * PERIOD}
