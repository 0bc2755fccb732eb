"""Recording of the prompts at which an agent answers, up to an artifact for them."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_agents import GuardedAnswer, RecordPrompt, aanswer_prompts, answer_prompts
from langchain_cfc_collect import CallPolicy, CollectionOptions, Components, Store, collect
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from integrations.agents.tests.parts import (
    COMPARED,
    DISCARDED,
    PLAIN,
    SYSTEM,
    Agent,
    agent_of,
    ask,
    chain_at,
    last,
    model_at,
)
from langchain_cfc import CalibrationArtifact, CFCRunnable, PromptRecord, calibrate, evaluate
from langchain_cfc.errors import AttainabilityWarning, CollectionError
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example
from langchain_cfc.verifiers import SequenceProbability
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

SIZE, DRAWN = 150, 10


# --- what is recorded ---


def make_example(number: int, text: Any) -> Example:
    return Example(id=f"q{number}", input=text, reference="Lima", metadata={"topic": "town"}, cluster="c")


def make_recording_agent(url: str, **settings: Any) -> Agent:
    return agent_of(model_at(url), [RecordPrompt()], **settings)


def record_prompts(agent: Agent, questions: list[Example]) -> list[Example]:
    return sorted(answer_prompts(agent, questions), key=lambda one: one.id)


def arecord_prompts(agent: Agent, questions: list[Example]) -> list[Example]:
    async def prompts() -> list[Example]:
        return [one async for one in aanswer_prompts(agent, questions)]

    return sorted(asyncio.run(prompts()), key=lambda one: one.id)


both_ways = pytest.mark.parametrize("record", [record_prompts, arecord_prompts])


@both_ways
def test_answer_prompts_records_the_prompts_of_the_chain(
    url: str, artifact: CalibrationArtifact, served: Script, record: Callable[..., list[Example]]
) -> None:
    earlier = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello."}]
    questions = [
        make_example(0, PLAIN),
        make_example(1, COMPARED),
        make_example(2, [*earlier, {"role": "user", "content": PLAIN}]),
        make_example(3, {"messages": [{"role": "user", "content": PLAIN}]}),
    ]
    prompts = record(make_recording_agent(url), questions)
    # Nothing was drawn: one request for each choice of the agent's model.
    assert len(served.requests) == 5
    given: list[Any] = []

    def watching(prompt: Any, candidates: Any) -> list[float]:
        given.append(prompt)
        return [0.05] * len(candidates)

    agent = agent_of(model_at(url), [GuardedAnswer(chain_at(url, artifact, verifier=watching))])
    for text in (PLAIN, COMPARED):
        ask(agent, text)
    agent.invoke({"messages": questions[2].input})
    agent.invoke(questions[3].input)
    assert [without_ids(one.input) for one in prompts] == [without_ids(prompt) for prompt in given]
    for one, prompt in zip(questions, prompts, strict=True):
        assert prompt.model_copy(update={"input": one.input}) == one
    assert prompts[0].input == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PLAIN}]
    compared: Any = prompts[1].input
    assert [message["role"] for message in compared][-3:] == ["assistant", "tool", "tool"]
    assert DISCARDED not in json.dumps([one.model_dump() for one in prompts])


def without_ids(prompt: Any) -> Any:
    """Calls of tools are given new ids each time."""
    text = json.dumps(prompt)
    ids = [call["id"] for message in prompt for call in message.get("tool_calls", ())]
    for number, name in enumerate(ids):
        text = text.replace(name, f"call {number}")
    return json.loads(text)


@both_ways
def test_answer_prompts_reports_runs_without_a_prompt_at_the_end(
    url: str, served: Script, record: Callable[..., list[Example]]
) -> None:
    @tool(return_direct=True)
    def look_up(topic: str) -> str:
        """Look up."""
        return topic

    served.answers = {**served.answers, "direct": [Answer(tools=(("look_up", {"topic": "towns"}),))]}
    agent = make_recording_agent(url, tools=[look_up])
    questions = [
        make_example(0, "unheard of"),
        make_example(1, PLAIN),
        make_example(2, "direct"),
        make_example(3, PLAIN),
    ]
    with pytest.raises(CollectionError, match="2 of 4 runs recorded no prompt"):
        record(agent, questions)
    with pytest.raises(CollectionError, match="'q2' first: it ended before the model gave a final answer"):
        record(agent, questions[1:])
    assert len(record(agent, [questions[1], questions[3]])) == 2


def test_answer_prompts_yields_each_prompt_when_its_run_ends(url: str) -> None:
    prompts = answer_prompts(
        make_recording_agent(url), [make_example(0, "unheard of"), make_example(1, PLAIN)]
    )
    assert next(prompts).id == "q1"
    with pytest.raises(CollectionError, match=r"'q0' first: .*no answer is recorded"):
        next(prompts)


# --- the whole way ---


@dataclass
class World:
    """A server with recorded facts, the agent before it, and what was calibrated."""

    script: Script
    url: str
    questions: list[Example]
    records: list[PromptRecord]
    artifact: CalibrationArtifact

    def chain(self) -> CFCRunnable:
        return CFCRunnable(
            generator=make_drawing_model(self.url), verifier=SequenceProbability(), artifact=self.artifact
        )


def make_drawing_model(url: str) -> ChatOpenAI:
    return model_at(url, logprobs=True, temperature=0.7)


@tool
def notes(topic: str) -> str:
    """Read the notes on a topic."""
    return f"Notes on: {topic}"


def make_reading_agent(url: str, last_one: Any) -> Agent:
    """An agent that reads notes before it answers."""
    return agent_of(model_at(url), [last_one], tools=[notes])


def make_script(facts: list[PromptRecord]) -> Script:
    """Each question makes the agent read; what it reads is answered by the recorded candidates."""
    answers: dict[str, Any] = {}
    for fact in facts:
        said = [Answer(str(one.text), (one.scores or {})["sequence_logprob"]) for one in fact.candidates]
        answers[str(fact.input)] = [Answer(tools=(("notes", {"topic": fact.input}),))]
        # The first is for the agent, and thrown away.
        answers[f"Notes on: {fact.input}"] = [Answer(DISCARDED, -0.5), *said]
    return Script(answers)


@pytest.fixture(scope="module")
def world(facts: list[PromptRecord], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Recorded, collected, calibrated and saved, as the README says."""
    folder: Path = tmp_path_factory.mktemp("world")
    chosen = facts[:: len(facts) // SIZE][:SIZE]
    questions = [
        Example(id=one.id, input=one.input, reference=one.reference, metadata=one.metadata) for one in chosen
    ]
    script = make_script(chosen)
    with pytest.MonkeyPatch.context() as patch, serving(script) as url:
        patch.setenv("NO_PROXY", "127.0.0.1")
        prompts = list(answer_prompts(make_reading_agent(url, RecordPrompt()), questions))
        parts = Components(make_drawing_model(url), SequenceProbability(), NormalisedMatch(), DRAWN)
        options = CollectionOptions(call_policy=CallPolicy(concurrency=8), on_notice=lambda _: None)
        assert collect(prompts, parts, folder / "store.db", options).complete
        with Store(folder / "store.db") as store:
            records = list(store.read_records())
            provenance = store.read_provenance()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttainabilityWarning)
            calibrated = calibrate(
                records,
                alpha=0.3,
                features="mean_score",
                test_fraction=0.4,
                provenance=provenance,
            )
        calibrated.save(folder / "artifact.json")
        artifact = CalibrationArtifact.load(folder / "artifact.json")
        yield World(script, url, questions, records, artifact)


