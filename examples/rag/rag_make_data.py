"""Make the corpus and the questions anew from the package `mendeleev`; the example itself does not need it.

    pip install mendeleev==1.3.0
    python rag_make_data.py          writes corpus.jsonl and questions.jsonl beside this file

A passage is what the package says about an element under one heading. A question comes from a structured
field or a pattern in a text, so its answers are exact; it is left out where no passage states them. The
questions of the topics `first` and `later` need two passages and a thought.
"""

from __future__ import annotations

import importlib
import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PER_TOPIC = 33
PAIRS = 40  # drawn for each topic about two elements, before PER_TOPIC are taken
PASSAGE_WORDS = 60

_NO_NAMES = re.compile(r"Laborator|Institut|Argonne|Research|RIKEN|et al| and ")
_MEANING = re.compile(r"(Greek|Latin|German|Swedish|Spanish): [\w ]+?,? ?\(([\w ,]+)\)\.?")
_APPOSITION = re.compile(r"(god|asteroid|town), ")

Row = Mapping[str, Any]
Line = dict[str, Any]


def passages(element: Row) -> Iterator[Line]:
    """What is said about one element, under one heading each; long descriptions in pieces."""
    name = element["name"]
    if element["discovery_year"]:
        yield _passage(
            name,
            "discovery",
            f"{name} was discovered by {element['discoverers']}. Place: {element['discovery_location']}. "
            f"Year: {element['discovery_year']}.",
        )
    yield _passage(name, "name", f"Origin of the name {name}. {element['name_origin']}")
    if element["uses"]:
        yield _passage(name, "uses", f"Uses of {name}. {element['uses']}")
    yield _passage(name, "sources", f"Sources of {name}. {element['sources']}")
    pieces = list(_pieces(element["description"] or ""))
    for number, piece in enumerate(pieces, start=1):
        heading = "description" if len(pieces) == 1 else f"description {number}"
        yield _passage(name, heading, f"{name}. {piece}")


def questions(elements: Sequence[Row]) -> list[Line]:
    """All questions, the topics taking turns, so that any first part of the list holds every topic."""
    luck = random.Random(0)  # noqa: S311  # a fixed choice, nothing secret
    made: dict[str, list[Line]] = {}
    every = [*_about_one(elements), *_reversed(elements), *_about_two(elements, luck)]
    asked = Counter(question["question"] for question in every)
    for question in every:
        if asked[question["question"]] == 1:  # otherwise two elements answer it
            made.setdefault(question["topic"], []).append(question)
    for topic in made.values():
        luck.shuffle(topic)
    turns = zip_longest(*(topic[:PER_TOPIC] for topic in made.values()))
    return [question for turn in turns for question in turn if question is not None]


def _about_one(elements: Iterable[Row]) -> Iterator[Line]:
    """Who, when, where, what the name means, which group."""
    for element in elements:
        name = str(element["name"]).lower()
        if element["discovery_year"]:
            if not _NO_NAMES.search(element["discoverers"]):
                people = re.split(r"[,;]", element["discoverers"].replace(" Jr.", ""))
                answers = [alias for person in people for alias in _aliases(person)]
                yield _question("discoverer", name, f"Who discovered {name}? Give one surname.", answers)
            yield _question(
                "year", name, f"In which year was {name} discovered?", [str(element["discovery_year"])]
            )
            places = element["discovery_location"].split("/")
            yield _question("country", name, f"In which country was {name} discovered?", _places(places))
        meant = _MEANING.fullmatch(element["name_origin"])
        if meant:
            language, meaning = meant.groups()
            answers = [meaning, *re.split(r" or |, ", meaning)]
            asked = f"The name of {name} comes from {language}. What does it mean there?"
            yield _question("meaning", name, asked, answers)
        grouped = re.search(r"group (\d+)", element["description"] or "")
        if grouped and int(grouped[1]) == element["group_id"]:
            asked = f"Which group of the periodic table does {name} belong to?"
            yield _question("group", name, asked, [grouped[1], f"group {grouped[1]}"])


