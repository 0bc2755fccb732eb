from __future__ import annotations

import pytest
from langchain_cfc_lab.report import find_hardest_prompts

from integrations.lab.tests.report.cases import make_prompt
from langchain_cfc import CalibrationArtifact, PromptRecord, calibrate
from langchain_cfc.errors import AttainabilityWarning, InputError
from langchain_cfc.records import tabulate


def make_artifact(set_rule: str = "all", n: int = 2) -> CalibrationArtifact:
    """Two topics: `a` with success scores 0.05 to 0.45, `b` in which no candidate is ever correct."""
    records = [
        make_prompt(f"a{k}", (0.05 + 0.4 * k / 39, "yes", True), *[(0.9, "no", False)] * (n - 1))
        for k in range(40)
    ]
    records += [make_prompt(f"b{k}", *[(0.5, "no", False)] * n, topic="b") for k in range(20)]
    with pytest.warns(AttainabilityWarning, match="topic: b "):
        return calibrate(
            records,
            alpha=0.4,
            features="group(topic)",
            set_rule=set_rule,
            fit_fraction=0.3,
            allow_unattainable=True,
        )


ARTIFACT = make_artifact()
COVERED = make_prompt("covered", (0.1, "yes", True), (0.8, "no", False))
WORSE = make_prompt("worse", (0.7, "no", False), (0.8, "yes", True))
WRONG = make_prompt("wrong", (0.1, "no", False), (0.8, "yes", True))
HOPELESS = make_prompt("hopeless", (0.1, "no", False), (0.2, "no", False))
FLAGGED = make_prompt("flagged", (0.3, "no", False), (0.4, "yes", True), topic="b")
HARDER = make_prompt("harder", (0.8, "no", False), (0.9, "no", False), topic="b")
ALL = [COVERED, WORSE, FLAGGED, WRONG, HARDER, HOPELESS]


def test_find_hardest_prompts_alternates_missed_and_flagged_with_reasons() -> None:
    found = find_hardest_prompts(ARTIFACT, tabulate(ALL), texts=ALL)
    assert (found.missed, found.flagged) == (3, 2)
    # Thresholds of one group are equal, so the mean score decides.
    assert [one.id for one in found.prompts] == ["worse", "harder", "wrong", "flagged", "hopeless"]
    assert [one.outcome for one in found.prompts] == ["missed", "flagged", "missed", "flagged", "missed"]
    assert found.prompts[0].threshold == pytest.approx(found.prompts[2].threshold or 0.0)
    assert found.prompts[1].threshold is None
    missed, flagged = "Missed: the promise is broken.", "Flagged: cannot be certified."
    assert {one.id: one.why for one in found.prompts} == {
        "worse": f"{missed} 1 of 2 candidates correct.",
        "wrong": f"{missed} 1 of 2 candidates correct.",
        "hopeless": f"{missed} 0 of 2 candidates correct.",
        "flagged": f"{flagged} 1 of 2 candidates correct.",
        "harder": f"{flagged} 0 of 2 candidates correct.",
    }


def test_find_hardest_prompts_refuses_texts_that_lack_prompts() -> None:
    with pytest.raises(InputError, match="record 'worse' is missing from the records"):
        find_hardest_prompts(ARTIFACT, tabulate(ALL), texts=[COVERED, *ALL[2:]])


def test_find_hardest_prompts_groups_candidates_by_answer_and_label() -> None:
    artifact = make_artifact(n=4)
    record = make_prompt(
        "mixed", (0.9, "no", False), (0.1, "no", False), (0.8, "no", True), (0.7, "other", False)
    )
    (prompt,) = find_hardest_prompts(artifact, tabulate([record]), texts=[record]).prompts
    rows = [(one.answer, one.correct, one.times, one.score, one.accepted) for one in prompt.answers]
    assert rows == [("no", False, 2, 0.1, True), ("other", False, 1, 0.7, False), ("no", True, 1, 0.8, False)]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("text", "text"),
        (
            [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}],
            "system: be brief\nuser: why?",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], '{"content":[{"type":"text"}],"role":"user"}'),
        (
            [{"role": "assistant", "content": "", "tool_calls": []}],
            '{"content":"","role":"assistant","tool_calls":[]}',
        ),
        ({"question": "why?"}, '{"question":"why?"}'),
    ],
)
def test_find_hardest_prompts_shows_prompts_of_every_form(given: object, shown: str) -> None:
    record = make_prompt("x", (0.9, "no", False), (0.9, "no", False), input=given)
    (prompt,) = find_hardest_prompts(ARTIFACT, tabulate([record]), texts=[record]).prompts
    assert prompt.prompt == shown


def test_find_hardest_prompts_shows_text_that_differs_from_the_answer() -> None:
    record = PromptRecord.model_validate(
        {
            "id": "x",
            "input": "?",
            "metadata": {"topic": "a"},
            "candidates": [
                {"text": "I think it is 7.", "answer": "7", "score": 0.9, "correct": False},
                {"message": {"tool": "add"}, "score": 0.95, "correct": False},
            ],
        }
    )
    (prompt,) = find_hardest_prompts(ARTIFACT, tabulate([record]), texts=[record]).prompts
    assert [(one.answer, one.text) for one in prompt.answers] == [
        ("7", "I think it is 7."),
        ('{"tool":"add"}', None),
    ]


def test_find_hardest_prompts_of_a_bot_lists_wrong_answers_and_abstentions() -> None:
    records = [make_prompt(f"a{k}", (0.01 * (k % 30), "yes", True), (0.4, "no", False)) for k in range(80)]
    records += [make_prompt(f"b{k}", (0.8, "no", False), (0.9, "yes", True)) for k in range(20)]
    bot = calibrate(records, max_wrong_rate=["0.1", "0.2"], fit_fraction=0.2)
    confident = make_prompt("confident", (0.0, "no", False), (0.1, "yes", True))
    unsure = make_prompt("unsure", (0.9, "yes", True), (0.9, "no", False))
    new = [COVERED, WRONG, confident, unsure]
    found = find_hardest_prompts(bot, tabulate(new), texts=new)
    assert (found.missed, found.flagged, found.max_wrong_rate) == (2, 1, "0.2")
    assert [(one.id, one.outcome) for one in found.prompts] == [
        ("confident", "wrong"),  # the lower its mean score, the worse
        ("unsure", "abstained"),
        ("wrong", "wrong"),
    ]
    assert {one.threshold for one in found.prompts} == {None}
    assert found.prompts[0].why == "Answered wrongly. 1 of 2 candidates correct."
    assert found.prompts[1].why == "Not answered. 1 of 2 candidates correct."
    # What is not answered is not marked as given.
    given = {one.id: [answer.answer for answer in one.answers if answer.accepted] for one in found.prompts}
    assert given == {"confident": ["no"], "unsure": [], "wrong": ["no"]}
