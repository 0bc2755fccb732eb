"""Before batches are paid for, a prompt is tried live; a model that gives no answers is stopped early."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from langchain_cfc_collect import Components, Executor, Store, collect, collecting
from langchain_cfc_collect.collecting import try_first
from langchain_cfc_collect.run import MOST_WITHOUT_ANSWER
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from integrations.collect.tests.batch_server import Provider, serve
from integrations.collect.tests.batching import (
    N,
    SimulatedKill,
    check_collection,
    examples,
    kill_at,
    make_components,
    make_model,
    run,
    score_by_slot,
    shorten_waits,
)
from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc.errors import CollectionError
from langchain_cfc.labelers import JudgeLabels, NormalisedMatch

SIZE = 8


@dataclass
class OddProvider(Provider):
    """A provider all of whose answers are alike in some way."""

    blank: bool = False
    drops_logprobs: bool = False

    def answer(self, body: dict[str, Any]) -> tuple[str, str]:
        prompt, text = super().answer(body)
        return prompt, "" if self.blank else text

    def chat(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        return super().chat({**body, "logprobs": body.get("logprobs") and not self.drops_logprobs}, text)


@pytest.fixture(autouse=True)
def with_trial() -> Iterator[None]:
    with shorten_waits(), mock.patch.object(collecting, "try_first", try_first):
        yield


@contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(CollectionError) as caught:
        yield
    for one in words:
        assert one in str(caught.value), caught.value


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_two_live_candidates_come_before_the_batch_and_their_usage_counts(tmp_path: Path, kind: Any) -> None:
    provider, path = Provider(), tmp_path / "store.db"
    with serve(provider) as url:
        ended = run(path, make_components(url, kind), SIZE)
        again = run(path, make_components(url, kind), SIZE + 1)
    assert provider.log.live.total() == 2
    assert provider.log.submitted == [SIZE * N, N]
    assert ended.complete
    check_collection(path, provider, again, SIZE + 1)  # usage equals the server's log


@pytest.mark.parametrize("where", ["draw", "score", "label", "create"])
def test_kill_during_the_trial_repeats_its_two_requests_at_most(tmp_path: Path, where: str) -> None:
    provider, path = Provider(), tmp_path / "store.db"
    with serve(provider) as url:
        with kill_trial_after(where), pytest.raises(SimulatedKill):
            run(path, make_components(url), SIZE)
        submitted = list(provider.log.submitted)
        ended = run(path, make_components(url), SIZE)
    assert (submitted, provider.log.submitted) == ([SIZE * N] if where == "create" else [], [SIZE * N])
    assert provider.log.live.total() == (2 if where == "create" else 4)
    # The usage of both trials counts; a stage that has not ended may have made one request.
    check_collection(path, provider, ended, SIZE, in_flight=where in {"score", "label"})


@contextmanager
def kill_trial_after(step: str) -> Iterator[None]:
    """Die once a stage of the trial has ended, before its usage is stored; or once a batch is submitted."""
    if step == "create":
        with kill_at("create"):
            yield
        return
    stage = getattr(Executor, step)

    async def finish_and_die(*given: Any) -> None:
        await stage(*given)
        raise SimulatedKill

    with mock.patch.object(Executor, step, finish_and_die):
        yield


def test_log_probabilities_that_are_missing_stop_before_any_batch(tmp_path: Path) -> None:
    provider = OddProvider(drops_logprobs=True)
    with serve(provider) as url:
        with refused("stopped before any batch", "VerifierError", "log-probabilities"):
            run(tmp_path / "store.db", make_components(url), SIZE)
        provider.drops_logprobs = False
        ended = run(tmp_path / "store.db", make_components(url), SIZE)
    assert provider.log.live.total() == 4
    check_collection(tmp_path / "store.db", provider, ended, SIZE)


def test_judge_that_cannot_be_read_stops_before_any_batch(tmp_path: Path) -> None:
    provider = Provider()
    with serve(provider) as url:
        model = make_model("openai", url)
        parts = Components(model, score_by_slot, JudgeLabels(model), N)
        with refused("stopped before any batch", "LabelerError"):
            run(tmp_path / "store.db", parts, SIZE)
    assert provider.log.submitted == []


@pytest.mark.parametrize(("size", "tried"), [(SIZE, MOST_WITHOUT_ANSWER), (2, 2)])
def test_model_without_answers_is_stopped_before_any_batch(tmp_path: Path, size: int, tried: int) -> None:
    provider = OddProvider(blank=True)
    with serve(provider) as url, refused(f"{2 * tried} of {2 * tried} candidates were blank", "run again"):
        run(tmp_path / "store.db", make_components(url), size)
    assert provider.log.submitted == []
    assert provider.log.live.total() == 2 * tried


def make_cut_off(texts: list[str]) -> Components:
    messages = (AIMessage(one, response_metadata={"finish_reason": "length"}) for one in texts)
    return Components(
        GenericFakeChatModel(messages=messages), score_by_slot, NormalisedMatch(), N, generator_id="fake"
    )


def test_live_run_stops_after_three_prompts_without_answers_and_goes_on_when_asked(tmp_path: Path) -> None:
    options, path = make_silent_options(), tmp_path / "store.db"
    texts = [f"The capital {slot}" for slot in range(SIZE * N)]
    with refused("9 of 9 candidates were cut off: raise max_tokens", "to go on without a change"):
        collect(examples(SIZE), make_cut_off(texts), path, options)
    with Store(path) as store:
        assert len(list(store.read_records())) == MOST_WITHOUT_ANSWER
    assert collect(examples(SIZE), make_cut_off(texts), path, options).complete


def test_live_run_with_few_prompts_or_one_answer_is_not_stopped(tmp_path: Path) -> None:
    options = make_silent_options()
    texts = [f"The capital {slot}" for slot in range(MOST_WITHOUT_ANSWER * N)]
    few = collect(examples(MOST_WITHOUT_ANSWER), make_cut_off(texts), tmp_path / "few.db", options)
    assert few.complete
    ends = ["length"] * (N - 1) + ["stop"] * (SIZE * N)
    answers = (AIMessage(f"y{one}", response_metadata={"finish_reason": end}) for one, end in enumerate(ends))
    model = GenericFakeChatModel(messages=answers)
    parts = Components(model, score_by_slot, NormalisedMatch(), N, generator_id="fake")
    assert collect(examples(SIZE), parts, tmp_path / "one.db", options).complete
