"""What serving costs in addition to the model and the verifier, in one run: `python benchmarks/serving.py`.

Parts: `CFCRunnable` and the same calls by hand, in memory; the same in the waves of a draw rule; our own
arithmetic for one prompt; the claims of a long answer; imports in fresh interpreters; wall time over HTTP,
with the requests that the server counted; and how many calls of our functions a prompt and a calibration
take. Alternatives are timed in turn. Times depend on the machine; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.measuring import (
    RATIO_HEADINGS,
    ROOT,
    Ratio,
    describe_run,
    format_seconds,
    limit_threads,
    pause_garbage_collection,
    print_table,
    time_call,
    time_in_turn,
    time_in_turn_async,
)

limit_threads()  # before NumPy is imported

from langchain_core.language_models import BaseChatModel  # noqa: E402 - after the threads are limited
from langchain_core.messages import AIMessage  # noqa: E402
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

import langchain_cfc  # noqa: E402
from benchmarks.lib.in_memory import (  # noqa: E402
    A_PAGE,
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
from benchmarks.lib.slow_server import JUDGE, count_requests, run_slow_server  # noqa: E402
from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, calibrate, read_records  # noqa: E402
from langchain_cfc.candidates import CandidateBatch  # noqa: E402
from langchain_cfc.decision import decide  # noqa: E402
from langchain_cfc.demo import load_recording  # noqa: E402
from langchain_cfc.runnable import ClaimsResult  # noqa: E402
from langchain_cfc.verifiers import from_evaluator  # noqa: E402

PACKAGES = ("langchain-cfc", "langchain-core", "langchain-openai", "openai", "pydantic", "numpy")
FEATURE_MAPS = ("1", "mean_score", "hat(mean_score, 5)", "hat(mean_score, 5) + group(topic)")
SENTENCE_COUNTS = (5, 30)  # of a long answer
LONG_ANSWERS = ROOT / "examples/long_answers/records.jsonl.gz"
WARM_PROMPTS = 100  # prompts asked before any counts
BARE_PYTHON = "bare Python"
PROGRAMS = {
    BARE_PYTHON: "pass",
    "langchain_cfc": "import langchain_cfc",
    "RunnableSerializable": "from langchain_core.runnables import RunnableSerializable",
    "CFCRunnable": "from langchain_cfc import CFCRunnable",
}
COMPARED_PROGRAMS = (("langchain_cfc", BARE_PYTHON), ("CFCRunnable", "RunnableSerializable"))
# Rules that no candidate stops, since none scores less than 0.01: four waves, and one draw after the other.
DRAW_RULES = ("below(0.001, rounds=5+5+5+5)", "below(0.001, at_most=20)")
WAVE_SECONDS = (0.0, 0.03)  # that the model takes to answer
WARM_HTTP_ROUNDS = 1  # connections are made then
CALLS_RECORDS, CALLS_CANDIDATES = 400, 10
MAX_WRONG_RATE = "0.2"
PACKAGE_FOLDER = str(Path(langchain_cfc.__file__).parent) + os.sep

Rows = Iterator[tuple[object, ...]]


class Ways:
    """Both ways to serve a prompt: our chain, and calls of its model and judge by hand."""

    def __init__(
        self, model: BaseChatModel, judge: Runnable[Any, float], artifact: CalibrationArtifact
    ) -> None:
        self._model, self._judge = model, judge
        rule = artifact.draw_rule
        self._waves = (N,) if rule is None else rule.rounds
        ids = {} if rule is None else PART_IDS
        self._chain = CFCRunnable(
            generator=model, verifier=from_evaluator(judge, higher_is_better=False), artifact=artifact, **ids
        )

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


def measure_overhead(rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Yield the overhead over calls by hand: all candidates distinct, few distinct ones, and long ones."""
    artifact = calibrate_artifact(read_doubled_recording(), FEATURES)
    for distinct, text in ((N, ""), (FEW_DISTINCT, ""), (N, A_PAGE)):
        ways = Ways(InMemoryModel(distinct=distinct, text=text), make_judge(), artifact)
        length = " and of a page" if text else ""
        for way, ratio in _time_ways(ways, rounds):
            yield f"{way}, {distinct} of {N} answers distinct{length}, over calls by hand", ratio


