"""Words by which answers in ten languages state, deny, suppose or take back something.

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
    except excluding besides other_than anything_but instead_of
    nicht keine?[nmrs]? falsch weder
    pas jamais aucune? faux fausse ni
    nunca tampoco incorrect[oa] falso non mai sbagliat[oa] não nem errad[oa] incorret[oa]
    не нет ни неверн\w* неправильн\w*
    """,
    "[不没错錯違] ない ません ではな 아니 아닙 않 없 틀렸",
)
SUPPOSITION = _compile_words(
    r"if whether suppos\w+ assum\w+ unless otherwise wenn falls если", "如果 假设 もし 만약"
)
ALTERNATIVE = _compile_words("or either vs versus oder entweder ou oppure или либо", "或 または 또는 혹은")
# What may introduce a second answer.
ADDITION = _compile_words(
    r"""
    both also too(?=\W*$|[.,;]) equally maybe perhaps possibl[ey] alternatively could might but however
    auch vielleicht aber aussi peut-être mais también quizás pero anche forse também talvez
    также тоже возможно но
    """,
    "[也但] かも 아마",
)
RETRACTION = re.compile(
    join_words(
        r"""
        wait actually sorry correction corrected scratch_that on_second_thought reconsider\w* oops
        rather(?=,) i_was_wrong that(?:['’]s|_is)_(?:wrong|incorrect|not) (?:not_|un)sure
        i_do(?:n['’]t|_not)_know korrektur doch_nicht moment_mal attende[zs] en_fait erratum espera
        en_realidad perdón aspetta anzi espere na_verdade подожди\w* ошибка
        """,
        "等等 等一下 不对 更正 待って いや、 잠깐 아니",
    )
    # "No" alone, at the beginning of a clause.
    + r"|(?:^|[.!?\n,;:–—-]\W{0,8})(?:no|nein|non|não|нет)(?=\s?[,.!?:;—-]|\swait|\s*$)",
    re.IGNORECASE,
)
# What stands before a word for "answer" that is not the answer given.
OTHER_ANSWER = re.compile(
    r"\b(?:first|second|third|initial|previous|earlier|other|another|alternative|opposite|worst|least|tempting|common|typical"
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
    is was (?:would|will|must|should|could|might|may|can|has_to|seems_to|appears_to)_be ist lautet wäre est
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
        rf"(?:(?<![^\W_])(?:{noun})\b(?:[ ](?:{adjective}))?(?:[ ]to[ ][^.:\n]{{1,60}}?(?=[ ]is\b))?"
        rf"|{unspaced})[ \t\"'’*_)]{{0,8}}"
        rf"(?:{signs}{{1,3}}|(?:{_VERB})(?:\s(?:{_ADVERB})){{0,3}}(?:\s?:)?|(?<=nswer)[*_ ]{{0,4}}\n)",
        re.IGNORECASE,
    )
