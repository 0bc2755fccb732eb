r"""Find which member of a closed set of answers a text gives: one verdict, or none.

A text is read in this order:

1. The whole text is a member, or JSON with one value or a field such as `answer` that is a member.
2. A statement: `Answer: yes`, `the answer is no`, `\boxed{yes}`, `<answer>no</answer>`. All statements, the
   answer that the text opens with and every member after the last statement have to be the same. What was
   considered before does not count.
3. A member that is a clause of its own (`Yes, it is.`, `No - never.`) or ends one after a word such as `is`
   or `in` (`It is true.`, `Botswana is in Africa.`). Every member that the text names has to be the same.

A member does not count if its clause denies, doubts or asks it (`maybe yes`, `Is it true?`), or if it holds
partly or under a condition (`Yes, unless it rains`). No verdict is read from `It is not true` either: what
holds instead is not said. `no` before a noun denies the noun (`there is no doubt`). A text that corrects
itself or leaves the question open (`wait`, `it depends`) gives no verdict unless a statement follows. If one
member agrees and the other denies (yes and no, 1 and 0), words such as `true`, `correct` and `nope` count as
well.

Statements are recognised in English, denial and doubt in the ten languages of the other readers. Members in
any language count as in 1, and as clauses of their own. In scripts without spaces a member inside a longer
word is not found, such as `是` in `不是`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_cfc.errors import InputError
from langchain_cfc.labelers._words import (
    ALTERNATIVE,
    DOUBT,
    NEGATION,
    OTHER_ANSWER,
    SECOND_THOUGHT,
    SUPPOSITION,
    UNASSERTED,
    UNDECIDED,
    join_words,
)
from langchain_cfc.labelers.statements import READING
from langchain_cfc.support.normalisation import NORMALISATION, normalise_answer, unify_characters

Member: TypeAlias = str | bool | int | float

_AGREEMENT = ("yes", "true", "correct", "right", "yeah", "yep", "yup")
_DENIAL = (
    *("no", "false", "incorrect", "wrong", "nope", "nah"),
    *("absolutely not", "definitely not", "certainly not", "of course not", "not at all"),
)
# Words that mean the same only as a whole answer.
_SHORT_AGREEMENT, _SHORT_DENIAL = ("y", "t", "1"), ("n", "f", "0")
_ANSWER_FIELDS = ("answer", "final_answer", "verdict", "label", "prediction", "result")
_FENCE = re.compile(r"\s*```\w*\n(.*?)\n?\s*```\s*", re.DOTALL)

_BOXED = re.compile(r"\\boxed\s*\{|<answer>|#### ", re.IGNORECASE)
_MARKUP = re.compile(
    r"\\(?:text|textbf|mathrm|mathbf)\s*\{|</?\w+>|[*`\"$]|(?<!\w)_+|_+(?!\w)|(?<!\w)'(?=\w)|(?<=\w)'(?!\w)"
)
_END = r"(?=\s*(?:$|[.!?;:,()\[\]{}\n]|\s-+\s|(?:because|since|as|but)\b))"
_CLAUSE_START = re.compile(r"[.!?;:,()\[\]{}\n]|\s-+\s")
_STATEMENT = re.compile(
    r"\b(?:answer|anwser|verdict|label|conclusion|classification|prediction|result|judge?ment|decision)s?\s*"
    r"(?:(?:is|was|would be|should be|must be|will be)\s*:?|[:=])\s*$"
)
# A statement of what the answer is not: "Wrong answer: ".
_WRONG_STATEMENT = re.compile(r"\b(?:incorrect|wrong|false|other|not the)\s+[\w']+\s*(?:\w+\s*)?[:=]?\s*$")
# What may stand before a member that ends a clause.
_LINKED = re.compile(
    join_words(
        r"""
        is was are were (?:will|must|should|has_to)_be it's that's so then thus hence therefore in as
        (?:the|my|i|i'd|i_would|correct|final)_answer (?:continent|kind|name|type)_of definitely clearly
        certainly indeed absolutely simply just surely i(?:'d|_would|_must)?_say i_think
        """
    )
    + r"\W*$"
)
_NEGATION = re.compile(
    rf"{NEGATION.pattern}|(?<!\w)(?:without|nothing|doubt\w*|deny|denies|myth|misconception|"
    r"opposite|(?:re|con|in)verse|contrary|negation|far|fail\w*)(?!\w)"
)
_DOUBT = re.compile(
    rf"{DOUBT.pattern}|{SUPPOSITION.pattern}|{ALTERNATIVE.pattern}|{UNASSERTED.pattern}|"
    + join_words(
        r"al?though while whereas despite when once until some many most people others used "
        r"may might could seem\w* appear\w* alleged\w*"
    )
)
# A doubt that a comma sets off, and what follows a member that is asked.
_DOUBT_BEFORE = re.compile(
    rf"(?:{DOUBT.pattern})\s*,\s*$|(?:^|[.!?\n])(?!\W*(?:in\s(?:short|fact|conclusion|summary)|(?:according\sto|based\son)\s"
    r"th\w+|to\sanswer|so|thus|therefore|hence|indeed|(?:absolute|definite|certain|clear|unfortunate|real)ly"
    r"|well|sure|of\scourse|ok(?:ay)?|oh|yes|no)\b)[^.!?\n:;]*\w[^.!?\n:;]*,\s*$"
)
_ASKED = re.compile(
    r"[^.!;:,\n]*(?:,\s*(?:right|correct|no|yes|ok(?:ay)?|is(?:n't| that| it)[^.!;:,\n]*))?\s*\?"
)
# What follows a `no` that answers, without a comma: "No it isn't".
_NOT_A_NOUN = re.compile(
    r"\s+(?:it|he|she|they|this|that|these|those|there|i|we|you|but|because|since|as|and|or|not|wait|sorry|the|a|an|"
    r"for|in|if|on|at|when|with|\d+)\b"
)

# The clause that repeats a verdict, and what limits it: "Yes, it is.", "No, they don't, but some do."
_ECHO = re.compile(
    r"[\s,.!;:-]*(?:it|he|she|they|this|that|these|those|there|i|we|you)(\s+never)?(?:'s|\s+(?:is|are|do|does|can|will|has|have|must"
    r"|ca|wo|(was|were|did|could|would|had|should)))(n't|\s*not)?\s*(?:[.!,;\n](?:\s*(?:but|(?:al)?though|yet)\b([^.!?\n]*))?|$)"
)
# What limits an agreement to less than the question: "but not in winter", "but it closed", "but rarely".
_LIMIT = re.compile(
    rf"{_NEGATION.pattern}|{_DOUBT.pattern}|^\W*\w+(?:\s\w+)?\W*$|"
    + join_words(
        r"""
        only just merely solely alone now been was were did had would \w+ed \d+ rarely seldom sometimes few
        less left lost gone went became lies? fake fiction\w* illegal in at on by for with under to after
        before since
        """
    )
)
# What does not follow from agreement: "Yes, I don't think so.", "Yes, you are mistaken."
_AGAINST = re.compile(
    rf"\W*(?:i\b[^.!?\n]*?(?:{NEGATION.pattern})|you(?:'re|\sare)\s(?:wrong|mistaken|incorrect)\b)"
)
_CONDITION = re.compile(
    r"\W{0,3}(?:only |but only )?"
    rf"(?:{SUPPOSITION.pattern}|{DOUBT.pattern}|(?:provided|as\slong\sas|sofern|sauf|à\smoins|a\smenos?|in(?!\sfact)|to|with|at|on|by"
    r"|for|under|except|(?:al)?though|according\sto\ssome|depending|however|but|from|so\sthey|it\s(?:seems|appears)|not\s(?:really|only)|part(?:ial)?ly|sometimes|whenever|sa(?:id|ys?)|i\s(?:guess|think|suppose)"
    r"|after|before|until|once|up\sto|during|almost|near?ly|rough\w+|approx\w+|(?:most|large|main|general|usual|typical|normal|part|broad|loose|strict"
    r"|technical|nominal|theoretical|apparent|presumab|supposed|reported|alleged|arguab|hopeful)ly|often|rarely|barring|other\sthan"
    r"|were\s(?:it|there)|(?:as|so)\sfar|last\si|give\sor|so\si|at\sleast)\b"
    # One or two words that neither emphasise nor repeat the verdict: "Yes, almost."
    r"|(?<=,\s)(?!(?:\w+\s)?(?:it|s?he|th\w+|i|we|you|is|are|was|were|do|does|did|can|\w+n't|all|both|always|never|yes|no|definitely|absolutely"
    r"|certainly|exactly|indeed|totally|really|clearly|course|correct|right|true|false|wrong|incorrect|sure\w*)\b)[a-z']+(?:\s[a-z']+)?[.;,\n]*$)"
)
# What answers something else than the question: "Yes, great question", "Yes, it was until 2006".
_ASIDE = re.compile(
    r"[^.!?\n]{0,60}\b(?:question|help\syou|i\s(?:can|understand|see)|used\sto|(?:was|were|did)\suntil"
    r"|(?:many|people)\s(?:\w+\s)?(?:believe|think|say|ask|get))\b|\W*\w[^.!?\n]{0,60}[,;]\s(?:it|they|he|she)\s\w+n't\W*(?:\n|$)"
)
# Labels before a colon that state an answer; "Cats: yes" answers for cats alone.
_CONCLUSION = re.compile(
    r"(?:\b(?:so|therefore|thus|hence|then|short|question|antwort|réponse|respuesta|risposta|resposta|ответ)|(?:^|[\n?.]\s*)a|答案|回答|答え|정답|답)\s*:\s*$"
)
# Characters around a member that are looked at, apart from its clause.
_NEAR = 200


@dataclass(frozen=True)
class _Mention:
    """A member's place in a text, and what the words around it do with it."""

    member: str
    start: int
    end: int
    decides: bool
    is_denied: bool
    is_stated: bool


class VerdictExtractor:
    """Extracts the member of a closed set that a text gives, as an answer extractor; empty if it gives none.

    The top of the module describes how a verdict is read.

    Args:
        members: Two or more answers, such as `["yes", "no"]` or `[True, False]`.

    Attributes:
        fingerprint: The members and the versions of the reader and of the normal form.

    Raises:
        InputError: If there are fewer than two members, or two are equal in their normal form.

    Examples:
        >>> extract = VerdictExtractor(["yes", "no"])
        >>> extract("Yes, there is no doubt."), extract("I have no idea."), extract("Yes and no.")
        ('yes', '', '')
    """

    def __init__(self, members: Sequence[Member]) -> None:
        names = [write_member(one) for one in members] if isinstance(members, (list, tuple)) else []
        self._members = dict(zip(map(normalise_answer, names), names, strict=True))
        if len(self._members) < max(2, len(names)) or "" in self._members:
            msg = (
                f"members is {members!r:.200}; expected a list of at least two answers that differ by more "
                "than case, quotes and signs at their ends"
            )
            raise InputError(msg)
        self._synonyms, short = _find_synonyms(self._members)
        self._forms = {**short, **self._synonyms, **dict(zip(self._members, self._members, strict=True))}
        words = sorted({*self._members, *self._synonyms}, key=len, reverse=True)
        self._mention = re.compile(
            rf"(?<![\w'+#%$^/\-])(?<!\d[.,])({'|'.join(map(re.escape, words))})(?![\w+#%^/\-]|'\w|[.,]\d)"
        )
        self.fingerprint = {
            "id": "verdict-extractor",
            "members": " | ".join(sorted(self._members)),
            "reads": READING,
            "normalised": NORMALISATION,
        }

    @property
    def members(self) -> tuple[str, ...]:
        """The members as texts."""
        return tuple(self._members.values())

    def __call__(self, text: str) -> str:
        """Return the member that a text gives; empty if it gives none, or more than one."""
        fenced = _FENCE.fullmatch(text)
        text = fenced[1] if fenced else text
        whole = self.find_member(text)
        if whole is None and text.lstrip().startswith(("{", "[")):
            whole = self.find_member(_read_field(text))
        found = self._find_in_sentences(text) if whole is None else whole
        return "" if found is None else found

    def find_member(self, value: Any) -> str | None:
        """Return the member that a whole text or a JSON value is; None if it is none."""
        form = normalise_answer(write_member(value)) if isinstance(value, (str, bool, int, float)) else ""
        return self._members.get(self._forms.get(form, ""))

    def _find_in_sentences(self, text: str) -> str | None:
        lines = map(unify_characters, _BOXED.sub("\nanswer: ", text).splitlines())
        plain = _MARKUP.sub("", "\n".join(lines)).casefold()
        mentions = list(self._list_mentions(plain))
        stated = [one for one in mentions if one.is_stated and one.decides]
        if stated:
            # A text may open with one answer, and state another.
            opening = [
                one for one in mentions[:1] if one.decides and not re.search(r"\w", plain[: one.start])
            ]
            mentions = [*opening, *stated, *(one for one in mentions if one.start > stated[-1].start)]
        decided = [one.end for one in mentions if one.decides]
        end = stated[-1].end if stated else 0
        if not decided or UNDECIDED.search(plain, end) or SECOND_THOUGHT.search(plain, end or decided[0]):
            return None
        named = {self._flip(one.member) if one.is_denied else one.member for one in mentions}
        return self._members[named.pop()] if len(named) == 1 else None

    def _flip(self, member: str) -> str:
        """Return what denying a member says: the other one of a word of agreement and one of denial."""
        return next(one for one in self._members if one != member) if self._synonyms else f"not {member}"

    def _contradicts(self, word: str, rest: str) -> bool:
        """Return whether a verdict is limited (`Yes, it did, but ...`) or denied by what follows it."""
        echo, agrees = _ECHO.match(rest), word in _AGREEMENT
        if not self._synonyms or echo is None:
            return bool(self._synonyms and agrees and _AGAINST.match(rest))
        never, past, denial, limit = echo.groups()
        # "Yes, they can, but they must sign." agrees.
        is_limited = limit is not None and (not agrees or past or _LIMIT.search(limit))
        return bool(is_limited) or agrees == bool(never or denial)

    def _list_mentions(self, text: str) -> Iterator[_Mention]:
        cuts = [0, *(cut.end() for cut in _CLAUSE_START.finditer(text))]
        last = 0
        for found in self._mention.finditer(text):
            word, start, end = found[0], found.start(), found.end()
            rest = text[end : end + _NEAR]
            is_ended = re.match(_END, rest) is not None
            if word == "no" and not is_ended and not _NOT_A_NOUN.match(rest):
                continue  # before a noun
            cut = cuts[bisect_right(cuts, start) - 1]
            clause = text[max(cut, start - _NEAR) : start]
            before = text[max(0, start - _NEAR) : start]
            stated = _STATEMENT.search(before)
            is_stated = stated is not None and not OTHER_ANSWER.search(before[: stated.start()])
            has_label = stated or text[cut - 1 : cut] == ":"
            is_other = has_label and not (is_stated or _CONCLUSION.search(before))
            # An earlier member answers, and denies nothing: "No and yes".
            denying = text[max(last, cut, start - _NEAR) : start]
            is_denied = bool(_NEGATION.search(denying) or (is_stated and _WRONG_STATEMENT.search(before)))
            is_asked = _ASKED.match(rest) is not None
            is_first = re.search(r"\w", clause) is None
            is_linked = is_first or _LINKED.search(clause) is not None
            # "Yes the sky is blue" and "No it isn't" answer without a comma.
            is_answer = is_ended or bool(word in {"yes", "no"} and is_first and _NOT_A_NOUN.match(rest))
            # "1." and "A" may count or be an article, and "No. 7" a number.
            is_short = word.isascii() and (len(word) == 1 or word.isdigit())
            is_number = word == "no" and re.match(r"\.\s*\d", rest) is not None
            is_clear = is_stated or not (is_short or is_number or is_other or start - cut > _NEAR)
            decides = (
                is_answer
                and is_linked
                and is_clear
                and not self._contradicts(word, rest)
                and not (is_denied or is_asked or _DOUBT.search(clause) or _DOUBT_BEFORE.search(before))
                and not (re.match(r"\W{0,2}(?:or\b|/)", rest) or _CONDITION.match(rest) or _ASIDE.match(rest))
                and not SUPPOSITION.search(re.split(r"[.!?\n]", before)[-1])
            )
            if word in self._members or (is_ended and is_linked) or is_denied:
                member, last = self._synonyms.get(word, word), end
                yield _Mention(member, start, end, decides, is_denied, is_stated)


def write_member(value: Member) -> str:
    """Return a member or a reference as text: `true` for True, and 1 for 1.0."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _find_synonyms(members: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return words for each member, in sentences and as whole answers, if one agrees and one denies."""
    agreement = [one for one in members if one in {*_AGREEMENT, *_SHORT_AGREEMENT}]
    denial = [one for one in members if one in {*_DENIAL, *_SHORT_DENIAL}]
    if not len(members) == len(agreement) + len(denial) == 2 * len(agreement):
        return {}, {}
    pairs = ((_AGREEMENT, _SHORT_AGREEMENT, agreement[0]), (_DENIAL, _SHORT_DENIAL, denial[0]))
    words = {word: member for long, _, member in pairs for word in long}
    return words, {word: member for _, short, member in pairs for word in short}


def _read_field(text: str) -> Any:
    """Return the only value of a JSON object, or that of its field for the answer; None if there is none."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    named = [value for name, value in fields.items() if name.casefold() in _ANSWER_FIELDS]
    values = named or list(fields.values())
    return values[0] if len(values) == 1 else None
