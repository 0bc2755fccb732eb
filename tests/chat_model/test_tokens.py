"""`CFCChatModel` counts tokens as the model that answers does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage, trim_messages
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_cfc.errors import InputError
from tests.chat_model.facades import make_facade
from tests.fakes import ScriptedModel

MESSAGES: list[BaseMessage] = [HumanMessage(f"question number {number}") for number in range(10)]


class WordModel(ScriptedModel):
    """Counts words; each message has three tokens more, and only the method for messages knows it."""

    def get_token_ids(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def get_num_tokens_from_messages(self, messages: Any, tools: Any = None) -> int:
        return sum(3 + self.get_num_tokens(one.text) for one in messages) + 100 * len(tools or ())


def prepare(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_messages(["{question}"]) | ScriptedModel() | model | StrOutputParser()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: model,
        lambda model: model.bind(stop=["."]),
        lambda model: model.with_fallbacks([ScriptedModel()]),
        prepare,
    ],
)
def test_tokens_are_counted_by_the_model_that_answers(wrap: Callable[[Any], Runnable[Any, Any]]) -> None:
    facade = make_facade(generator=wrap(WordModel()), generator_id="words")
    assert facade.get_token_ids("where is Lima") == [5, 2, 4]
    assert facade.get_num_tokens("where is Lima") == 3
    assert facade.get_num_tokens_from_messages(MESSAGES) == 60
    assert facade.get_num_tokens_from_messages(MESSAGES, tools=[{}]) == 160
    kept = trim_messages(MESSAGES, max_tokens=20, token_counter=facade)
    assert kept == MESSAGES[-3:]


def test_own_token_counter_goes_before_that_of_the_model() -> None:
    facade = make_facade(generator=WordModel(), generator_id="words")
    facade = facade.model_copy(update={"custom_get_token_ids": lambda text: [0] * len(text)})
    assert facade.get_num_tokens("Lima") == 4


def test_counting_tokens_without_a_reachable_model_is_refused() -> None:
    facade = make_facade(generator=RunnableLambda(lambda _: "Lima"), generator_id="words")
    for count in (facade.get_num_tokens, facade.get_token_ids):
        with pytest.raises(InputError, match="custom_get_token_ids="):
            count("Lima")
