"""P(True): the probability of the word "true" when a model is asked about a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from langchain_core.runnables import Runnable

from langchain_cfc.errors import InputError
from langchain_cfc.verifiers.prompted import (
    TOP_LOGPROBS,
    Choice,
    PromptedVerifier,
    Question,
    read_choice,
    request_logprobs,
    silence_model,
)

Wording = Literal["letters", "words"]

INSTRUCTIONS = "Decide whether an answer that was proposed to a question is true."
IDEAS_TEMPLATE = """\
Answers that came to mind:
<ideas>
{ideas}
</ideas>"""
ANSWER_TEMPLATE = """\
The proposed answer:
<answer>
{text}
</answer>"""
REPLY_FORMATS: Mapping[Wording, str] = {
    "letters": """\
Is the proposed answer true or false?
(A) True
(B) False
Reply with nothing but the letter, A or B.""",
    "words": "Is the proposed answer true or false? Reply with nothing but the word, True or False.",
}
# A model that is asked for a letter may still reply with the word.
CHOICES: Mapping[Wording, Choice] = {
    "letters": Choice(frozenset({"a", "true"}), frozenset({"b", "false"})),
    "words": Choice(frozenset({"true"}), frozenset({"false"})),
}


class PTrue(PromptedVerifier):
    """Score = 1 - P(True), in [0, 1], smaller is better, where a model judges whether a candidate is true.

    The model sees the question and one candidate, and is asked whether it is true. P(True) is the probability
    that its first word is "true" rather than "false", from the log-probabilities of that token, summed over
    spellings: p(T) / (p(T) + p(F)). Each distinct text takes one request of a few tokens, and a second one if
    the reply begins with neither word; if that reply does not either, there is no verdict.

    Usually the model is the one that drew the candidates. Small models judge their own knowledge badly, and
    candidates can argue for themselves: measure how good the score is on labelled candidates, with
    `langchain_cfc.scoring`.

    Source: Kadavath et al. (2022), "Language Models (Mostly) Know What They Know", section 3.

    Args:
        model: A chat model that returns log-probabilities, such as `ChatOpenAI` with any compatible server,
            or a binding or retry around one. It is called with `logprobs` and `top_logprobs`, without
            streaming; its cache stays in use.
        ideas: Whether it also sees all sampled candidates of the prompt, in draw order.
        wording: Whether it is asked for the `letters` A and B, or for the `words` True and False.
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
        ideas: bool = False,
        wording: Wording = "letters",
        question: Question | None = None,
        top_logprobs: int = TOP_LOGPROBS,
    ) -> None:
        if wording not in get_args(Wording):
            msg = f"wording is {wording!r}; expected one of {', '.join(get_args(Wording))}"
            raise InputError(msg)
        called = request_logprobs(silence_model(model), top_logprobs, short=True)
        super().__init__("p-true", model, called, question)
        self.ideas = ideas
        self.wording: Wording = wording
        self._choice = CHOICES[wording]
        self.fingerprint = self._make_fingerprint(mode=wording, top_logprobs=top_logprobs)

    def __repr__(self) -> str:
        """Name the model and the wording."""
        return f"PTrue({self._model_name()}, ideas={self.ideas}, wording={self.wording!r})"

    def _write_request(self, question: str, text: str, texts: Sequence[str]) -> str:
        ideas = [IDEAS_TEMPLATE.format(ideas="\n".join(texts))] if self.ideas else []
        # The part that requests share comes first, so that servers can reuse it.
        return "\n\n".join(
            [INSTRUCTIONS, question, *ideas, ANSWER_TEMPLATE.format(text=text), REPLY_FORMATS[self.wording]]
        )

    def _read_score(self, reply: Any, slot: int) -> float | None:
        return read_choice(reply, self._choice, slot)
