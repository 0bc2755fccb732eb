"""Prompts of openevals and a chat model, as verifier and as labeler, over real HTTP; README.md as printed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from langchain_cfc_openevals import make_judge_labeler, make_judge_verifier
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from openevals.llm import create_llm_as_judge
from openevals.prompts import (
    CORRECTNESS_PROMPT,
    RAG_GROUNDEDNESS_PROMPT,
    RAG_HELPFULNESS_PROMPT,
    RAG_RETRIEVAL_RELEVANCE_PROMPT,
)
from pydantic import BaseModel

from integrations.tests.pages import run_page
from integrations.tests.planted import make_model
from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, demo, read_records, write_records
from langchain_cfc.errors import FingerprintError, InputError, LabelerError, VerifierError
from langchain_cfc.labelers import LabelerInput
from langchain_cfc.records import Provenance
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import from_evaluator
from tests.calls import Invoke
from tests.factories import labeler_input, verifier_input
from tests.lengths import LONG
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script, serving


def labelled_input(prompt: Any, reference: Any, *texts: str) -> LabelerInput:
    return labeler_input(reference, *texts, prompt=prompt)


def reply(**fields: Any) -> list[Answer]:
    """Return a script with one answer of a judge to every request."""
    return [Answer(json.dumps(fields))]


def make_judgements(prompt: str, scores: Mapping[str, Any], **texts: Any) -> dict[str, list[Answer]]:
    """Return the answers of a judge to each candidate in its prompt."""
    return {
        prompt.format(outputs=text, **texts): reply(reasoning="so it is", score=score)
        for text, score in scores.items()
    }


@contextmanager
def hosted(script: Script) -> Iterator[str]:
    """A script served where clients look for a hosted model."""
    with serving(script) as url:
        keys = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
        with mock.patch.dict(os.environ, keys):
            yield url


def client(url: str, **settings: Any) -> ChatOpenAI:
    return make_model(url, **{"model": "judging", "temperature": 0.0, **settings})


PROMPT = "Is {outputs} a right answer to {inputs}?"
ASKED = verifier_input("where?", "lima", "quito", "lima")
LABELLED = labelled_input("where?", "lima", "lima", "quito", "lima")
RIGHT = {"lima": True, "quito": False}


@pytest.fixture
def script() -> Script:
    return Script(make_judgements(PROMPT, RIGHT, inputs="where?"), logprobs=False)


@pytest.fixture
def model(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatOpenAI]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(script) as url:
        yield client(url)


def test_judge_scores_and_labels_true_and_false(invoke: Invoke, model: ChatOpenAI, script: Script) -> None:
    assert invoke(make_judge_verifier(model, PROMPT), ASKED) == [0.0, 1.0, 0.0]
    # Texts drawn twice are judged once.
    assert len(script.requests) == 2
    assert invoke(make_judge_labeler(model, PROMPT), LABELLED) == [True, False, True]
    # A prompt that asks for a fault is read the other way round.
    assert invoke(make_judge_verifier(model, PROMPT, higher_is_better=False), ASKED) == [1.0, 0.0, 1.0]
    assert invoke(make_judge_labeler(model, PROMPT, at_most=0.0), LABELLED) == [False, True, False]


def test_judge_with_continuous_scale_and_at_least(invoke: Invoke, model: ChatOpenAI, script: Script) -> None:
    script.answers = make_judgements(PROMPT, {"lima": 0.7, "quito": 0.69}, inputs="where?")
    assert invoke(make_judge_verifier(model, PROMPT, continuous=True), ASKED) == pytest.approx(
        [0.3, 0.31, 0.3]
    )
    labeler = make_judge_labeler(model, PROMPT, continuous=True, at_least=0.7)
    assert invoke(labeler, LABELLED) == [True, False, True]
    assert labeler.fingerprint["judge.correct"] == "at least 0.7"
    # The negative control: another cut, other labels, another labeler.
    lower = make_judge_labeler(model, PROMPT, continuous=True, at_least=0.6)
    assert invoke(lower, LABELLED) == [True, True, True]
    assert compute_fingerprint(lower) != compute_fingerprint(labeler)


def test_judge_scales_choices_to_the_unit_interval(invoke: Invoke, model: ChatOpenAI, script: Script) -> None:
    script.answers = make_judgements(PROMPT, {"lima": 4, "quito": 1}, inputs="where?")
    grades = (1, 2, 3, 4, 5)
    assert invoke(make_judge_verifier(model, PROMPT, choices=grades), ASKED) == [0.25, 1.0, 0.25]
    assert invoke(make_judge_labeler(model, PROMPT, choices=grades, at_least=4), LABELLED) == [
        True,
        False,
        True,
    ]
    schema = script.requests[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["score"]["enum"] == list(grades)


OTHERS: list[tuple[dict[str, Any], Any, str]] = [
    ({}, 0.7, "score is 0.7; it was asked for true or false"),
    ({}, None, "score is None; it was asked for true or false"),
    ({}, "yes", "score is 'yes'; it was asked for true or false"),
    ({"continuous": True}, 1.2, "score is 1.2; it was asked for a number from 0 to 1"),
    ({"continuous": True}, True, "score is True; it was asked for a number from 0 to 1"),
    ({"choices": [0, 0.5, 1]}, 0.7, r"score is 0.7; it was asked for one of \[0, 0.5, 1\]"),
    ({"choices": [0, 0.5, 1]}, True, "score is True; it was asked for one of"),
]


@pytest.mark.parametrize("case", OTHERS)
def test_judge_refuses_scores_outside_its_scale(
    invoke: Invoke, model: ChatOpenAI, script: Script, case: tuple[dict[str, Any], Any, str]
) -> None:
    settings, score, message = case
    script.answers = make_judgements(PROMPT, {"lima": score, "quito": score}, inputs="where?")
    with pytest.raises(VerifierError, match=message):
        invoke(make_judge_verifier(model, PROMPT, **settings), ASKED)
    labeler = make_judge_labeler(model, PROMPT, **settings, at_least=0.5 if settings else None)
    with pytest.raises(LabelerError, match=message):
        invoke(labeler, LABELLED)


def test_judge_of_openevals_accepts_scores_outside_its_scale(model: ChatOpenAI, script: Script) -> None:
    script.answers = make_judgements(PROMPT, {"lima": 0.7, "quito": 0.7}, inputs="where?")
    evaluator = create_llm_as_judge(prompt=PROMPT, judge=model, choices=[0, 0.5, 1])
    assert from_evaluator(evaluator).invoke(ASKED) == pytest.approx([0.3] * 3)


@pytest.mark.parametrize("fault", ["status 500", "malformed", "truncated", "dropped", "no choices"])
def test_failing_judge_raises_typed_errors(
    invoke: Invoke, fault: str, model: ChatOpenAI, script: Script
) -> None:
    script.faults = [Fault(fault)]
    with pytest.raises(VerifierError, match="the evaluator failed with"):
        invoke(make_judge_verifier(model, PROMPT), ASKED)
    with pytest.raises(LabelerError, match="the evaluator failed with"):
        invoke(make_judge_labeler(model, PROMPT), LABELLED)


@pytest.mark.parametrize("fields", [{}, {"reasoning": "none"}, {"score": True}])
def test_incomplete_reply_of_a_judge_raises_typed_errors(
    invoke: Invoke, fields: dict[str, Any], model: ChatOpenAI, script: Script
) -> None:
    script.answers = {PROMPT.format(inputs="where?", outputs=text): reply(**fields) for text in RIGHT}
    with pytest.raises(VerifierError, match="the evaluator failed with KeyError"):
        invoke(make_judge_verifier(model, PROMPT), ASKED)
    with pytest.raises(LabelerError, match="the evaluator failed with KeyError"):
        invoke(make_judge_labeler(model, PROMPT), LABELLED)


def test_judge_passes_few_shot_examples_and_system_prompt(
    invoke: Invoke, model: ChatOpenAI, script: Script
) -> None:
    examples: Any = [{"inputs": "what?", "outputs": "cusco", "score": False}]
    shown = "<example>\n<input>what?</input>\n<output>cusco</output>\n<score>False</score>\n</example>"
    script.answers = {
        f"{PROMPT.format(inputs='where?', outputs=text)}\n\n{shown}": reply(score=score)
        for text, score in RIGHT.items()
    }
    options: Any = {"few_shot_examples": examples, "system": "Be strict.", "use_reasoning": False}
    verifier = make_judge_verifier(model, PROMPT, **options)
    assert invoke(verifier, ASKED) == [0.0, 1.0, 0.0]
    assert script.requests[0]["messages"][0] == {"role": "system", "content": "Be strict."}
    plain = make_judge_verifier(model, PROMPT)
    for name in ("few_shot_examples", "system", "reasoning"):
        assert verifier.fingerprint[f"evaluator.{name}"] != plain.fingerprint.get(f"evaluator.{name}")


class GradesOfAnswer(BaseModel):
    """What a judge says of an answer."""

    right: bool
    short: float


SCHEMA = {
    "title": "marks",
    "type": "object",
    "properties": {"right": {"type": "boolean"}, "short": {"type": "number"}},
    "required": ["right", "short"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [SCHEMA, GradesOfAnswer])
def test_judge_key_chooses_one_field_of_the_output_schema(
    invoke: Invoke, schema: Any, model: ChatOpenAI, script: Script
) -> None:
    script.answers = {
        PROMPT.format(inputs="where?", outputs=text): reply(right=right, short=0.75)
        for text, right in RIGHT.items()
    }
    assert invoke(make_judge_verifier(model, PROMPT, output_schema=schema, key="right"), ASKED) == [
        0.0,
        1.0,
        0.0,
    ]
    assert invoke(make_judge_verifier(model, PROMPT, output_schema=schema, key="short"), ASKED) == [0.25] * 3
    assert invoke(make_judge_labeler(model, PROMPT, output_schema=schema, key="right"), LABELLED) == [
        True,
        False,
        True,
    ]
    with pytest.raises(LabelerError, match="holds no 'long'"):
        invoke(make_judge_labeler(model, PROMPT, output_schema=schema, key="long"), LABELLED)
    with pytest.raises(LabelerError, match="neither True nor False"):
        invoke(make_judge_labeler(model, PROMPT, output_schema=schema, key="short"), LABELLED)


def test_judge_takes_templates_of_langchain(invoke: Invoke, model: ChatOpenAI) -> None:
    template = ChatPromptTemplate.from_messages([("system", "Be strict."), ("user", PROMPT)])
    assert invoke(make_judge_verifier(model, template), ASKED) == [0.0, 1.0, 0.0]
    other = ChatPromptTemplate.from_messages([("system", "Be kind."), ("user", PROMPT)])
    assert compute_fingerprint(make_judge_verifier(model, template)) != compute_fingerprint(
        make_judge_verifier(model, other)
    )


# --- what a prompt shows


def test_correctness_prompt_labels_with_the_reference(
    invoke: Invoke, model: ChatOpenAI, script: Script
) -> None:
    script.answers = make_judgements(CORRECTNESS_PROMPT, RIGHT, inputs="where?", reference_outputs="lima")
    assert invoke(make_judge_labeler(model, "CORRECTNESS_PROMPT"), LABELLED) == [True, False, True]
    with pytest.raises(LabelerError, match="shows a reference, but there is none"):
        invoke(make_judge_labeler(model, "CORRECTNESS_PROMPT"), labelled_input("where?", None, "lima"))


def test_judge_verifier_refuses_prompts_with_a_reference(model: ChatOpenAI) -> None:
    with pytest.raises(
        InputError, match=r"shows reference_outputs, which has no value: there is no reference"
    ):
        make_judge_verifier(model, "CORRECTNESS_PROMPT")
    # A draft that stands in the prompt is something else.
    make_judge_verifier(model, "CORRECTNESS_PROMPT", arguments={"reference_outputs": "draft"})


PASSAGES = {"question": "where?", "documents": "Llamas live in Peru."}
CONTEXT = {"inputs": "question", "context": "documents"}


def test_judge_arguments_are_fields_of_the_prompt(invoke: Invoke, model: ChatOpenAI, script: Script) -> None:
    texts = {"inputs": "where?", "context": "Llamas live in Peru."}
    script.answers = {
        **make_judgements(RAG_GROUNDEDNESS_PROMPT, RIGHT, **texts),
        **make_judgements(RAG_HELPFULNESS_PROMPT, {"lima": False, "quito": True}, **texts),
    }
    asked = verifier_input(PASSAGES, "lima", "quito")
    grounded = make_judge_verifier(model, "RAG_GROUNDEDNESS_PROMPT", arguments=CONTEXT)
    assert invoke(grounded, asked) == [0.0, 1.0]
    assert invoke(make_judge_verifier(model, "RAG_HELPFULNESS_PROMPT", arguments=CONTEXT), asked) == [
        1.0,
        0.0,
    ]
    labeler = make_judge_labeler(model, "RAG_GROUNDEDNESS_PROMPT", arguments=CONTEXT)
    assert invoke(labeler, labelled_input(PASSAGES, None, "lima", "quito")) == [True, False]


def test_judge_candidate_may_be_the_context(invoke: Invoke, model: ChatOpenAI, script: Script) -> None:
    script.answers = {
        RAG_RETRIEVAL_RELEVANCE_PROMPT.format(inputs="where?", context=text): reply(
            reasoning="", score=relevant
        )
        for text, relevant in RIGHT.items()
    }
    verifier = make_judge_verifier(model, "RAG_RETRIEVAL_RELEVANCE_PROMPT", candidate="context")
    assert invoke(verifier, ASKED) == [0.0, 1.0, 0.0]
    # An answer it does not look at, so that all of them would get one score.
    with pytest.raises(InputError, match=r"shows {context}, {inputs}, but not the candidate, {outputs}"):
        make_judge_verifier(model, "RAG_RETRIEVAL_RELEVANCE_PROMPT", arguments=CONTEXT)


def test_failing_judge_arguments_raise_typed_errors(invoke: Invoke, model: ChatOpenAI) -> None:
    verifier = make_judge_verifier(model, "RAG_GROUNDEDNESS_PROMPT", arguments=CONTEXT)
    with pytest.raises(VerifierError, match="holds no 'documents'; it is 'question'"):
        invoke(verifier, verifier_input({"question": "where?"}, "lima"))
    with pytest.raises(VerifierError, match="holds no 'question', 'documents'; it is a str"):
        invoke(verifier, ASKED)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("NO_SUCH_PROMPT", {}, "openevals has no prompt 'NO_SUCH_PROMPT', only .*CORRECTNESS_PROMPT"),
    ("Is it right?", {}, "shows nothing, but not the candidate"),
    ("Is {outputs} in {context}?", {}, "shows context, which has no value"),
    ("Is {outputs} right? {", {}, "cannot be filled in"),
    (3, {}, "the judge's prompt is a int"),
    (PROMPT, {"arguments": {"outputs": "x"}}, "expected fields of the prompt by keyword"),
    (PROMPT, {"arguments": 3}, "expected fields of the prompt by keyword"),
    (PROMPT, {"choices": [0, 1], "continuous": True}, "continuous and choices are mutually exclusive"),
    (PROMPT, {"choices": [1]}, "at least two different finite numbers"),
    (PROMPT, {"choices": [0, float("nan")]}, "at least two different finite numbers"),
    (PROMPT, {"feedback_key": "x"}, "a judge has no setting feedback_key"),
    (PROMPT, {"few_shot_examples": [object()]}, "not plain data"),
    (PROMPT, {"output_schema": SCHEMA, "key": "short", "range": [1]}, "range must be two finite numbers"),
]


@pytest.mark.parametrize(("prompt", "settings", "message"), REFUSED)
def test_judge_refuses_invalid_prompts_and_settings(
    prompt: Any, settings: Any, message: str, model: ChatOpenAI, script: Script
) -> None:
    for made in (make_judge_verifier, make_judge_labeler):
        with pytest.raises(InputError, match=message):
            made(model, prompt, **settings)
    assert script.requests == []


def test_judge_labeler_of_numbers_requires_a_bound(model: ChatOpenAI) -> None:
    for settings in ({"continuous": True}, {"choices": [0, 0.5, 1]}):
        with pytest.raises(InputError, match="pass at_least= or at_most= to say which mean correct"):
            make_judge_labeler(model, PROMPT, **settings)
    # Two choices are yes and no.
    make_judge_labeler(model, PROMPT, choices=[0, 1])


def test_judge_refuses_wrapped_models(model: ChatOpenAI) -> None:
    for wrapped in (model.with_retry(), model.bind(stop=["x"])):
        with pytest.raises(InputError, match="openevals takes a chat model itself"):
            make_judge_verifier(wrapped, PROMPT)  # type: ignore[arg-type]


# --- who it is


def test_judge_fingerprint_differs_for_other_judges(model: ChatOpenAI) -> None:
    verifier = make_judge_verifier(model, PROMPT)
    said = dict(verifier.fingerprint)
    assert said["evaluator.id"] == "openevals-judge"
    assert (said["evaluator.model.model"], said["evaluator.model.temperature"]) == ("judging", 0.0)
    assert said["evaluator.openevals"] == version("openevals")
    assert said["evaluator.scale"] == "true or false"
    same = compute_fingerprint(make_judge_verifier(model, PROMPT))
    assert compare_fingerprints("verifier", said, same) is None
    others = [
        make_judge_verifier(model, PROMPT + " Say."),
        make_judge_verifier(model.model_copy(update={"model_name": "other"}), PROMPT),
        make_judge_verifier(model.model_copy(update={"temperature": 1.0}), PROMPT),
        make_judge_verifier(model, PROMPT, continuous=True),
        make_judge_verifier(model, PROMPT, higher_is_better=False),
        make_judge_verifier(model, PROMPT, arguments={"inputs": "question"}),
    ]
    for other in others:
        with pytest.raises(FingerprintError, match="not the one that the artifact was calibrated for"):
            compare_fingerprints("verifier", said, compute_fingerprint(other))


# --- who hears it


async def collect_streamed_tokens(verifier: Any) -> list[str]:
    events = verifier.astream_events(verifier_input("where?", "lima"), version="v2")
    return [event["data"]["chunk"].text async for event in events if event["event"] == "on_chat_model_stream"]


def test_streaming_judge_shows_no_tokens(model: ChatOpenAI) -> None:
    streaming = model.model_copy(update={"streaming": True})
    assert asyncio.run(collect_streamed_tokens(make_judge_verifier(streaming, PROMPT))) == []
    # The negative control: the same evaluator without this package's care.
    loud = from_evaluator(create_llm_as_judge(prompt=PROMPT, judge=streaming))
    assert any(asyncio.run(collect_streamed_tokens(loud)))


PAGE = Path(__file__).parents[1] / "README.md"
SCORING = "How sure is it that this answers the question correctly? Question: {inputs} Answer: {outputs}"


def judging(facts: list[PromptRecord]) -> Script:
    """The recorded answers, and judges who know which of them are right."""
    script = Script.of(facts)
    answers = dict(script.answers)
    for fact in facts:
        reference = fact.reference
        for one in fact.candidates:
            texts = {"inputs": fact.input, "outputs": one.text}
            # As openevals formats it.
            as_text = reference if isinstance(reference, str) else json.dumps(reference)
            shown = {**texts, "reference_outputs": as_text}
            answers[SCORING.format(**texts)] = reply(reasoning="so", score=1 - round_score(one))
            answers[CORRECTNESS_PROMPT.format(**shown)] = reply(reasoning="so", score=one.correct)
    return Script(answers, logprobs=False)


def round_score(candidate: Candidate) -> float:
    """The recorded score on the scale of the scoring judge."""
    return 1 - round(4 * (1 - candidate.score)) / 4


def test_readme_prints_its_outputs(
    facts: list[PromptRecord],
    provenance: Provenance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if not LONG:
        facts = facts[:40]  # all that the page asks about
        write_records("recording.jsonl", facts, provenance)
        monkeypatch.setattr(demo, "load_recording", partial(read_records, "recording.jsonl"))
    with hosted(judging(facts[:40])):
        assert run_page(PAGE) == 5
    labels, *_, served = capsys.readouterr().out.splitlines()
    assert labels == "[True, False]"
    assert served.endswith(" matched")
    # What the judges said of each candidate is what was collected.
    said = {one.text: (round_score(one), one.correct) for fact in facts[:40] for one in fact.candidates}
    collected = [one for record in read_records("judged.jsonl") for one in record.candidates]
    assert len(collected) == 40 * 5
    assert [(one.score, one.correct) for one in collected] == [said[one.text] for one in collected]
    assert CalibrationArtifact.load("judged.json").n == 5
