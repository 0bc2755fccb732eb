r"""Find which option of a multiple-choice question a candidate chooses.

The first of these places that names an option decides:

1. `<answer>B</answer>`, `\boxed{B}`, and words for "answer", "option" or "choice" in ten languages (English,
   German, French, Spanish, Italian, Portuguese, Russian, Chinese, Japanese, Korean): `Answer: B`, `the answer
   is (B)`, `{"answer": "B"}`, `答案：B`; a sentence that begins with an option and calls it correct;
2. a verb or a word for a conclusion (`I would choose B`, `so we get (B)`, `Therefore: B`); the whole answer
   if it is a letter (`B`, `(B)`, `b.`, `$B$`) or the text of an option; its first letter, if set off:
   `B. Paris`, `(B) Paris`, `B, because ...`.

A candidate that names two options has chosen none: `B or C`, `B, C`, `B/C`, `B, but C is also possible`,
`Answer: B ... Answer: C`, `B. Paris` where Paris is C. Neither has one that denies its choice, makes it
depend on a condition, or takes it back (`The answer is B. No wait, C.`). Other letters may be mentioned in
the explanation: `The answer is B because A is on the coast`, `D, not B`. Texts of options are compared
without case, surrounding punctuation and emphasis. They are read where an answer is stated, and not searched
for inside other text, where "not Paris but Rome" would be found to say Paris.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from langchain_cfc.errors import CFCError, InputError, LabelerError
from langchain_cfc.labelers._words import (
    ALTERNATIVE,
    DOUBT,
    EXPLANATION,
    QUESTION,
    REJECTION,
    RETRACTION,
    SUPPOSITION,
    compile_lead,
    join_words,
)
from langchain_cfc.labelers.base import LabelerInput
from langchain_cfc.labelers.matching import TextMatcher
from langchain_cfc.labelers.statements import (
    READING,
    list_contents,
    list_statements,
    remove_markup,
    unwrap_latex,
)
from langchain_cfc.support.normalisation import fold_characters, normalise_answer, state_versions
from langchain_cfc.support.text import quote

_LETTERS = string.ascii_uppercase
# The letters of the options if no options are given.
DEFAULT_LETTERS = "ABCDE"
# Repetitions of the same signs are bounded: backtracking would take very long on a run of them.
_OPEN = r"[\s*_\"'`‘“«(\[{<$]{0,12}"
_CLOSE = r"[*_\"'`’”»)\]}>$]{0,12}"
_NAMES = """
    option choice letter answer the la le el il die der das letra lettre lettera buchstabe opción opzione
    opção
    a_letra a_opção a_alternativa alternativa вариант буква (?-i:a(?=_[B-Z]\\b))
