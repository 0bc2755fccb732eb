"""Short questions with exact answers that a model of 135 million parameters gets right now and then.

The set spans eight topics, from plurals (mostly right) to capitals (mostly wrong), so that calibration has
something to tell apart. Nothing is left to chance: the same questions, ids and order every time.

    questions()   the questions with the answers that count as correct
    prompt()      the few-shot prompt, `prompt() | model` takes the text of a question
    extract()     from what the model wrote to the answer that is compared
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from itertools import zip_longest

from langchain_core.prompts import ChatPromptTemplate

# How each topic is asked.
_WORDING = {
    "plural": "What is the plural of {}?",
    "past": "What is the past tense of the verb {}?",
    "comparative": "What is the comparative form of {}?",
    "opposite": "What is the opposite of {}?",
    "language": "What is the main language of {}?",
    "continent": "On which continent is {}?",
    "capital": "What is the capital of {}?",
    "doer": "What is the agent noun of {}?",
}

# What is asked about, with its answers; "|" between answers that all count.
_ANSWERS = {
    "plural": """
        child=children; mouse=mice; foot=feet; tooth=teeth; man=men; woman=women; goose=geese; leaf=leaves;
        wolf=wolves; knife=knives; city=cities; box=boxes; bus=buses|busses; baby=babies; dog=dogs;
        tree=trees; wife=wives; half=halves; ox=oxen; lady=ladies; dish=dishes; hero=heroes
    """,
    "past": """
        go=went; run=ran; eat=ate; see=saw; take=took; come=came; give=gave; write=wrote; drive=drove;
        buy=bought; think=thought; catch=caught; teach=taught; find=found; keep=kept; sleep=slept; fly=flew;
        grow=grew; speak=spoke; bring=brought; build=built; feel=felt
    """,
    "comparative": """
        tall=taller; big=bigger; good=better; bad=worse; small=smaller; hot=hotter; happy=happier;
        fast=faster; easy=easier; far=farther|further; old=older|elder; young=younger; heavy=heavier;
        thin=thinner; long=longer; busy=busier; strong=stronger; dry=drier|dryer; late=later;
        pretty=prettier; large=larger; early=earlier
    """,
    "opposite": """
        hot=cold; up=down; day=night; open=closed|close|shut; rich=poor; wet=dry; early=late; full=empty;
        clean=dirty; buy=sell; first=last; true=false|untrue; high=low; strong=weak; win=lose;
        love=hate|hatred; left=right; north=south; black=white; yes=no; old=new|young; big=small|little|tiny
    """,
    "language": """
        France=French; Germany=German; Italy=Italian; Spain=Spanish|Castilian; Japan=Japanese;
        Russia=Russian; China=Chinese|Mandarin|Mandarin Chinese; Brazil=Portuguese; Mexico=Spanish;
        Greece=Greek; Turkey=Turkish; Sweden=Swedish; Poland=Polish; Hungary=Hungarian; Iran=Persian|Farsi;
        Austria=German; Argentina=Spanish; Portugal=Portuguese; Denmark=Danish; Vietnam=Vietnamese;
        Cuba=Spanish; Iceland=Icelandic
    """,
    "continent": """
        France=Europe; Japan=Asia; Kenya=Africa; Brazil=South America; Canada=North America; China=Asia;
        Italy=Europe; Peru=South America; Nigeria=Africa; India=Asia; Sweden=Europe; Chile=South America;
        Thailand=Asia; Ghana=Africa; Poland=Europe; Ethiopia=Africa; Vietnam=Asia; Spain=Europe;
        Argentina=South America; Zambia=Africa; Mongolia=Asia; Austria=Europe
    """,
    "capital": """
        France=Paris; Italy=Rome; Spain=Madrid; Germany=Berlin; Japan=Tokyo; China=Beijing; Russia=Moscow;
        Egypt=Cairo; Greece=Athens; Portugal=Lisbon; Austria=Vienna; Poland=Warsaw; Norway=Oslo;
        Sweden=Stockholm; Denmark=Copenhagen; Hungary=Budapest; Ireland=Dublin; Cuba=Havana; Peru=Lima;
        Iran=Tehran; Iraq=Baghdad; Thailand=Bangkok
    """,
    "doer": """
        teach=teacher; write=writer; sing=singer; swim=swimmer; bake=baker; run=runner; act=actor;
        sail=sailor; farm=farmer; paint=painter; dance=dancer; invent=inventor; direct=director;
        visit=visitor; build=builder; drive=driver; read=reader; win=winner; speak=speaker; play=player;
        work=worker; collect=collector
    """,
}

# Three examples of every topic, mixed, on words that no question asks about.
_SHOTS: tuple[tuple[str, str, str], ...] = (
    ("opposite", "wide", "narrow"),
    ("capital", "England", "London"),
    ("past", "draw", "drew"),
    ("continent", "Morocco", "Africa"),
    ("doer", "climb", "climber"),
    ("plural", "fox", "foxes"),
    ("language", "Romania", "Romanian"),
    ("comparative", "cold", "colder"),
    ("comparative", "nice", "nicer"),
    ("capital", "the Philippines", "Manila"),
    ("language", "Finland", "Finnish"),
    ("plural", "thief", "thieves"),
    ("past", "sit", "sat"),
    ("opposite", "push", "pull"),
    ("continent", "Korea", "Asia"),
    ("doer", "explore", "explorer"),
    ("comparative", "noisy", "noisier"),
    ("continent", "Uruguay", "South America"),
    ("past", "walk", "walked"),
    ("doer", "lead", "leader"),
    ("plural", "sky", "skies"),
    ("language", "Korea", "Korean"),
    ("opposite", "inside", "outside"),
    ("capital", "Serbia", "Belgrade"),
)


@dataclass(frozen=True)
class Question:
    """One question with everything that counts as a correct answer.

    Attributes:
        id: Topic and subject, such as `capital-france`; unique in the set.
        text: What the model is asked.
        answers: The answers that count as correct, in the form that `extract` gives.
        topic: One of the eight topics.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    topic: str


def extract(text: str) -> str:
    """The answer in what the model wrote: its first line in lower case, without punctuation around it.

    Args:
        text: What the model wrote.

    Returns:
        The normalised answer; empty where nothing was written.
    """
    first_line = next(iter(text.strip().splitlines()), "")
    return " ".join(first_line.lower().split()).strip(string.punctuation + " ")


def questions() -> list[Question]:
    """All questions, the topics taking turns, so that any first part of the list holds every topic."""
    by_topic = [_of_topic(topic) for topic in _ANSWERS]
    return [question for turn in zip_longest(*by_topic) for question in turn if question is not None]


def prompt() -> ChatPromptTemplate:
    """The few-shot prompt; its one variable is `question`."""
    messages = [("system", "Answer each question with one word.")]
    for topic, subject, answer in _SHOTS:
        messages += [("human", _WORDING[topic].format(subject)), ("ai", answer)]
    return ChatPromptTemplate.from_messages([*messages, ("human", "{question}")])


def _of_topic(topic: str) -> list[Question]:
    """The questions of one topic, in the order in which they are written out."""
    rows = (row.split("=") for row in " ".join(_ANSWERS[topic].split()).split("; "))
    return [
        Question(
            id=f"{topic}-{subject.lower()}",
            text=_WORDING[topic].format(subject),
            answers=tuple(extract(answer) for answer in answers.split("|")),
            topic=topic,
        )
        for subject, answers in rows
    ]
