"""Words by which answers in ten languages state, deny, doubt, ask, suppose or take back something.

The languages are English, German, French, Spanish, Italian, Portuguese, Russian, Chinese, Japanese and
Korean. In the tables, `_` stands for a space, and other signs are those of `re`.
"""

from __future__ import annotations

import re


def join_words(words: str, unspaced: str = "") -> str:
    """Return the pattern of one of several words; the `unspaced` ones are of scripts without spaces."""
    spaced = "|".join(words.split()).replace("_", r"\s")
    return "|".join([rf"\b(?:{spaced})\b", *unspaced.split()])


def _compile_words(words: str, unspaced: str = "") -> re.Pattern[str]:
    return re.compile(join_words(words, unspaced), re.IGNORECASE)


NEGATION = _compile_words(
    r"""
    not \w+n['’]t never no(?!_total\b) none neither nor cannot wrong incorrect false doubt unlikely impossible
    hardly except excluding besides other_than anything_but instead_of
    nicht keine?[nmrs]? falsch weder
    pas jamais aucune? faux fausse ni
    nunca tampoco incorrect[oa] falso non mai sbagliat[oa] não nem errad[oa] incorret[oa]
    не нет ни неверн\w* неправильн\w*
    """,
    "[不没错錯違] ない ません ではな 아니 아닙 않 없 틀렸",
)
# Beginnings of words that reject an option or a value.
REJECTION = re.compile(
    r"\b(?:rul(?:e[sd]?|ing)\sout|cross\w*\so(?:ut|ff)|reject|discard|dismiss|[ée]limin|exclu|écart|e?scart|descart"
    r"|esclu|ausge?schl|исключ|отброс)|排除|淘汰|除外|消去|제외|배제",
    re.IGNORECASE,
)
_UNSURE = r"""
    (?:not_|un)sure i_do(?:n['’]t|_not)_know nicht_sicher unsicher weiß_(?:es_)?nicht je_ne_sais_pas pas_sûre?
    no_(?:lo_)?sé no_estoy_segur[oa] non_(?:lo_)?so non_sono_sicur[oa] não_sei não_tenho_certeza не_знаю
    не_увер\w+
"""
_UNSURE_UNSPACED = "不知道 不确定 不清楚 わかりません 分かりません 모르겠 모릅니다"
UNSURE = _compile_words(_UNSURE, _UNSURE_UNSPACED)
# One of several answers, a step on the way ("part (a)"), and opinions of others, not "I think" or "I'd say".
UNASSERTED = re.compile(
    r"\b(?:(?:one|another|first|second|third|other|next|old|former|previous|naive|tempting|possible)\s(?:\w+\s)?(?:root|solution"
    r"|possibilit|option|attempt|estimate|total|answer|result|value|part|step|question|half|claim|statement|thing|instinct|thought|guess)"
    r"|(?:part|step|question|statement|claim)\s\(?[a-z0-9]\b|(?:one|two|both)\sof\sthe|(?:(?<!\bi\s)(?<!\bi['’]d\s)(?<!\bi\swould\s)(?<!can\s)"
    r"(?:says?|thinks?|believes?)|said|thought|believed|claim(?:s|ed|(?=\s(?:that|it|the)\b))"
    r"|according\sto\s(?:\w+\s)?(?:legend|myths?|rumou?rs?|some|many|others))\b)",
    re.IGNORECASE,
)
# What leaves a question open.
_OPEN = r"""
    unclear uncertain hard_to_say (?:can['’]t|cannot|can_not)_(?:be_determined|determine|tell|say|decide)
    unklar pas_clair incierto incerto неясно
"""
_HEDGES = r"""
    maybe perhaps possibl[ey] vielleicht womöglich eventuell peut-être quizás? tal_vez forse talvez возможно
    может_быть
"""
_HEDGES_UNSPACED = "也许 或许 かも 아마 혹시"
DOUBT = _compile_words(f"{_HEDGES} {_UNSURE} {_OPEN}", f"{_HEDGES_UNSPACED} {_UNSURE_UNSPACED}")
# Ends a sentence that asks. Without a question mark, particles of Chinese, Japanese and Korean do.
QUESTION = re.compile(
    r"\?[\s\"')\]}*$_]*$|(?:[吗嗎]|(?:です|ます|だろう|でしょう|の)か|(?:가요|나요|까요?|니까))[\s.。\"')*]*$"
)
SUPPOSITION = _compile_words(
    r"if whether suppos\w+ assum\w+ let_[a-z] unless otherwise provided_(?:that|[a-z]_is) wenn falls если",
    "如果 假设 もし 만약",
)
ALTERNATIVE = _compile_words("or either vs versus oder entweder ou oppure или либо", "或 または 또는 혹은")
DENIED = re.compile("|".join(words.pattern for words in (NEGATION, DOUBT, ALTERNATIVE)), re.IGNORECASE)
_TAKES_BACK = join_words(
    rf"""
    {_UNSURE} wait actually sorry correction corrected scratch_that on_second_thought reconsider\w* oops hmm+
    (?:just_)?kidding edit(?=:) take_(?:that|it)_back on_reflection rather(?=,) i_was_wrong korrektur
    doch_nicht moment_mal attende[zs] en_fait erratum espera en_realidad perdón aspetta anzi espere na_verdade
    подожди\w* ошибка
    """,
    f"{_UNSURE_UNSPACED} 等等 等一下 不对 更正 待って いや、 잠깐 아니",
)
# How a sentence begins that takes back an earlier one.
SECOND_THOUGHT = re.compile(
    r"(?:^|[.!?\n])\W{0,8}(?:hold\son|my\s(?:mistake|bad|error|apolog)|(?:strike|make|forget)\sthat|i\s(?:mean|made|mis|forgot|was)"
    r"|let\sme\s(?!know|explain|show|break|walk|summar|elaborat))",
    re.IGNORECASE,
)
RETRACTION = re.compile(
    rf"{_TAKES_BACK}|{SECOND_THOUGHT.pattern}"
    # "That can't be right", and "no" alone at the beginning of a clause, which may also be an answer.
    r"|\b(?:that(?:['’]s|\sis)\s(?:wrong|incorrect|not)|which\s\w+\s(?:impossible|not))\b"
    r"|[.!?\n]\W{0,8}(?:(?:but|however)\b[^.!?\n]{0,60}?\s)?th(?:at|is)\s(?:contradict|\w+n['’]t|cannot|\w{2,6}\s(?:not|wrong)\b)"
    r"|(?:^|[.!?\n,;:–—-]\W{0,8})(?:no|nein|non|não|нет)(?=\s?[,.!?:;—-]|\swait|\s*$)",
    re.IGNORECASE,
)
UNDECIDED = re.compile(
    join_words(f"{_OPEN} depends? ça_dépend kommt_darauf_an dipende зависит") + f"|{_TAKES_BACK}",
    re.IGNORECASE,
)
# What stands before a word for "answer" that is not the answer given.
OTHER_ANSWER = re.compile(
    r"\b(?:first|second(?:-best)?|third|next|trick|expected|rejected|runner-up|initial|previous|earlier|other|another|alternative|opposite|worst|least|tempting|common|typical"
    r"|naive|possible|plausible|(?!(?:that|here|it|what|there|let)['’])\w+['’]s|\w+s['’]|their|his|her|your)\s+(?:\w+\s+)?$",
    re.IGNORECASE,
)
# Where the explanation of an answer begins.
EXPLANATION = _compile_words(
    r"""
    because since as due given for which where rather_than instead_of unlike not \w+n['’]t cannot never
    denn weil da nicht car puisque pas porque ya_que no perché poiché non pois não потому так_как не
    """,
    "因为 不 なぜなら なので",
)