def measure_waves(rounds: int, rules: Sequence[str] = DRAW_RULES) -> Iterator[tuple[str, Ratio]]:
    """Yield the overhead of draw rules that score between waves, for models that take no time, and some."""
    # Without extracted answers, so that by hand nothing is extracted either.
    records = [
        one.model_copy(
            update={"candidates": tuple(c.model_copy(update={"answer": None}) for c in one.candidates)}
        )
        for one in read_doubled_recording()
    ]
    for rule in rules:
        artifact = calibrate_artifact(records, FEATURES, rule)
        waves = "four waves" if rule == DRAW_RULES[0] else "waves of one draw"
        for seconds in WAVE_SECONDS:
            ways = Ways(InMemoryModel(seconds=seconds), make_judge(), artifact)
            for way, ratio in _time_ways(ways, rounds):
                yield f"{way} in {waves}, a model of {1000 * seconds:g} ms, over calls by hand", ratio


def _time_ways(ways: Ways, rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Yield, plain and async, our time over that by hand."""
    # Slots may differ, because threads run in any order.
    if sorted(one.score for one in ways.invoke(0).candidates) != sorted(ways.invoke_by_hand(0)):
        msg = "our chain and the calls by hand have different scores"
        raise AssertionError(msg)
    yield "invoke", Ratio.of(*time_in_turn([ways.invoke, ways.invoke_by_hand], rounds))
    awaited = time_in_turn_async([ways.ainvoke, ways.ainvoke_by_hand], rounds)
    yield "ainvoke", Ratio.of(*asyncio.run(awaited))


class InstantGenerator(Runnable[Any, Any]):
    """A generator that answers with fixed texts in turn; a batch starts no thread."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = itertools.cycle(texts)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        """Return the next candidate, with the usage that providers report."""
        del input, config, kwargs
        usage: Any = {"input_tokens": 50, "output_tokens": 10, "total_tokens": 60}
        return AIMessage(next(self._texts), usage_metadata=usage)

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
        return [self.invoke(one) for one in inputs]


def measure_arithmetic(count: int) -> Rows:
    """Yield median times of our own arithmetic for new prompts, by feature map.

    These are packing the scores and `decide`; `invoke` with a generator and a verifier that return at once;
    and a `RunnableLambda` that calls the same two. The prompts are held out, and the artifact was just loaded
    and has answered a hundred others.
    """
    records = read_doubled_recording()
    texts = [f"answer {number}" for number in range(N)]
    generator = InstantGenerator(texts)
    scores = {str(one.input): [candidate.score for candidate in one.candidates] for one in records}
    metadata = {str(one.input): dict(one.metadata) for one in records}

    def verify(prompt: Any, candidates: Sequence[Any]) -> list[float]:
        del candidates
        return scores[prompt]

    for features in FEATURE_MAPS:
        artifact = calibrate_artifact(records, features)
        split = artifact.calibration.split
        held_out = [one for one in records if split.find_part(one.id, one.cluster) == "test"]
        prompts = [str(one.input) for one in held_out[: WARM_PROMPTS + count]]
        loaded = _reload_artifact(artifact)
        chain = CFCRunnable(
            generator=generator, verifier=verify, artifact=_reload_artifact(artifact), metadata=metadata.get
        )
        plain: Runnable[Any, Any] = RunnableLambda(
            lambda prompt: verify(prompt, generator.batch([prompt] * N))
        )
        taken: list[list[float]] = [[], [], []]
        with pause_garbage_collection():
            for prompt in prompts:
                batch = CandidateBatch.from_arrays([scores[prompt]], [texts], [metadata[prompt]])
                calls: tuple[Callable[[], object], ...] = (
                    partial(decide, loaded, batch, ALPHA),
                    partial(chain.invoke, prompt),
                    partial(plain.invoke, prompt),
                )
                for seconds, call in zip(taken, calls, strict=True):
                    seconds.append(time_call(call))
        cells = [format_seconds(median(seconds[WARM_PROMPTS:])) for seconds in taken]
        yield features, artifact.feature_map.dimension, *cells


def _reload_artifact(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """Return the artifact as a new process loads it, without remembered prompts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact.json"
        artifact.save(file)
        return CalibrationArtifact.load(file)


def measure_claims(rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Yield what splitting, decision and result of a long answer add to drawing and scoring it."""
    records = list(read_records(LONG_ANSWERS).read_claims())
    artifact = _reload_artifact(calibrate(records, unit="claims", at_most=1, alpha=ALPHA, features=FEATURES))

    def verify(prompt: str, candidates: Sequence[Any]) -> list[float]:
        # Other scores for each prompt, some of which are kept.
        first = int(prompt.removeprefix("question "))
        return [(7 * slot + first) % 100 / 100 for slot in range(len(candidates))]

    for size in SENTENCE_COUNTS:
        answer = " ".join(f"City {one} has {7 * one} parks and lies by the sea." for one in range(size))
        generator = InstantGenerator([answer])
        chain = CFCRunnable(generator=generator, verifier=verify, artifact=artifact, output="claims")
        result = chain.invoke(_make_prompt(0))
        if not isinstance(result, ClaimsResult) or len(result.claims) != size:
            msg = f"the answer was not split into {size} sentences"
            raise AssertionError(msg)
        plain = RunnableLambda(partial(_verify_one, generator, verify, size))
        taken = time_in_turn([partial(_ask, chain), partial(_ask, plain)], rounds)
        yield f"claims of {size} sentences, over the calls alone", Ratio.of(*taken)


def _verify_one(
    generator: InstantGenerator, verify: Callable[[str, Sequence[Any]], list[float]], size: int, prompt: str
) -> list[float]:
    return verify(prompt, [generator.invoke(prompt)] * size)


def _ask(runnable: Runnable[Any, Any], number: int) -> object:
    return runnable.invoke(_make_prompt(number))


def measure_imports(rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Yield imports in fresh interpreters, each program over another, from start to exit."""
    calls = [_make_import(text) for text in PROGRAMS.values()]
    taken = dict(zip(PROGRAMS, time_in_turn(calls, rounds), strict=True))
    for program, other in COMPARED_PROGRAMS:
        yield f"importing {program}, over {other}", Ratio.of(taken[program], taken[other])


def _make_import(text: str) -> Callable[[int], object]:
    # Interpreters of users have compiled files.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", text]
    return lambda _: subprocess.run(command, cwd=ROOT, env=environment, check=True)  # noqa: S603 - our own text


def measure_http(rounds: int, draw: float, verify: float) -> Rows:
    """Yield wall time of a prompt over the server's, `draw` + `verify` seconds, and the requests counted."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    artifact = calibrate_artifact(read_doubled_recording(), FEATURES)
    ideal = [draw + verify] * rounds
    config = RunnableConfig(max_concurrency=N)
    with run_slow_server(draw, verify) as base_url:
        for distinct in (N, FEW_DISTINCT):
            ways = _make_http_ways(base_url, artifact, distinct)
            count_requests(base_url)
            ways.invoke(1, config)
            counts = count_requests(base_url)
            ways.invoke_by_hand(1, config)
            by_hand = count_requests(base_url)
            yield f"judgements, {distinct} of {N} answers distinct", counts[JUDGE], by_hand[JUDGE]
        ways = _make_http_ways(base_url, artifact, N)
        calls = [partial(way, config=config) for way in (ways.invoke, ways.invoke_by_hand)]
        plain = time_in_turn(calls, rounds, WARM_HTTP_ROUNDS)
        awaits = [partial(way, config=config) for way in (ways.ainvoke, ways.ainvoke_by_hand)]
        awaited = asyncio.run(time_in_turn_async(awaits, rounds, WARM_HTTP_ROUNDS))
        for way, taken in (("invoke", plain), ("ainvoke", awaited)):
            name = f"{way}, time over {draw + verify:g} s"
            yield name, *(Ratio.of(seconds, ideal) for seconds in taken)


def _make_http_ways(base_url: str, artifact: CalibrationArtifact, distinct: int) -> Ways:
    """Make both ways to serve a prompt over HTTP, with so many distinct answers."""
    client: dict[str, Any] = {"base_url": base_url, "api_key": "none", "max_retries": 0}
    judge: Runnable[Any, float] = (
        RunnableLambda(_format_question) | ChatOpenAI(model=JUDGE, **client) | RunnableLambda(_read_score)
    )
    return Ways(ChatOpenAI(model=f"distinct-{distinct}", **client), judge, artifact)


def _format_question(pair: dict[str, str]) -> str:
    return f"How wrong is {pair['candidate']!r} as an answer to {pair['prompt']!r}, from 0 to 1?"


def _read_score(message: Any) -> float:
    return float(message.text)


def measure_calls(rounds: int) -> Rows:
    """Yield the calls of our functions that a bot's prompt and two calibrations take, and their times.

    The first count is of named functions; the second also of comprehensions, generators and lambdas. Methods
    that dataclasses make are in no file and do not count, nor does what was cached by a first call.
    """
    records = list(load_recording())[:CALLS_RECORDS]

    def make_bot() -> CalibrationArtifact:
        return calibrate(records, max_wrong_rate=MAX_WRONG_RATE)

    def make_sets() -> CalibrationArtifact:
        return calibrate(records, alpha=ALPHA)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, judge = (
            InMemoryModel(distinct=CALLS_CANDIDATES),
            from_evaluator(make_judge(), higher_is_better=False),
        )
        bot = CFCRunnable(
            generator=model, verifier=judge, artifact=make_bot(), max_wrong_rate=float(MAX_WRONG_RATE)
        )
        plain = f"calibrate, {CALLS_RECORDS} records"
        tasks: dict[str, Callable[[int], object]] = {
            f"invoke of a bot, n = {CALLS_CANDIDATES}": partial(_ask, bot),
            plain: lambda _: make_sets(),
            f"{plain}, max_wrong_rate": lambda _: make_bot(),
        }
        taken = time_in_turn(list(tasks.values()), rounds)
        for (name, call), seconds in zip(tasks.items(), taken, strict=True):
            functions, frames = count_calls(partial(call, 0))
            over = str(Ratio.of(seconds, taken[1])) if name != next(iter(tasks)) else "-"
            yield name, functions, frames, format_seconds(median(seconds)), over


def count_calls(call: Callable[[], object]) -> tuple[int, int]:
    """Count the calls of named functions in our files, and of all code in them, in all threads."""
    counts = [0, 0]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
            counts[0] += not frame.f_code.co_name.startswith("<")
            counts[1] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return counts[0], counts[1]


HEADINGS = {
    "arithmetic": ("features", "d", "decision", "invoke", "the calls alone"),
    "http": ("what", "ours", "by hand"),
    "calls": ("what", "calls of functions", "with comprehensions", "time", "over calibrate"),
}
PARTS: dict[str, Callable[..., Iterator[tuple[Any, ...]]]] = {
    "overhead": measure_overhead,
    "waves": measure_waves,
    "arithmetic": measure_arithmetic,
    "claims": measure_claims,
    "imports": measure_imports,
    "http": measure_http,
    "calls": measure_calls,
}
# What each part is given: rounds or prompts, and seconds.
FULL = {
    "overhead": (400,),
    "waves": (40,),
    "arithmetic": (250,),
    "claims": (400,),
    "imports": (40,),
    "http": (9, 1.0, 0.5),
    "calls": (15,),
}
QUICK = dict.fromkeys(PARTS, (6,)) | {"arithmetic": (20,), "http": (6, 0.1, 0.05)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every chosen part, and print a table for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="parts")
    parser.add_argument("--quick", action="store_true", help="few rounds, short latencies")
    options = parser.parse_args(arguments)
    print(f"{describe_run(PACKAGES)}. n = {N}.\n")
    for part in options.only:
        found = list(PARTS[part](*(QUICK if options.quick else FULL)[part]))
        if part in HEADINGS:
            print_table(part.capitalize(), HEADINGS[part], found)
        else:
            rows = [(name, *ratio.list_cells()) for name, ratio in found]
            print_table(part.capitalize(), ("what, over what", *RATIO_HEADINGS), rows)


if __name__ == "__main__":
    main()
