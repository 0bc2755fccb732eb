"""Labelers that compare texts with the reference: whole, anywhere in a sentence, or in a closed set.

`NormalisedMatch` compares in the normal form in which self-consistency compares answers too
(`langchain_cfc.verifiers.normalise_answer`). It is stricter than the exact match of question answering
benchmarks (SQuAD, TriviaQA), which deletes all punctuation and the English articles: C++, C# and C are then
equal, as are 1/2 and 12, or "vitamin A" and "vitamin". Accents count: "Sao Paulo" is not "São Paulo".

With `anywhere`, an alias counts where a sentence gives an answer by its form: it begins the text or a
sentence, or follows a colon, a dash or a word such as `is`, `called` or `in` (`_LINKS`), perhaps an
article; and it is followed by the end of the sentence, a bracket or a word such as `in`, `which` or `is the`
(`_FOLLOWING`). So "New York" does not give York, nor "Lima, Cusco", "near Lima" or "Lima of Cusco" Lima. In
scripts without spaces a listed particle has to stand next to the alias: `東京です` gives `東京`, but
`東京都` does not give `京都`. A clause that denies, doubts, asks or supposes the alias, reports it as an
opinion or places it in the past makes the whole answer wrong. A word that agrees or denies, such as "no",
is read as by `ClosedSet`.
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
    DENIED,
    REJECTION,
    RETRACTION,
    SUPPOSITION,
    UNASSERTED,
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
        self.fingerprint = combine_fingerprints(name, settings, parts or {})

    @abstractmethod
    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test for correct answers; raise a `LabelerError` if the reference is unusable."""

    def _make_test(self, given: LabelerInput) -> Callable[[str], bool]:
        """Return the test for one prompt; overridden if it depends on more than the reference."""
        return self.read_reference(given["reference"])

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """Test each distinct text once."""
        del config
        yield from ()  # nothing is called
        is_correct = self._make_test(given)
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
# What may stand directly before an alias in a sentence, apart from an article and marks of quotation.
_LINKS = r"""
    is are was were be been it's that's called named as means has have had contains uses? exactly only
    definitely certainly using (?:made|full|composed|consists?|number|city|name)_of by answer through
    (?:(?:is|are|was|were|be(?:en)?|ist|sind|war|wurde)(?:_\w+)?|lies?|liegt|stands?|sits?|died|lived|happened|occurred|place|up)_(?:in|at|on)
    (?:stands?|symbol|looking)_for produces? releases? represents? ist sind war heißt est était es son era è
    sono é são foi это هي هو
"""
_BEFORE = re.compile(
    rf"""
    (?: ^ (?: \d+[.)]\s | (?:yes|sure|of\scourse|certainly|ja|oui|sí|sì|sim)[,.!:]\s )?
      | ^in\s[^,.;]{{1,40}},\s | ^(?!.*\b(?:is|are|was|were)\b).*(?<=[a-z]{{3}}[.!])\s | (?:^|:\s)in\s
      | :[*_]*\s | (?:^|\s)-+\s | {join_words(_LINKS)}\s )
    (?: (?:{join_words("the an? der die das den eine? les? las? los el il lo i gli une? os? uma?")})\s )?
    ["'*_]* $
    | (?:是|为|為|叫|在|は|คือ|ที่|[은는]\s?)$
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What may follow it: the end of a sentence, a bracket, or one of these words, perhaps after a sign.
_FOLLOWING = r"""
    (?:is|was|are|were)(?=\W*$|_(?:the|known|built|born|\w+ed)\b) ha[sd](?=_(?:the|more|been)\b) in on at by
    with of_course for(?!_(?:example|instance)) as(?!_well) which who that where when because since during
    around about while under between via not itself became wrote won lies made led ran took gave died did does
    can could will would said says began built serves belongs remains holds uses stands makes plays sits means
    and_(?:its|it|is|was|has) [a-z]+ed the an? its? so liegt hat im am als seit dans depuis fue está
    (?:ist|est|es|era|è|é)_(?:d[aei][erns]|l[aeo]s?|el|il|une?|eine?|uma?|[ao]s?)
"""
_AFTER = re.compile(
    rf"""
    ["'*_)]*
    (?: [\s.!,:;،。、，]*$ | [.!。，、،]\s?(?![\w.]) | [.!](?=\s) | \s?[(\[] | [,，](?=日)
      | (?:,|:|\s-)?\s(?:{join_words(_FOLLOWING)}) | ;\sit\s(?:is|was|has)\b
      | (?:です|だ|である|입니다|이다|이에요|예요|ครับ|ค่ะ)(?![^\s.,!?]) )
    """,
    re.VERBOSE,
)
_DENIED = re.compile(
    "|".join(words.pattern for words in (DENIED, REJECTION, SUPPOSITION, UNASSERTED))
    + "|"
    + join_words(
        r"""
        without might may could than instead former(?:ly)? previously originally until used_to possible
        candidates unlike like near whose replaced renamed confused inspired influenced among attributed
        followed_by rival old runner-up losing contender alternative mistake misconception belief myth legend
        rumou?r suggestion example guess as_\w+_as such_as one_of_them ceased same surrounded
        (?:options?|distractors?|choice|second|loser)(?=:) (?:would|should)_have (?:meant|going)_to früher
        ehemal\w* autrefois ancien\w* antigu\w* anti[cg]\w+
        """
    ),
    re.IGNORECASE,
)
# What does not begin the clause: "Critics argue it is Lima", "In the film it is Lima".
_REPORTED = re.compile(
    r"(?i)\w(?<!think)(?<!believe)(?<!confident)(?<!sure)(?<!\bthat)(?<!\bso)(?<!\bthen)(?<!\bsay)\s(?:that\s(?:the|it)\b|(?:it|he|she)(?:['’]s|\s(?:is|was))\s)",
)
_CLAUSE = re.compile(r"[.!?;,\u3001\u060c\u061f\u061b]|\s-+\s|\b(?:but|because|since)\b")
# Characters around an alias that are looked at.
_NEAR = 200


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
        where = {"compared": "anywhere-4"} if anywhere else {}
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
        return lambda answer: self._normalise(answer) in forms or _asserts(unify_characters(answer), patterns)

    def _normalise(self, text: str) -> str:
        form = normalise_answer(text)
        rest = form if self._article is None else self._article.sub("", form, count=1)
        return form if self._article is None or self._article.fullmatch(f"{rest} ") else rest


_YES_OR_NO = VerdictExtractor(["yes", "no"])


def _asserts(text: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    """Return whether a text asserts one of the patterns, and neither denies one nor takes it back."""
    places = [found.span() for pattern in patterns for found in pattern.finditer(text)]
    # Of the form in which a sentence gives an answer.
    is_given = any(
        _BEFORE.search(text[max(0, start - _NEAR) : start]) and _AFTER.match(text, end)
        for start, end in places
    )
    if not is_given or UNDECIDED.search(text.casefold()) or any(_is_denied(text, *one) for one in places):
        return False
    return RETRACTION.search(text, min(end for _, end in places)) is None


def _is_denied(text: str, start: int, end: int) -> bool:
    """Return whether the clause around a place denies, doubts or asks it."""
    before, after = text[max(0, start - _NEAR) : start], text[end : end + _NEAR]
    head = _CLAUSE.split(before)[-1]
    is_asked = re.match(r"[^.!;:,]*[?\u061f]|[^.!?\n]*,\s(?:but|while)\b", after)
    return bool(is_asked or _REPORTED.search(head) or _DENIED.search(f"{head} {_CLAUSE.split(after)[0]}"))


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
