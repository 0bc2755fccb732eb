"""Our own arithmetic for one prompt: what is left without the model, the verifier and LangChain's runs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from benchmarks.in_memory import ALPHA, N, calibrated, doubled
from benchmarks.ours import quiet, seconds_of
from benchmarks.results import Times
from benchmarks.serving_results import Arithmetic
from langchain_cfc import CalibrationArtifact, CFCRunnable, PromptRecord
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import decide

MAPS = ("1", "mean_score", "hat(mean_score, 5)", "hat(mean_score, 5) + group(topic)")
WARM = 100  # prompts asked before any counts
# Messages carry what providers report, and the result sums it.
USAGE: dict[str, Any] = {
    "usage_metadata": {"input_tokens": 50, "output_tokens": 10, "total_tokens": 60},
}


class Instant(Runnable[Any, Any]):
    """A generator whose n candidates are there already; a batch starts no thread."""

    def __init__(self) -> None:
        self._messages = [AIMessage(f"answer {number}", **USAGE) for number in range(N)]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        """The first candidate."""
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
        """As many as asked for."""
        del config, return_exceptions, kwargs
        return self._messages[: len(inputs)]


class Recorded:
    """A verifier that knows the scores, and notes when it returned them."""

    def __init__(self, records: Sequence[PromptRecord]) -> None:
        self._scores = {str(one.input): [candidate.score for candidate in one.candidates] for one in records}
        self.left = 0.0

    def __call__(self, prompt: Any, candidates: Sequence[Any]) -> list[float]:
        """One score per candidate."""
        del candidates
        scores = self._scores[prompt]
        self.left = time.perf_counter()
        return scores


class Case:
    """One feature map.

    Args:
        records: The recording, doubled.
        features: Feature text.
        count: How many prompts to time.
    """

    def __init__(self, records: list[PromptRecord], features: str, count: int) -> None:
        self._features, self._artifact = features, calibrated(records, features)
        split = self._artifact.calibration.split
        held_out = [one for one in records if split.part(one.id, one.cluster) == "test"]
        self._records = held_out[: WARM + count]
        self._metadata = {str(one.input): dict(one.metadata) for one in records}

    def figures(self) -> Arithmetic:
        """All times of this map."""
        new, again = self._decisions()
        after, plain, whole, whole_plain = self._calls()
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

    def _decisions(self) -> tuple[Times, Times]:
        """Decisions on new prompts, and on the same once more."""
        artifact = _fresh(self._artifact)
        texts = [f"answer {number}" for number in range(N)]

        def asked(record: PromptRecord) -> Callable[[], object]:
            scores, metadata = [one.score for one in record.candidates], dict(record.metadata)
            return lambda: decide(artifact, CandidateBatch.of([scores], [texts], [metadata]), ALPHA)

        calls = [asked(record) for record in self._records]
        with quiet():
            new = [seconds_of(call) for call in calls]
            again = [seconds_of(call) for call in calls]
        return Times.of(new[WARM:]), Times.of(again[WARM:])

    def _calls(self) -> tuple[Times, Times, Times, Times]:
        """`invoke` from the verifier's return and as a whole; a `RunnableLambda` likewise; in turn."""
        generator, verifier = Instant(), Recorded(self._records)
        chain = CFCRunnable(
            generator=generator,
            verifier=verifier,
            artifact=_fresh(self._artifact),
            metadata=lambda prompt: self._metadata[prompt],
        )
        plain: Runnable[Any, Any] = RunnableLambda(
            lambda prompt: verifier(prompt, generator.batch([prompt] * N))
        )
        after: list[list[float]] = [[], []]
        whole: list[list[float]] = [[], []]
        with quiet():
            for record in self._records:
                for which, runnable in enumerate((chain, plain)):
                    start = time.perf_counter()
                    runnable.invoke(record.input)
                    end = time.perf_counter()
                    after[which].append(end - verifier.left)
                    whole[which].append(end - start)
        ours, other = (Times.of(seconds[WARM:]) for seconds in after)
        all_ours, all_other = (Times.of(seconds[WARM:]) for seconds in whole)
        return ours, other, all_ours, all_other


def arithmetic(count: int) -> list[Arithmetic]:
    """Every feature map.

    Args:
        count: How many prompts to time.
    """
    records = doubled()
    return [Case(records, features, count).figures() for features in MAPS]


def _fresh(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """The artifact as a new process knows it: it remembers no prompt."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact.json"
        artifact.save(file)
        return CalibrationArtifact.load(file)