"""
_NAMED = rf"(?:(?:{join_words(_NAMES)})[\s*_:]{{1,4}}){{0,2}}(?:选项|選択肢)?"
# A letter as an option: a capital, or a small letter that brackets or the end of the answer set off. A and I
# are also words.
_LETTER = (
    r"(?P<letter>[B-HJ-Z]|[AI](?![^\S\n]+[^\W\d_]|['’])"
    rf"|[AI](?=\s+(?:{join_words('because since as here is was and or but due given oder')}))"
    rf"|(?<=[(\[])[a-z](?=[)\]])|[a-z](?=\)\s)|[a-z](?={_CLOSE}(?:[.,:;!](?!\w)|\s*$|\n)))"
    # Not part of a word or a name (`B12`, `B.1`), and not struck out.
    rf"(?!['’-]?{_CLOSE}[A-Za-z0-9\u0300-\u036f]|\.[0-9])"
)
_OPTION = re.compile(rf"{_OPEN}(?i:{_NAMED}){_OPEN}{_LETTER}(?P<close>{_CLOSE})")
_LEAD = compile_lead(choices=True)
# Verbs that state a choice without a word for it.
_CHOOSING = re.compile(
    r"(?:(?:^|[.:;,!)]\s{0,3}|\n|\b(?:(?:I|we)(?:['’](?:d|ll)|\s\w+(?<!not)(?:\sto)?)?|let['’]s|so|then|thus|therefore|hence)\s)"
    r"(?:choos(?:e|ing)|chose|pick|select|answer|go(?:ing)?[ ]with)|\b(?:it(?:['’]s|[ ]is)"
    r"|(?:must|should|would|has[ ]to)[ ]be|is[ ]?:|is(?=[ ][(\[])|get|gives|leaves|leaving"
    r"|(?:then|therefore|thus|hence|so)[ ]?[:,]?)(?=[ ]|[*(])|[选選][择擇]?(?=[\sA-Z(]))\s{0,3}:?",
    re.IGNORECASE,
)
# "Option B is correct", "B 是正确的".
_ADVERB = join_words("the clearly definitely probably most likely only indeed therefore obviously certainly")
_CORRECT = re.compile(
    r"(?:^|[.!?\n:;。，]|\b(?i:so|thus|therefore|hence|I think|I believe)\b)\W{0,6}"
    rf"(?i:{_NAMED}){_OPEN}(?P<letter>[A-Z]){_CLOSE}\s{{0,3}}(?:选项)?(?:"
    rf"(?:is|must[ ]be|would[ ]be)\b[ ](?:(?:{_ADVERB})[ ]){{0,3}}"
    rf"(?:{join_words('correct right true best answer choice option appropriate')})"
    r"|(?:ist|est|es|è|é)[ ](?:(?:die|la|le|il|el|a)[ ])?"
    rf"(?:{join_words('richtig korrekt correcte? bonne correct[ao] corret[ao] giust[ao] certa')})"
    r"|(?:是|为)?(?:最)?(?:正确|对的|合适)|(?:가|이|が)\s?(?:정답|正解))"
)
# A second option directly after the first, or after a word that does not begin an explanation.
_SECOND = re.compile(
    rf"\W{{0,12}}(?:(?!(?i:{EXPLANATION.pattern}))[^\W\d_]{{1,10}}\s{{1,2}}|[和或与及、とか]|와|과|및)?"
    rf"{_OPEN}(?i:{_NAMED}){_OPEN}([A-Za-z])(?![\w'’]|[ ][a-z]{{2}})"
)
# An option that is mentioned anywhere.
_MENTION = re.compile(
    r"(?<![A-Za-z0-9_'’])(?:[B-HJ-Z](?!['’]?[A-Za-z0-9_])|[AI](?!\s+[a-z]|['’]?[A-Za-z0-9_])"
    r"|[AI](?=\s+(?:is|are|was|and|or|also|too|could|might|would)\b))"
)
_LISTED = re.compile(r"\n[\s*(\[]{0,8}([A-Z])\*{0,2}[.):\]]")
# What sets off a letter at the beginning of an answer.
_SIGN = re.compile(r"\s?[.:}、。,!]|\s\(|\s[-–—→]\s|\s?[–—]|\n|\s(?:because|since)\b|\s*$|(?<=[)\]])")
# What may introduce a second answer in a later sentence.
_ADDITION = re.compile(
    rf"{DOUBT.pattern}|{ALTERNATIVE.pattern}|^\W*(?:but|however|alternatively)\b|^\W*(?:\w+\W+){{0,3}}[A-Z]\W*$|"
    + join_words(
        r"also too(?=\W*$|[.,;]) both equally could might may auch aussi también anche também также тоже",
        "也",
    ),
    re.IGNORECASE,
)
# A letter that is the subject, of what only `_CORRECT` reads.
_PREDICATE = re.compile(
    r"\s+(?:"
    + join_words(r"is are was were can cannot could might may does seems would that ist est es è é \w+n['’]t")
    + r")|\s?(?:(?:[はが가는은]|이(?!다)|では|じゃ))"
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$|[\"')*])|[\n;。！？]|[\"']\s?,\s?[\"']|,\s?[\"'](?=\w+[\"']\s?:)")
_ASKED_TEXT = re.compile(r"[^\w\n]*(?:\w+(?:[^\w\n]+|(?=\?))){0,4}\?[^\w\n]*")
# Stands for what names options without settling on one.
_UNSETTLED = ""
# How much after "B is correct" is searched for a second option, and how many of these are read.
_CONTEXT, _MAX_PREDICATES = 1000, 50


class MultipleChoice(TextMatcher):
    """A candidate is correct if it chooses the option that the reference names.

    The reference is the letter of an option, or its text where `options` are given. The top of the module
    describes how a choice is read.

    Args:
        options: The texts of the 1 to 26 options in order, the first being A: a list or tuple for all
            prompts, or a function that makes one from the prompt. Without them only letters are read.
        letters: The letters of the options if no options are given.

    Raises:
        InputError: If the letters are not distinct capital letters, or the options not distinct texts.
    """

    def __init__(
        self,
        options: list[str] | tuple[str, ...] | Callable[[Any], Sequence[str]] | None = None,
        *,
        letters: str = DEFAULT_LETTERS,
    ) -> None:
        if not letters or len(set(letters)) < len(letters) or set(letters) - set(_LETTERS):
            msg = f"letters is {letters!r}; expected distinct capital letters, such as 'ABCD'"
            raise InputError(msg)
        listed, function = (options, None) if isinstance(options, (list, tuple)) else (None, options)
        self._letters = letters
        self._options = {} if listed is None else _map_options(listed, InputError)
        self._make_options = function
        settings = {
            "reads": READING,
            "letters": letters if options is None else "as many as options",
            "options": "none" if options is None else "own" if listed is None else " | ".join(listed),
        }
        super().__init__("multiple-choice", settings, {"options": function})

    def read_reference(
        self, reference: Any, options: Mapping[str, str] | None = None
    ) -> Callable[[str], bool]:
        """Return a test for the letter that the reference names, among `options` or those of all prompts."""
        known = self._options if options is None else options
        letters = "".join(known.values()) or self._letters
        right = _find_right_letter(reference, letters, known)
        return lambda answer: find_choice(answer, letters, known) == right

    def _make_test(self, given: LabelerInput) -> Callable[[str], bool]:
        """Return the test for one prompt, whose options are made first if a function makes them."""
        if self._make_options is None:
            return super()._make_test(given)
        try:
            options = self._make_options(given["prompt"])
        except Exception as error:  # the user's function may raise anything
            msg = f"the options function failed with {type(error).__name__}: {quote(str(error))}"
            raise LabelerError(msg) from error
        return self.read_reference(given["reference"], _map_options(options, LabelerError))


def find_choice(text: str, letters: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that an answer chooses; None if no option is named, or more than one.

    `options` maps the normalised text of each option to its letter, and may be empty.

    Examples:
        >>> find_choice("The answer is (b), because Lima is on the coast.", "ABC", {})
        'B'
        >>> find_choice("The answer is B or C.", "ABC", {}) is None
        True
    """
    folded = fold_characters(text)
    plain, *contents = [remove_markup(unwrap_latex(one)) for one in [folded, *list_contents(folded)]]
    named = _OptionReader(letters, options).read_text(plain, contents)
    return named.pop() if len(named) == 1 and _UNSETTLED not in named else None


