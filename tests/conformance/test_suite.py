"""The suite itself: a runnable that is broken in one way fails the behaviours about it."""

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
    broken.Short: ("every_way_of_calling_returns_exactly_n_candidates", "failed_request_is_repeated"),
    broken.Shuffled: ("candidates_are_in_the_order_of_their_slots",),
    broken.Overcounting: ("usage_equals_the_tokens_of_the_provider",),
    broken.Unplain: ("results_are_plain_data",),
    broken.Talkative: ("schemas_are_valid_and_results_conform_to_them",),
    broken.Telling: (
        "stream_yields_one_result_without_rejected_texts",
        "astream_events_holds_no_token_and_no_rejected_text",
        "pipeline_with_a_retriever_shows_only_the_answer",
    ),
    broken.Told: (
        "graph_streams_and_state_hold_no_rejected_text",
        "graph_of_messages_streams_only_the_answer",
    ),
    broken.Loud: (
        "astream_events_holds_no_token_and_no_rejected_text",
        "graph_streams_and_state_hold_no_rejected_text",
        "graph_of_messages_streams_only_the_answer",
        "usage_equals_the_tokens_of_the_provider",
    ),
    broken.Swallowing: (
        "failure_of_every_request_raises_draw_error",
        "failure_of_any_part_raises_a_typed_error_with_its_cause",
        "batch_returns_the_error_of_a_failing_prompt_in_its_place",
        "with_fallbacks_answers_with_the_artifact_of_the_fallback",
        "timeout_raises_serving_timeout_error",
    ),
    broken.Untyped: (
        "failure_of_every_request_raises_draw_error",
        "timeout_raises_serving_timeout_error",
    ),
    broken.Causeless: (
        "failure_of_every_request_raises_draw_error",
        "failure_of_any_part_raises_a_typed_error_with_its_cause",
    ),
    broken.Deaf: (
        "config_reaches_every_child_run",
        "child_runs_have_names_and_tags",
        "with_config_sets_name_tags_and_callbacks_of_runs",
    ),
    broken.Untagged: ("config_reaches_every_child_run", "with_config_sets_name_tags_and_callbacks_of_runs"),
    broken.Greedy: (
        "max_concurrency_bounds_the_requests_in_flight",
        "alpha_and_max_concurrency_can_be_configured",
    ),
    broken.Stubborn: ("alpha_can_be_bound",),
    broken.Lingering: ("cancellation_leaves_no_task_and_no_thread", "no_thread_outlives_a_prompt"),
}

# What is asserted, what a schema does not allow, and what the untyped one raises.
FAILURES = (AssertionError, pytest.fail.Exception, ValidationError, RuntimeError)


@pytest.mark.parametrize("kind", FOUND)
def test_suite_finds_each_broken_runnable(artifacts: Artifacts, kind: type[broken.Broken]) -> None:
    for name in FOUND[kind]:
        subject = Subject(InMemory(), "requests", artifacts, kind)
        with pytest.raises(FAILURES):
            getattr(Behaviours(), f"test_{name}")(subject)


@mostly_long("name", sorted({name for names in FOUND.values() for name in names}), quick=4)
def test_suite_passes_an_unbroken_runnable(artifacts: Artifacts, name: str) -> None:
    getattr(Behaviours(), f"test_{name}")(Subject(InMemory(), "requests", artifacts, broken.Broken))


def test_suite_tries_every_broken_runnable() -> None:
    # Two are for the soak, which serves many prompts and waits for all of them.
    of_the_soak = {broken.Keeping, broken.Hanging}
    assert set(FOUND) | of_the_soak == set(broken.Broken.__subclasses__())
