"""What these tests share: recorded facts behind a server that also judges, and artifacts made of them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from filelock import FileLock
from langchain_cfc_collect import CallPolicy, CollectionOptions, Components, Store, collect
from langchain_cfc_openai import ChatCompletions, make_generator, make_judge

from langchain_cfc import CalibrationArtifact, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example
from langchain_cfc.verifiers import SequenceProbability, normalise_answer
from tests.recordings import list_facts
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

MODEL = "recorded"
N = 10
ALPHA = 0.3
# As the facts were recorded.
DRAWN: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "max_tokens": 16, "stop": ["\n"]}
VERIFIERS = ("sequence", "logprobs", "line")

Saved: TypeAlias = dict[str, Path]


# For each kind of failure, what the error tells the user to do.
REMEDIES = {
    "status 400": "remove parameters that the endpoint does not know",
    "status 401": "pass the endpoint's key",
    "status 403": "pass a key that may use this model",
    "status 404": "check the model's name and base_url=",
    "status 422": "remove parameters that the endpoint does not know",
    "status 429": "make fewer requests at once",
    "status 500": "the failure may be temporary: let the client repeat requests",
    "status 503": "the failure may be temporary: let the client repeat requests",
    "malformed": "response cannot be read .*JSONDecodeError.*: check that base_url= is an OpenAI",
    "truncated": "the connection to the endpoint failed .*: check that a server listens",
    "dropped": "the connection to the endpoint failed .*: check that a server listens",
    "no choices": "response holds no choices: check that it serves this model",
}
both_samplings = pytest.mark.parametrize("sampling", ["requests", "single_request"])


@functools.cache
def continents() -> tuple[PromptRecord, ...]:
    """The recorded questions about continents, ten candidates each."""
    return tuple(record for record in list_facts() if record.metadata["topic"] == "continent")


class Replies(dict[str, list[Answer]]):
    """Recorded answers to questions; to questions about an answer, what someone who knows would reply."""

    def __missing__(self, asked: str) -> list[Answer]:
        found = re.search(r"<question>\n(.*)\n</question>.*<answer>\n(.*)\n</answer>", asked, re.DOTALL)
        if found is None:
            raise KeyError(asked)
        true = normalise_answer(found[2]) in _references()[found[1]]
        if "percent" in asked:
            return [Answer(f"Percent: {90 if true else 20}", -0.1)]
        likely = math.log(0.9 if true else 0.2)
        weights = {"Yes": likely, "No": math.log(1.0 - math.exp(likely))}
        word = max(weights, key=lambda one: weights[one])
        return [Answer(word, weights[word], first=weights)]


@functools.cache
def _references() -> dict[str, set[str]]:
    return {str(record.input): {normalise_answer(one) for one in record.reference} for record in continents()}


@dataclass(frozen=True)
class Hosted:
    """A server, and parts that reach it.

    Attributes:
        url: Its address.
        script: What it answers, what goes wrong, and what it was asked.
    """

    url: str
    script: Script

    @staticmethod
    def script_of_facts() -> Script:
        """Return a script of the recorded facts."""
        script = Script.of(continents())
        script.answers = Replies({prompt: list(answers) for prompt, answers in script.answers.items()})
        return script

    @property
    def reached(self) -> dict[str, Any]:
        """How parts reach it; the client leaves it to CFC to repeat requests unless told otherwise."""
        return {"base_url": self.url, "api_key": "none", "max_retries": 0}

    def generator(self, model: str = MODEL, **settings: Any) -> ChatCompletions:
        """The generator that was calibrated, unless told otherwise."""
        return make_generator(model, **{**DRAWN, **self.reached, **settings})

    def verifier(self, name: str, **settings: Any) -> Any:
        """One of `VERIFIERS`."""
        if name == "sequence":
            return SequenceProbability()
        mode: Any = name
        return make_judge(**{"model": MODEL, "mode": mode, **self.reached, **settings})

    def chain(self, saved: Saved, verifier: str = "sequence", **fields: Any) -> CFCRunnable:
        given = {
            "generator": fields.pop("generator", None) or self.generator(),
            "verifier": fields.pop("using", None) or self.verifier(verifier),
            "artifact": CalibrationArtifact.load(saved[verifier]),
            # The server has another port than when the records were collected.
            "generator_id": "recorded",
            "verifier_id": verifier,
        }
        return CFCRunnable(**{**given, **fields})


def collect_artifacts(folder: Path) -> None:
    """Collect from the server, with each verifier, calibrate and save."""
    script = Hosted.script_of_facts()
    examples = [
        Example(id=record.id, input=record.input, reference=record.reference) for record in continents()[:24]
    ]
    with serving(script) as url:
        for name in VERIFIERS:
            hosted = Hosted(url, script)
            parts = Components(
                generator=hosted.generator(),
                verifier=hosted.verifier(name),
                labeler=NormalisedMatch(),
                n=N,
                sampling="single_request",
                generator_id="recorded",
                verifier_id=name,
            )
            options = CollectionOptions(call_policy=CallPolicy(concurrency=4))
            assert collect(examples, parts, folder / f"{name}.db", options).complete
            with Store(folder / f"{name}.db") as store:
                artifact = calibrate(
                    store.read_records(), alpha=ALPHA, features="1", provenance=store.read_provenance()
                )
            artifact.save(folder / f"{name}.json")


def get_question(number: int = -1) -> str:
    """A question that no artifact was calibrated on."""
    return str(continents()[number].input)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Saved:
    """For each verifier the file of an artifact; the server they were collected from is gone."""
    base = tmp_path_factory.getbasetemp()
    # Processes that run tests side by side share what the first of them collects.
    folder = (base if worker_id == "master" else base.parent) / "saved"
    with FileLock(f"{folder}.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        if not folder.exists():
            made = folder.with_name("unfinished")
            made.mkdir()
            collect_artifacts(made)
            made.rename(folder)
    return {name: folder / f"{name}.json" for name in VERIFIERS}


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosted]:
    """The same server, which tests make faulty, where clients look for a hosted model."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    script = Hosted.script_of_facts()
    with serving(script) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        yield Hosted(url, script)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key of this machine, and a folder of its own."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
