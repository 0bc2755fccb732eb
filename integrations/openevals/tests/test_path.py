"""From collect.toml to a served artifact: one judge scores, another labels, all over real HTTP."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_cfc_collect import Store, collect, read_config
from langchain_cfc_openevals import make_judge_verifier
from langchain_openai import ChatOpenAI
from openevals.prompts import ANSWER_RELEVANCE_PROMPT, CORRECTNESS_PROMPT

from integrations.openevals.tests.parts import hosted, reply
from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.errors import FingerprintError, VerifierError
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script

SIZE, N = 20, 3
CONFIG = """
store = "judged.db"
n = 3

[source]
path = "questions.csv"
input = "question"
reference = "answer"

[generator]
model = "openai:drawing"
arguments = { temperature = 0.7, max_retries = 0 }

[verifier]
factory = "langchain_cfc_openevals:make_judge_verifier"
model = "openai:small-judge"
model_arguments = { temperature = 0, max_retries = 0 }
arguments = { prompt = "ANSWER_RELEVANCE_PROMPT", choices = [0, 0.25, 0.5, 0.75, 1] }

[labeler]
factory = "langchain_cfc_openevals:make_judge_labeler"
model = "openai:large-judge"
model_arguments = { temperature = 0, max_retries = 0 }
arguments = { prompt = "CORRECTNESS_PROMPT", continuous = true, at_least = 0.7 }

[run]
attempts = 1
"""


def answers() -> dict[str, list[Answer]]:
    """Of numbered questions one in ten has no right candidate; else its score is the best."""
    found: dict[str, list[Answer]] = {}
    for number in range(SIZE):
        question, right = f"question {number}", f"right {number}"
        texts = [f"wrong {number}", right if number % 10 else f"false {number}", f"odd {number}"]
        found[question] = [Answer(text) for text in texts]
        for slot, text in enumerate(texts):
            said = [0.25, 1.0 if number % 3 else 0.75, 0.5][slot]
            asked = ANSWER_RELEVANCE_PROMPT.format(inputs=question, outputs=text)
            found[asked] = reply(reasoning="so", score=said)
            asked = CORRECTNESS_PROMPT.format(inputs=question, outputs=text, reference_outputs=right)
            found[asked] = reply(reasoning="so", score=0.9 if text == right else 0.1)
    return found


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.chdir(tmp_path)
    with Path("questions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows(
            [["question", "answer"], *([f"question {one}", f"right {one}"] for one in range(SIZE))]
        )
    Path("collect.toml").write_text(CONFIG)
    script = Script(answers(), logprobs=False)
    with hosted(script):
        yield script


def small_judge() -> ChatOpenAI:
    return ChatOpenAI(model="small-judge", temperature=0, max_retries=0)


def chain(artifact: CalibrationArtifact, prompt: str = "ANSWER_RELEVANCE_PROMPT") -> CFCRunnable:
    verifier = make_judge_verifier(small_judge(), prompt, choices=[0, 0.25, 0.5, 0.75, 1])
    generator = ChatOpenAI(model="drawing", temperature=0.7, max_retries=0)
    return CFCRunnable(generator=generator, verifier=verifier, artifact=artifact)


def test_collect_calibrate_and_serve_with_openevals_judges(script: Script, tmp_path: Path) -> None:
    config = read_config("collect.toml")
    ended = collect(config.source.read_examples(), config.create_components(), config.store)
    assert ended.complete
    # Each text is drawn, scored and labelled once.
    assert len(script.requests) == SIZE * N * 3
    with Store("judged.db") as store:
        records, provenance = list(store.read_records()), store.read_provenance()
    labels = {one.text: (one.correct, one.score) for record in records for one in record.candidates}
    assert labels["right 1"] == (True, 0.0)
    assert labels["wrong 1"] == (False, 0.75)
    assert labels["false 10"][0] is False
    artifact = calibrate(records, alpha="0.2", features="1", provenance=provenance)
    artifact.save(tmp_path / "artifact.json")
    loaded = CalibrationArtifact.load(tmp_path / "artifact.json")
    result = chain(loaded).invoke("question 4")
    assert result.guarantee.binding == "matched"
    assert (result.answers, result.threshold) == (("right 4",), 0.25)
    # The negative control: another prompt is another verifier.
    with pytest.raises(FingerprintError, match=r"evaluator\.prompt"):
        chain(loaded, "CONCISENESS_PROMPT")
    # Faults of the judge while serving: no answer instead of an unscored one.
    for fault in ("status 500", "malformed", "no content"):
        script.faults = [Fault(fault, on=set(range(len(script.requests) + N, 10**6)))]
        with pytest.raises(VerifierError):
            chain(loaded).invoke("question 4")


def test_failing_labeling_judge_leaves_its_prompt_unlabelled(script: Script) -> None:
    broken = CORRECTNESS_PROMPT.format(inputs="question 2", outputs="right 2", reference_outputs="right 2")
    script.answers = {**script.answers, broken: reply(reasoning="cannot say", score=None)}
    config = read_config("collect.toml")
    examples = [one for one in config.source.read_examples() if one.input in {"question 1", "question 2"}]
    assert examples[0].input == "question 1"  # a failure of the first prompt ends the collection
    with pytest.warns(UserWarning, match="failed"):
        ended = collect(examples, config.create_components(), config.store)
    assert (ended.status.labelled, ended.status.failed) == (1, 1)
    with Store(config.store) as store:
        assert [record.input for record in store.read_records()] == ["question 1"]
