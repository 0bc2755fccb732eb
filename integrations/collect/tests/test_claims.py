"""Collections of claims: splitting, scoring, labelling, and serving of the result."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_collect import CollectionResult, Components, Store, collect
from langchain_cfc_collect.calibrating import calibrate_chain
from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.executor import Executor
from langchain_cfc_collect.status import CollectionStatus
from langchain_cfc_collect.store.calls import read_stages
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage

from integrations.collect.tests.claiming import (
    IDS,
    Claiming,
    count_lines,
    find_lines,
    make_examples,
    make_parts,
    score_text,
    write_answer,
)
from integrations.collect.tests.sharing import (
    execute_sql,
    make_recorded_model,
    make_silent_options,
    tabulate_store,
)
from langchain_cfc import CFCRunnable, calibrate
from langchain_cfc.claims import ModelSplitter, SentenceSplitter, Span
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import InputError, StoreError
from langchain_cfc.records import read_records, write_records
from langchain_cfc.runnable import ClaimsResult
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import ClaimAgreement, SequenceProbability
from tests.concurrency import wait_until
from tests.lengths import repetitions
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

SIZE = 12
PROMPTS = [f"question {number}" for number in range(SIZE)]
CLAIMING = [prompt for prompt in PROMPTS if count_lines(prompt)]


def collect_claims(path: Path, parts: Components, size: int = SIZE, **options: Any) -> CollectionResult:
    return collect(make_examples(size), parts, path, make_silent_options(**options))


# Collecting, calibrating and serving


def test_collect_claims_scores_and_labels_each_claim_once(path: Path) -> None:
    claiming = Claiming()
    ended = collect_claims(path, make_parts(claiming))
    assert ended.complete
    with Store(path) as store:
        records, header, seen = (
            list(store.read_claims()),
            store.read_provenance(),
            CollectionStatus.from_store(store),
        )
        store.check()
    assert (header.unit, header.n, header.splitter) == ("claims", 1, {"id": "lines"})
    assert [one.input for one in records] == CLAIMING
    for record in records:
        assert record.answer == write_answer(str(record.input))
        lines = find_lines(record.answer)
        assert [(one.start, one.end) for one in record.claims] == [(one.start, one.end) for one in lines]
        for claim in record.claims:
            assert claim.text == record.answer[claim.start : claim.end]
            assert (claim.score, claim.supported) == (score_text(claim.text), "right" in claim.text)
    # An answer that claims nothing is drawn and split, and that is all.
    assert claiming.count("draw") == claiming.count("split") == SIZE
    assert claiming.count("score") == claiming.count("label") == len(CLAIMING)
    claims = [claim for record in records for claim in record.claims]
    for status in (ended.status, seen):
        assert (status.unit, status.labelled, status.without_claims) == ("claims", SIZE, SIZE - len(CLAIMING))
        assert sum(status.candidates) == len(claims)
        assert status.supported == np.mean([one.supported for one in claims])
        assert status.mean_scores[True] == pytest.approx(
            np.mean([one.score for one in claims if one.supported])
        )
    collect_claims(path, make_parts(claiming))
    assert set(claiming.asked.values()) == {1, SIZE - len(CLAIMING)}


def test_claims_that_were_not_found_are_collected_served_and_replayed_alike(path: Path) -> None:
    claiming = Claiming()

    def split(answer: str) -> list[Span]:
        return [Span(None, None, "Trams ring rightly."), *find_lines(answer)] if answer != "..." else []

    collect_claims(path, make_parts(claiming, splitter=split), 60)
    with Store(path) as store:
        store.check()
        records, header = list(store.read_claims()), store.read_provenance()
        seen = CollectionStatus.from_store(store)
    assert (seen.unscored, seen.no_answers.total()) == ({"not_located": claiming.count("score")}, 0)
    artifact = calibrate(records, unit="claims", at_most=1, alpha=0.2, features="1", provenance=header)
    write_records(copy := path.with_name("copy.jsonl"), records, header)
    parts = {
        "generator": claiming.generate,
        "verifier": claiming.verify,
        "splitter": split,
        "output": "claims",
        **IDS,
    }
    chains = [
        CFCRunnable(artifact=artifact, show_rejected=True, **given)
        for given in (parts, make_replay_parts(read_records(copy)))
    ]
    for record in records:
        invented = record.claims[-1]
        # The labeler is not asked about it, although it would say that the claim is supported.
        assert (invented.text, invented.start, invented.end) == ("Trams ring rightly.", None, None)
        assert (invented.score, invented.supported, invented.no_verdict) == (1.0, False, True)
        for result in (chain.invoke(record.input) for chain in chains):
            assert isinstance(result, ClaimsResult)
            assert result.guarantee.binding == "matched"
            assert [(one.text, one.start, one.end, one.score) for one in result.claims] == [
                (one.text, one.start, one.end, one.score) for one in record.claims
            ]
            assert not result.claims[-1].kept


def test_token_probabilities_of_claims_survive_a_later_run(path: Path) -> None:
    script = Script({prompt: [Answer("One is right. Two is wrong.", -0.5)] for prompt in PROMPTS})
    with serving(script) as url:
        model = make_recorded_model(url)
        parts = make_parts(
            Claiming(),
            generator=model,
            verifier=SequenceProbability(per_token=True),
            splitter=None,
            generator_id=None,
            verifier_id=None,
            splitter_id=None,
        )
        broken = Claiming(broken={("label", prompt): ValueError("not today") for prompt in PROMPTS[1:]})
        failing = Components(**{**vars(parts), "labeler": broken.label})
        assert collect_claims(path, failing).status.failed == SIZE - 1
        # What is labelled now was drawn by an earlier run.
        assert collect_claims(path, parts, retry_failed=True).status.labelled == SIZE
    with Store(path) as store:
        records, header = list(store.read_claims()), store.read_provenance()
    assert header.splitter == compute_fingerprint(SentenceSplitter())
    assert [one.text for one in records[1].claims] == ["One is right.", "Two is wrong."]
    assert 0.0 < records[1].claims[0].score < 1.0


def test_claim_agreement_verifier_receives_the_other_answers(path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def entails(_: str, premise: str, hypothesis: str) -> bool:
        asked.append((premise, hypothesis))
        return hypothesis in premise

    model = FakeListChatModel(responses=["Lima is a city. It is big.", "Lima is a city.", "It is small."])
    parts = make_parts(
        Claiming(),
        generator=model,
        verifier=ClaimAgreement(entails),
        splitter=None,
        n=3,
        verifier_id="agreement",
        splitter_id=None,
    )
    collect_claims(path, parts, 1)
    with Store(path) as store:
        assert not store.read_failures()
        (record,), header = list(store.read_claims()), store.read_provenance()
    assert header.n == 3
    # Which request gets which answer is up to the threads.
    others = {premise for premise, _ in asked}
    assert len(others) == 2
    assert record.answer not in others
    for claim in record.claims:
        assert claim.score == 1.0 - np.mean([claim.text in one for one in others])


def test_claims_keep_the_scores_of_several_verifiers(path: Path) -> None:
    claiming = Claiming()

    verifiers = {
        "hash": claiming.verify,
        "length": lambda _, candidates: [len(one.text) / 100 for one in candidates],
    }
    collect_claims(path, make_parts(claiming, verifier=verifiers))
    with Store(path) as store:
        (record, *_), table = list(store.read_claims()), tabulate_store(store)
    for claim in record.claims:
        assert claim.scores is not None
        assert set(claim.scores) == {"hash", "length"}
        assert claim.scores["length"] == len(claim.text) / 100
        assert claim.score == pytest.approx(sum(claim.scores.values()) / 2)
    assert table.draws.scores[0, : len(record.claims)].tolist() == [one.score for one in record.claims]


# Failures, retries and relabelling


@pytest.mark.parametrize(
    ("part", "kept"), [("draw", Stage.OPEN), ("split", Stage.DRAWN), ("score", Stage.DRAWN)]
)
def test_retrying_failed_claims_repeats_only_the_failed_stage(path: Path, part: str, kept: Stage) -> None:
    claiming = Claiming(broken={(part, "question 2"): ValueError("not today")})
    ended = collect_claims(path, make_parts(claiming))
    assert (ended.status.failed, ended.status.labelled) == (1, SIZE - 1)
    with Store(path) as store:
        (failure,) = store.read_failures()
        assert (failure.id, failure.stage) == ("p2", kept + 1)
        assert "not today" in failure.error
    claiming.broken = {}
    assert collect_claims(path, make_parts(claiming), retry_failed=True).status.labelled == SIZE
    twice = {one for one, count in claiming.asked.items() if count == 2 and one[1] != "none"}
    assert twice == {(part, "question 2")}


def test_unstorable_claim_fails_its_prompt(path: Path) -> None:
    def split(answer: str) -> list[Span]:
        return [Span(0, len(answer), "half \ud83d" if " of 3 is" in answer else None)]

    ended = collect_claims(path, make_parts(Claiming(), splitter=split))
    assert ended.status.failed == 1
    with Store(path) as store:
        assert store.read_failures()[0].error.startswith("CollectionError: a claim cannot be stored")


def test_splitter_tokens_are_counted_but_not_as_a_drawing_model(path: Path) -> None:
    reply = AIMessage(
        "It is right || right",
        usage_metadata={"input_tokens": 20, "output_tokens": 5, "total_tokens": 25},
        response_metadata={"model_name": "lister"},
    )
    # One answer in three makes claims.
    contents = ["none" if number % 3 else reply.content for number in range(SIZE)]
    model = GenericFakeChatModel(messages=iter(reply.model_copy(update={"content": one}) for one in contents))
    parts = make_parts(Claiming(), splitter=ModelSplitter(model), splitter_id=None)
    ended = collect_claims(path, parts)
    assert (ended.complete, ended.status.failed, ended.status.unanswered) == (True, 0, 0)
    with Store(path) as store:
        assert store.read_models() == []
        with store.begin_read() as connection:
            assert {stage for stage, usage, _ in read_stages(connection) if usage} == {Stage.SCORED}
        assert store.read_usage().tokens == ended.status.usage.tokens == 25 * SIZE
        assert {one.text for record in store.read_claims() for one in record.claims} == {"It is right"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"unit": "answers"}, "splitter has no meaning with unit='answers'"),
        ({"unit": "answers", "splitter": None}, "splitter_id has no meaning with unit='answers'"),
        ({"answer": str.strip}, "answer has no meaning with unit='claims'"),
        ({"unit": "sentences"}, "unit is 'sentences'; expected 'answers' or 'claims'"),
        ({"sampling": "many"}, "sampling is 'many'; expected 'requests' or 'single_request'"),
        ({"reasoning": None}, "reasoning is None; expected"),
        ({"labeler_id": 5}, "labeler_id is 5; expected a name"),
    ],
)
def test_executor_refuses_wrong_options_before_anything_is_paid_for(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Executor(make_parts(Claiming(), **fields))


def test_store_refuses_to_mix_claims_and_answers(path: Path, tmp_path: Path) -> None:
    claiming = Claiming()
    whole = make_parts(claiming, unit="answers", splitter=None, splitter_id=None)
    collect_claims(path, make_parts(claiming))
    with pytest.raises(StoreError, match="unit was 'claims' and is now None"):
        collect_claims(path, whole)
    with pytest.raises(StoreError, match=r"splitter\.id was 'lines' and is now 'other'"):
        collect_claims(path, make_parts(claiming, splitter_id="other"))
    other = tmp_path / "whole.db"
    collect_claims(other, whole)
    with pytest.raises(StoreError, match="unit was None and is now 'claims'"):
        collect_claims(other, make_parts(claiming))
    with Store(other) as store, pytest.raises(InputError, match="records with the claims of one answer"):
        next(store.read_claims())


DAMAGED_CLAIMS = [
    "UPDATE prompts SET claims = replace(claims, 'line', 'Line')",
    "UPDATE prompts SET claims = (SELECT claims FROM prompts WHERE position = 2) WHERE position = 1",
    "UPDATE prompts SET draws = replace(draws, 'line', 'Line') WHERE position = 1",
]
DAMAGED_LABELS = "UPDATE prompts SET labels = replace(labels, 'true', 'false') WHERE position = 3"


@pytest.mark.parametrize(
    ("damage", "stage"),
    [*((one, stage) for stage in ("label", None) for one in DAMAGED_CLAIMS), (DAMAGED_LABELS, None)],
)
def test_store_check_finds_damaged_claims(path: Path, damage: str, stage: str | None) -> None:
    claiming = Claiming()
    if stage:
        claiming.broken = {(stage, prompt): ValueError("not today") for prompt in CLAIMING[1:]}
    collect_claims(path, make_parts(claiming))
    with Store(path) as store:
        store.check()
    execute_sql(path, damage)
    with Store(path) as store, pytest.raises(StoreError, match="damaged"):
        store.check()


@pytest.mark.parametrize(
    ("labels", "size", "message"),
    [
        (False, 25, "first 20 prompts has a supported claim"),
        (None, 130, "separate supported from unsupported"),
    ],
)
def test_collection_notices_warn_of_claims_that_will_not_calibrate(
    path: Path, labels: bool | None, size: int, message: str
) -> None:
    notices: list[str] = []

    def label(_: str, __: Any, candidates: list[Any]) -> list[bool]:
        return ["right" in one.text if labels is None else labels for one in candidates]

    parts = make_parts(Claiming(), labeler=label, verifier=lambda _, candidates: [0.5] * len(candidates))
    collect_claims(path, parts, size, on_notice=notices.append)
    assert any(message in one for one in notices), notices


def test_calibrate_chain_calibrates_claims(tmp_path: Path) -> None:
    claiming = Claiming()
    ids: dict[str, Any] = dict(IDS)
    artifact, report = calibrate_chain(
        claiming.generate,
        make_examples(80),
        verifier=claiming.verify,
        labeler=claiming.label,
        splitter=claiming.split,
        store=tmp_path / "claims.db",
        collection=make_silent_options(),
        unit="claims",
        at_most=1,
        alpha=0.2,
        features="1",
        **ids,
    )
    assert (artifact.unit, artifact.n) == ("claims", 1)
    assert report.methods["conditional"].claims is not None


# Kills


SCRIPT = """
import sys, time
from pathlib import Path
from langchain_cfc_collect import CallPolicy, collect
from integrations.collect.tests.claiming import Claiming, make_examples, make_parts
from integrations.collect.tests.sharing import make_silent_options

