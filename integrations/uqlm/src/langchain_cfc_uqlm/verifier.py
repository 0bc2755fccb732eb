"""Black-box scorers and panels of judges of uqlm as verifiers: score = 1 - confidence.

A black-box scorer compares a response with further samples of the same prompt. Here, each candidate is
compared with the n - 1 others.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig, RunnableLambda
from uqlm import BlackBoxUQ, LLMPanel
from uqlm.utils.async_utils import run_sync

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import Call, Steps
from langchain_cfc.extend import combine_fingerprints, to_python_scalar
from langchain_cfc.verifiers import BaseVerifier, VerifierInput

Scorer: TypeAlias = BlackBoxUQ | LLMPanel

# A panel's aggregates of its judges' scores.
AGGREGATES = ("avg", "min", "max", "median")
# With `use_best`, these scorers replace the response by another sample before they score it.
_REPLACING_SCORERS = frozenset({"semantic_negentropy", "semantic_sets_confidence"})
# Settings that change the scores of a black-box scorer.
_SETTINGS = ("nli_model_name", "sentence_transformer", "max_length")
# Tolerance for means of single-precision numbers, which may leave [0, 1] by rounding.
_ROUNDING = 1e-6
# A scorer keeps intermediate results in its attributes, and shares its models with other scorers.
_SCORER_LOCK = threading.Lock()


class ScorerVerifier(BaseVerifier):
    """A verifier whose score is 1 - uqlm's confidence, in [0, 1], smaller is better; see `from_scorer`."""

    def __init__(self, scorer: Scorer, key: str) -> None:
        self.name = f"uqlm-{key.replace('_', '-')}"
        self.scorer = scorer
        self.key = key
        self.fingerprint = _make_fingerprint(scorer, key)
        if isinstance(scorer, LLMPanel):
            self._call = Call("panel of judges", RunnableLambda(self._judge, self._ajudge), VerifierError)
        else:
            self._call = Call("scorer of uqlm", RunnableLambda(self._compare), VerifierError)

    def __repr__(self) -> str:
        """Return the class names and the key of the score."""
        return f"ScorerVerifier({type(self.scorer).__name__}, {self.key!r})"

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Score all candidates of the prompt at once; a panel judges each distinct text once."""
        texts = [candidate.text for candidate in given["candidates"]]
        if not isinstance(self.scorer, LLMPanel):
            data = yield from self._call.invoke_one(texts, config)
            return [1.0 - one for one in self._read_confidences(data, self.key, len(texts))]
        if not isinstance(given["prompt"], str):
            msg = f"the prompt is a {type(given['prompt']).__name__}; a panel of uqlm judges answers to texts"
            raise VerifierError(msg)
        distinct = list(dict.fromkeys(texts))
        data = yield from self._call.invoke_one((given["prompt"], distinct), config)
        # The panel drops scores of judges that it could not parse, so that the others would decide.
        for number in range(len(self.scorer.judges)):
            self._read_confidences(data, f"judge_{number + 1}", len(distinct))
        scores = dict(zip(distinct, self._read_confidences(data, self.key, len(distinct)), strict=True))
        return [1.0 - scores[text] for text in texts]

    def _compare(self, texts: list[str]) -> Mapping[str, Any]:
        if len(texts) < 2:  # noqa: PLR2004 - one is compared with the others
            msg = (
                f"uqlm compares a candidate with the others, but there is only {len(texts)}: draw at least 2"
            )
            raise VerifierError(msg)
        others = [[*texts[:slot], *texts[slot + 1 :]] for slot in range(len(texts))]
        with _SCORER_LOCK:
            result = self.scorer.score(
                responses=list(texts), sampled_responses=others, show_progress_bars=False
            )
        data: Mapping[str, Any] = result.data
        return data

    def _judge(self, asked: tuple[str, list[str]]) -> Mapping[str, Any]:
        data: Mapping[str, Any] = run_sync(self._ajudge(asked))
        return data

    async def _ajudge(self, asked: tuple[str, list[str]]) -> Mapping[str, Any]:
        prompt, texts = asked
        panel = copy.copy(self.scorer)
        panel.judges = [copy.copy(judge) for judge in panel.judges]
        result = await panel.score(
            prompts=[prompt] * len(texts), responses=list(texts), show_progress_bars=False
        )
        data: Mapping[str, Any] = result.data
        return data

    def _read_confidences(self, data: Mapping[str, Any], key: str, n: int) -> list[float]:
        """Return n confidences, clipped to [0, 1]; raise a VerifierError for other values."""
        found: Sequence[Any] = data[key]
        values = [to_python_scalar(one) for one in found]
        wrong = next((slot for slot, one in enumerate(values) if not _is_confidence(one)), None)
        if len(values) == n and wrong is None:
            return [min(max(float(one), 0.0), 1.0) for one in values]
        seen = (
            f"{len(values)} values for {n} texts" if wrong is None else f"{values[wrong]!r} for text {wrong}"
        )
        msg = f"{key} of {type(self.scorer).__name__} is {seen}; expected a confidence in [0, 1] for each"
        raise VerifierError(msg)


def from_scorer(scorer: Scorer, key: str | None = None) -> ScorerVerifier:
    """Return a verifier whose score is 1 - the confidence of a scorer of uqlm.

    With a `BlackBoxUQ`, each candidate is scored as the response, with the n - 1 others as the samples.
    `exact_match`, `noncontradiction`, `entailment`, `cosine_sim` and `bert_score` distinguish candidates.
    `semantic_negentropy` and `semantic_sets_confidence` measure how much all n candidates differ and are the
    same for each of them: useful as a feature for calibration, but not to choose among answers. (To score
    each candidate by its cluster, use langchain_cfc's `SelfConsistency(entails=...)`.) A `LLMPanel` judges
    each distinct text.

    The black-box scorers of a process take turns, because they keep intermediate results in attributes.

    Args:
        scorer: A `BlackBoxUQ` or a `LLMPanel`. Its `llm` and its postprocessor are not used.
        key: Which of its scores to use. Optional for a `BlackBoxUQ` with a single scorer; for a `LLMPanel`,
            `avg` (the default), `min`, `max`, `median`, or a single judge such as `judge_1`.

    Returns:
        A verifier, whose fingerprint holds the version of uqlm, the models and the settings that change
        scores.

    Raises:
        InputError: If `scorer` is another object, has no such score, or would score other responses than
            the candidates (`use_best`).
    """
    if isinstance(scorer, LLMPanel):
        known: Sequence[str] = (*AGGREGATES, *(f"judge_{one + 1}" for one in range(len(scorer.judges))))
        chosen = key or AGGREGATES[0]
    elif isinstance(scorer, BlackBoxUQ):
        known = list(scorer.scorers)
        chosen = key or (known[0] if len(known) == 1 else "")
        if scorer.use_best and _REPLACING_SCORERS & set(known):
            msg = "with use_best=True uqlm scores responses other than the drawn ones: set it to False"
            raise InputError(msg)
    else:
        msg = f"got a {type(scorer).__name__}; expected a BlackBoxUQ or a LLMPanel of uqlm"
        raise InputError(msg)
    if chosen not in known:
        msg = f"key is {key!r}; expected one of {', '.join(known)}"
        raise InputError(msg)
    return ScorerVerifier(scorer, chosen)


def _make_fingerprint(scorer: Scorer, key: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"score": key, "uqlm": version("uqlm")}
    if isinstance(scorer, LLMPanel):
        for number, judge in enumerate(scorer.judges, start=1):
            settings[f"judge_{number}.template"] = str(judge.scoring_template)
            settings[f"judge_{number}.context"] = judge.system_prompt
        settings["explanations"] = scorer.explanations
        models = {f"judge_{number}": judge.llm for number, judge in enumerate(scorer.judges, start=1)}
        return combine_fingerprints("uqlm-panel", settings, models)
    settings |= {name: getattr(scorer, name) for name in _SETTINGS}
    return combine_fingerprints("uqlm-black-box", settings, {})


def _is_confidence(value: Any) -> bool:
    return isinstance(value, (int, float)) and -_ROUNDING <= value <= 1.0 + _ROUNDING
