"""Splitting answers into claims, the tokens of a claim, and the text that is left."""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

from langchain_cfc.claims import (
    ClaimSplitter,
    ModelSplitter,
    SentenceSplitter,
    Span,
    make_claim_candidates,
    restore_text,
)
from langchain_cfc.errors import CollectionError, SplitterError, VerifierError
from langchain_cfc.execution import arun_flow, run_flow
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.candidates import StrippedCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import SequenceProbability, VerifierInput


def split_answer(splitter: Any, answer: str) -> list[Span]:
    return run_flow(ClaimSplitter(splitter).split(DrawnCandidate(answer), {}))


@pytest.mark.parametrize(
    ("answer", "sentences"),
    [
        ("Lima is the capital.[1] It is big.", ["Lima is the capital.[1]", "It is big."]),
        ("Lima is the capital. [1][2] It is big. [^3]", ["Lima is the capital. [1][2]", "It is big. [^3]"]),
        ("Dr. Li earns 9.5 million, e.g. in the U.S. per year.", None),
        ("- One is odd.\n- Two is even.\n\nDone.", ["One is odd.", "Two is even.", "Done."]),
        ("No stop", None),
        ("  Padded.  ", ["Padded."]),
        ("...\n\n---\n\n!", []),
        ("", []),
        (" \n ", []),
        ("東京は首都です。人口は多いです。", ["東京は首都です。", "人口は多いです。"]),
        ("Fine 😀. Yes.", ["Fine 😀.", "Yes."]),
    ],
)
def test_sentence_splitter_finds_sentences(answer: str, sentences: list[str] | None) -> None:
    spans = split_answer(SentenceSplitter(), answer)
    assert [answer[span.start : span.end] for span in spans] == ([answer] if sentences is None else sentences)
    assert [span.text for span in spans] == [answer[span.start : span.end] for span in spans]
    assert run_flow(SentenceSplitter().flow(answer, {})) == [Span(span.start, span.end) for span in spans]


@given(st.text(max_size=60))
def test_sentence_splitter_returns_ordered_spans_for_any_text(answer: str) -> None:
    spans = split_answer(SentenceSplitter(), answer)
    last = 0
    for span in spans:
        start, end = span.place or (-1, -1)
        assert last <= start < end <= len(answer)
        last = end
        assert str(span.text).strip() == span.text


def test_sentence_splitter_fingerprint_states_language_and_version() -> None:
    stated = compute_fingerprint(SentenceSplitter("de"))
    assert stated["id"] == "sentences-4"
    assert stated["language"] == "de"
    assert stated["sentencex"]


WHOLE = "A b. C d."


@pytest.mark.parametrize(
    "splitter",
    [
        lambda _: [(0, 4), (5, 9)],
        lambda _: [Span(5, 9), Span(0, 4)],
        lambda _: [{"start": 0, "end": 4}, {"start": 5, "end": 9, "text": "C d."}],
        RunnableLambda(lambda _: ((0, 4), (5, 9))),
    ],
)
def test_claim_splitter_accepts_every_form_of_spans(splitter: Any) -> None:
    assert split_answer(splitter, WHOLE) == [Span(0, 4, "A b."), Span(5, 9, "C d.")]


def test_claim_splitter_accepts_async_functions_and_reworded_claims() -> None:
    async def spans(answer: str) -> list[dict[str, Any]]:
        return [{"start": 0, "end": len(answer), "text": text} for text in ("b is A", "d is C")]

    found = asyncio.run(arun_flow(ClaimSplitter(spans).split(DrawnCandidate(WHOLE), {})))
    assert found == [Span(0, 9, "b is A"), Span(0, 9, "d is C")]


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ([(0, 10)], "for an answer of 9 characters"),
        ([(4, 4)], "returned"),
        ([(-1, 4)], "returned"),
        ([(0.0, 4)], "returned"),
        ([(True, 4)], "returned"),
        (["A b."], "returned"),
        ([{"start": 0}], "returned"),
        ([Span(0, 4, " ")], "returned"),
        (None, "NoneType"),
        (7, "int"),
        ({"start": 0, "end": 4}, "dict"),
        ("A b.", "returned"),
    ],
)
def test_claim_splitter_refuses_invalid_spans(returned: Any, problem: str) -> None:
    with pytest.raises(SplitterError, match=problem):
        split_answer(lambda _: returned, WHOLE)


