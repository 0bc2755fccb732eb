"""Labelers that compare texts with the reference: whole, anywhere in a sentence, or in a closed set.

`NormalisedMatch` compares in the normal form in which self-consistency compares answers too
(`langchain_cfc.verifiers.normalise_answer`). It is stricter than the exact match of question answering
benchmarks (SQuAD, TriviaQA), which deletes all punctuation and the English articles: C++, C# and C are then
equal, as are 1/2 and 12, or "vitamin A" and "vitamin". Accents count: "Sao Paulo" is not "São Paulo".

With `anywhere`, an alias has to occur as whole words that the sentence does not deny, doubt, ask, report as
an opinion, list or join with others, place in the past or compare with ("unlike Lima", "near Lima"), and
that are not part of a longer name ("New York" for York, "vitamin A" for vitamin, "guinea pig" for guinea,
"C++" for C, "-5" for 5). Only function words and verbs may follow directly, and only function words precede
a word without a capital. Negations and conjunctions are those of about thirty languages, other words
English. In scripts without spaces, a sign or a listed particle has to stand next to the alias: `東京です`
holds `東京`, but `東京都` not `京都`. A word that agrees or denies, such as "no", is read as by `ClosedSet`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers._words import (
    ALTERNATIVE,
    DOUBT,
    NEGATION,
    REJECTION,
    RETRACTION,
    STARTERS,
    SUPPOSITION,
    UNDECIDED,
    join_words,
)
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.labelers.verdicts import Member, VerdictExtractor
from langchain_cfc.support.normalisation import NORMALISATION, normalise_answer, unify_characters
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.verifiers.base import combine_fingerprints


class TextMatcher(BaseLabeler):
    """Base class of labelers that compare each distinct text with the reference.

    `settings` are plain values that change the labels; `parts` maps roles to what the user passed (None if
    left out).
    """

    def __init__(
        self, name: str, settings: Mapping[str, Any], parts: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self._settings = settings
        self.fingerprint = combine_fingerprints(name, settings, parts or {})

    def __repr__(self) -> str:
        """State what makes a candidate correct."""
        settings = ", ".join(f"{name}: {value}" for name, value in self._settings.items())
        return f"{type(self).__name__}({settings})"

    @abstractmethod
    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test for correct answers; raise a `LabelerError` if the reference is unusable."""

    def make_test(self, given: LabelerInput, config: RunnableConfig) -> Steps[Callable[[str], bool]]:
        """Return the test for one prompt; overridden if it depends on more than the reference."""
        del config
        yield from ()  # nothing is called
        return self.read_reference(given["reference"])

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """Test each distinct text once."""
        is_correct = yield from self.make_test(given, config)
        texts = [candidate.text for candidate in given["candidates"]]
        labels = {text: is_correct(text) for text in dict.fromkeys(texts)}
        return [labels[text] for text in texts]


def list_aliases(reference: Any) -> list[Any]:
    """Return the values of a reference, any of which is correct; raise a `LabelerError` if there are none."""
    listed = list(reference) if isinstance(reference, (list, tuple)) else [reference]
    if not listed or any(one is None for one in listed):
        msg = (
            f"the reference is {reference!r:.80}, so no candidate can be correct: give the record a reference"
        )
        raise LabelerError(msg)
    return listed


def list_text_aliases(reference: Any) -> list[str]:
    """Return the aliases of a reference as text; raise a `LabelerError` if one is neither text nor JSON."""
    return [one if isinstance(one, str) else _write_json(one) for one in list_aliases(reference)]


def _write_json(alias: Any) -> str:
    try:
        if isinstance(alias, (dict, list)):
            return canonical_json(alias)
        problem = f"a {type(alias).__name__}"
    except (TypeError, ValueError) as error:
        problem = f"what is no JSON ({error})"
    msg = f"the reference {alias!r:.80} holds {problem}; expected text, texts or JSON objects"
    raise LabelerError(msg)


