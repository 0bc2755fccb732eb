"""Make the recording: ask a model about countries, elements and numbers, and label every sentence.

    python examples/long_answers/make_data.py ask COUNTRY_JSON drawn.jsonl --url http://127.0.0.1:8097/v1
    python examples/long_answers/make_data.py label COUNTRY_JSON drawn.jsonl records.jsonl

COUNTRY_JSON is the folder `src` of the npm package country-json (MIT). Needs `pip install periodictable`. The
model may be any behind an OpenAI-compatible server that gives token log-probabilities; `ask` goes on where it
was stopped. Labels follow from references, see DATA.md.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI

from langchain_cfc import write_records
from langchain_cfc.claims import SentenceSplitter, Span, make_claim_candidates
from langchain_cfc.records import Claim, ClaimsRecord, Provenance
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import SequenceProbability

ITALY = (
    "The currency of Italy is the euro. The ISO three-letter code of Italy is ITA. The highest mountain of "
    "Italy is Monte Bianco."
)
EXAMPLE = [
    ("system", "Answer in plain sentences, one fact in each."),
    ("user", "What are the currency, the ISO three-letter code and the highest mountain of Italy?"),
    (
        "assistant",
        ITALY,
    ),
]
TEMPERATURE = 0.7
COLUMNS = {
    "capital": ("capital-city", "city"),
    "continent": ("continent", "continent"),
    "region": ("region-in-world", "location"),
    "currency": ("currency-name", "currency_name"),
    "calling": ("calling-code", "calling_code"),
    "domain": ("domain-tld", "tld"),
    "iso": ("abbreviation", "abbreviation"),
}
# English names, and what has changed since the reference was written; `|` separates what is right.
CAPITALS = {
    "Algeria": "Algiers",
    "American Samoa": "Pago Pago|Fagatogo",
    "Austria": "Vienna",
    "Bahrain": "Manama",
    "Belgium": "Brussels",
    "Bolivia": "La Paz|Sucre",
    "Burundi": "Gitega|Bujumbura",
    "Chile": "Santiago",
    "China": "Beijing",
    "Cuba": "Havana",
    "Czech Republic": "Prague",
    "Dominican Republic": "Santo Domingo",
    "Eswatini": "Mbabane|Lobamba",
    "Ethiopia": "Addis Ababa",
    "Finland": "Helsinki",
    "Greece": "Athens",
    "Guam": "Hagatna|Agana",
    "Guatemala": "Guatemala City",
    "Holy See (Vatican City State)": "Vatican City",
    "Hong Kong": "Hong Kong|Victoria",
    "Italy": "Rome",
    "Kazakhstan": "Astana|Nur-Sultan",
    "Kiribati": "Tarawa|Bairiki",
    "Luxembourg": "Luxembourg",
    "Marshall Islands": "Majuro",
    "Mexico": "Mexico City",
    "Monaco": "Monaco",
    "Mongolia": "Ulaanbaatar|Ulan Bator",
    "Montserrat": "Plymouth|Brades",
    "Myanmar": "Naypyidaw|Naypyitaw|Nay Pyi Taw",
    "New Caledonia": "Noumea",
    "Northern Mariana Islands": "Saipan|Garapan",
    "Oman": "Muscat",
    "Palau": "Ngerulmud|Melekeok",
    "Panama": "Panama City",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Romania": "Bucharest",
    "South Africa": "Pretoria|Cape Town|Bloemfontein",
    "Sri Lanka": "Colombo|Kotte",
    "Sudan": "Khartoum",
    "Uzbekistan": "Tashkent",
    "Western Sahara": "Laayoune|El Aaiun",
    "Yemen": "Sanaa|Sana'a",
}
CURRENCIES = {
    "Bhutan": "ngultrum|rupee",
    "Bolivia": "boliviano",
    "Brunei": "dollar",
    "Chad": "cfa franc",
    "China": "yuan|renminbi",
    "Croatia": "euro|kuna",
    "Ecuador": "us dollar",
    "El Salvador": "us dollar|colon",
    "Grenada": "east caribbean dollar",
    "Israel": "shekel",
    "Latvia": "euro",
    "Lithuania": "euro",
    "Madagascar": "ariary",
    "Mexico": "peso",
    "Nicaragua": "cordoba",
    "North Macedonia": "denar",
    "Panama": "balboa|us dollar",
    "Peru": "sol",
    "Oman": "rial|riyal",
    "Qatar": "riyal|rial",
    "Romania": "leu",
    "Yemen": "rial|riyal",
    "The Democratic Republic of Congo": "franc",
    "Tunisia": "dinar",
    "United Kingdom": "pound",
    "Uzbekistan": "som|sum",
    "Virgin Islands, British": "us dollar",
}
CALLING = {
    "Dominican Republic": "1809|1829|1849",
    "Holy See (Vatican City State)": "379|39",
    "Jamaica": "1876|1658",
    "Puerto Rico": "1787|1939",
    "Virgin Islands, British": "1284",
    "Virgin Islands, U.S.": "1340",
}
DOMAINS = {"United Kingdom": ".uk"}
# Of these, either continent is right.
ON_TWO_CONTINENTS = {"Armenia", "Azerbaijan", "Cyprus", "Egypt", "Georgia", "Indonesia", "Kazakhstan"}
ON_TWO_CONTINENTS |= {"Russia", "Turkey"}
CONTINENT = r"\bcontinent\b|\b(located|situated|lies|is) (on|in)\b"
CONTINENTS = ("africa", "antarctica", "asia", "europe", "north america", "oceania", "south america")
# A currency of another country is named with one of these; `dollar` alone is not the US dollar.
ISSUERS = {
    "us": r"\b(us|u\.s|united states|american)\b",
    "australian": r"\baustralian\b",
    "new zealand": r"\bnew zealand\b",
    "east caribbean": r"\beast(ern)? car+ib+ean\b",
    "cfa": r"\bcfa\b|\bafrican( financial community)? franc\b",
    "cfp": r"\bcfp\b|\bpacific franc\b",
    "danish": r"\bdanish\b",
    "norwegian": r"\bnorwegian\b",
    "swiss": r"\bswiss\b",
    "british": r"\bbritish\b|\bsterling\b",
    "french": r"\bfrench\b",
    "moroccan": r"\bmoroccan\b",
    "another": r"\bnew taiwan\b|\bhong kong\b|\bcanadian\b|\bindian\b",
}
OWN_ISSUERS = {
    "Australia": "australian",
    "Canada": "another",
    "Denmark": "danish",
    "Hong Kong": "another",
    "India": "another",
    "Morocco": "moroccan",
    "New Zealand": "new zealand",
    "Norway": "norwegian",
    "Switzerland": "swiss",
    "United Kingdom": "british",
    "United States": "us",
}
PERIOD, GROUP = r"period\D{0,25}?(\d+)|(\w+) period", r"group\D{0,35}?(\d+)|(\w+) group"
# Elements without stable isotopes, whose mass number is a matter of convention.
UNSTABLE = {43, 61, *range(84, 119)}
LAST_OF_PERIOD = (0, 2, 10, 18, 36, 54, 86, 118)
ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7}
ROMAN = {1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X", 9: "IX"}
ROMAN |= {5: "V", 4: "IV", 1: "I"}


@dataclass(frozen=True)
class Question:
    """A question, and for each attribute how a sentence about it is recognised and checked."""

    id: str
    topic: str
    text: str
    checks: dict[str, tuple[str, Callable[[str], bool]]]

    def is_supported(self, sentence: str) -> bool:
        """Return whether all that a sentence states is right; what no check recognises counts as wrong."""
        plain = simplify(sentence)
        found = [check for pattern, check in self.checks.values() if re.search(pattern, plain)]
        return bool(found) and all(check(sentence) for check in found)


def simplify(text: str) -> str:
    """Return a text in lower case without accents, and numbers without separators."""
    letters = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    return re.sub(r"(?<=\d),(?=\d{3})", "", letters).lower()


def holds(alternatives: str) -> Callable[[str], bool]:
    """Check that one of several texts occurs as whole words."""
    wanted = [re.escape(simplify(one)) for one in alternatives.split("|")]
    return lambda sentence: re.search(rf"\b({'|'.join(wanted)})\b", simplify(sentence)) is not None


def list_questions(source: Path) -> Iterator[Question]:
    """List the questions about countries, elements and numbers, in random order."""
    questions = [*list_countries(source), *list_elements(), *list_numbers()]
    random.Random(1).shuffle(questions)  # noqa: S311 - the same order every time
    yield from questions


def list_countries(source: Path) -> Iterator[Question]:
    """List the questions about countries for which the reference knows every attribute."""
    columns: dict[str, dict[str, str]] = {}
    for name, (file, key) in COLUMNS.items():
        rows = json.loads((source / f"country-by-{file}.json").read_text(encoding="utf-8"))
        columns[name] = {
            row["country"]: str(row[key]).strip() for row in rows if row.get(key) not in {None, ""}
        }
    known = set.intersection(*(set(column) for name, column in columns.items() if name != "region"))
    for country in sorted(known):
        facts = {name: column.get(country, "") for name, column in columns.items()}
        yield Question(
            id=f"country-{re.sub(r'[^a-z]+', '-', simplify(country)).strip('-')}",
            topic="country",
            text="What are the capital, continent, currency, international calling code, internet domain and "
            f"ISO two-letter code of {country}?",
            checks={
                "capital": (r"\bcapital\b", holds(CAPITALS.get(country, facts["capital"].replace("-", " ")))),
                "continent": (
                    r"\bcontinent\b|\b(located|situated|lies|is) (on|in)\b",
                    check_continent(country, facts),
                ),
                "currency": (r"\bcurrency\b", check_currency(country, facts["currency"])),
                "calling": (
                    r"\bcalling\b|\bdialing\b",
                    check_calling(CALLING.get(country, facts["calling"])),
                ),
                "domain": (r"\bdomain\b", check_domain(DOMAINS.get(country, facts["domain"]))),
                "iso": (r"\biso\b|two-letter", check_iso(facts["iso"])),
            },
        )


def check_continent(country: str, facts: dict[str, str]) -> Callable[[str], bool]:
    """Check that the continent or the region is named, and no other continent."""
    own, region = simplify(facts["continent"]), simplify(facts["region"])

    def check(sentence: str) -> bool:
        plain = simplify(sentence).replace(simplify(country), "")
        named = {one for one in CONTINENTS if one in plain}
        if country in ON_TWO_CONTINENTS:
            return bool(named) and named <= {own, "asia", "europe", "africa", "oceania"}
        if re.search(r"\bamericas?\b", plain) and own.endswith("america") and not named:
            return True
        # A region is where a country lies, and no continent.
        is_region = region != "" and region in plain and "continent" not in plain
        is_australia = own == "oceania" and "australia" in plain
        return named <= {own} and (bool(named) or is_region or is_australia)

    return check


def check_currency(country: str, name: str) -> Callable[[str], bool]:
    """Check the kind of the currency, and whose it is where that is another country."""
    wanted = [simplify(one) for one in CURRENCIES.get(country, name).split("|")]

    def check(sentence: str) -> bool:
        said = simplify(sentence).replace(simplify(country), "")
        others = {one: pattern for one, pattern in ISSUERS.items() if one != OWN_ISSUERS.get(country)}
        issuers = {issuer for issuer, pattern in others.items() if re.search(pattern, said)}
        for one in wanted:
            kind = "franc" if "franc" in one else one.split()[-1]
            due = {issuer for issuer, pattern in others.items() if re.search(pattern, one)}
            if re.search(rf"\b{re.escape(kind)}s?\b", said) and issuers == due:
                return True
        return False

    return check


def check_calling(codes: str) -> Callable[[str], bool]:
    """Check the calling code; of the numbers that begin with 1, `1` alone is right as well."""

    def check(sentence: str) -> bool:
        digits = re.sub(r"[\s()+-]", "", sentence.rsplit("code", maxsplit=1)[-1])
        said = re.findall(r"\d+", digits)
        return any(said == [code] or (code[0] == "1" and said == ["1"]) for code in codes.split("|"))

    return check


def check_domain(domain: str) -> Callable[[str], bool]:
    """Check that the domain stands with its dot, or as the last word, and no other one does."""
    bare = domain.lstrip(".").lower()

    def check(sentence: str) -> bool:
        plain = sentence.lower().rstrip(". \"'`")
        dotted = re.findall(r"\.([a-z]{2,})\b", plain)
        return set(dotted) == {bare} or (not dotted and re.findall(r"[a-z]+", plain)[-1] == bare)

    return check


def check_iso(code: str) -> Callable[[str], bool]:
    """Check that the only word of two capitals is the code."""
    return lambda sentence: set(re.findall(r"\b[A-Z]{2}\b", sentence)) == {code}


def list_elements() -> Iterator[Question]:
    """List the questions about the chemical elements."""
    periodictable: Any = import_module("periodictable")

    for element in (one for one in periodictable.elements if one.number > 0):
        number, mass, name = element.number, element.mass, element.name
        yield Question(
            id=f"element-{name}",
            topic="element",
            text="What are the symbol, atomic number, period, group and rounded atomic mass of the element "
            f"{name}?",
            checks={
                "symbol": (r"\bsymbol\b", check_symbol(element.symbol)),
                "number": (r"\batomic number\b", check_number(r"atomic number\D*?(\d+)", {number})),
                "period": (
                    r"\bperiod\b",
                    check_number(r"period\D{0,25}?(\d+)|(\w+) period", {find_period(number)}),
                ),
                "group": (
                    r"\bgroup\b",
                    check_number(r"group\D{0,35}?(\d+)|(\w+) group", {find_group(number)}),
                ),
                "mass": (
                    r"\b(mass|weight)\b",
                    check_mass(mass, is_stable=number not in UNSTABLE),
                ),
            },
        )


def find_period(number: int) -> int:
    """Find the period of an element."""
    return next(period for period, last in enumerate(LAST_OF_PERIOD) if number <= last)


def find_group(number: int) -> int:
    """Find the group of an element; 3 for lanthanides and actinides."""
    period = find_period(number)
    place = number - LAST_OF_PERIOD[period - 1]
    from_the_end = LAST_OF_PERIOD[period] - number
    is_first, is_second = place == 1, place == 2 and period > 1  # noqa: PLR2004 - the first two groups
    return 1 if is_first else 2 if is_second else max(3, 18 - from_the_end)


def check_symbol(symbol: str) -> Callable[[str], bool]:
    """Check that the symbol stands as a word of its own."""
    return lambda sentence: re.search(rf"symbol.*\b{symbol}\b", sentence) is not None


def check_number(pattern: str, right: set[int]) -> Callable[[str], bool]:
    """Check the number that a pattern finds, in figures or as an ordinal."""

    def check(sentence: str) -> bool:
        found = re.search(pattern, simplify(sentence))
        if found is None:
            return False
        said = next(one for one in found.groups() if one is not None)
        digits = re.match(r"\d+", said)
        return (int(digits[0]) if digits else ORDINALS.get(said)) in right

    return check


def check_mass(mass: float, *, is_stable: bool) -> Callable[[str], bool]:
    """Check the last number: within rounding, or of elements without stable isotopes within 2."""

    def check(sentence: str) -> bool:
        said = re.findall(r"\d+(?:\.\d+)?", simplify(sentence))
        if not said:
            return False
        rounding = 0.1 if "." in said[-1] else 0.51
        return abs(float(said[-1]) - mass) <= (rounding if is_stable else 2.0)

    return check


def list_numbers() -> Iterator[Question]:
    """List the questions about whole numbers."""
    numbers = random.Random(7).sample(range(12, 1000), 170)  # noqa: S311 - the same numbers every time
    for number in sorted(numbers):
        digits = sum(int(one) for one in str(number))
        is_prime = all(number % one for one in range(2, number))
        remainder = number % 7
        yield Question(
            id=f"number-{number}",
            topic="number",
            text="What are the double, the square, the sum of the digits, the remainder when divided by 7 "
            f"and the Roman numeral of {number}, and is {number} prime?",
            checks={
                "double": (r"\b(double|twice)\b", check_last(2 * number)),
                "square": (r"\bsquared?\b", check_last(number**2)),
                "digits": (r"\bdigits?\b", check_last(digits)),
                "remainder": (r"\bremainder\b", check_last(remainder, r"remainder (?:is|of|=) (\d+)")),
                "roman": (r"\broman\b", check_roman(number)),
                "prime": (r"\bprime\b|^(yes|no)\b", check_prime(is_prime=is_prime)),
            },
        )


def check_last(right: int, pattern: str = r"$^") -> Callable[[str], bool]:
    """Check the number that a pattern finds, else the last one."""

    def check(sentence: str) -> bool:
        plain = simplify(sentence)
        said = re.findall(pattern, plain) or re.findall(r"\d+", plain)
        return bool(said) and int(said[-1]) == right

    return check


def check_roman(number: int) -> Callable[[str], bool]:
    """Check the last Roman numeral of a sentence."""
    numeral = ""
    for value, letters in ROMAN.items():
        while number >= value:
            numeral, number = numeral + letters, number - value
    return lambda sentence: re.findall(r"\b[IVXLCDM]+\b", sentence)[-1:] == [numeral]


def check_prime(*, is_prime: bool) -> Callable[[str], bool]:
    """Check whether the sentence says that the number is prime."""
    return lambda sentence: (
        is_prime == (re.search(r"\bnot\b|n't|\bcomposite\b|\bno\b", sentence.lower()) is None)
    )


def ask(questions: Iterator[Question], drawn: Path, url: str) -> None:
    """Ask the questions that have no answer yet, and write down each answer with its tokens."""
    done = set()
    if drawn.exists():
        done = {json.loads(line)["id"] for line in drawn.read_text(encoding="utf-8").splitlines()}
    model = ChatOpenAI(
        base_url=url,
        api_key=lambda: "none",
        model="any",
        temperature=TEMPERATURE,
        logprobs=True,
    )
    for question in questions:
        if question.id in done:
            continue
        message = model.invoke([*EXAMPLE, ("user", question.text)])
        tokens = message.response_metadata["logprobs"]["content"]
        line = {"id": question.id, "answer": str(message.text), "tokens": tokens}
        with drawn.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def label(questions: Iterator[Question], drawn: Path, out: Path) -> int:
    """Split the answers, score and label their claims, and write the records."""
    splitter = SentenceSplitter()
    answers = [json.loads(line) for line in drawn.read_text(encoding="utf-8").splitlines()]
    known = {one["id"]: one for one in answers}
    records = [
        make_record(question, known[question.id], splitter) for question in questions if question.id in known
    ]
    provenance = Provenance(
        n=1,
        unit="claims",
        generator={"model": "Qwen2.5-Coder-1.5B-Instruct", "quantisation": "Q4", "temperature": TEMPERATURE},
        verifier=dict(SequenceProbability(per_token=True).fingerprint),
        labeler={"id": "long-answers-references"},
        splitter=dict(splitter.fingerprint),
    )
    return write_records(out, sorted(records, key=lambda record: record.id), provenance)


def make_record(question: Question, drawn: dict[str, Any], splitter: SentenceSplitter) -> ClaimsRecord:
    """Make the record of one answer."""
    text = drawn["answer"]
    message = AIMessage(text, response_metadata={"logprobs": {"content": drawn["tokens"]}})
    spans = [Span(one.start, one.end, text[one.start : one.end]) for one in splitter.split(text)]
    claims = make_claim_candidates(DrawnCandidate(text, message), spans)
    scores = SequenceProbability(per_token=True).invoke({"prompt": question.text, "candidates": claims})
    return ClaimsRecord(
        id=question.id,
        input=question.text,
        metadata={"topic": question.topic},
        answer=text,
        claims=tuple(
            Claim(
                text=str(span.text),
                start=span.start,
                end=span.end,
                score=round(score, 6),
                supported=question.is_supported(str(span.text)),
            )
            for span, score in zip(spans, scores, strict=True)
        ),
    )


def main() -> None:
    """Ask the model, or label its answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["ask", "label"])
    parser.add_argument("countries", type=Path, help="folder src of country-json")
    parser.add_argument("drawn", type=Path, help="answers with their tokens, as JSON Lines")
    parser.add_argument("records", type=Path, nargs="?", default=Path("records.jsonl"))
    parser.add_argument("--url", default="http://127.0.0.1:8097/v1")
    given = parser.parse_args()
    questions = list_questions(given.countries)
    if given.step == "ask":
        ask(questions, given.drawn, given.url)
    else:
        print(f"{label(questions, given.drawn, given.records)} records in {given.records}")


if __name__ == "__main__":
    main()
