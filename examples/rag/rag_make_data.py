"""Make the corpus and the questions again from the package `mendeleev`; the example itself does not need it.

    pip install mendeleev==1.3.0
    python rag_make_data.py          writes corpus.jsonl and questions.jsonl beside this file

Facts alone are taken from the package: its numbers, and the names, years, places and minerals that its texts
hold. Each passage puts those of one kind, of one element, into a sentence written here. A question asks for
one of them, so its answers are exact, and a passage states them. The questions of the topics `first` and
`later` need two passages and a thought.
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
# What a passage of numbers says, by the column that holds it.
_NUMBERS = (
    ("Atomic weight", "atomic_weight", ""),
    ("Density", "density", " g/cm3"),
    ("Electronegativity", "en_pauling", ""),
    ("Covalent radius", "covalent_radius_pyykko", " pm"),
    ("Part of the crust", "abundance_crust", " mg/kg"),
)
PAIRS = 40  # drawn for each topic about two elements, before PER_TOPIC are taken

_NO_NAMES = re.compile(r"Laborator|Institut|Argonne|Research|RIKEN|et al| and ")
_MEANING = re.compile(r"(Greek|Latin|German|Swedish|Spanish): [\w ]+?,? ?\(([\w ,]+)\)\.?")
_APPOSITION = re.compile(r"(god|asteroid|town), ")
_NAMED = re.compile(r"Named (?:for|after|in honor of) ((?:\bO\.|[^,.;])+)")
_MADE = re.compile(r"bombard\w+ ([\w-]+ with [\w -]+)")
_MINERAL = re.compile(r"\b[a-z]{4,}ite\b")

Row = Mapping[str, Any]
Line = dict[str, Any]


def passages(element: Row) -> Iterator[Line]:
    """What is known about one element, under one heading each."""
    name = element["name"]
    place = f"in group {element['group_id']} and period" if element["group_id"] else "in period"
    yield _passage(
        name,
        "place in the table",
        f"{name} stands {place} {element['period']} of the periodic table. Symbol: {element['symbol']}. "
        f"Atomic number: {element['atomic_number']}.",
    )
    if element["discovery_year"]:
        yield _passage(
            name,
            "discovery",
            f"{name} was discovered by {element['discoverers']}. Place: {element['discovery_location']}. "
            f"Year: {element['discovery_year']}.",
        )
    meant, subject = _find_meaning(element), _namesake(element)
    if meant:
        yield _passage(name, "name", f"The name {name} comes from {meant[0]}, where it means: {meant[1]}.")
    elif subject:
        yield _passage(name, "name", f"{name} is named after {subject}.")
    minerals, made = _minerals(element), _MADE.search(element["sources"])
    if minerals:
        yield _passage(name, "minerals", f"Minerals in which {name} is found: {', '.join(minerals)}.")
    if made:
        yield _passage(name, "synthesis", f"{name} is made by bombarding {made[1].strip()}.")
    numbers = [
        f"{what}: {element[column]:g}{unit}."
        for what, column, unit in _NUMBERS
        if element[column] is not None
    ]
    yield _passage(name, "numbers", f"Numbers for {name}. {' '.join(numbers)}")
    if element["top_3_producers"]:
        producers = re.sub(r"\d+\)\s*", "", element["top_3_producers"]).replace(";", ",")
        yield _passage(name, "producers", f"Countries that produce most of the {name}: {producers}.")


def questions(elements: Sequence[Row]) -> list[Line]:
    """All questions, the topics taking turns, so that any first part of the list holds every topic."""
    luck = random.Random(0)  # noqa: S311  # a fixed choice, nothing secret
    made: dict[str, list[Line]] = {}
    every = [*_about_one(elements), *_ask_backwards(elements), *_about_two(elements, luck)]
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
        meant = _find_meaning(element)
        if meant:
            language, meaning = meant
            answers = [meaning, *re.split(r" or |, ", meaning)]
            asked = f"The name of {name} comes from {language}. What does it mean there?"
            yield _question("meaning", name, asked, answers)
        group = element["group_id"]
        if group:
            asked = f"Which group of the periodic table does {name} belong to?"
            yield _question("group", name, asked, [str(group), f"group {group}"])


def _ask_backwards(elements: Sequence[Row]) -> Iterator[Line]:
    """Which element is found in a mineral, made in a way, or named after someone or something."""
    found = {row["name"]: set(_minerals(row)) for row in elements}
    for element in elements:
        name = str(element["name"])
        others = set().union(*(minerals for other, minerals in found.items() if other != name))
        for mineral in sorted(found[name] - others)[:1]:
            yield _question("source", mineral, f"Which element is found in {mineral}?", [name])
        made = _MADE.search(element["sources"])
        if made:
            subject = made[1].strip()
            yield _question("source", subject, f"Which element is made by bombarding {subject}?", [name])
        subject = _namesake(element)
        if subject:
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


def _find_meaning(element: Row) -> tuple[str, str] | None:
    """The language that a name comes from, and what it means there."""
    found = _MEANING.fullmatch(element["name_origin"])
    return (found[1], found[2]) if found else None


def _namesake(element: Row) -> str | None:
    """Whom or what an element is named after."""
    found = _NAMED.match(_APPOSITION.sub(r"\1 ", element["name_origin"]))
    return found[1].strip() if found else None


def _minerals(element: Row) -> list[str]:
    """The minerals that hold an element, by how their names end."""
    return sorted(set(_MINERAL.findall(element["sources"].lower())))


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


def _question(topic: str, subject: str, asked: str, answers: Sequence[str]) -> Line:
    identity = f"{topic}-{subject.lower().replace(' ', '-')}"
    return {"id": identity, "topic": topic, "question": asked, "answers": list(dict.fromkeys(answers))}


def main() -> None:
    """Write the corpus and the questions to files."""
    table = importlib.import_module("mendeleev.fetch").fetch_table("elements")
    whole = ("discovery_year", "group_id")
    elements = [
        {**row, **{name: row[name] and int(row[name]) for name in whole}}
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
