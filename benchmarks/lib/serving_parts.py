"""The parts of `serving.py`: overhead in memory, own arithmetic, claims, imports, and wall time over HTTP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI

from benchmarks.lib.in_memory import (
    ALPHA,
    FEATURES,
    FEW_DISTINCT,
    PART_IDS,
    InMemoryModel,
    N,
    calibrate_artifact,
    make_judge,
    read_doubled_recording,
    serve_by_hand,
    serve_by_hand_async,
)
from benchmarks.lib.peer_process import ROOT
from benchmarks.lib.serving_results import (
    Arithmetic,
    Http,
    Import,
    LongAnswer,
    Overhead,
    Requests,
    Waves,
    Way,
)
from benchmarks.lib.slow_server import JUDGE, count_requests, run_slow_server
from benchmarks.lib.timing import (
    Ratio,
    Times,
    pause_garbage_collection,
    time_call,
    time_in_turn,
    time_in_turn_async,
)
from langchain_cfc import (
    CalibrationArtifact,
    CFCResult,
    CFCRunnable,
    PromptRecord,
    calibrate,
    read_records,
)
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.claims import SentenceSplitter
from langchain_cfc.decision import decide
from langchain_cfc.runnable import ClaimsResult
from langchain_cfc.verifiers import pointwise

FEATURE_MAPS = ("1", "mean_score", "hat(mean_score, 5)", "hat(mean_score, 5) + group(topic)")
SENTENCE_COUNTS = (5, 30)  # of a long answer
LONG_ANSWERS = ROOT / "examples/long_answers/records.jsonl.gz"
WARM_PROMPTS = 100  # prompts asked before any counts
# Messages carry what providers report, and the result sums it.
USAGE: dict[str, Any] = {
    "usage_metadata": {"input_tokens": 50, "output_tokens": 10, "total_tokens": 60},
}
BARE_PYTHON = "bare Python"
PROGRAMS = {
    BARE_PYTHON: "pass",
    "bare Python, again": "pass",
    "langchain_cfc": "import langchain_cfc",
    "RunnableSerializable": "from langchain_core.runnables import RunnableSerializable",
    "CFCRunnable": "from langchain_cfc import CFCRunnable",
}
COMPARED_PROGRAMS = (
    ("bare Python, again", BARE_PYTHON),
    ("langchain_cfc", BARE_PYTHON),
    ("CFCRunnable", "RunnableSerializable"),
)
WARM_HTTP_ROUNDS = 1  # rounds before any counts: connections are made then
BOUNDS = (None, N)
# Rules that no candidate stops, since none scores less than 0.01: four waves, and one draw after the other.
DRAW_RULES = ("below(0.001, rounds=5+5+5+5)", "below(0.001, at_most=20)")
WAVE_SECONDS = (0.0, 0.03)  # that the model takes to answer


class Ways:
    """Both ways to serve a prompt: our chain, and calls of its model and judge by hand."""

    def __init__(
        self, model: BaseChatModel, judge: Runnable[Any, float], artifact: CalibrationArtifact
    ) -> None:
        self._model, self._judge = model, judge
        rule = artifact.draw_rule
        self._waves = (N,) if rule is None else rule.rounds
        ids = {} if rule is None else PART_IDS
        self._chain = CFCRunnable(generator=model, verifier=pointwise(judge), artifact=artifact, **ids)

    def invoke(self, number: int, config: RunnableConfig | None = None) -> CFCResult:
        """Serve a numbered prompt by our chain."""
        return self._chain.invoke(_make_prompt(number), config)

    def invoke_by_hand(self, number: int, config: RunnableConfig | None = None) -> list[float]:
        """Serve a numbered prompt by hand."""
        return serve_by_hand(self._model, self._judge, _make_prompt(number), config, self._waves)

    async def ainvoke(self, number: int, config: RunnableConfig | None = None) -> CFCResult:
        """Serve a numbered prompt by our chain, asynchronously."""
        return await self._chain.ainvoke(_make_prompt(number), config)

    async def ainvoke_by_hand(self, number: int, config: RunnableConfig | None = None) -> list[float]:
        """Serve a numbered prompt by hand, asynchronously."""
        return await serve_by_hand_async(self._model, self._judge, _make_prompt(number), config, self._waves)


def _make_prompt(number: int) -> str:
    return f"question {abs(number)}"


def measure_overhead(rounds: int) -> list[Overhead]:
    """Measure the overhead, plain and async, with all candidates distinct and with few distinct ones."""
    artifact = calibrate_artifact(read_doubled_recording(), FEATURES)
    rows: list[Overhead] = []
    for distinct in (N, FEW_DISTINCT):
        ways = Ways(InMemoryModel(distinct=distinct), make_judge(), artifact)
        rows += [
            Overhead(way=way, distinct=distinct, ratio=ratio, control=control)
            for way, ratio, control in _time_ways(ways, rounds)
        ]
    return rows


def measure_waves(rounds: int, rules: Sequence[str] = DRAW_RULES) -> list[Waves]:
    """Measure the overhead of draw rules that score between waves, for models that take no time, and some."""
    # Without extracted answers, so that by hand nothing is extracted either.
    records = [
        one.model_copy(
            update={"candidates": tuple(c.model_copy(update={"answer": None}) for c in one.candidates)}
        )
        for one in read_doubled_recording()
    ]
    rows: list[Waves] = []
    for rule in rules:
        artifact = calibrate_artifact(records, FEATURES, rule)
        for seconds in WAVE_SECONDS:
            ways = Ways(InMemoryModel(seconds=seconds), make_judge(), artifact)
            rows += [
                Waves(way=way, draws=rule, seconds=seconds, ratio=ratio, control=control)
                for way, ratio, control in _time_ways(ways, rounds)
            ]
    return rows


def _time_ways(ways: Ways, rounds: int) -> Iterator[tuple[Way, Ratio, Ratio]]:
    """Yield, plain and async, our time over that by hand, and by hand over by hand as a control."""
    # Slots may differ, because threads run in any order.
    if sorted(one.score for one in ways.invoke(0).candidates) != sorted(ways.invoke_by_hand(0)):
        msg = "our chain and the calls by hand have different scores"
        raise AssertionError(msg)
    plain = time_in_turn([ways.invoke, ways.invoke_by_hand, ways.invoke_by_hand], rounds)
    awaited = asyncio.run(
        time_in_turn_async([ways.ainvoke, ways.ainvoke_by_hand, ways.ainvoke_by_hand], rounds)
    )
    taken: tuple[tuple[Way, list[list[float]]], ...] = (("invoke", plain), ("ainvoke", awaited))
    for way, (ours, hand, again) in taken:
        yield way, Ratio.of(ours, hand), Ratio.of(again, hand)


class InstantGenerator(Runnable[Any, Any]):
    """A generator that returns n fixed candidates; a batch starts no thread."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._messages = [AIMessage(text, **USAGE) for text in texts]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        """Return the first candidate."""
        del input, config, kwargs
        return self._messages[0]

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any | None,
    ) -> list[Any]:
        """Return as many candidates as asked for."""
        del config, return_exceptions, kwargs
        return self._messages[: len(inputs)]


class RecordedVerifier:
    """A verifier that returns recorded scores, and notes when."""

    def __init__(self, records: Sequence[PromptRecord]) -> None:
        self._scores = {str(one.input): [candidate.score for candidate in one.candidates] for one in records}
        self.left = 0.0

    def __call__(self, prompt: Any, candidates: Sequence[Any]) -> list[float]:
        """Return one score per candidate."""
        del candidates
        scores = self._scores[prompt]
        self.left = time.perf_counter()
        return scores


class ArithmeticCase:
    """An artifact with one feature map, and the prompts that it is timed on."""

    def __init__(self, records: list[PromptRecord], features: str, count: int) -> None:
        self._features, self._artifact = features, calibrate_artifact(records, features)
        split = self._artifact.calibration.split
        held_out = [one for one in records if split.find_part(one.id, one.cluster) == "test"]
        self._records = held_out[: WARM_PROMPTS + count]
        self._metadata = {str(one.input): dict(one.metadata) for one in records}

    def measure(self) -> Arithmetic:
        """Measure all times of this feature map."""
        new, again = self._time_decisions()
        after, plain, whole, whole_plain = self._time_calls()
        return Arithmetic(
            features=self._features,
            d=self._artifact.feature_map.dimension,
            decide=new,
            again=again,
            after=after,
            plain=plain,
            whole=whole,
            whole_plain=whole_plain,
        )

    def _time_decisions(self) -> tuple[Times, Times]:
        """Time decisions on new prompts, and again on the same prompts."""
        artifact = _reload_artifact(self._artifact)
        texts = [f"answer {number}" for number in range(N)]

        def make_call(record: PromptRecord) -> Callable[[], object]:
            scores, metadata = [one.score for one in record.candidates], dict(record.metadata)
            return lambda: decide(artifact, CandidateBatch.from_arrays([scores], [texts], [metadata]), ALPHA)

        calls = [make_call(record) for record in self._records]
        with pause_garbage_collection():
            new = [time_call(call) for call in calls]
            again = [time_call(call) for call in calls]
        return Times.of(new[WARM_PROMPTS:]), Times.of(again[WARM_PROMPTS:])

    def _time_calls(self) -> tuple[Times, Times, Times, Times]:
        """Time `invoke` and a `RunnableLambda` in turn, from the verifier's return and as a whole."""
        generator = InstantGenerator([f"answer {number}" for number in range(N)])
        verifier = RecordedVerifier(self._records)
        chain = CFCRunnable(
            generator=generator,
            verifier=verifier,
            artifact=_reload_artifact(self._artifact),
            metadata=lambda prompt: self._metadata[prompt],
        )
        plain: Runnable[Any, Any] = RunnableLambda(
            lambda prompt: verifier(prompt, generator.batch([prompt] * N))
        )
        after: list[list[float]] = [[], []]
        whole: list[list[float]] = [[], []]
        with pause_garbage_collection():
            for record in self._records:
                for which, runnable in enumerate((chain, plain)):
                    start = time.perf_counter()
                    runnable.invoke(record.input)
                    end = time.perf_counter()
                    after[which].append(end - verifier.left)
                    whole[which].append(end - start)
        ours, other = (Times.of(seconds[WARM_PROMPTS:]) for seconds in after)
        all_ours, all_other = (Times.of(seconds[WARM_PROMPTS:]) for seconds in whole)
        return ours, other, all_ours, all_other


