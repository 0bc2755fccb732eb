from __future__ import annotations

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.errors import FeatureError
from langchain_cfc.features import FeatureMap, parser
from langchain_cfc.features.parser import parse_terms
from langchain_cfc.features.statistics import STATISTICS, Statistic
from langchain_cfc.features.terms import Bins, Constant, Group, Hard, Hat, Polynomial
from tests.lengths import repetitions

MEAN = Statistic("mean_score")

spaces = st.sampled_from(["", " ", "\n", "\t "])
# Not `from_regex`: the module that it loads while it draws was seen to fail in CPython 3.11 (SystemError: AST
# constructor recursion depth mismatch).
starts, others = f"{string.ascii_letters}_", f"{string.ascii_letters}{string.digits}_"
names = st.tuples(st.sampled_from(starts), st.text(others)).map("".join)
keys = st.one_of(names, st.text())
statistics = st.one_of(st.sampled_from(sorted(STATISTICS)), keys.map(lambda key: f"meta({json.dumps(key)})"))


@st.composite
def draw_term_text(draw: st.DrawFn) -> str:
    statistic = draw(statistics)
    gap = draw(spaces)
    kind = draw(st.sampled_from(["1", "power", "bins", "hat", "group", "hard"]))
    if kind == "1":
        return kind
    if kind == "power":
        return f"{statistic}{gap}^{gap}{draw(st.integers(1, 10))}"
    if kind == "group":
        return f"group({gap}{json.dumps(draw(keys))}{gap})"
    if kind == "hard":
        fraction = f"{draw(st.sampled_from(['', '0', '00']))}.{draw(st.integers(1, 10**6))}"
        return f"hard({statistic},{gap}{fraction})"
    return f"{kind}({statistic}{gap},{gap}{draw(st.integers(2, 1000))})"


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("1", (Constant(),)),
        ("mean_score", (Polynomial(MEAN, 1),)),
        ("mean_score ^ 2", (Polynomial(MEAN, 2),)),
        ('meta("my year")^03', (Polynomial(Statistic("meta", "my year"), 3),)),
        ("bins(max_score,5)", (Bins(Statistic("max_score"), 5),)),
        ("hat( mean_score , 5 )+1", (Hat(MEAN, 5), Constant())),
        ("group(topic)", (Group("topic"),)),
        ('group("\\u00e9t\\u00e9")', (Group("été"),)),
        ('group("a+b") + 1', (Group("a+b"), Constant())),
        ("hard(entropy, .9250)", (Hard((Statistic("entropy"),), "0.925"),)),
        (
            "hard(entropy,meta(bins),0.5)",
            (Hard((Statistic("entropy"), Statistic("meta", "bins")), "0.5"),),
        ),
    ],
)
def test_parse_terms_accepts_every_term(text: str, terms: tuple[object, ...]) -> None:
    assert parse_terms(text) == terms


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        (" mean_score^1 ", "mean_score"),
        ('group("topic")', "group(topic)"),
        ('group( "my\\ttopic" )\n+ meta( year )', 'group("my\\ttopic") + meta(year)'),
        ('bins(meta("1st"),007)', 'bins(meta("1st"), 7)'),
        ("hard(entropy,max_score,.90)", "hard(entropy, max_score, 0.9)"),
        ("mean_score+1", "mean_score + 1"),
    ],
)
def test_feature_map_text_is_canonical(written: str, canonical: str) -> None:
    assert FeatureMap.parse(written).text == canonical


@settings(derandomize=True)
@given(st.lists(draw_term_text(), min_size=1, max_size=4, unique_by=lambda text: text.split("^")[0]))
def test_canonical_feature_text_parses_to_the_same_map(texts: list[str]) -> None:
    try:
        features = FeatureMap.parse("+".join(texts))
    except FeatureError as error:
        # Only a term that is written in two ways may be refused; the grammar allows all other texts.
        assert "repeats" in str(error)  # noqa: PT017  (only some of the texts raise)
        return
    assert FeatureMap.parse(features.text) == features
    assert FeatureMap.parse(features.text).text == features.text


@settings(derandomize=True, max_examples=repetitions(500, share=0.3))
@given(st.text(alphabet='1059.+^(),"\\ \nbinshatgroupmeta_scorehdlüé'))
def test_feature_map_parses_any_text_or_says_what_is_expected(text: str) -> None:
    try:
        FeatureMap.parse(text)
    except FeatureError as error:
        assert "expected" in str(error)  # noqa: PT017  (only some of the texts raise)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["found nothing", "a statistic", "bins(STATISTIC, COUNT)"]),
        ("bins(mean_scor, 5)", ["'mean_scor'", "a statistic", "did you mean 'mean_score'?"]),
        ("entopy^2", ["'entopy'", "a term", "did you mean 'entropy'?"]),
        ("max", ["'max'", "did you mean 'max_score'?"]),
        ("hats(mean_score, 5)", ["hats(mean_score, 5)", "expected hat(STATISTIC, COUNT)"]),
        ("hats", ["'hats'", "did you mean 'hat'?"]),
        ("1 + topic", ["'topic'", "write group(topic), or meta(topic)"]),
        ("hat(year, 5)", ["'year'", "write meta(year)"]),
        ("mean_score mean_score", ["found 'mean_score mean_score'"]),
        ("mean_score^0", ["'0' is not a degree", "from 1 to 10"]),
        ("mean_score^11", ["'11' is not a degree"]),
        ("mean_score^2.5", ["'2.5' is not a degree"]),
        ("mean_score**2", ["found 'mean_score**2'"]),
        ("bins(mean_score, 1)", ["'1' is not a count", "from 2 to 1000"]),
        ("hat(mean_score, " + "9" * 5000 + ")", ["is not a count"]),
        ("bins(mean_score)", ["found 'bins(mean_score)'", "COUNT"]),
        ("hard(0.9)", ["found 'hard(0.9)'", "hard(STATISTIC"]),
        ("hard(entropy, 1.0)", ["'1.0' is not a fraction", "below 1"]),
        ("hard(entropy, 0.000)", ["'0.000' is not a fraction", "above 0"]),
        ("hard(entropy, 1)", ["'1' is not a fraction"]),
        ("hard(entropy, entropy, 0.9)", ["repeats a statistic"]),
        ("group()", ["found 'group()'", "group(KEY)"]),
        ('group("a', ["found 'group(\"a'"]),
        ('group("\\x")', ["no metadata key", "JSON string"]),
        ("2", ["found '2'", "expected 1"]),
        ("mean_score +", ["found nothing"]),
        ('group(topic) + group("topic")', ["group(topic) repeats group(topic)"]),
        ("1+1", ["1 repeats 1"]),
        ("mean_score + mean_score^2", ["mean_score^2 repeats mean_score;"]),
        ("mean_score +\n\tmin_scor", ["'min_scor'"]),
    ],
)
def test_parse_terms_errors_name_the_term_and_what_is_expected(text: str, parts: list[str]) -> None:
    with pytest.raises(FeatureError) as caught:
        parse_terms(text)
    message = str(caught.value)
    for part in [*parts, "; expected "]:
        assert part in message
    if "unknown name" in message:
        assert len(message) < 200


def test_parse_terms_refuses_what_is_not_a_string() -> None:
    with pytest.raises(FeatureError, match="must be a string"):
        parse_terms(5)  # type: ignore[arg-type]


def test_documented_grammar_lists_every_statistic() -> None:
    assert parser.__doc__ is not None
    names = parser.__doc__.split("name      =")[1].split(";")[0]
    assert {name.strip(' "\n') for name in names.split("|")} == set(STATISTICS)