@state_versions(reads=READING)
def extract_choice(text: str) -> str:
    """Return the letter from A to E that a text chooses, as an answer extractor; empty if it chooses none.

    Examples:
        >>> extract_choice("B. Paris, of course"), extract_choice("either (A) or (B)")
        ('B', '')
    """
    return find_choice(text, DEFAULT_LETTERS, {}) or ""


class _OptionReader:
    """Reads which options the pieces of an answer name, with `_UNSETTLED` where they settle on none."""

    def __init__(self, letters: str, options: Mapping[str, str]) -> None:
        self._letters = frozenset(letters)
        self._options = options
        texts = sorted(map(re.escape, options), key=len, reverse=True)
        self._texts = re.compile(rf"(?<!\w)(?:{'|'.join(texts)})(?!\w)") if texts else None

    def read_text(self, text: str, contents: list[str]) -> set[str]:
        """Return what a text names: the first place at the top of the module that names anything decides."""
        stated = set[str]().union(
            *map(self._read_whole, contents),
            *map(self._read_statement, list_statements(text, _LEAD)),
            *(
                self._check(found["letter"], text[found.end() : found.end() + _CONTEXT])
                for found in islice(_CORRECT.finditer(text), _MAX_PREDICATES)
                if found["letter"] in self._letters
            ),
        )
        return stated or self._read_whole(text).union(
            *map(self._read_statement, list_statements(text, _CHOOSING))
        )

    def _read_statement(self, text: str) -> set[str]:
        """Read what follows words for "answer"."""
        text = text.lstrip(" \t\n:#*_-–—")
        found = _OPTION.match(text)
        if found and (letter := found["letter"].upper()) in self._letters:
            return set() if _PREDICATE.match(text, found.end()) else self._check(letter, text[found.end() :])
        return self._read_option(text)

    def _read_whole(self, text: str) -> set[str]:
        """Read an answer that is an option, or begins with one that a sign sets off."""
        text = text.strip()
        option = self._options.get(normalise_answer(text))
        named = {option} if option else set()
        found = _OPTION.match(text)
        if found is None or (letter := found["letter"].upper()) not in self._letters:
            return named
        rest = text[found.end() :]
        if _ASKED_TEXT.fullmatch(rest):
            return {_UNSETTLED}
        is_key = '"' in found["close"] and rest.startswith(":")  # as in {"A": 0.1, "B": 0.9}
        if not _SIGN.match(text, found.end()) or _PREDICATE.match(rest) or is_key:
            return named
        if {one[1] for one in _LISTED.finditer(text)} & self._letters - {letter}:
            return named  # the options are repeated
        return named | self._check(letter, rest)

    def _read_option(self, text: str) -> set[str]:
        """Read the text of an option at the beginning of a statement."""
        if self._texts is None:
            return set()
        line = text.partition("\n")[0]
        if letter := self._options.get(normalise_answer(line)):
            return {letter}
        sentence = _SENTENCE_END.split(line)[0]
        head = normalise_answer(sentence)
        found = self._texts.match(head)
        if (
            found is None
            or not re.match(r"\s?[,:(]|\W*$", head[found.end() :])
            or text[len(sentence) :].startswith("?")
        ):
            return set()
        return self._check(self._options[found[0]], text[found.end() :])

    def _check(self, letter: str, rest: str) -> set[str]:
        """Return a letter that was read, unless what follows asks, rejects, doubts or retracts it."""
        if re.match(r"[\s!]?\?|\W{0,4}(?:is\s)?(?:wrong|incorrect|false)\b", rest):
            return set()
        others = self._letters - {letter}
        second = _SECOND.match(rest)
        is_joined = (
            second and second[1].upper() != letter and (second[1].isupper() or second[1].upper() in others)
        )
        body = rest.lstrip(" .:,;)]}*_\"'-–—\n")
        first, *later = _SENTENCE_END.split(body)
        head = EXPLANATION.split(first)[0]
        if is_joined or RETRACTION.search(rest) or others & set(self._list_texts(head)):
            return {_UNSETTLED}
        if _SENTENCE_END.match(rest.lstrip(")]}*_\"' ")):  # what follows is a sentence of its own
            later = [first, *later]
        elif (
            others & set(_MENTION.findall(head))
            or QUESTION.search(body[: len(first) + 1])
            or any(words.search(head) for words in (SUPPOSITION, DOUBT, REJECTION, ALTERNATIVE))
        ):
            return {_UNSETTLED}
        for sentence in later:
            if _ADDITION.search(sentence) and others & set(_MENTION.findall(EXPLANATION.split(sentence)[0])):
                return {_UNSETTLED}
        return {letter}

    def _list_texts(self, text: str) -> list[str]:
        """Return the letters of the options whose texts a piece of text contains."""
        return (
            [self._options[one] for one in self._texts.findall(normalise_answer(text))] if self._texts else []
        )


def _map_options(options: Any, failure: type[CFCError]) -> dict[str, str]:
    texts = list(options) if isinstance(options, (list, tuple)) else []
    if not 1 <= len(texts) <= len(_LETTERS) or not all(isinstance(text, str) for text in texts):
        msg = f"the options are {options!r:.80}; expected a list of 1 to {len(_LETTERS)} texts"
        raise failure(msg)
    named = {normalise_answer(text): letter for text, letter in zip(texts, _LETTERS, strict=False)}
    if len(named) < len(texts) or "" in named:
        msg = f"one of the options {options!r:.80} is empty, or two differ only in case and signs"
        raise failure(msg)
    return named


def _find_right_letter(reference: Any, letters: str, options: Mapping[str, str]) -> str:
    named: set[str] = set()
    if isinstance(reference, str):
        letter, option = reference.strip().upper(), options.get(normalise_answer(reference))
        named = ({letter} if letter and letter in set(letters) else set()) | ({option} if option else set())
    if len(named) == 1:
        return named.pop()
    found = "names two options" if named else "names no option"
    msg = f"the reference {reference!r:.80} {found}: give one of the letters {letters}, or an option's text"
    raise LabelerError(msg)