def test_claim_splitter_failures_are_typed_errors() -> None:
    def fail(answer: str) -> list[Span]:
        raise LookupError(answer)

    with pytest.raises(SplitterError, match="the splitter failed with LookupError"):
        split_answer(fail, WHOLE)
    with pytest.raises(SplitterError, match="got a str as splitter"):
        ClaimSplitter("sentences")  # type: ignore[arg-type]
    with pytest.raises(SplitterError, match="structured"):
        run_flow(ClaimSplitter(lambda _: []).split(DrawnCandidate("{}", None, {}), {}))


def make_answer_of_tokens(*tokens: str | bytes) -> DrawnCandidate:
    """An answer of these tokens; the k-th has log-probability -k."""
    content = [
        {
            "token": str(one),
            "logprob": -float(place),
            **({"bytes": list(one)} if isinstance(one, bytes) else {}),
        }
        for place, one in enumerate(tokens)
    ]
    text = b"".join(one if isinstance(one, bytes) else one.encode() for one in tokens).decode()
    return DrawnCandidate(text, AIMessage(text, response_metadata={"logprobs": {"content": content}}))


def get_token_places(candidate: DrawnCandidate) -> list[float] | None:
    if candidate.message is None:
        return None
    return [-one["logprob"] for one in candidate.message.response_metadata["logprobs"]["content"]]


@pytest.mark.parametrize(
    ("tokens", "spans", "expected"),
    [
        (("A", " b", ".", " C", " d."), [(0, 4), (5, 9)], [[0, 1, 2], [3, 4]]),
        # A character that three tokens spell belongs to each of them.
        ((b"\xf0\x9f", b"\x98", b"\x80", "!", " ok"), [(0, 2), (3, 5)], [[0, 1, 2, 3], [4]]),
        (("é", "t", "é", ". No"), [(0, 4), (5, 7)], [[0, 1, 2, 3], [3]]),
    ],
)
def test_make_claim_candidates_assigns_tokens_to_claims(
    tokens: tuple[Any, ...], spans: list[tuple[int, int]], expected: list[list[int]]
) -> None:
    answer = make_answer_of_tokens(*tokens)
    claims = make_claim_candidates(answer, split_answer(lambda _: spans, answer.text))
    assert [get_token_places(claim) for claim in claims] == expected


def test_sequence_probability_scores_claims_by_their_tokens() -> None:
    answer = make_answer_of_tokens("A", " b", ".", " C", " d.")
    claims = make_claim_candidates(answer, split_answer(lambda _: [(0, 4), (5, 9)], answer.text))
    given_ = VerifierInput(prompt="?", candidates=claims)
    scores = SequenceProbability(per_token=True).invoke(given_)
    assert scores == pytest.approx([1 - 2.718281828 ** (-1.0), 1 - 2.718281828 ** (-3.5)])


REASONING = ("<think>", "A b.", " \U0001f600", "</think>", "\n\n")
ANSWER_TOKENS = ("A", " b.", " C", " end")


