"""`Executor` in this process and over HTTP: it makes records as serving makes results."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_cfc_collect import CallPolicy, CollectionResult, collect
from langchain_cfc_collect.batches.calls import BatchedCalls, RunningCalls
from langchain_cfc_collect.collecting import run_in_kept_loop
from langchain_cfc_collect.executor import Components, Executor
from langchain_cfc_collect.stages import Journal, Labels, StoredPrompt
from langchain_cfc_collect.store import Store
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.context import register_configure_hook
from langchain_openai import ChatOpenAI

from integrations.collect.tests.sharing import make_recorded_model, make_silent_options
from langchain_cfc import CFCRunnable, calibrate
from langchain_cfc.errors import AttainabilityWarning, CollectionError, InputError, StoreError
from langchain_cfc.execution import ConcurrencyLimiter
from langchain_cfc.labelers import NormalisedMatch, NumericMatch
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import SelfConsistency, SequenceProbability
from tests.concurrency import ConcurrencyCounter
from tests.lengths import mostly_long
from tests.serving.openai_bodies import TOKENS_IN, TOKENS_OUT, Answer
from tests.serving.openai_server import Fault, Script, serving

N, SIZE = 4, 12
# So that the server's answers come in the order of slots.
ONE_CALL_AT_A_TIME = make_silent_options(call_policy=CallPolicy(concurrency=1))


def examples(size: int = SIZE) -> list[Example]:
    return [
        Example(
            id=f"p{number}",
            input=f"question {number}",
            reference=f"answer {number} 0",
            metadata={"hard": 0.5},
        )
        for number in range(size)
    ]


@pytest.fixture
def script() -> Script:
    """Four answers to each prompt; two of them agree once they are read."""
    return Script(
        {
            f"question {number}": [
                Answer(f"answer {number} {slot % 3}{'!' * (slot == 3)}", -0.05 - 0.1 * slot - number / 100)
                for slot in range(N)
            ]
            for number in range(SIZE)
        }
    )


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as address:
        yield address


@pytest.fixture
def model(url: str) -> ChatOpenAI:
    return make_recorded_model(url)


def collect_records(path: Path, parts: Components, **options: Any) -> CollectionResult:
    return collect(examples(), parts, path, replace(ONE_CALL_AT_A_TIME, **options))


def without_mark(text: str) -> str:
    return text.rstrip("!")


def describe(prompt: str) -> dict[str, Any]:
    return {"number": int(prompt.rpartition(" ")[2])}


@pytest.mark.parametrize("batch", [False, True])
def test_collect_refuses_unusable_references_before_any_request(
    path: Path, script: Script, model: ChatOpenAI, *, batch: bool
) -> None:
    components = Components(generator=model, verifier=SequenceProbability(), labeler=NumericMatch(), n=N)
    given = [
        Example(id=name, input=f"question {name}", reference=reference)
        for name, reference in [("a", "12"), ("b", None), ("c", "twelve"), ("d", 12)]
    ]
    options = make_silent_options(call_policy=CallPolicy(batch=batch))
    with pytest.raises(CollectionError, match=r"the reference of 2 prompts: b: .*; c: "):
        collect(given, components, path, options)
    assert not script.requests


# Equal to serving


@mostly_long("sampling", ["requests", "single_request"], quick=1)
@pytest.mark.parametrize("several", [False, True])
def test_collected_and_served_candidates_are_equal(
    path: Path, script: Script, model: ChatOpenAI, *, sampling: Any, several: bool
) -> None:
    verifier: Any = SequenceProbability()
    if several:
        verifier = {"probable": verifier, "voted": SelfConsistency(without_mark)}
    made: dict[str, Any] = {
        "generator": model,
        "verifier": verifier,
        "answer": without_mark,
        "metadata": describe,
        "sampling": sampling,
        "verifier_id": "both" if several else None,
        "answer_id": "without-mark",
    }
    assert collect_records(path, Components(labeler=NormalisedMatch(), n=N, **made)).complete
    with Store(path) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)
        found = list(store.read_records())
        artifact = calibrate(
            found,
            alpha=0.5,
            features="meta(number)",
            set_rule="unique(all)",
            provenance=store.read_provenance(),
        )
    chain = CFCRunnable(artifact=artifact, show_rejected=True, **made)
    # The server starts again with the first answer to each.
    script._served.clear()
    for record in found:
        result = chain.invoke(record.input, {"max_concurrency": 1})
        for online, offline in zip(result.candidates, record.candidates, strict=True):
            assert (online.text, online.answer, online.score, online.scores) == (
                offline.text,
                offline.answer,
                offline.score,
                offline.scores,
            )
        assert record.metadata == {"hard": 0.5, **describe(str(record.input))}


# Labelers


class RecordingLabeler:
    """Labels texts that contain a word, and records what it received."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.shown: list[list[str]] = []

    def __call__(self, _: Any, __: Any, candidates: list[DrawnCandidate]) -> list[bool]:
        self.shown.append([one.text for one in candidates])
        return [self.word in one.text for one in candidates]


def yield_letters(_: str) -> Iterator[str]:
    yield from ("a!", "b", "a", "b?")


def score_half(_: Any, candidates: Sequence[DrawnCandidate]) -> list[float]:
    return [0.5] * len(candidates)


def label_texts(labeler: RecordingLabeler, **parts: Any) -> Labels:
    executor = Executor(Components(lambda prompt: prompt, score_half, labeler, N, **parts))
    draws = [DrawnCandidate(text) for text in yield_letters("?")]
    prompt = StoredPrompt(0, examples(1)[0], draws)
    found = asyncio.run(executor.label(prompt, Journal())).result
    assert isinstance(found, Labels)
    return found