def measure_arithmetic(count: int) -> list[Arithmetic]:
    """Measure our own arithmetic for each feature map on so many prompts."""
    records = read_doubled_recording()
    return [ArithmeticCase(records, features, count).measure() for features in FEATURE_MAPS]


def _reload_artifact(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """Return the artifact as a new process loads it, without remembered prompts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact.json"
        artifact.save(file)
        return CalibrationArtifact.load(file)


def measure_claims(rounds: int) -> list[LongAnswer]:
    """Measure what the claims of a long answer add to drawing and scoring it."""
    records = list(read_records(LONG_ANSWERS).read_claims())
    artifact = calibrate(records, unit="claims", at_most=1, alpha=ALPHA, features=FEATURES)
    return [_measure_long_answer(_reload_artifact(artifact), size, rounds) for size in SENTENCE_COUNTS]


def _measure_long_answer(artifact: CalibrationArtifact, size: int, rounds: int) -> LongAnswer:
    answer = " ".join(f"City {number} has {7 * number} parks and lies by the sea." for number in range(size))
    generator, splitter = InstantGenerator([answer]), SentenceSplitter()

    def verify(prompt: str, candidates: Sequence[Any]) -> list[float]:
        # Other scores for each prompt, some of which are kept.
        first = int(prompt.removeprefix("question "))
        return [(7 * slot + first) % 100 / 100 for slot in range(len(candidates))]

    chain = CFCRunnable(generator=generator, verifier=verify, artifact=artifact, output="claims")
    result = chain.invoke(_make_prompt(0))
    if not isinstance(result, ClaimsResult) or len(result.claims) != size:
        msg = f"the answer was not split into {size} sentences"
        raise AssertionError(msg)
    plain: Runnable[Any, Any] = RunnableLambda(
        lambda prompt: verify(prompt, [generator.invoke(prompt)] * size)
    )
    ours, other, split = time_in_turn(
        [
            lambda number: chain.invoke(_make_prompt(number)),
            lambda number: plain.invoke(_make_prompt(number)),
            lambda _: splitter.split(answer),
        ],
        rounds,
    )
    return LongAnswer(sentences=size, ratio=Ratio.of(ours, other), split=Times.of(split))


def measure_imports(rounds: int) -> list[Import]:
    """Measure imports in fresh interpreters, each program against another."""
    taken = dict(
        zip(PROGRAMS, time_in_turn([_make_import(text) for text in PROGRAMS.values()], rounds), strict=True)
    )
    return [
        Import(program=program, against=against, ratio=Ratio.of(taken[program], taken[against]))
        for program, against in COMPARED_PROGRAMS
    ]


def _make_import(text: str) -> Callable[[int], object]:
    # Interpreters of users have compiled files.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", text]
    return lambda _: subprocess.run(command, cwd=ROOT, env=environment, check=True)  # noqa: S603 - our own text


def _make_http_ways(base_url: str, artifact: CalibrationArtifact, distinct: int) -> Ways:
    """Make both ways to serve a prompt over HTTP, with so many distinct answers."""
    client: dict[str, Any] = {"base_url": base_url, "api_key": "none", "max_retries": 0}
    judge: Runnable[Any, float] = (
        RunnableLambda(_format_question) | ChatOpenAI(model=JUDGE, **client) | RunnableLambda(_read_score)
    )
    return Ways(ChatOpenAI(model=f"distinct-{distinct}", **client), judge, artifact)


def measure_http(rounds: int, draw: float, verify: float) -> tuple[list[Http], list[Requests]]:
    """Measure wall time and requests; the server takes `draw` and `verify` seconds to answer and judge."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    artifact = calibrate_artifact(read_doubled_recording(), FEATURES)
    with run_slow_server(draw, verify) as base_url:
        ways_by_distinct = {
            distinct: _make_http_ways(base_url, artifact, distinct) for distinct in (N, FEW_DISTINCT)
        }
        rows = [_time_plain(ways_by_distinct[N], bound, rounds, draw + verify) for bound in BOUNDS]
        counts = [_count_plain(base_url, ways, distinct) for distinct, ways in ways_by_distinct.items()]
        # One event loop for all, because connections belong to it.
        arows, acounts = asyncio.run(_time_awaited(base_url, ways_by_distinct, rounds, draw + verify))
    return rows + arows, counts + acounts


def _time_plain(ways: Ways, bound: int | None, rounds: int, ideal: float) -> Http:
    config = _make_config(bound)
    taken = time_in_turn(
        [lambda number: ways.invoke(number, config), lambda number: ways.invoke_by_hand(number, config)],
        rounds,
        WARM_HTTP_ROUNDS,
    )
    return _make_http("invoke", bound, taken, ideal)


async def _time_awaited(
    base_url: str, ways_by_distinct: dict[int, Ways], rounds: int, ideal: float
) -> tuple[list[Http], list[Requests]]:
    ways, rows = ways_by_distinct[N], []
    for bound in BOUNDS:
        config = _make_config(bound)
        calls = [
            lambda number, config=config: ways.ainvoke(number, config),
            lambda number, config=config: ways.ainvoke_by_hand(number, config),
        ]
        rows.append(
            _make_http("ainvoke", bound, await time_in_turn_async(calls, rounds, WARM_HTTP_ROUNDS), ideal)
        )
    return rows, [
        await _count_awaited(base_url, ways, distinct) for distinct, ways in ways_by_distinct.items()
    ]


def _make_http(way: Way, bound: int | None, taken: list[list[float]], ideal: float) -> Http:
    ours, hand = (Ratio.of(seconds, [ideal] * len(seconds)) for seconds in taken)
    return Http(way=way, max_concurrency=bound, ours=ours, by_hand=hand)


def _count_plain(base_url: str, ways: Ways, distinct: int) -> Requests:
    count_requests(base_url)
    ways.invoke(1, _make_config(N))
    ours = count_requests(base_url)
    ways.invoke_by_hand(1, _make_config(N))
    return _make_requests("invoke", distinct, ours, count_requests(base_url))


async def _count_awaited(base_url: str, ways: Ways, distinct: int) -> Requests:
    count_requests(base_url)
    await ways.ainvoke(1, _make_config(N))
    ours = count_requests(base_url)
    await ways.ainvoke_by_hand(1, _make_config(N))
    return _make_requests("ainvoke", distinct, ours, count_requests(base_url))


def _make_requests(way: Way, distinct: int, ours: dict[str, int], hand: dict[str, int]) -> Requests:
    drawn = sum(count for model, count in ours.items() if model != JUDGE)
    return Requests(way=way, distinct=distinct, drawn=drawn, judged=ours[JUDGE], judged_by_hand=hand[JUDGE])


def _make_config(bound: int | None) -> RunnableConfig:
    return RunnableConfig() if bound is None else RunnableConfig(max_concurrency=bound)


def _format_question(pair: dict[str, str]) -> str:
    return f"How wrong is {pair['candidate']!r} as an answer to {pair['prompt']!r}, from 0 to 1?"


def _read_score(message: Any) -> float:
    return float(message.text)