@pytest.mark.parametrize("form", ["openai", "ollama", "vertex", "blocks"])
@pytest.mark.parametrize("before", [(), REASONING, (" ",)])
@pytest.mark.parametrize("after", [(), ("\n",), ("<|im_end|>",), ("",)])
def test_make_claim_candidates_reads_tokens_as_whole_answers_do(
    form: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    tokens = (*before, *ANSWER_TOKENS, *after)
    listed = [{"token": one, "logprob": -float(place)} for place, one in enumerate(tokens)]
    stated = {"openai": {"logprobs": {"content": listed}}, "ollama": {"logprobs": listed}}
    message = AIMessage("".join(before), response_metadata=stated.get(form, {"logprobs_result": listed}))
    if form == "blocks":
        blocks = [{"type": "text", "text": one["token"], "logprobs": [one]} for one in listed]
        message = AIMessage([{"type": "reasoning", "id": "r"}, *blocks])
    spans = [Span(0, 4, "A b."), Span(5, 10, "C end")]
    claims = make_claim_candidates(DrawnCandidate("A b. C end", message), spans)
    first = len(before)
    assert [get_token_places(one) for one in claims] == [[first, first + 1], [first + 2, first + 3]]


@pytest.mark.parametrize("tokens", [("token_id:0", "token_id:1"), ("A", " b.")])  # ids: a setting of vLLM
def test_tokens_that_do_not_spell_the_answer_are_named(tokens: tuple[str, ...]) -> None:
    drawn = DrawnCandidate("A c.", make_answer_of_tokens(*tokens).message)
    claims = make_claim_candidates(drawn, [Span(0, 4, "A c.")])
    with pytest.raises(VerifierError, match=tokens[0]):
        SequenceProbability().invoke({"prompt": "q", "candidates": claims})


@pytest.mark.parametrize("listed", [[300], "Lima", 7, [None]])
def test_tokens_with_unreadable_bytes_are_read_by_their_text(listed: Any) -> None:
    tokens = [{"token": "Lima", "bytes": listed, "logprob": -1.0}, {"token": ".\ud83d", "logprob": -2.0}]
    message = AIMessage("Lima.?", response_metadata={"logprobs": {"content": tokens}})
    claims = make_claim_candidates(DrawnCandidate("Lima.?", message), [Span(0, 4, "Lima")])
    assert SequenceProbability().invoke({"prompt": "q", "candidates": claims}) == [1.0 - math.exp(-1.0)]


@pytest.mark.parametrize(
    "tokens",
    [
        ("\u2581A", "\u2581b", ".", "\u2581C", "\u2581end"),
        ("A", "\u0120b", ".", "\u0120C", "\u0120end"),
        ("<s>", "A", "\u2581b", ".\u2581", "C", "\u2581end", "</s>"),
    ],
)
def test_make_claim_candidates_reads_tokens_as_vocabularies_write_them(tokens: tuple[str, ...]) -> None:
    listed = [{"token": one, "logprob": -float(place)} for place, one in enumerate(tokens)]
    message = AIMessage("A b. C end", response_metadata={"logprobs": {"content": listed}})
    claims = make_claim_candidates(
        DrawnCandidate("A b. C end", message), [Span(0, 4, "A b."), Span(5, 10, "C")]
    )
    first = tokens[0] == "<s>"
    assert [get_token_places(one) for one in claims] == [
        [first, first + 1, first + 2],
        [first + 3, first + 4],
    ]


def test_make_claim_candidates_finds_a_short_answer_before_the_token_that_ends_it() -> None:
    listed = [{"token": one, "logprob": -float(place)} for place, one in enumerate(("end", "<|im_end|>"))]
    message = AIMessage("end", response_metadata={"logprobs": listed})
    [claim] = make_claim_candidates(DrawnCandidate("end", message), [Span(0, 3, "end")])
    assert get_token_places(claim) == [0]


@pytest.mark.parametrize(
    ("answer", "spans", "kept", "left"),
    [
        ("A. B. C.", [(0, 2), (3, 5), (6, 8)], "101", "A. C."),
        ("A. B. C.", [(0, 2), (3, 5), (6, 8)], "011", "B. C."),
        ("A. B. C.", [(0, 2), (3, 5), (6, 8)], "000", ""),
        ("A.\n- B.\n- C.", [(0, 2), (3, 7), (8, 12)], "101", "A.\n- C."),
        ("A. B.\n\nC.", [(0, 2), (3, 5), (7, 9)], "101", "A.\n\nC."),
        ("# Head\n\nA. B.", [(8, 10), (11, 13)], "11", "# Head\n\nA. B."),
        # A claim that is dropped takes what it shares with a kept one along.
        ("A is b and c.", [(0, 6), (0, 13)], "10", ""),
        ("A is b and c.", [(0, 13), (7, 13)], "10", "A is b"),
    ],
)
def test_restore_text_keeps_only_the_kept_claims(
    answer: str, spans: list[tuple[int, int]], kept: str, left: str
) -> None:
    found = restore_text(answer, [Span(*span) for span in spans], [one == "1" for one in kept])
    assert found.strip() == left


@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_restore_text_adds_and_moves_no_word(kept: list[bool]) -> None:
    answer = "One is odd. Two is even.\nThree is prime.\n\nFour is a square. Five is odd.  Six is even."
    spans = split_answer(SentenceSplitter(), answer)
    left = restore_text(answer, spans, kept)
    words = [word for span, flag in zip(spans, kept, strict=True) if flag for word in str(span.text).split()]
    assert left.split() == words
    if all(kept):
        assert left == answer


LONG = "Lima is the capital of Peru,\nand it has 9 moons. It is big."


def split_by_model(reply: str, answer: str = LONG) -> list[Span]:
    return split_answer(ModelSplitter(FakeListChatModel(responses=[reply])), answer)


def test_model_splitter_lists_claims_with_their_places() -> None:
    reply = (
        "- Lima is the capital of Peru || Lima is the capital of Peru\n"
        'Peru has nine moons. || "and it has 9 moons"\n'
        "* Lima is big || It is big."
    )
    found = split_by_model(reply)
    assert [(LONG[one.start : one.end], one.text) for one in found] == [
        ("Lima is the capital of Peru", "Lima is the capital of Peru"),
        ("and it has 9 moons", "Peru has nine moons."),
        ("It is big.", "Lima is big"),
    ]
    # White space may differ; a quote that the answer does not hold has no place.
    assert split_by_model("a || Peru, and it has")[0] == Span(23, 39, "a")
    assert split_by_model("a || Quito is near") == [Span(None, None, "a")]
    assert split_by_model("a ||") == [Span(None, None, "a")]
    assert split_by_model("NONE") == []


ADA = "**Ada Lovelace** was born in *1815*. She didn\u2019t marry young. She loved cafe\u0301s in London."


@pytest.mark.parametrize(
    ("quote", "found"),
    [
        ("Ada Lovelace was born in 1815", "Ada Lovelace** was born in *1815"),
        ("\u201c**Ada Lovelace** was born\u201d", "Ada Lovelace** was born"),
        ("[ada lovelace Was Born in 1815].", "Ada Lovelace** was born in *1815"),
        ("\u00abShe didn't marry young\u00bb", "She didn\u2019t marry young"),
        ("She didn't marry young.", "She didn\u2019t marry young."),
        ("She loved caf\u00e9s", "She loved cafe\u0301s"),
        ("Ada Lovelace ... 1815\u2026", "Ada Lovelace** was born in *1815"),
        ("She did not marry young", "She didn\u2019t marry young"),
        ("She loved the cafes in London", "She loved cafe\u0301s in London"),
        ("London has parks everywhere", None),
        ("The Ada Lovelace was born in 1816", None),
        ("She did marry young. She loved cafes", None),
        ("She loved caf&eacute;s", "She loved cafe\u0301s"),
    ],
)
def test_model_splitter_finds_quotes_in_another_form(quote: str, found: str | None) -> None:
    for line in (
        f"a || {quote}",
        f"2. a || {quote}",
        f"| a || {quote} |",
        f"**Claim || Quote**\n- a ||\n{quote}",
        f"Claim | Quote\n---|---\n(2) a | {quote}",
        f"Claim 1: a \uff5c\uff5c Quote: {quote}",
        f"| a | | {quote} |",
    ):
        [span] = split_by_model(f"<think>claims || maybe</think>\n```\n{line}\n```", ADA)
        assert (span.place and ADA[slice(*span.place)], span.text) == (found, "a")


def test_model_splitter_finds_words_and_no_parts_of_words() -> None:
    answer = "The heat rose by 18150 in 1815. He left. \u5229\u9a6c\u662f\u9996\u90fd\u3002"
    found = split_by_model("a || he\nb || 1815\nc || \u9a6c\u662f", answer)
    assert [answer[one.start : one.end] for one in found] == ["1815", "He", "\u9a6c\u662f"]
    assert found[0].start == answer.index("1815.")


def test_model_splitter_finds_the_same_quote_at_its_next_place() -> None:
    found = split_by_model("a || She\nb || she\nc || She\nd || She", ADA)
    places = [one.start() for one in re.finditer("She", ADA)]
    assert [one.start for one in found] == [places[0], places[0], places[1], places[1]]


@pytest.mark.parametrize(
    "reply",
    [
        "NONE.",
        "None",
        "**NONE**",
        "`NONE`",
        "(NONE)",
        "Answer: NONE",
        "<think>x</think>NONE",
        "No claims. NONE",
    ],
)
def test_model_splitter_reads_none_in_any_form(reply: str) -> None:
    assert split_by_model(reply) == []


@pytest.mark.parametrize(
    ("reply", "cause"),
    [("", "blank"), ("<think>No", "reasoning without an answer"), ("I cannot.", "I cannot")],
)
def test_model_splitter_refuses_a_reply_without_claims(reply: str, cause: str) -> None:
    with pytest.raises(SplitterError, match=f"the model listed no claims: .*{cause}"):
        split_by_model(reply)


def test_claim_that_is_not_found_has_no_place_and_changes_no_text() -> None:
    spans = split_by_model("Quito has trams || nowhere\na || Lima is the capital\nb || It is big.")
    assert spans == [Span(0, 19, "a"), Span(49, 59, "b"), Span(None, None, "Quito has trams")]
    for kept in itertools.product([True, False], repeat=2):
        left = restore_text(LONG, spans, [*kept, False])
        assert left == restore_text(LONG, spans[:2], kept)
    claims = make_claim_candidates(DrawnCandidate(LONG), spans)
    assert [one.no_answer for one in claims] == [None, None, "not_located"]
    assert make_claim_candidates(StrippedCandidate(LONG), spans)[2].no_answer == "not_located"


def test_claims_of_a_stripped_candidate_are_stripped() -> None:
    (claim,) = make_claim_candidates(StrippedCandidate("One. Two."), [Span(0, 4, "One.")])
    assert claim == StrippedCandidate("One.")
    assert claim != DrawnCandidate("One.")
    assert pickle.loads(pickle.dumps(claim)) == claim  # noqa: S301 - as workers elsewhere are given it
    assert "One." in repr(claim)
    with pytest.raises(CollectionError, match=r"'One\.' was removed from the store"):
        _ = claim.message


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("Ada was born in Paris", "born in 1815 in Paris"),
        ("Ada lived in Paris in 1815.", "born in 1815 in Paris"),
        ("\u201cADA BORN: PARIS\u201d", "born in 1815 in Paris"),
        ("Her school was near Lyon", "Schools"),  # a heading, which is shown with what it governs
        ("Byron taught Ada astronomy", None),
        ("It is so", None),
    ],
)
def test_claim_that_is_not_found_takes_shown_parts_with_half_of_its_words(
    claim: str, words: str | None
) -> None:
    answer = "She was born in 1815 in Paris. She wrote notes.\n\n## Schools near Lyon\n\nShe learned maths."
    quotes = ["She was born in 1815 in Paris", "She wrote notes", "She learned maths"]
    lines = [*(f"x || {one}" for one in quotes), f"{claim} || something that stands nowhere"]
    spans = split_by_model("\n".join(lines), answer)
    kept = [one.text != claim for one in spans]
    left = restore_text(answer, spans, kept)
    assert ("notes" in left, "maths" in left) == (True, words != "Schools")
    place = next(one.place for one in spans if one.text == claim)
    if words is None:
        assert place is None
        assert "born in 1815 in Paris" in left
        return
    assert place is not None
    assert words in answer[slice(*place)]
    assert words not in left
    # Negative control: what the claim says is left if it has no place.
    unplaced = [one if one.text != claim else Span(None, None, claim) for one in spans]
    assert words in restore_text(answer, unplaced, kept)