def test_labeler_receives_each_distinct_answer() -> None:
    labeler = RecordingLabeler("a")
    found = label_texts(labeler, answer=lambda text: text.rstrip("!?"))
    assert found == Labels([True, False, True, False], ["a", "b", "a", "b"], {})
    assert labeler.shown == [["a", "b"]]


# Failures over HTTP


def test_usage_includes_the_tokens_of_failed_draws(path: Path, script: Script, model: ChatOpenAI) -> None:
    # The last of four draws is refused for good.
    script.faults = [Fault("status 400", on={3, 4, 5})]
    parts = Components(model, SequenceProbability(), NormalisedMatch(), N)
    found = collect(examples(1), parts, path, ONE_CALL_AT_A_TIME)
    assert found.status.failed == 1
    assert found.status.usage.tokens == (N - 1) * (TOKENS_IN + TOKENS_OUT)
    with Store(path) as store:
        assert store.read_usage().tokens == found.status.usage.tokens


# Calls


def test_draws_fill_the_concurrency_limit_prompt_by_prompt() -> None:
    under_way = ConcurrencyCounter()
    asked: list[str] = []

    async def answer(prompt: str) -> str:
        asked.append(prompt)
        with under_way.counted():
            await asyncio.sleep(0.001)
        return prompt

    async def drawn() -> None:
        executor = Executor(
            Components(RunnableLambda(answer), score_half, NormalisedMatch(), N), CallPolicy(3)
        )
        await asyncio.gather(*(executor.draw(one, Journal()) for one in examples(40)))

    asyncio.run(drawn())
    assert under_way.most == 3
    # A kill leaves few prompts half drawn.
    assert asked == [one.input for one in examples(40) for _ in range(N)]


class FullJournal(Journal):
    """A journal, of live calls or of batches, whose disk is full."""

    is_batched = True

    async def flush(self) -> None:
        msg = "no space left"
        raise StoreError(msg)


def make_batched_calls(journal: Any) -> BatchedCalls:
    return BatchedCalls(CallPolicy(), None, RunningCalls(), ConcurrencyLimiter(2), journal)


@pytest.mark.parametrize("make_calls", [None, make_batched_calls], ids=["live", "batches"])
@pytest.mark.parametrize("stage", ["draw", "score", "label"])
def test_failure_of_the_store_is_no_failure_of_a_prompt(stage: str, make_calls: Any) -> None:
    parts = Components(RunnableLambda(yield_letters), score_half, RecordingLabeler("a"), N)
    executor = Executor(parts, make_calls=make_calls)
    example, draws = examples(1)[0], [DrawnCandidate(text) for text in yield_letters("?")]
    given = example if stage == "draw" else StoredPrompt(0, example, draws)
    with pytest.raises(StoreError, match="no space left"):
        asyncio.run(getattr(executor, stage)(given, FullJournal()))


@pytest.mark.parametrize("n", [0, -1, 2.5, "3"])
def test_local_executor_refuses_an_invalid_number_of_candidates(n: Any) -> None:
    with pytest.raises(InputError, match="expected a whole number of candidates"):
        Executor(Components(lambda prompt: prompt, score_half, NormalisedMatch(), n))


def test_collections_of_one_process_share_the_clients_of_models(tmp_path: Path, script: Script) -> None:
    # Models of one address share an async client, whose kept connections belong to an event loop.
    with serving(script, keep_alive=True) as url:
        for number in range(3):
            parts = Components(make_recorded_model(url), SequenceProbability(), NormalisedMatch(), N)
            assert collect_records(tmp_path / f"{number}.db", parts).complete
            failing = replace(parts, labeler=RunnableLambda(lambda _: 1 / 0), labeler_id="fails")
            with pytest.raises(CollectionError):
                collect_records(tmp_path / f"{number}-fails.db", failing)


class EnvironmentTracer(BaseCallbackHandler):
    """A tracer that the environment asks for, as LangSmith's is."""

    seen: ClassVar[list[str]] = []

    def on_chain_start(self, *_: Any, **details: Any) -> None:
        self.seen.append(str(details.get("name")))


_TRACER: ContextVar[Any] = ContextVar("_TRACER", default=None)
register_configure_hook(_TRACER, inheritable=True, handle_class=EnvironmentTracer, env_var="CFC_TEST_TRACER")


def test_tracers_of_the_environment_see_the_calls_of_a_collection(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFC_TEST_TRACER", "true")
    monkeypatch.setattr(EnvironmentTracer, "seen", [])
    bot = RunnableLambda(str, name="bot")
    parts = Components(bot, SelfConsistency(), NormalisedMatch(), N, generator_id="g")
    assert collect(examples(2), parts, path, ONE_CALL_AT_A_TIME).complete
    seen = {"bot": 2 * N, "self-consistency": 2, "normalised-match": 2}
    assert Counter(EnvironmentTracer.seen) == seen


NAMED: ContextVar[str] = ContextVar("NAMED")


def test_each_run_of_a_thread_sees_the_context_of_its_caller() -> None:
    async def read() -> str:
        return NAMED.get()

    for name in ("one", "another"):
        NAMED.set(name)
        assert run_in_kept_loop("...", read()) == name


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio has no Runner")
def test_loop_of_a_thread_is_closed_while_another_loop_runs() -> None:
    loops = []

    async def keep_loop() -> None:
        loops.append(asyncio.get_running_loop())

    async def collect_garbage() -> None:
        thread = threading.Thread(target=lambda: run_in_kept_loop("...", keep_loop()))
        thread.start()
        thread.join()
        del thread
        gc.collect()

    asyncio.run(collect_garbage())
    until = time.monotonic() + 10.0
    while not loops[0].is_closed() and time.monotonic() < until:
        time.sleep(0.01)
    assert loops[0].is_closed()