_ANSWER = (
    "answers? ans solution antwort lösung réponse reponse respuesta solución risposta soluzione resposta "
    "solução ответ"
)
_ANSWER_UNSPACED = "答案 回答 答え 正解 解答 정답 답변 답"
_CHOICE = "choice option opción opzione opção alternativa wahl вариант"
_CHOICE_UNSPACED = "正确选项 选项 선택"
_ADJECTIVE = (
    "correct[ae]? corretta correta bonne juste finale? giusta certa exacta choice option letter value number"
)
_VERB = join_words(
    """
    is was (?:would|will|must|should|has_to|seems_to|appears_to)_be ist lautet wäre est
    serait es sería è sarebbe é seria
    """,
    "(?:应该|應該|可能|就|应)?(?:是|为|為|选择?|選) は [은이는]",
)
_ADVERB = join_words(
    """
    therefore thus hence then so clearly definitely probably likely most simply just indeed for_sure
    certainly obviously only surely daher also donc entonces quindi logo 的
    """
)


def compile_lead(*, choices: bool) -> re.Pattern[str]:
    """Compile what comes before a stated answer: before a choice, also words for "option", and a dash."""
    noun = "|".join([*_ANSWER.split(), *(_CHOICE.split() if choices else [])])
    unspaced = "|".join([*_ANSWER_UNSPACED.split(), *(_CHOICE_UNSPACED.split() if choices else [])])
    adjective = "|".join(_ADJECTIVE.split())
    signs = "[:=→–—-]" if choices else "[:=→]"
    # Repetitions are bounded: backtracking would take very long on a run of the same signs.
    return re.compile(
        rf"(?:(?<![^\W_])(?:{noun})\b(?:\s(?:{adjective}))?(?:\sto\s(?!(?:the\s)?{UNASSERTED.pattern})[^.:\n]{{1,60}}?(?=\sis\b))?"
        rf"|{unspaced})[ \t\"'’*_)]{{0,8}}"
        rf"(?:{signs}{{1,3}}|(?:{_VERB})(?:\s(?:{_ADVERB})){{0,3}}(?:\s?:)?|(?<=nswer)[*_ ]{{0,4}}\n)",
        re.IGNORECASE,
    )
