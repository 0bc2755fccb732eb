"""Scorers of the real uqlm as verifiers: their inputs, the scores that are read, and what is refused."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from langchain_cfc_uqlm import from_scorer
from langchain_core.language_models import FakeListChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field
from uqlm import BlackBoxUQ, LLMPanel

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import VerifierInput
from tests.calls import Invoke, invoke_async

TEXTS = ("lima", "it is lima", "quito", "lima")


def make_input(*texts: str, prompt: Any = "where?") -> VerifierInput:
    return VerifierInput(prompt=prompt, candidates=[DrawnCandidate(text) for text in texts])


class Judge(FakeListChatModel):
    """Says what it is scripted to say of an answer, by the answer's text."""

    temperature: float = 0.0
    verdicts: dict[str, str] = Field(default_factory=dict)
    asked: list[str] = Field(default_factory=list)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        words = str(messages[-1].text)
        self.asked.append(words)
        text = words.partition("Proposed Answer: ")[2].partition(".")[0]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.verdicts[text]))])


def make_judge(**verdicts: str) -> Judge:
    return Judge(responses=[""], verdicts=verdicts)


def test_black_box_scorer_compares_each_candidate_with_the_others(invoke: Invoke) -> None:
    verifier = from_scorer(BlackBoxUQ(scorers=["exact_match"]))
    assert invoke(verifier, make_input("a", "b", "a", "a")) == pytest.approx([1 / 3, 1.0, 1 / 3, 1 / 3])
    assert invoke(verifier, make_input("a", "a")) == [0.0, 0.0]


@pytest.mark.parametrize("key", ["noncontradiction", "entailment", "semantic_negentropy"])
def test_black_box_scores_equal_those_of_uqlm(invoke: Invoke, nli_model: str, key: str) -> None:
    scorer = BlackBoxUQ(scorers=[key], nli_model_name=nli_model, use_best=False, device="cpu")
    scores = invoke(from_scorer(scorer), make_input(*TEXTS))
    for slot, score in enumerate(scores):
        others = [text for other, text in enumerate(TEXTS) if other != slot]
        alone = BlackBoxUQ(scorers=[key], nli_model_name=nli_model, use_best=False, device="cpu")
        stated = alone.score([TEXTS[slot]], [others], show_progress_bars=False).data[key][0]
        assert score == pytest.approx(1.0 - float(stated), abs=1e-5)
    if key == "semantic_negentropy":  # one number per prompt
        assert max(scores) - min(scores) < 1e-6
    else:
        assert len({round(score, 6) for score in scores}) > 1
    assert scores[0] == pytest.approx(scores[3], abs=1e-6)


def test_from_scorer_key_chooses_one_score(nli_model: str) -> None:
    scorer = BlackBoxUQ(
        scorers=["exact_match", "noncontradiction"], nli_model_name=nli_model, use_best=False, device="cpu"
    )
    assert from_scorer(scorer, "exact_match").invoke(make_input("a", "a")) == [0.0, 0.0]
    with pytest.raises(InputError, match="key is None; expected one of exact_match, noncontradiction"):
        from_scorer(scorer)


def test_panel_judges_each_distinct_text_once(invoke: Invoke) -> None:
    first, second = (
        make_judge(lima="correct", quito="incorrect"),
        make_judge(lima="not sure", quito="incorrect"),
    )
    panel = LLMPanel(judges=[first, second])
    assert invoke(from_scorer(panel), make_input("lima", "quito", "lima")) == [0.25, 1.0, 0.25]
    assert invoke(from_scorer(panel, "min"), make_input("lima", "quito")) == [0.5, 1.0]
    assert invoke(from_scorer(panel, "judge_1"), make_input("lima", "quito")) == [0.0, 1.0]
    assert len(first.asked) == 3 * 2
    assert all("where?" in one for one in first.asked)


def test_concurrent_prompts_share_no_panel() -> None:
    texts = [f"answer {number}" for number in range(20)]
    verdicts = {text: "correct" if number % 2 else "incorrect" for number, text in enumerate(texts)}
    verifier = from_scorer(LLMPanel(judges=[Judge(responses=[""], verdicts=verdicts)]))

    async def all_at_once() -> Any:
        return await asyncio.gather(*(verifier.ainvoke(make_input(text)) for text in texts))

    assert asyncio.run(all_at_once()) == [[0.0] if number % 2 else [1.0] for number in range(20)]


@pytest.mark.filterwarnings("ignore:Judge scores could not be parsed")
def test_unreadable_judge_of_a_panel_raises_verifier_error(invoke: Invoke) -> None:
    panel = LLMPanel(judges=[make_judge(lima="correct"), make_judge(lima="who knows")])
    with pytest.raises(VerifierError, match="judge_2 of LLMPanel is nan for text 0"):
        invoke(from_scorer(panel), make_input("lima"))


def test_failing_judge_of_a_panel_raises_verifier_error(invoke: Invoke) -> None:
    with pytest.raises(VerifierError, match=r"panel of judges failed with .*KeyError"):
        invoke(from_scorer(LLMPanel(judges=[make_judge()])), make_input("lima"))


def test_scorers_refuse_message_prompts_and_single_candidates(invoke: Invoke) -> None:
    with pytest.raises(VerifierError, match="the prompt is a list"):
        invoke(from_scorer(LLMPanel(judges=[make_judge()])), make_input("lima", prompt=[("human", "where?")]))
    with pytest.raises(VerifierError, match="draw at least 2"):
        invoke(from_scorer(BlackBoxUQ(scorers=["exact_match"])), make_input("lima"))


def test_from_scorer_refuses_other_objects_and_keys(nli_model: str) -> None:
    with pytest.raises(InputError, match="got a GenericFakeChatModel; expected a BlackBoxUQ or a LLMPanel"):
        from_scorer(GenericFakeChatModel(messages=iter([])))
    with pytest.raises(InputError, match="key is 'judge_2'; expected one of avg, min, max, median, judge_1"):
        from_scorer(LLMPanel(judges=[make_judge()]), "judge_2")
    exchanging = BlackBoxUQ(scorers=["semantic_negentropy"], nli_model_name=nli_model, device="cpu")
    with pytest.raises(InputError, match="use_best"):
        from_scorer(exchanging)


def test_scorer_fingerprint_differs_for_other_scorers() -> None:
    exact = compute_fingerprint(from_scorer(BlackBoxUQ(scorers=["exact_match"])))
    assert exact["id"] == "uqlm-black-box"
    assert compare_fingerprints("verifier", exact, exact) is None
    shorter = compute_fingerprint(from_scorer(BlackBoxUQ(scorers=["exact_match"], max_length=10)))
    with pytest.raises(Exception, match="not the one that the artifact was calibrated for"):
        compare_fingerprints("verifier", exact, shorter)
    panels = [
        compute_fingerprint(from_scorer(LLMPanel(judges=[make_judge()], scoring_templates=[template]), key))
        for template, key in [("likert", "avg"), ("true_false", "avg"), ("likert", "min")]
    ]
    assert len({str(sorted(map(str, one.items()))) for one in panels}) == 3


def test_copied_scorers_score_alike() -> None:
    verifier = from_scorer(BlackBoxUQ(scorers=["exact_match"]))
    assert copy.deepcopy(verifier).invoke(make_input("a", "a", "b")) == verifier.invoke(
        make_input("a", "a", "b")
    )
    assert invoke_async(copy.copy(verifier), make_input("a", "b")) == [1.0, 1.0]