def serve_held_out(world: World) -> dict[str, Any]:
    """For each prompt held out what the agent decided, on its own way from question to answer."""
    agent = make_reading_agent(world.url, GuardedAnswer(world.chain(), full_result=True))
    split = world.artifact.calibration.split
    held_out = [one for one in world.questions if split.find_part(one.id, one.cluster) == "test"]
    return {one.id: last(ask(agent, str(one.input))).response_metadata["cfc"] for one in held_out}


@pytest.mark.long
def test_guarded_agent_keeps_the_promise_as_evaluate_does(world: World) -> None:
    """Server and facts are the same, so that offline and online must agree prompt by prompt."""
    decided = serve_held_out(world)
    report = evaluate(world.artifact, world.records).methods["conditional"]
    correct = {
        one.id: {candidate.answer_key for candidate in one.candidates if candidate.correct}
        for one in world.records
    }
    kept = [
        one["reason"] == "not_certifiable" or bool(set(one["answers"]) & correct[name])
        for name, one in decided.items()
    ]
    assert len(kept) > 40
    assert sum(kept) / len(kept) == pytest.approx(report.kept_promise)
    # The promise is kept neither by answering nothing nor by answering all.
    assert 0 < sum(one["abstained"] for one in decided.values()) < len(decided)
    assert {one["guarantee"]["binding"] for one in decided.values()} == {"matched"}


@pytest.mark.long
def test_serving_sends_the_messages_of_collection(world: World) -> None:
    """Draws of collection and of serving send the same messages, but for the ids of calls."""
    fact = str(world.questions[0].input)

    def drawn() -> list[Any]:
        told = f"Notes on: {fact}"
        requests = [one["messages"] for one in world.script.requests if one.get("logprobs")]
        return [without_ids(one) for one in requests if one[-1]["content"] == told]

    before = drawn()
    assert before
    ask(make_reading_agent(world.url, GuardedAnswer(world.chain(), full_result=True)), fact)
    after = drawn()[len(before) :]
    assert after == before[:1] * DRAWN
    # The control: a chain that is given less.
    shortened: Any = RunnableLambda(lambda prompt: [{"role": "user", "content": prompt[-1]["content"]}])
    ask(make_reading_agent(world.url, GuardedAnswer(shortened | world.chain())), fact)
    assert before[0] not in drawn()[len(before) + len(after) :]
