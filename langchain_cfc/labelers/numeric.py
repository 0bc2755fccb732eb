r"""Find the number that a text gives as its answer, and compare it exactly.

The number is looked for in the first of these places that a text has:

1. after the mark `####` of GSM8K (Cobbe et al. 2021, "Training verifiers to solve math word problems"),
   inside `<answer>...</answer>` or inside `\boxed{...}`;
2. after a word for "answer" in ten languages (English, German, French, Spanish, Italian, Portuguese, Russian,
   Chinese, Japanese, Korean): `The answer is 5`, `{"answer": 5}`, `答案：5`;
3. in its last sentence with a number: `So she needs 5 bags`. After an equals sign, only what follows counts.

Several places of one kind must agree, and a place must have this form:

- *Before* the number nothing, an equals sign, or a word that links it (`_LINKS`, in these languages): `is`,
  `has`, `costs`, `about`, a verb in -ed; a label and a colon (`Number of bags: 5`); `in` before a year; other
  verbs before what is counted or measured (`writes 624 pages`, `boils at 100 °C`).
- *The number*: signs and words for minus; decimals with a point; thousands in every common form (`1,000`,
  `1 000`, `1'000`, `1{,}000`, `12,34,567`, `1.000.000`, `1.234,50`); the digits of every script; fractions
  and mixed numbers (`3/4`, `1½`, `\frac{3}{4}`); powers of ten (`1.5e3`, `3 \times 10^{8}`, `1.5×10³`) and
  words for them (`5 million`, `5万`); a currency. `50%` is 50, as GSM8K writes references.
- *After* it a unit (`25 m^2` is 25), a plural noun with up to three words before it (`5 large red apples`),
  and what a word in `_CONTINUATIONS` or `_LATER` begins (`5 apples in the basket`). Remarks in brackets and
  marks of citation are skipped.

Everything else is no number: a second one (`3 or 5`), a power that is not carried out (`5²`), a variable
(`5x`), a name (`Apollo 11`), a bound (`at least 5`), a date, words (`five`, `3 and a half`), abbreviations
(`5k`), and what may be a decimal or a group of thousands (`1,5`, `1.500`); nor what a sentence denies,
doubts, asks, supposes or takes back. `NumericMatch` also compares units where both texts name a known one.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers._words import (
    DENIED,
    EXPLANATION,
    QUESTION,
    RETRACTION,
    SUPPOSITION,
    UNASSERTED,
    UNSURE,
    compile_lead,
    join_words,
)
from langchain_cfc.labelers.matching import TextMatcher, list_aliases
from langchain_cfc.labelers.statements import (
    READING,
    UNREADABLE,
    list_contents,
    list_statements,
    remove_markup,
    unwrap_latex,
)
from langchain_cfc.support.normalisation import fold_characters, state_versions

_MARK = "####"
# Most digits, and largest exponent: beyond any answer, and far below where arithmetic takes noticeable time.
_MAX_DIGITS = 400
# Longest text before or after the number of a place.
_MAX_CONTEXT = 400

_GROUPED = re.compile(
    r"""
    [0-9]*(?:\.[0-9]+)?
    | [1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?
    | [1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?                       # as in India
    | [1-9][0-9]{0,2}(?:['’][0-9]{3})+(?:\.[0-9]+)?                    # as in Switzerland
    | [1-9][0-9]{0,2}(?P<points>(?:\.[0-9]{3})+,[0-9]{1,2}|(?:\.[0-9]{3}){2,})
    | [1-9][0-9]{0,2}(?:[ ][0-9]{3})+(?:\.[0-9]+|(?P<rest>,[0-9]{1,2}))?
    """,
    re.VERBOSE,
)
# 1.500 is 1.5 in English and 1500 in German. Without a zero at the end it is read as in English.
_AMBIGUOUS = re.compile(r"[1-9][0-9]{0,2}\.[0-9]{2}0")
_NUMBER = re.compile(
    r"""
    (?<![A-Za-z0-9_^])(?<!\^[-+])                         # `H2O` and `m^2` are words
    (?P<sign>(?:(?<=[\s(=:~≈→"'$|\[,])|^)[-+–])?
    (?:(?P<whole>[0-9]{1,9})[ ]{1,2}(?=[0-9]+/[0-9]))?
    (?P<body>(?:(?<![0-9.])\.)?[0-9]+(?:(?:[.,'’]|[ ](?=[0-9]))[0-9]+)*)
    (?P<below>(?:[ ]?/[ ]?[0-9]+(?:\.[0-9]+)?)+)?
    (?:(?<=10)\^(?P<ten>[-+]?[0-9]+)(?![\w^]))?
    (?:[eE](?P<e>[-+]?[0-9]+)(?!\w))?
    (?:\s?[x×*·]\s?10\s?\^\s?(?P<power>[-+]?[0-9]+))?
    """,
    re.VERBOSE,
)
# What may stand directly before the number, unless it begins the place.
_LINKS = r"""
    is was are were (?:would|will|must|should|has_to)_be it's that's equals? makes? made gives gave has have
    had needs? costs? pays? paid earns? gets? got takes took spends? spent sold eats? ate buys? bought leaves?
    left remains? weighs? lasts contains? receives? requires? drinks? drank uses? charges? found saves? loses?
    lost reads? runs? ran walks? drives? travels? for with group period
    (?!exceed|doubl|tripl|squar|cub|exclud|eliminat|reject|discard|dismiss|predict|estimat|expect)\w+ed
    (?:takes|took|costs?|leaves?|gives|gave)_(?:her|him|them|us|you|me) about there's find finds giving
    leaving making resulting_in worth in_all in_total overall age(?:_of)? atomic_number (?:adds?|adding)_up_to
    (?:comes?|came|amounts?|equal|rises?|rose|falls?|fell|grows?|grew|drops?)_to to_be (?:is|was|has)_an?
    consists?_of comprises? (?:current|present|exact|precise|approximate|rough|official|actual|definite)ly
    (?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)(?=\s\()
    (?:must|should|will|needs?_to|has_to|have_to)_(?!exceed|doubl|tripl|squar)\w+ around approximately roughly
    exactly only just now so therefore thus hence then (?:^|is_|was_)the total sum result answer value
    (?:total|sum|average|number)_of is_of etwa ungefähr genau nur also insgesamt summe est sont était coûte a
    ont fait reste restent est_de est_donc_de environ exactement seulement donc es son era cuesta tiene tienen
    hay quedan es_de solo sólo exactamente è_di circa esattamente quindi totale é são custa tem há restam é_de
    apenas só равно равна равен составляет стоит около примерно ровно только итого
"""
_LINKS_UNSPACED = "合計 是 为 為 有 要 共 总 총 得 (?<!最)多 (?<!过)了 は が [은는] 모두"
# Links of languages in which few plurals end in s.
_OTHER_LINKS = """
    ist sind war waren macht beträgt kostet hat haben braucht ergibt gibt bleiben kauft bekommt sono è ha
    hanno resta restano costa у_(?:него|неё|нее|них|меня|вас|нас) имеет имеют купил[аи]? съел[аи]? это всего
    осталось есть было
"""
# What links only a number that counts something: a verb such as "writes", or what is measured.
_NO_VERB = (
    "lack|miss|exceed|surpass|doubl|tripl|halv|avoid|claim|guess|say|plus|minus|times|less|unless|als|moins|menos"
    "|mais|his|its|this|towards"
)
_COUNTING_LINKS = rf"""
    (?<=\w\s)(?!{_NO_VERB})[a-z]{{2,}}s at them him her us you me away into
    (?:can|could|would|will|to)_(?!below|under|over|above|{_NO_VERB})[a-z]+
    give take read drank drove wrote held kept sent built brought caught rode chose broke wore met fed hit cut
    put set mesure pèse vaut dure contient compte gagne mange achète vend (?!até)\w+é mide pesa vale dura
    contiene gana come compra vende misura contiene guadagna mangia mede contém ganha
    (?:height|length|width|depth|weight|distance|speed|area|volume|mass|population|profit|price|temperature)_of
"""
# What a label before a colon has in it: "Number of bags: 5".
_LABELS = r"""
    number amount count total sum price cost age height length weight distance speed result solution ergebnis
    lösung anzahl gesamt summe résultat résultats réponse somme resultado suma respuesta resposta soma
    risultato risposta somma результат решение сумма
"""
_NEGATIVE = join_words("minus negative moins menos meno минус", "[负負] 零下 マイナス 氷点下 마이너스 영하")
_CURRENCIES = "".join(one for one in map(chr, range(0x20, 0x20D0)) if unicodedata.category(one) == "Sc")
_BEFORE_END = rf"""
    [\s:"'*,~≈]* (?P<open>[(\[])? [\s"'~≈]* (?P<minus>{_NEGATIVE}|[-–])? \s*
    (?: (?:US|A)?(?P<money> R?[{_CURRENCIES}] | \b(?:USD|EUR|GBP|JPY|CHF|INR|CNY|RUB|Rs) )\.? )? \s* $
"""
_BEFORE = re.compile(
    rf"""
    (?: ^ (?: \W*\b(?:yes|yeah|sure|well|ok(?:ay)?|ja|oui|sí|sì|sim|да)\b )?
      | (?P<year> \b(?:in|year|im|jahre?|wurde|en|dans|année|año|nel|anno|em|ano|в
          | in\s(?:early\s|late\s)?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*
          | dat(?:es?|ing)\s(?:back\s)?(?:from|to)) )
      | (?P<other> {join_words(_OTHER_LINKS)} )
      | {join_words(_LINKS, _LINKS_UNSPACED)} | \b(?:approx|ca)\. | \.{{3}}
      | (?: {join_words(_LABELS)} [^.:=\d]{{0,40}} | ^\W*[a-z]+(?<!s)s\s? ) (?=:)
      | (?P<counting> {join_words(_COUNTING_LINKS)} )
    )
    {_BEFORE_END}
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A label before what is counted: "Kora: 5 dishes".
_LABEL = re.compile(
    rf"""
    (?P<counting> ^(?!.*\b(?:than|to|of|half|between|every|bound|limit|version)\b)[^.:=\d]{{1,40}}: )
    (?P<other>(?P<year>)) {_BEFORE_END}
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Names of the same unit, in groups; those of other groups are other units.
_SAME_UNITS = r"""
    km [kK]ilom[eè]t(?:er|re)s? kms; m [mM][eè]t(?:er|re)s? м; cm centimet(?:er|re)s? см;
    mm millimet(?:er|re)s?; nm; in(?=\W*$) inch(?:es)?; ft foot feet; yd yards?; miles?(?!\sde\b) mi; mph;
    kg kilograms? kilos? кг; g grams? г;
    mg milligrams?; lbs?; oz ounces?; ms milliseconds?; s sec(?:ond)?s?; min(?:ute)?[sn]?;
    h hrs? hours? Stunden?; days? Tage?; weeks?; months?; yrs? years?; l L lit(?:er|re)s?; % percent pct;
    ml mL millilit(?:er|re)s?; °\s?C Celsius; °\s?F Fahrenheit; kB KB; MB; GB; TB; W; kW; MW; V; Hz; kHz; MHz;
    GHz; hp horsepower; cents? ¢; R\$;
    dollars? USD \$; [eE]uros? EUR €; pounds? GBP £; rupees? INR Rs ₹; yen JPY ¥; CHF;
    yuan CNY; rubles? RUB рублей ₽
"""
_UNIT = "|".join(f"({'|'.join(names.split())})" for names in _SAME_UNITS.split(";"))
_ONE_UNIT = re.compile(_UNIT)
# What is counted in Chinese, Japanese and Korean, without what makes another number of it: half, more, less.
_COUNTER = (
    r"(?:[个個颗顆页頁人名只枚本条张元円원개명도度吨米升克秒天年년岁分小千公斤]|時間|週間|か月)"
    r"(?:\s?[^\W\d_半多余餘以未前後后内代이미초]){0,8}(?:이다|입니다)?"
)
# Plurals that stand for numbers, and those of degrees, which may be below zero.
_NO_NOUN = r"""
    (?:hundred|thousand|tens\b|\w*(?:illi|illo|ilh)|dozen|score|gross|hal[fv]|third|quarter|fourth|plus|minus|degr|grad
    |d[eiouú][cuz]\w?[ena]|mil(?!e)|miles\sde\b|cent[ae]i?n|ciento|vingt|(?:\w*[fnxhd]|\w+ie)ths?\b
    |(?:bis|mars|and|the|for|per|from|und|oder|was|März|über|für|e|o|ou|и|или)\b
    |times\s(?:as|more|fewer|less|that|what|the\s(?!first|second|third)|\w+er\b)
    |[а-яё]*(?:тыс|тис|хил|м[иі]л|сот|десят|трет|четв|полов|раз|ниже|дюж)
    |(?:янв|фев|март|апр|ма[яй]\b|ию[нл]|авг|сен|окт|ноя|дек|исключ|отброш))
"""
_NOUN = rf"""
    (?: (?!{_NO_NOUN})[A-Za-z-]{{3,}}\s ){{0,3}} (?!{_NO_NOUN})
    (?: (?=[a-z-]*[aeiouyà-ÿ])[a-zà-ÿ-]{{2,}}(?<!s)s | (?:(?<=\b1\s)|(?<=/[0-9]\s))[a-z-]{{3,}}
      | (?=\w*[äöüßÄÖÜ])[A-ZÄÖÜ]?[a-zäöüß]+ | [а-яё]{{3,}}
      | people|men|women|children|feet|teeth|fish|sheep|pair|more|fewer|less ) (?!\w)
"""
# Words that go on after the number, and those that only go on after a unit, a currency or a noun.
_CONTINUATIONS = join_words(
    """
    per(?!_mil) each every left remaining remains? in_total in_all altogether total exactly now because since
    is_the_(?:correct_|right_|final_)?answer are_left AD CE as_the_result
    of_(?:the|them|these|those|his|her|their|it)
    """,
    "です 입니다 이다 だ г(?:од|оду|ода|\\.)?\\b",
)
_LATER = join_words(
    r"""
    (?<!degrees_)of in for to from on at after before during between until when with that which who by than
    they he she it a an i\.e was were (?:is|are)_(?:needed|required|used) this every today back away can got
    leftover needed old long tall high wide deep hoch lang breit alt tief (?:is|are)_(?:in|on|at|from|there)
    yesterday tonight tomorrow last_(?:week|month|year|night) chance probability increase decrease discount de
    d'\w+ difference oversee \w+ed \w+er
    """
)


def _compile_after(noun: str) -> re.Pattern[str]:
    return re.compile(
        rf"""
        (?! (?<=[12][0-9]{{2}}0)'?s\b | \.\. )                                     # the 1990s, and 0.333...
        (?: (?: (?<=[3-9][0-9]) | (?<=[0-9]{{3}}) ) ! )?                             # 10! is a factorial
        (?:\.[-–])? (?P<close>[")'\]{_CURRENCIES}*\s]*)
        (?: (?:st|nd|rd|th) (?: \s(?!root|power|degree|of\b)[a-z]{{2,}} ){{0,2}}
          | (?: -?(?:(?P<square>square|sq\.?)\s|(?P<cubic>cubic)\s|degrees?\s)?
                (?P<unit>°(?!\s?[A-Z])|degrees?|{_UNIT}) (?:\s?\^?(?P<power>-?\d))? (?!\w|\^)
              | (?P<counted>{_COUNTER}) )?
            (?: \s? (?P<noun>(?:{noun})(?:\sand\s[a-z]{{2,}}s\b)?) )?
            (?: \s?/\s?[a-z]+(?:\^\d)? )? )
        (?: [\s,;:("']*(?:{_CONTINUATIONS}).* | (?P<later>[\s,;:("']*(?:{_LATER}).*) )?
        [\s.,;:"')\]}}*{_CURRENCIES}。；]* (?:(?<=[^\W\d_])[!！])? \s*
        """,
        re.VERBOSE | re.DOTALL,
    )


_AFTER = _compile_after(_NOUN)
_AFTER_OTHER = _compile_after(rf"{_NOUN}|(?!{_NO_NOUN})[^\W\d_]{{3,}}")
# Words for powers of ten; "billion" is read as in English.
_SCALES = {
    2: "hundred 百 백",
    3: "thousand tsd tausend mil(?:le)? mila тысяч[иа]? тыс 千(?![克米瓦卡焦]) 천",
    4: "万 萬 만",
    5: "lakhs?",
    6: "mill?ion(?:s|en|es|e|i)? mill(?:ón|ones) milh(?:ão|ões) миллион(?:а|ов)? mio mln млн",
    7: "crores?",
    8: "亿 億 억",
    9: "billions? mill?iard(?:s|en|e|i|o)? миллиард(?:а|ов)? mrd млрд",
    12: "trillions? триллион(?:а|ов)? трлн 兆 조",
}
_SCALE_NAMES = "|".join(f"(?P<e{power}>{'|'.join(words.split())})" for power, words in _SCALES.items())
_SCALE = re.compile(rf"\s?(?:{_SCALE_NAMES})(?![A-Za-zÀ-ӿ])", re.IGNORECASE)
_CITATION = re.compile(r"(?<=[\w.%) ])\[\^?[0-9]{1,3}(?:\s?[,–-]\s?[0-9]{1,3})*\]")
_REMARK = re.compile(r"(?<=\s)\((?!(?:mod|base)\b)[^()]*[^\W\d_]{2}[^()]*\)")
_SENTENCE_END = re.compile(
    r"""
    (?: [?;] | (?<![\d.])! | (?<=[^\W\d_])\.(?!\s[0-9])
      | (?<![.A-Za-z])\.(?!\s(?:Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez)) )(?=\s|$|["'*)\]])
    | [\n。！？；]
    """,
    re.VERBOSE,
)
_EQUALITY = re.compile(r"(?<![!<>=])={1,3}>?|[≈→]|->|\bequals\b")
_ASSIGNED = re.compile(r"(?<![^\W_])[A-Za-z](?:_?[0-9]{1,2})?\s*=")
# A term with a letter in it before an equals sign: an equation is no result.
_UNKNOWN = re.compile(
    r"[-+*×·^]\s*[^\W\d_]{1,20}\s*(?:[-+*×·^]|$)|(?:\d\s*/\s*|\b(?:log|ln|sin|cos|tan|[Ww]hen|[Ff]or)\s)[a-z]\s*$"
    rf"|(?<![^\W_])[A-Za-z]\s*[-+*/×·^]\s*\d|\d[a-zA-Z]\s*(?:[-+]|$)|[|{UNREADABLE}]"
)
# What makes a sentence with a number say something else, and where the reason for a number begins.
_UNCERTAIN = re.compile(
    rf"{DENIED.pattern}|{UNASSERTED.pattern}|^\W*(?:is|are|was|were)\s(?:it|that|the|there|this)\b|"
    + join_words(
        r"""
        at_(?:least|most) mini?m?um maxi?m?um max tops den(?:y|ies|ied) wrongly some_\w+ used_to might
        supposed_to (?:may|could)_(?:be|have|need) allegedly supposedly reportedly so_far here_are numerator
        denominator exponent originally (?:beg[ai]n|start)\w*_with (?:upper|lower)_(?:bound|limit) extraneous
        rejected(?=:|\W*$)
        """
    ),
    re.IGNORECASE,
)
_REASON = re.compile(rf",\s?(?:{EXPLANATION.pattern})|\b(?:because|since)\b", re.IGNORECASE)
# What a text ends with if it gives its answer at its end: "In fact it is 9."
_LAST = re.compile(r"(?:,|\bit(?:['’]s|\s(?:is|was|should\sbe)))\s\W?(\d[\d.,]*)(?<=\d)\D{0,12}$")
# A line that is only a value: several are a list.
_BARE = re.compile(r"[^\w=]*[\d.,' ]+[^\w=]*[^\W\d_]{0,12}\W*")
_LEAD = compile_lead(choices=False)


class _Number(NamedTuple):
    """A number that was read, and the group of units that it has, if any."""

    value: Fraction
    unit: str | None


# What is read at one place: nothing, one number, or None for what cannot be read with certainty.
_Reading: TypeAlias = "list[_Number | None]"


def find_final_number(text: str) -> Fraction | None:
    """Return the number that a text gives as its answer, as described at the top of the module.

    Args:
        text: Any text.

    Returns:
        The exact number; None if there is none, or if it cannot be read with certainty.

    Examples:
        >>> find_final_number("She pays 3 x $1,250.50 = $3,751.50."), find_final_number("about 1 1/2 cups")
        (Fraction(7503, 2), Fraction(3, 2))
        >>> find_final_number("3 or 5"), find_final_number("25 m^2")
        (None, Fraction(25, 1))
    """
    number = _find_number(text)
    return None if number is None else number.value


@state_versions(reads=READING)
def extract_number(text: str) -> str:
    """Return the number that a text gives as its answer, in plain digits, as an answer extractor.

    Texts that give different numbers never get the same result, except the empty one, which means that no
    number was read.

    Args:
        text: Any text.

    Returns:
        A decimal if that is exact, else a fraction; empty if `find_final_number` finds none.

    Examples:
        >>> extract_number("She pays $1,250.50."), extract_number("about 1/3"), extract_number("3 or 5")
        ('1250.5', '1/3', '')
    """
    number = find_final_number(text)
    if number is None:
        return ""
    decimal = Decimal(number.numerator) / Decimal(number.denominator)
    return f"{decimal.normalize():f}" if Fraction(decimal) == number else str(number)


class NumericMatch(TextMatcher):
    """A candidate is correct if the number that it gives as its answer equals that of the reference.

    The reference is a number, a text from which the same reader reads one, or a list of these. Numbers are
    compared as fractions: 0.1 is 1/10, and 0.333 is not 1/3 unless the tolerance allows it. A float counts
    as the decimal that it prints as. A candidate without a number that can be read with certainty is wrong.

    Args:
        tolerance: Largest absolute difference that counts as equal, at least 0; text such as "0.01" or
            "1/100", or a number.

    Raises:
        InputError: If the tolerance is not a finite number of at least 0.
    """

    def __init__(self, *, tolerance: str | float | Fraction = 0) -> None:
        self._tolerance = _read_tolerance(tolerance)
        settings = {"reads": READING, "tolerance": str(self._tolerance)}
        super().__init__("numeric-match", settings)

    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test that compares with the numbers of the aliases."""
        expected = [_read_reference_number(one) for one in list_aliases(reference)]

        def is_near(answer: str) -> bool:
            number = _find_number(answer)
            return number is not None and any(
                abs(number.value - one.value) <= self._tolerance
                and (number.unit is None or one.unit in {number.unit, None})
                for one in expected
            )

        return is_near


def _read_tolerance(given: Any) -> Fraction:
    try:
        tolerance = Fraction(str(given))
    except (ValueError, ZeroDivisionError):
        tolerance = Fraction(-1)
    if tolerance < 0:
        msg = f"tolerance is {given!r}; expected a finite number of at least 0"
        raise InputError(msg)
    return tolerance


def _read_reference_number(reference: Any) -> _Number:
    if isinstance(reference, str):
        number = _find_number(reference)
        if number is not None:
            return number
    elif isinstance(reference, (int, float)) and not isinstance(reference, bool) and math.isfinite(reference):
        return _Number(Fraction(str(reference)), None)
    msg = (
        f"the reference {reference!r:.80} is not one number: give a number, or a text that holds exactly "
        f"one, readable with certainty, or marks the final one with {_MARK}"
    )
    raise LabelerError(msg)


def _find_number(text: str) -> _Number | None:
    folded = re.sub(r"<<[^<>]*>>", "", fold_characters(text))
    _, *marked = folded.split(_MARK)
    contents = [one.strip().partition("\n")[0] for one in marked] or list_contents(folded)
    if contents:
        return _agree([_read_place(_tidy(one)) for one in contents])
    plain = _tidy(folded)
    stated = [_read_sentence(*_split(one.lstrip(" \t\n:\"'*_"))) for one in list_statements(plain, _LEAD)]
    if any(stated):
        return _agree(stated)
    sentences = _split(plain)
    numbered = [index for index, one in enumerate(sentences) if re.search(r"\d", one)]
    if not numbered:
        return None
    *earlier, last = numbered
    is_list = earlier and all(_BARE.fullmatch(sentences[one]) for one in (earlier[-1], last))
    is_refused = _LEAD.search(sentences[last])  # a statement that does not count
    if is_list or is_refused or UNSURE.search("".join(sentences[:last])):
        return None
    return _agree([_read_sentence(*sentences[last:])])


def _tidy(text: str) -> str:
    """Return a text without markup and marks of formulas."""
    text = re.sub(r"\bhttps?://\S+", " ", text)
    text = re.sub(r"(?<!\\)\$\$?([^$\n]{1,200})(?<!\\)\$\$?(?!\s?\.?\d)", r" \1 ", text)
    return remove_markup(unwrap_latex(text))


def _split(text: str) -> list[str]:
    """Split a text into sentences, with the signs at their ends."""
    starts = [0, *(one.end() for one in _SENTENCE_END.finditer(text))]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _agree(places: list[_Reading]) -> _Number | None:
    """Return the number that all places give, with the unit that some of them name."""
    numbers = [number for place in places for number in place]
    known = [number for number in numbers if number is not None]
    units = {number.unit for number in known} - {None}
    if len(known) < len(numbers) or len({number.value for number in known}) != 1 or len(units) > 1:
        return None
    return _Number(known[0].value, units.pop() if units else None)


def _read_sentence(sentence: str, *later: str) -> _Reading:
    """Read a sentence; None if it asks or supposes something, or if later ones take it back."""
    if not (digit := re.search(r"\d", sentence)):
        return []
    stop = _REASON.search(sentence, digit.end())
    head = sentence[: stop.start()] if stop else sentence
    *terms, _ = _EQUALITY.split(head)
    # "If" may precede a calculation.
    supposed = terms[-1].rpartition(", ")[2] if terms else sentence
    rest = sentence[len(head) :] + "".join(later)
    taken_back = RETRACTION.search("\n" + rest) or ((last := _LAST.search(rest)) and last[1] not in sentence)
    if QUESTION.search(sentence) or SUPPOSITION.search(supposed) or taken_back:
        return [None]
    return _read_place(head)


def _read_place(text: str) -> _Reading:
    """Read the only number of a piece of text; None if it is not alone, or the text has no known form."""
    if not re.search(r"\d", text):
        return []
    *terms, value = _EQUALITY.split(text)
    if _UNCERTAIN.search(value):
        return [None]
    for aside in (_CITATION, _REMARK):
        found, first = aside.search(value), re.search(r"\d", value)
        if found and first and first.start() < found.start():
            value = aside.sub(" ", value)
    numbers = list(islice(_NUMBER.finditer(value), 2))
    is_equation = terms and (len(_ASSIGNED.findall(text)) > 1 or _UNKNOWN.search(terms[-1]))
    if len(numbers) != 1 or is_equation or QUESTION.search(text):
        return [None]
    return [_read_number(value, numbers[0])]


def _read_number(text: str, found: re.Match[str]) -> _Number | None:
    """Read the number of a piece of text that has to be of the form at the top of the module."""
    if max(found.start(), len(text) - found.end()) > _MAX_CONTEXT:
        return None
    scale = _SCALE.match(text, found.end())
    before = _BEFORE.search(text[: found.start()]) or _LABEL.search(text[: found.start()])
    pattern = _AFTER_OTHER if before and before["other"] else _AFTER
    after = pattern.fullmatch(text, scale.end() if scale else found.end())
    value = _read_value(found)
    if before is None or after is None or value is None:
        return None
    names = [one for one in (after["unit"], before["money"], after["close"].strip()) if one]
    power = after["power"] or ("2" if after["square"] else "3" if after["cubic"] else "")
    units = {unit and f"{unit.lastindex}^{power}" for unit in map(_ONE_UNIT.match, names)}
    is_year = re.fullmatch("[12][0-9]{3}", found["body"]) and not (scale or after["noun"])
    is_counted = names or after["counted"] or after["noun"]
    if (
        len(units) > 1  # `$5m`
        or (before["money"] and before["open"])  # `($5)` is negative
        or (before["minus"] and found["sign"])
        or ((after["later"] or before["counting"]) and not (is_counted or scale))
        or (before["year"] and not (is_year if names == [] else after["unit"]))
    ):
        return None
    sign = -1 if before["minus"] or found["sign"] in {"-", "–"} else 1
    exponent = int((scale.lastgroup or "")[1:]) if scale else 0
    return _Number(sign * value * 10**exponent, next(iter(units), None))


def _read_value(found: re.Match[str]) -> Fraction | None:
    """Return the number of a match without its sign; None where its notation is ambiguous."""
    body = _read_decimal(found["body"])
    parts = [part.strip() for part in (found["below"] or "/1").split("/")[1:]]
    powers = [found[one] or "0" for one in ("ten", "e", "power")]
    is_power_of_ten = found["ten"] is not None
    if any(len(one) > len("-400") for one in powers) or (is_power_of_ten and found["body"] != "10"):
        return None
    exponent = sum(map(int, powers)) - is_power_of_ten
    if _AMBIGUOUS.fullmatch(found["body"]) and not (found["e"] or found["power"]):
        return None
    if body is None or len(parts) > 1 or len(parts[0]) > _MAX_DIGITS or not Fraction(parts[0]):
        return None
    value = body / Fraction(parts[0])
    if abs(exponent) > _MAX_DIGITS or (found["whole"] and value >= 1):
        return None
    return (int(found["whole"] or 0) + value) * Fraction(10) ** exponent


def _read_decimal(body: str) -> Fraction | None:
    if len(body) > _MAX_DIGITS or not (found := _GROUPED.fullmatch(body)):
        return None
    if found["points"]:
        body = body.replace(".", "").replace(",", ".")
    elif found["rest"]:
        body = body.replace(",", ".")
    return Fraction(re.sub("[,'’ ]", "", body))