def _reversed(elements: Sequence[Row]) -> Iterator[Line]:
    """Which element is found in a mineral, made in a way, or named after someone or something."""
    found = {row["name"]: set(re.findall(r"\b[a-z]{4,}ite\b", _everything(row))) for row in elements}
    for element in elements:
        name = str(element["name"])
        others = set().union(*(minerals for other, minerals in found.items() if other != name))
        for mineral in sorted(set(re.findall(r"\b[a-z]{4,}ite\b", element["sources"])) - others)[:1]:
            yield _question("source", mineral, f"Which element is found in {mineral}?", [name])
        made = re.search(r"bombard\w+ ([\w-]+ with [\w -]+)", element["sources"])
        if made:
            subject = made[1].strip()
            yield _question("source", subject, f"Which element is made by bombarding {subject}?", [name])
        named = re.match(
            r"Named (?:for|after|in honor of) ((?:\bO\.|[^,.;])+)",
            _APPOSITION.sub(r"\1 ", element["name_origin"]),
        )
        if named:
            subject = named[1].strip()
            yield _question("namesake", subject, f"Which element is named after {subject}?", [name])


def _about_two(elements: Iterable[Row], luck: random.Random) -> Iterator[Line]:
    """Which of two was discovered first, and how many years lie between them."""
    dated = [row for row in elements if row["discovery_year"]]
    for topic in ("first", "later"):
        pairs = iter(luck.sample(dated, 2) for _ in range(10 * PAIRS))
        chosen = (pair for pair in pairs if abs(pair[0]["discovery_year"] - pair[1]["discovery_year"]) > 1)
        for _, (one, other) in zip(range(PAIRS), chosen, strict=False):
            earlier, later = sorted((one, other), key=lambda row: row["discovery_year"])
            subject = f"{one['name']}-{other['name']}"
            if topic == "first":
                asked = f"Which was discovered first, {one['name'].lower()} or {other['name'].lower()}?"
                yield _question(topic, subject, asked, [earlier["name"]])
            else:
                names = (earlier["name"].lower(), later["name"].lower())
                years = later["discovery_year"] - earlier["discovery_year"]
                asked = f"How many years after the discovery of {names[0]} was {names[1]} discovered?"
                yield _question(topic, subject, asked, [str(years), f"{years} years"])


def _passage(name: str, heading: str, text: str) -> Line:
    title = f"{name}, {heading}"
    return {"title": title, "text": " ".join(text.split())}


def _pieces(text: str) -> Iterator[str]:
    """Whole sentences, at most `PASSAGE_WORDS` words together where they allow it."""
    piece: list[str] = []
    for sentence in re.split(r"(?<=[.)]) (?=[A-Z(])", text):
        words = sentence.split()
        if piece and len(piece) + len(words) > PASSAGE_WORDS:
            yield " ".join(piece)
            piece = []
        piece += words
    if piece:
        yield " ".join(piece)


def _aliases(person: str) -> Iterator[str]:
    """A name and what is left of it without its first words, with accents and without."""
    yield person.strip()
    words = person.replace(".", ". ").split()
    for first in range(len(words)):
        name = " ".join(words[first:])
        yield name
        yield unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()


def _places(places: Iterable[str]) -> list[str]:
    """Countries with the short names that they also go by."""
    also = {"United States": ["USA", "US", "U.S."], "Great Britain": ["UK", "United Kingdom"]}
    return [name for place in places for name in (place.strip(), *also.get(place.strip(), []))]


def _everything(element: Row) -> str:
    return " ".join(str(element[key] or "") for key in ("description", "name_origin", "uses", "sources"))


def _question(topic: str, subject: str, asked: str, answers: Sequence[str]) -> Line:
    identity = f"{topic}-{subject.lower().replace(' ', '-')}"
    return {"id": identity, "topic": topic, "question": asked, "answers": list(dict.fromkeys(answers))}


def main() -> None:
    """Write both files."""
    table = importlib.import_module("mendeleev.fetch").fetch_table("elements")
    elements = [
        {**row, "discovery_year": row["discovery_year"] and int(row["discovery_year"])}
        for row in table.astype(object).where(table.notna(), None).to_dict("records")
    ]
    files = {
        "corpus.jsonl": [passage for element in elements for passage in passages(element)],
        "questions.jsonl": questions(elements),
    }
    for name, lines in files.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(lines)} lines")


if __name__ == "__main__":
    main()
