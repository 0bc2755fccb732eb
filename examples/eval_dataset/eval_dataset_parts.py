"""What draws the answers: the same chain for `langchain-cfc collect`, for `ask` and in your own program.

To make it yours, change the line of `MODEL`, and the instruction in `PROMPT` to what your questions need.
"""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import RecordedScores, ReplayChatModel
from langchain_cfc.sampling import DrawnCandidate

# "gpt-4o-mini", say, with OPENAI_API_KEY set; or what your own server calls its model, with OPENAI_BASE_URL.
MODEL = "recorded"

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Give the answer alone, in as few words as possible."), ("human", "{question}")]
)


def generator() -> Runnable[Any, Any]:
    """The chain that is calibrated and served: a question in, an answer out."""
    return PROMPT | model()


def model() -> BaseChatModel:
    """The model named above. It has to say how probable its words were, for that makes the score."""
    if MODEL == "recorded":
        facts = load_recording()
        return RecordedModel.from_records(facts, facts.provenance)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, temperature=0.7, logprobs=True)


class RecordedModel(ReplayChatModel):
    """The recorded answers of a real model, each with its probability.

    They were drawn with another instruction than `PROMPT`: it knows questions by their text alone.
    """

    # Declared again, since a class of your own has to say itself that this describes it.
    fingerprint: dict[str, Any]

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        result = super()._generate(messages[-1:], stop, run_manager, **kwargs)
        for one in result.generations:
            # As OpenAI writes it; the recording has the sum over all tokens, so the answer is one token here.
            (logprob,) = _LOGPROBS(None, [DrawnCandidate(one.text, one.message)])
            tokens = [{"token": one.text, "logprob": logprob}]
            one.message.response_metadata = {"logprobs": {"content": tokens}}
        return result


_LOGPROBS = RecordedScores(output="sequence_logprob")