_ARTICLES = {
    "de": "der die das den dem des ein eine einen einem einer eines",
    "en": "a an the",
    "es": "el la los las un una unos unas",
    "fr": "le la les l' un une des",
    "it": "il lo la i gli le l' un uno una un'",
    "nl": "de het een",
    "pt": "o a os as um uma",
}
_DENIED = re.compile(
    "|".join(words.pattern for words in (NEGATION, REJECTION, DOUBT, SUPPOSITION, ALTERNATIVE))
    + "|"
    + join_words(
        r"""
        without might may could than instead lack(?:s|ed|ing)? fails?(?=_to) formerly previously originally
        until used_to possible candidates include[sd]? nie niet geen inte ikke ei ez nem değil không bukan
        tidak není nije nu_este δεν όχι לא لا ليس\w* غير
        """,
        "沒 非 ไม่ नहीं",
    ),
    re.IGNORECASE,
)
# What compares with a name that follows in the clause, or reports it as an opinion.
_OTHER = re.compile(
    join_words(
        r"""
        unlike like near before after outside whose which replac\w+ (?:confused|compared)_with
        (?:people|many|some|often|commonly|popularly).*(?:think|believe|say|assume|call|thought|called|assumed)
        (?:km|miles|north|south|east|west|far|away)_(?:from|of)
        """
    ),
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[.!?;,\u3001\u060c\u061f\u061b]|\s-+\s|\b(?:but|because|since)\b")
_JOINING = join_words(
    "and or y e o u und oder et ou и или plus lub eller og och veya ve hoặc và atau as_well_as along_with",
    r"[&/+|\u3001和或与及とや] أو",
)
_LISTED_BEFORE = re.compile(rf"(?:{_JOINING})\s*$", re.IGNORECASE)
_LISTED_AFTER = re.compile(rf"\s*,?\s*(?:{_JOINING})", re.IGNORECASE)
_BULLET = re.compile(r"(?:^|\n|\s(?=\w\)))\s*(?:[-*•]|\w[.)])\s", re.IGNORECASE)
# Three names or more, or two after a semicolon, of at most three words.
_NAME = r"[^\s,;|]+(?: [^\s,;|]+){0,2}"
_LINE_OF_NAMES = re.compile(rf"{_NAME}(?:\s*[,;|]\s*{_NAME}){{2,}}|{_NAME}\s*[;|]\s*{_NAME}")
# Words around an alias that are no part of a longer name.
_PRECEDING = """
    a an the is are was were be been being it its it's that's called named of in at on by to from for as
    with and or into through about around approximately contains means has have had only exactly via using
    ist sind war der die das den dem ein eine est le la les un une c'est es el los las una è il lo é o os um
    uma im en em de da do di del della du des auf à al по в на это
"""
_FOLLOWING = """
    is was are were be been has had have in on at of by for from to as with which who whom that where when
    because since during while under between among after before near around via not also too then now itself
    became wrote won lies made led ran took gave died did does can could will would said says began built
    serves belongs remains holds uses stands makes plays sits means ist war liegt sind hat im am an von der
    die das als seit est était dans de du des le la depuis es era fue está en del el desde è di della dal é
    foi em da do no na
"""
_IN_NAME = re.compile(
    r"(?:\b[A-Z]\.|\b(?:north|south|east|west|central|equatorial|new|old|upper|lower|greater)(?:ern)?"
    r"|\b[A-Z]\w+ (?:of|de|di|du|da|do)(?: (?:the|la|las|los))?)\s?$"
)
# What stands next to a word in a script without spaces, or is attached to a word of Korean.
_BEFORE = ("是", "为", "為", "叫", "在", "は", "が", "คือ", "ที่", "는", "은")
_AFTER = re.compile("(?:です|だ|である|입니다|이다|이에요|예요|ครับ|ค่ะ)(?![^\\s.,!?])")
# Characters around an alias that are looked at.
_NEAR = 200
_SIGNS = r".,:;!?\u3001\u060c\u061b\u061f"
_FREE_BEFORE = re.compile(rf"(?:^|\s|[(\[{{\"*_]|(?<![\w])'|(?<![A-Za-z0-9])[{_SIGNS}]|(?<=[^\W\d]):)$")
_FREE_AFTER = re.compile(rf"$|\s|[)\]}}\"*_]|['{_SIGNS}](?![A-Za-z0-9])")


class NormalisedMatch(TextMatcher):
    """A candidate is correct if its normal form equals, or contains, that of an alias in the reference.

    The reference is a text, a JSON object as structured output is, or a list of these of which any is right.
    See the top of the module. JSON is compared by value, as in `normalise_answer`; to compare one field, take
    it out with an answer extractor.

    Args:
        articles: Language whose articles are ignored at the beginning: de, en, es, fr, it, nl or pt; none by
            default. "The Beatles" is then "Beatles", and "vitamin A" stays what it is.
        anywhere: Whether an alias may occur anywhere in the candidate, for models that answer in sentences.
            Sentences are not understood: "Cusco was, Lima is" contains both.

    Raises:
        InputError: If the language is none of these.
    """

    def __init__(self, *, articles: str | None = None, anywhere: bool = False) -> None:
        if articles is not None and articles not in _ARTICLES:
            msg = f"articles is {articles!r}; expected one of {', '.join(_ARTICLES)}, or None"
            raise InputError(msg)
        settings = {"normalised": NORMALISATION, "articles": articles or "kept"}
        where = {"compared": "anywhere-2"} if anywhere else {}
        super().__init__("normalised-match", {**settings, **where})
        words = [
            f"{one}(?=.)" if one.endswith("'") else f"{one} +"
            for one in _ARTICLES.get(str(articles), "").split()
        ]
        self._article = re.compile(f"^(?:{'|'.join(words)})") if words else None
        self._anywhere = anywhere

    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test that compares with the normal forms of the aliases."""
        forms = {self._normalise(alias) for alias in list_text_aliases(reference)} - {""}
        if not forms:
            msg = (
                f"the reference {reference!r:.80} holds no more than signs that end a sentence: use "
                "MultipleChoice, or a function as labeler"
            )
            raise LabelerError(msg)
        if not self._anywhere or not isinstance(list_aliases(reference)[0], str):
            return lambda answer: self._normalise(answer) in forms
        # A single letter or digit is an answer of its own.
        words = [form for form in forms if len(form) > 1]
        verdict = _YES_OR_NO.find_member(words[0]) if len(words) == len(forms) == 1 else None
        if verdict is not None:
            return lambda answer: _YES_OR_NO(answer) == verdict
        patterns = [re.compile(re.escape(form), re.IGNORECASE) for form in forms]
        return lambda answer: (
            self._normalise(answer) in forms
            or (not _is_list(answer) and _asserts(unify_characters(answer), patterns))
        )

    def _normalise(self, text: str) -> str:
        form = normalise_answer(text)
        rest = form if self._article is None else self._article.sub("", form, count=1)
        return form if self._article is None or self._article.fullmatch(f"{rest} ") else rest


_YES_OR_NO = VerdictExtractor(["yes", "no"])


def _asserts(text: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    """Return whether a text asserts one of the patterns, and denies none."""
    places = [found.span() for pattern in patterns for found in pattern.finditer(text)]
    asserted = {_is_asserted(text, *place) for place in places if _is_whole(text, *place)}
    if asserted != {True} or UNDECIDED.search(text.casefold()):
        return False
    return RETRACTION.search(text, min(end for _, end in places)) is None


def _is_list(text: str) -> bool:
    """Return whether a text is a list of short answers."""
    return _LINE_OF_NAMES.fullmatch(text.strip()) is not None or len(_BULLET.findall(text)) > 1


def _is_whole(text: str, start: int, end: int) -> bool:
    """Return whether a place is no part of a longer word, number or name."""
    before, after = text[max(0, start - _NEAR) : start], text[end : end + _NEAR]
    if not (_FREE_BEFORE.search(before) or before.endswith(_BEFORE)):
        return False
    if not (_FREE_AFTER.match(after) or _AFTER.match(after)):
        return False
    left = before.split()[-1] if before[-1:] == " " else ""
    right = after.split()[0] if after[:1] == " " and after.strip() else ""
    is_in_name = left[:1].isupper() and left.casefold() not in STARTERS and left[-1].isalnum()
    is_in_number = left[-1:].isdigit() and text[start].isdigit()
    if is_in_name or is_in_number or right[:1].isupper() or right[:1].isdigit() or _IN_NAME.search(before):
        return False
    is_modified = (
        re.fullmatch("[A-Za-z']+", left)
        and text[start].islower()
        and left.casefold() not in _PRECEDING.split()
    )
    follows = re.match(r"[a-z]+", right)
    is_continued = follows and not (
        follows[0] in _FOLLOWING.split() or follows[0].endswith("ed") or text[start].isdigit()
    )
    return not (is_modified or is_continued)


def _is_asserted(text: str, start: int, end: int) -> bool:
    """Return whether the clause around a place neither denies, doubts nor asks it, nor lists it."""
    before, after = text[max(0, start - _NEAR) : start], text[end : end + _NEAR]
    said = _CLAUSE.split(before)[-1]
    clause = said + " " + _CLAUSE.split(after)[0]
    is_asked = re.match(r"[^.!;:,]*[?\u061f]", after) is not None
    is_listed = _LISTED_BEFORE.search(before) or _LISTED_AFTER.match(after)
    is_left = re.search(r"\bfrom $", before) and after.startswith(" to ")
    return not (is_asked or is_listed or is_left or _OTHER.search(said) or _DENIED.search(clause))


class ClosedSet(TextMatcher):
    """A candidate is correct if it gives the same member of a closed set of answers as the reference.

    The set is small and known: yes and no, true and false, the labels of a classification. One verdict is
    read, or none, as by `VerdictExtractor`: "Yes, there is no doubt" is yes, "I have no idea" neither.

    Args:
        members: Two or more answers, such as `["yes", "no"]` or `[True, False]`.

    Raises:
        InputError: If there are fewer than two members, or two are equal in their normal form.
    """

    def __init__(self, members: Sequence[Member] = ("yes", "no")) -> None:
        self._read = VerdictExtractor(members)
        settings = {name: value for name, value in self._read.fingerprint.items() if name != "id"}
        super().__init__("closed-set", settings)

    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test for the member that the reference names; it may be text, a boolean or a number."""
        named = {self._read.find_member(one) for one in list_aliases(reference)}
        right = named.pop() if len(named) == 1 else None
        if right is None:
            listed = ", ".join(self._read.members)
            msg = f"the reference {reference!r:.80} does not name one member of the closed set {listed}"
            raise LabelerError(msg)
        return lambda answer: self._read(answer) == right
