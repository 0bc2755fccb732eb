"""P(True): the probability of the word "true" when a model is asked about a candidate."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable

from langchain_cfc.verifiers.prompted import (
    TOP_LOGPROBS,
    Choice,
    PromptedVerifier,
    Question,
    escape_tags,
    read_choice,
    request_logprobs,
    silence_model,
)

# The part that requests share comes first, so that servers can reuse it.
REQUEST = """\
Decide whether an answer that was proposed to a question is true.

{question}

The proposed answer:
<answer>
{text}
</answer>

Is the proposed answer true or false?
(A) True
(B) False
Reply with nothing but the letter, A or B."""
# A model that is asked for a letter may still reply with the word.
_CHOICE = Choice(frozenset({"a", "true"}), frozenset({"b", "false"}))


class PTrue(PromptedVerifier):
    """Score = 1 - P(True), in [0, 1], smaller is better, where a model judges whether a candidate is true.

    The model sees the question and one candidate, and is asked whether it is (A) true or (B) false. P(True)
    is the probability that its first word is A rather than B, from the log-probabilities of that token,
    summed over spellings: p(A) / (p(A) + p(B)). Each distinct text takes one request of a few tokens, and a
    second one if the reply begins with neither; if that reply does not either, there is no verdict.

    Usually the model is the one that drew the candidates. Small models judge their own knowledge badly, and
    candidates can argue for themselves: measure how good the score is on labelled candidates, with
    `langchain_cfc.scoring`.

    Source: Kadavath et al. (2022), "Language Models (Mostly) Know What They Know", section 3.

    Args:
        model: A chat model that returns log-probabilities, such as `ChatOpenAI` with any compatible server,
            or a binding or retry around one. It is called with `logprobs` and `top_logprobs`, without
            streaming; its cache stays in use.
        question: Function or Runnable, plain or async, that converts a prompt to text or messages. By default
            text is quoted, messages are passed on unchanged, and an object is shown as canonical JSON.
        top_logprobs: Number of most likely tokens to ask for, at least 2; hosted models return up to 20.

    Raises:
        InputError: If an argument is invalid.
    """

    def __init__(
        self,
        model: Runnable[Any, Any],
        *,
        question: Question | None = None,
        top_logprobs: int = TOP_LOGPROBS,
    ) -> None:
        called = request_logprobs(silence_model(model), top_logprobs)
        super().__init__("p-true", model, called, question)
        self.fingerprint = self._make_fingerprint(top_logprobs=top_logprobs)

    def __repr__(self) -> str:
        """Name the model."""
        return f"PTrue({self._model_name()})"

    def _write_request(self, question: str, text: str) -> str:
        return REQUEST.format(question=question, text=escape_tags(text))

    def _read_score(self, reply: Any) -> float | None:
        return read_choice(reply, _CHOICE)