store, log, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def note(part, prompt):
    with log.open("a") as file:
        file.write(f"{part} {prompt}\\n")
    time.sleep(0.004)

options = make_silent_options(call_policy=CallPolicy(concurrency=3))
collect(make_examples(size), make_parts(Claiming(note=note)), store, options)
"""


@pytest.mark.long
def test_killed_claim_collection_repeats_only_calls_in_flight(path: Path, tmp_path: Path) -> None:
    size, kills, chance = 40, repetitions(12, 0.5), random.Random(4)  # noqa: S311 - moments, no secrets
    log = tmp_path / "log"
    log.touch()

    def count() -> int:
        return len(log.read_text().splitlines())

    killed = 0
    while True:
        until = count() + chance.randrange(1, 25)
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, path, log, str(size)])
        if killed == kills:
            assert process.wait() == 0
            break
        wait_until(lambda: process.poll() is not None or count() >= until)  # noqa: B023 - it is over by the next
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
    asked = Counter(log.read_text().splitlines())
    claiming = [number for number in range(size) if count_lines(f"question {number}")]
    expected = {f"{part} question {number}" for part in ("split", "score", "label") for number in claiming}
    expected |= {f"draw question {number}" for number in range(size)} | {"split none"}
    assert set(asked) == expected
    # At each of three places, a call may run while the stage that the one before it ended is being committed.
    assert asked.total() - (2 * size + 2 * len(claiming)) <= 2 * 3 * killed
    with Store(path) as store:
        store.check()
        assert [one.input for one in store.read_claims()] == [f"question {number}" for number in claiming]
