"""The chain that is calibrated and served: retrieve passages, ask the model; and what a question is about."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from rag_retrieval import FOLDER, retriever

from langchain_cfc.records import Example

# Worked examples of the kinds of question that a small model gets wrong without; none is about an element.
_SHOTS = (
    (
        (
            "[1] Insulin was discovered by F. Banting, C. Best. Place: Canada. Year: 1921.\n"
            "[2] Numbers for insulin. Amino acids: 51. Molecular weight: 5808."
        ),
        "Who discovered insulin? Give one surname.",
        "Banting",
    ),
    (
        (
            "[1] The name penicillin comes from Latin, where it means: paintbrush.\n"
            "[2] Penicillin is made by growing a mould."
        ),
        "The name of penicillin comes from Latin. What does it mean there?",
        "paintbrush",
    ),
    (
        (
            "[1] Penicillin was discovered by Alexander Fleming. Place: England. Year: 1928.\n"
            "[2] Insulin was discovered by F. Banting, C. Best. Place: Canada. Year: 1921."
        ),
        "Which was discovered first, penicillin or insulin?",
        "insulin",
    ),
    (
        (
            "[1] Insulin was discovered by F. Banting, C. Best. Place: Canada. Year: 1921.\n"
            "[2] Penicillin was discovered by Alexander Fleming. Place: England. Year: 1928."
        ),
        "How many years after the discovery of insulin was penicillin discovered?",
        "7",
    ),
    (
        "[1] Insulin is made by brewing yeast.\n[2] Penicillin is made by growing a mould.",
        "Which medicine is made by growing a mould?",
        "penicillin",
    ),
)
_HUMAN = "{passages}\n\nQuestion: {question}"
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the question from the passages. Give only the answer: a name, number or phrase."),
        *(
            message
            for passages, question, answer in _SHOTS
            for message in (("human", _HUMAN.format(passages=passages, question=question)), ("ai", answer))
        ),
        ("human", _HUMAN),
    ]
)

# Functions in a chain cannot be compared between calibration and serving; this id vouches for retrieval and
# for how passages are written into the prompt. Change it when you change them, or the corpus.
GENERATOR_ID = "elements-bm25-3-passages"

_ROLES = {"system": "system", "human": "user", "ai": "assistant"}

# What a question is about, by how it is asked; the promise is made for each of these topics.
_TOPICS = (
    ("later", r"how many years after"),
    ("first", r"discovered first"),
    ("discoverer", r"who discovered"),
    ("year", r"which year"),
    ("country", r"which country"),
    ("meaning", r"what does it mean"),
    ("group", r"which group"),
    ("namesake", r"which element is named"),
    ("source", r"which element is (found|made)"),
)


def number_passages(passages: Iterable[Document]) -> str:
    """Write the passages as the model reads them, one a line, numbered from 1."""
    return "\n".join(f"[{number}] {one.page_content}" for number, one in enumerate(passages, start=1))


# Retrieves the passages and writes the prompt. Standing before the model, it runs once for all n answers.
_PREPARED: Runnable[Any, Any] = {
    "passages": retriever() | RunnableLambda(number_passages),
    "question": RunnablePassthrough(),
} | PROMPT


def rag(model: BaseChatModel) -> Runnable[Any, Any]:
    """The chain from a question to an answer, which is the generator."""
    return _PREPARED | model


def messages(question: Any) -> list[Any]:
    """What the model is asked for a question, as plain data: passages, worked examples and all."""
    return [{"role": _ROLES[one.type], "content": one.content} for one in _PREPARED.invoke(question).messages]


def answer_of(text: str) -> str:
    """The answer in what the model wrote: its first line in lower case, bare of "group", "years" and dots."""
    first_line = " ".join(next(iter(text.strip().splitlines()), "").lower().split())
    return re.sub(r"^(group|the) | years$", "", first_line.strip(string.punctuation + " "))


def find_topic(question: str) -> dict[str, str]:
    """Find the topic of a question, as metadata.

    A question of no known topic gets `other`, which was never calibrated: serving refuses it.
    """
    asked = question.lower()
    return {"topic": next((topic for topic, pattern in _TOPICS if re.search(pattern, asked)), "other")}


def examples() -> list[Example]:
    """The questions of `questions.jsonl` as an evaluation dataset."""
    lines = (FOLDER / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = map(itemgetter("id", "question", "answers"), map(json.loads, lines))
    return [Example(id=name, input=asked, reference=answers) for name, asked, answers in rows]
