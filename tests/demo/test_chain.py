"""`demo_chain`: the recording as a chain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from langchain_cfc import CFCRunnable, PromptRecord, calibrate
from langchain_cfc.artifact import tabulate_draws
from langchain_cfc.demo import demo_chain, load_recording, run_demo
from langchain_cfc.errors import ArtifactFormatError, DrawError, FingerprintError
from tests.recordings import list_facts


@pytest.fixture(scope="module")
def chain() -> CFCRunnable:
    """One threshold for all questions."""
    source = load_recording()
    return demo_chain(calibrate(source, alpha="0.4", features="1"))


@pytest.mark.long
def test_demo_chain_answers_as_the_demo_did(tmp_path: Path) -> None:
    demo, path = run_demo("0", tmp_path / "artifact.json"), tmp_path / "bot.json"
    for artifact in (path, str(path), demo.bot):
        chain = demo_chain(artifact, max_wrong_rate=0.05)
        for record, result in demo.served[:5]:
            again = chain.invoke(record.input)
            assert (again.answers, again.reason) == (result.answers, result.reason)
            assert again.guarantee == result.guarantee


def test_demo_chain_batch_returns_the_answers_of_invoke(chain: CFCRunnable) -> None:
    prompts = [record.input for record in list_facts()[:8]]
    expected = [chain.invoke(prompt).answers for prompt in prompts]
    assert len({tuple(answers) for answers in expected}) > 4
    assert [one.answers for one in chain.batch(prompts)] == expected
    assert [one.answers for one in asyncio.run(chain.abatch(prompts))] == expected


def test_demo_chain_with_a_draw_rule_replays_the_same_candidates() -> None:
    source = load_recording()
    artifact = calibrate(source, alpha="0.4", features="1", draws="below(0.5, at_most=10)")
    records = list_facts()[:12]
    counts = tabulate_draws(artifact, records).draws.counts.tolist()
    assert 1 in counts
    assert 10 in counts
    chain = demo_chain(artifact).model_copy(update={"show_rejected": True, "max_concurrency": 20})
    prompts = [one.input for one in records]
    for _ in range(2):
        for result, record, count in zip(chain.batch(prompts), records, counts, strict=True):
            recorded = [one.text for one in record.candidates[:count]]
            assert [one.text for one in result.candidates] == recorded


def test_demo_chain_accepts_a_question_as_a_message(chain: CFCRunnable) -> None:
    question = str(list_facts()[0].input)
    assert chain.invoke([HumanMessage(question)]).answers == chain.invoke(question).answers


def test_demo_chain_refuses_questions_that_were_not_recorded(chain: CFCRunnable) -> None:
    with pytest.raises(DrawError, match="was not recorded"):
        chain.invoke("Who wrote this?")


def test_demo_chain_refuses_artifacts_of_another_generator(tmp_path: Path) -> None:
    other = [
        PromptRecord.model_validate(
            {
                "id": str(number),
                "input": f"question {number}",
                "candidates": [{"text": "a", "score": number / 50, "correct": True}] * 10,
            }
        )
        for number in range(1, 50)
    ]
    named = load_recording().provenance
    assert named is not None
    provenance = named.model_copy(update={"generator": {"id": "another"}})
    with pytest.raises(FingerprintError, match="generator is not the one"):
        demo_chain(calibrate(other, alpha="0.2", features="1", provenance=provenance))
    path = tmp_path / "none.json"
    path.write_text("{}")
    with pytest.raises(ArtifactFormatError):
        demo_chain(path)
