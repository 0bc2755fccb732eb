"""The suite itself: a runnable that is broken in one way fails the behaviours that speak of it."""

from __future__ import annotations

import pytest
from jsonschema import ValidationError

from tests.lengths import mostly_long

from . import broken
from .behaviours import Behaviours
from .providers import InMemory
from .subject import Artifacts, Subject

# For each way to be broken, behaviours that must be found missing. Others may be missing with them.
FOUND: dict[type[broken.Broken], tuple[str, ...]] = {
    broken.Short: ("every_way_returns_exactly_n_candidates", "a_request_that_fails_is_made_up_for"),
    broken.Shuffled: ("candidates_are_in_the_order_of_their_slots",),
    broken.Overcounting: ("usage_is_what_was_paid_for",),
    broken.Unplain: ("results_are_plain_data",),
    broken.Talkative: ("schemas_are_valid_and_results_keep_to_them",),
    broken.Telling: (
        "streams_hold_one_result_and_no_rejected_text",
        "events_hold_no_token_and_no_rejected_text",
        "a_pipeline_with_a_retriever_shows_the_answer_alone",
    ),
    broken.Told: ("a_graph_shows_no_rejected_text", "a_graph_of_messages_shows_the_answer_alone"),
    broken.Loud: (
        "events_hold_no_token_and_no_rejected_text",
        "a_graph_shows_no_rejected_text",
        "a_graph_of_messages_shows_the_answer_alone",
        "usage_is_what_was_paid_for",
    ),
    broken.Swallowing: (
        "where_every_request_fails_there_is_a_typed_error",
        "failures_of_any_part_are_typed_and_say_where_they_come_from",
        "a_failing_prompt_costs_a_batch_its_own_place_alone",
        "a_fallback_answers_under_its_own_artifact",
        "what_takes_too_long_is_a_typed_error",
    ),
    broken.Untyped: (
        "where_every_request_fails_there_is_a_typed_error",
        "what_takes_too_long_is_a_typed_error",
    ),
    broken.Causeless: (
        "where_every_request_fails_there_is_a_typed_error",
        "failures_of_any_part_are_typed_and_say_where_they_come_from",
    ),
    broken.Deaf: (
        "config_reaches_every_child",
        "children_are_named_by_what_they_do",
        "configured_runs_are_those_of_their_config",
    ),
    broken.Untagged: ("config_reaches_every_child", "configured_runs_are_those_of_their_config"),
    broken.Greedy: (
        "max_concurrency_bounds_the_requests_in_flight",
        "level_and_concurrency_can_be_configured",
    ),
    broken.Stubborn: ("the_level_of_a_call_can_be_bound",),
    broken.Lingering: ("what_is_cancelled_leaves_nothing_behind", "no_thread_outlives_a_prompt"),
}

# What is asserted, what a schema does not allow, and what the untyped one raises.
FAILURES = (AssertionError, pytest.fail.Exception, ValidationError, RuntimeError)


@pytest.mark.parametrize("kind", FOUND)
def test_what_is_broken_is_found(artifacts: Artifacts, kind: type[broken.Broken]) -> None:
    for name in FOUND[kind]:
        subject = Subject(InMemory(), "requests", artifacts, kind)
        with pytest.raises(FAILURES):
            getattr(Behaviours(), f"test_{name}")(subject)


@mostly_long("name", sorted({name for names in FOUND.values() for name in names}), quick=4)
def test_the_same_with_nothing_broken_passes(artifacts: Artifacts, name: str) -> None:
    getattr(Behaviours(), f"test_{name}")(Subject(InMemory(), "requests", artifacts, broken.Broken))


def test_every_broken_runnable_is_tried() -> None:
    # Two are for the soak, which serves many prompts and waits for all of them.
    of_the_soak = {broken.Keeping, broken.Hanging}
    assert set(FOUND) | of_the_soak == set(broken.Broken.__subclasses__())