def test_claim_is_placed_in_the_part_of_another_claim_that_was_placed() -> None:
    """If the first claim is kept, so is all that stands between its two parts: the plan of a bridge."""
    answer = "A tunnel was built. Some planned bridges failed. The tunnel was closed."
    given = [(0, 19), (49, 71), Span(None, None, "A tunnel"), Span(None, None, "Bridges were planned")]
    found = split_answer(lambda _: given, answer)
    assert [one.place for one in found if one.text in {"A tunnel", "Bridges were planned"}] == [(0, 71)] * 2
    assert split_answer(lambda _: found, answer) == found
    assert split_answer(lambda _: [*given[:2], given[3]], answer)[-1].place is None


@pytest.mark.parametrize(
    "given",
    [
        Span(None, None),
        Span(None, None, " "),
        Span(None, 3, "a"),
        Span(1, None, "a"),
        (None, None),
        {"start": None, "end": None},
        {"start": 0, "end": None, "text": "a"},
        {"start": "", "end": "", "text": "a"},
    ],
)
def test_claim_without_a_place_needs_words_and_no_half_of_a_place(given: Any) -> None:
    with pytest.raises(SplitterError, match="start and end None, and a text"):
        split_answer(lambda _: [given], "One.")
    mapped = {"start": None, "end": None, "text": "Two"}
    assert split_answer(lambda _: [mapped], "One.") == [Span(None, None, "Two")]


def test_model_splitter_fingerprint_includes_its_instructions() -> None:
    stated = compute_fingerprint(ModelSplitter(FakeListChatModel(responses=["NONE"])))
    assert stated["instructions"].startswith("sha256:")
    assert stated["method"] == "model-claims"


@pytest.mark.parametrize(
    "part",
    [
        "- Item {} is big.\n",
        "- **Lima {}:** is dry. It is big.\n",
        "## Lima {}\n\nBig.\n\n",
        "It is *big* {}. ",
    ],
)
def test_splitting_and_restoring_take_linear_time(part: str) -> None:
    """Four times as long answers take about 4 times as long; with quadratic steps it was 10 to 16 times."""

    def measure(size: int) -> float:
        answer = "Facts:\n\n" + "".join(part.format(number) for number in range(size))
        took = []
        for _ in range(3):
            begin = time.process_time()
            spans = SentenceSplitter().split(answer)
            restore_text(answer, spans, [place % 2 == 0 for place in range(len(spans))])
            took.append(time.process_time() - begin)
        return min(took)

    assert measure(1600) < 8 * measure(400)
