"""Ask a model about a prompt and texts: the request, with tags that no text can close, and the reply's text.

A text prompt is quoted in the request. Messages are passed on unchanged, images included, and the request
follows as one further message. Tags around a quoted text show the model where it begins and ends; a text
cannot open or close them, because the first character of such tags in it is escaped.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from operator import ne
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import Call, Steps, Target
from langchain_cfc.no_answers import strip_reasoning
from langchain_cfc.sampling.classification import classify_ending
from langchain_cfc.sampling.models import make_silent_call, without_streaming_and_cache
from langchain_cfc.support.normalisation import LATIN_SHAPES, unify_characters
from langchain_cfc.support.serialization import compute_sha256
from langchain_cfc.support.text import quote
from langchain_cfc.verifiers.base import combine_fingerprints
from langchain_cfc.verifiers.prompts import read_prompt

Question: TypeAlias = Target

# The names of the tags that requests put around texts, and the characters that open a tag.
_TAGS = ("question", "answer", "premise", "hypothesis")
_OPENING = "<\uff1c\ufe64\u2039\u02c2\u1438\u227a\u2329\u276c\u276e\u27e8\u27ea\u29fc\u3008"
# How many letters of a tag may be others, as in `answ3r`.
_MAX_OTHER_LETTERS = 2
# What chat templates put around messages: some servers read it in a text as well.
_CONTROL = re.compile(
    r"<(?=\s*[|\uff5c]|/?s>|/?[be]os>|/?(?:start|end)_of_turn|<?/?SYS>)|\[(?=/?INST\]|/?[A-Z]+_[A-Z_]+\])"
)
# Stated in fingerprints: change it when `escape_tags` changes.
_ESCAPES = "tags-3"
QUESTION_TEMPLATE = """\
<question>
{question}
</question>"""
# Added when a reply cannot be read, so that a cache does not give the same one again.
READABLE_REPLY_REQUEST = """

Your last reply could not be read. Reply in exactly the form that is asked for."""
QUESTION_IS_ABOVE = "The question is asked by the conversation above this message."
_HINT = "pass question=, a function from a prompt to text or messages"


class PromptedModel:
    """Base of classes that ask a model about a prompt and answers to it.

    `model` is the judging model as the user passed it, `called` the same model as it is prepared for calls;
    for `question` see `ModelJudge`.
    """

    name: str | None
    fingerprint: Mapping[str, Any]

    def __init__(
        self, name: str, model: Runnable[Any, Any], called: Runnable[Any, Any], question: Question | None
    ) -> None:
        self.name = name
        self.model = model
        self.question = question
        self._ask = Call("judging model", called, VerifierError)
        self._make_question = (
            None if question is None else make_silent_call("question function", question, VerifierError)
        )

    @abstractmethod
    def _write_request(self, question: str, judged: Any) -> str:
        """Return the text of a request about a question and what is judged, such as an answer to it."""

    def _ask_each(
        self, prompt: Any, config: RunnableConfig, judged: Iterable[Any], note: str = ""
    ) -> Steps[list[Any]]:
        """Send a request about each of several answers to one prompt, concurrently; a `note` ends each."""
        if self._make_question is not None:
            prompt = yield from self._make_question.invoke_one(prompt, config)
        # Many chat templates refuse two messages of one role in a row, so a single human message with text
        # only is quoted like a text.
        content = read_prompt(prompt, _HINT, VerifierError)
        messages, question = content, QUESTION_IS_ABOVE
        if isinstance(content, str):
            messages, question = [], QUESTION_TEMPLATE.format(question=escape_tags(content))
        requests = [[*messages, HumanMessage(self._write_request(question, one) + note)] for one in judged]
        return (yield from self._ask.invoke_each(requests, config))

    def _make_fingerprint(self, sample: Any, **settings: Any) -> dict[str, Any]:
        """Return the settings, the model's fingerprint, and a digest of the text that all requests share.

        `sample` has names in braces in place of what is judged.
        """
        words = [self._write_request(place, sample) for place in (QUESTION_TEMPLATE, QUESTION_IS_ABOVE)]
        words += [READABLE_REPLY_REQUEST, _ESCAPES]
        source = "prompt" if self.question is None else "own"
        return combine_fingerprints(
            str(self.name),
            {**settings, "instructions": compute_sha256(json.dumps(words)), "question": source},
            {"model": self.model, "question": self.question},
        )


def escape_tags(text: str) -> str:
    """Return a text in which nothing can be read as a tag around a text, or as the end of a message.

    Examples:
        >>> escape_tags("Lima</answer><b>!</b>"), escape_tags("Lima<|im_end|>")
        ('Lima&lt;/answer><b>!</b>', 'Lima&lt;|im_end|>')
    """
    letters, opened = "", {}
    text = _CONTROL.sub(lambda found: "&lt;" if found[0] == "<" else "&#91;", text)
    for place, character in enumerate(text if not set(_OPENING).isdisjoint(text) else ""):
        if character in _OPENING:
            opened[place] = len(letters)
        else:
            plain = unify_characters(character).translate(LATIN_SHAPES).casefold()
            letters += "".join(filter(str.isalnum, plain))
    # Models also read tags with blanks, invisible characters or letters of other scripts in them.
    escaped = {place for place, start in opened.items() if _begins_with_tag(letters, start)}
    return "".join("&lt;" if place in escaped else one for place, one in enumerate(text)) if escaped else text


def _begins_with_tag(letters: str, start: int) -> bool:
    begun = ((letters[start : start + len(tag)], tag) for tag in _TAGS)
    return any(len(one) == len(tag) and sum(map(ne, one, tag)) <= _MAX_OTHER_LETTERS for one, tag in begun)


def silence_model(model: Any) -> Runnable[Any, Any]:
    """Return a judging model without streaming; raise an `InputError` if it is not a Runnable."""
    if isinstance(model, Runnable):
        return without_streaming_and_cache(model, fresh=False)
    msg = f"got a {type(model).__name__} as judging model; expected a chat model, such as ChatOpenAI(...)"
    raise InputError(msg)


# Number of characters of a reply in a message.
_MAX_LENGTH = 120


def get_reply_text(reply: Any) -> str:
    """Return the text of a judge's reply without its reasoning; empty if it was cut off or refused."""
    if isinstance(reply, BaseMessage) and classify_ending(reply) is not None:
        return ""
    return strip_reasoning(str(getattr(reply, "text", reply))) or ""


def shorten_reply(reply: Any) -> str:
    """Return the text of a reply, shortened for messages."""
    text = quote(str(getattr(reply, "text", reply)))
    return repr(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...")
