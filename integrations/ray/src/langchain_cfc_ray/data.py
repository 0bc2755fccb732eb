"""Collections as Ray Data pipelines: from any dataset of prompts to records for `calibrate`.

Either your own chain draws the candidates (`collect_prompts`), or each prompt is repeated n times, a
processor of `ray.data.llm` draws one candidate per row, and the candidates are grouped again
(`repeat_prompts`, `encode_draw`, `label_draws`). Both ways produce the same rows, scored and labelled by the
executor of all other collections, in a folder of finished rows (`Parts`).

Between these functions, a dataset has one row per prompt or per candidate, with columns of text: `id`,
`cluster`, and `input`, `reference` and `metadata` as JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from langchain_cfc_collect import CallPolicy, Columns, Journal, Outcome, Usage
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    convert_to_messages,
    convert_to_openai_messages,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.runnables import RunnableConfig
from ray.data import ActorPoolStrategy

from langchain_cfc.errors import CFCError, DrawError, InputError, RecordError
from langchain_cfc.execution import describe_error
from langchain_cfc.extend import make_candidate, read_usage, sum_usage
from langchain_cfc.records import Example
from langchain_cfc_ray.worker import Factory, WorkerSettings

if TYPE_CHECKING:
    from ray.data import Dataset

_TEXT = pa.string()
_PROMPT_SCHEMA = pa.schema(dict.fromkeys(("id", "input", "reference", "metadata", "cluster"), _TEXT))
_JSON_COLUMNS = ("input", "reference", "metadata")
_DRAW_COLUMNS = ("slot", "message", "error")
_DRAWS_TYPE = pa.list_(pa.struct({"slot": pa.int64(), "message": _TEXT, "error": _TEXT}))
# A record as JSON, which is empty if there is none, beside its prompt.
_RECORD_SCHEMA = pa.schema(
    [
        *_PROMPT_SCHEMA,
        pa.field("record", _TEXT),
        pa.field("error", _TEXT),
        pa.field("models", pa.list_(_TEXT)),
        pa.field("configuration", _TEXT),
    ]
)
# Concurrent batches per actor, so that a batch that waits for its slowest call does not delay the next.
_BATCHES = 2


# Prompts


def make_prompts(rows: Dataset, columns: Columns) -> Dataset:
    """Return a dataset of prompts, made from the rows of any dataset.

    Args:
        rows: Any dataset, such as `ray.data.read_parquet("questions.parquet")`.
        columns: Maps its columns to the fields of a prompt.

    Returns:
        One row per prompt. Running the dataset raises `RecordError` if a row is not a valid prompt.
    """
    return rows.map_batches(_make_prompts, fn_kwargs={"columns": columns}, batch_format="pyarrow")


def _make_prompts(batch: Any, columns: Columns) -> Any:
    rows = []
    for row in batch.to_pylist():
        example = columns.create_example(row, f"the row {row!r:.200}", 0)
        rows.append(_encode_prompt(example))
    return pa.Table.from_pylist(rows, schema=_PROMPT_SCHEMA)


def _encode_prompt(example: Example) -> dict[str, Any]:
    """Return the columns of a prompt; what may be any JSON is text."""
    fields = example.model_dump(exclude_defaults=True)
    encoded = {name: json.dumps(fields[name], ensure_ascii=False) for name in _JSON_COLUMNS if name in fields}
    return {"id": example.id, "cluster": example.cluster, **encoded}


def repeat_prompts(prompts: Dataset, n: int) -> Dataset:
    """Return n rows for each prompt, for a processor that draws one candidate per row.

    Args:
        prompts: Prompts, as from `make_prompts`.
        n: Number of candidates per prompt, at least 1.

    Returns:
        The same columns, plus the request slot (`slot`, from 0) and a unique name of the candidate (`draw`).

    Raises:
        InputError: If n is less than 1.
    """
    if not isinstance(n, int) or n < 1:  # type: ignore[redundant-expr]  # files hold anything
        msg = f"n is {n!r}; expected a whole number of candidates, at least 1"
        raise InputError(msg)
    return prompts.map_batches(_repeat, fn_kwargs={"n": n}, batch_format="pyarrow")


def _repeat(batch: Any, n: int) -> Any:
    rows = batch.take(np.repeat(np.arange(len(batch)), n))
    slots = np.tile(np.arange(n), len(batch))
    names = [f"{prompt}#{slot}" for prompt, slot in zip(rows["id"].to_pylist(), slots, strict=True)]
    return rows.append_column("slot", pa.array(slots)).append_column("draw", pa.array(names))


# Candidates that a processor draws


def read_messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a prompt in the format of chat endpoints and engines.

    Args:
        row: A row of `repeat_prompts`.

    Returns:
        Objects with `role` and `content`.

    Raises:
        RecordError: If the input is an object, which only your own chain can turn into messages.
    """
    given = json.loads(row["input"])
    if isinstance(given, dict):
        problem = f"found an object ({', '.join(given)}); expected text or a list of messages"
        source = f"the prompt {row['id']!r}"
        raise RecordError(source, 0, "input", problem)
    messages = convert_to_messages([("user", given)] if isinstance(given, str) else given)
    return [convert_to_openai_messages([message])[0] for message in messages]


def encode_draw(row: Mapping[str, Any], output: str | BaseMessage | Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a candidate, from a processor's output for a row of `repeat_prompts`.

    Args:
        row: The row.
        output: A text, a message, or the body of an OpenAI-compatible chat completion.

    Returns:
        The columns of the prompt, `slot`, `draw`, the candidate's `message` as JSON, and `error`, which is
        empty unless the body contains no answer.
    """
    kept = {name: row[name] for name in (*_PROMPT_SCHEMA.names, "slot", "draw")}
    if isinstance(output, Mapping):
        try:
            message = _read_completion(output)
        except (LookupError, TypeError, ValueError):
            reason = output.get("error") or dict(output)
            return {**kept, "message": "", "error": f"no answer: {reason!r:.500}"}
    else:
        message = AIMessage(output) if isinstance(output, str) else output
    if (stated := getattr(message, "usage_metadata", None)) is not None:
        message = message.model_copy(update={"usage_metadata": sum_usage([read_usage(stated)])})
    return {**kept, "message": json.dumps(messages_to_dict([message])[0]), "error": ""}


def _read_completion(body: Mapping[str, Any]) -> BaseMessage:
    choice, used = body["choices"][0], body.get("usage")
    [message] = convert_to_messages([choice["message"]])
    known = {"model_name": body.get("model"), "finish_reason": choice.get("finish_reason")}
    known["logprobs"] = choice.get("logprobs")
    update: dict[str, Any] = {"response_metadata": known}
    if isinstance(used, Mapping):
        names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
        update["usage_metadata"] = {name: used.get(given) for name, given in names.items()}
    if choice["message"].get("refusal"):
        update["additional_kwargs"] = {"refusal": choice["message"]["refusal"]}
    return message.model_copy(update=update)


# Records


def collect_prompts(
    prompts: Dataset,
    factory: Factory,
    *,
    actors: int = 2,
    call_policy: CallPolicy | None = None,
    config: RunnableConfig | None = None,
    batch_size: int = 64,
    each: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return a dataset that draws, scores and labels the candidates of prompts, with any chain.

    Args:
        prompts: Prompts, as from `make_prompts`.
        factory: Creates the components, once on each actor: an import path `MODULE:NAME`, or a function or
            bound method that can be pickled.
        actors: Maximum number of actors, at least 1.
        call_policy: Limits, rates and retries of calls per actor, not for the whole cluster; None for the
            defaults.
        config: LangChain config that all runs inherit; it is pickled.
        batch_size: Number of prompts that an actor gets at a time, at least 1.
        each: Further options of `Dataset.map_batches` for the actors, such as `num_gpus`, `resources` and
            `runtime_env`. `num_cpus` defaults to 0, because most actors only wait for calls.

    Returns:
        One row per prompt for `Parts.write`: a record, or an `error` instead.

    Raises:
        InputError: If the factory cannot be pickled.
    """
    settings = WorkerSettings(factory, call_policy or CallPolicy(), config)
    return _map_on_actors(prompts, _Collector, settings, actors=actors, batch_size=batch_size, each=each)


def label_draws(
    draws: Dataset,
    factory: Factory,
    *,
    actors: int = 2,
    call_policy: CallPolicy | None = None,
    config: RunnableConfig | None = None,
    batch_size: int = 64,
    each: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return a dataset that groups candidates by prompt, and scores and labels them.

    If a candidate of a prompt failed or is missing, the prompt's row has an `error` that says which.

    Args:
        draws: Candidates, as from `encode_draw`; those of a prompt need not be adjacent.
        factory: As in `collect_prompts`. The generator is not called, but the records name it as the model
            that will serve. Its n is the number of candidates that a prompt must have.
        actors: As in `collect_prompts`.
        call_policy: As in `collect_prompts`.
        config: As in `collect_prompts`.
        batch_size: As in `collect_prompts`.
        each: As in `collect_prompts`.

    Returns:
        One row per prompt, as from `collect_prompts`.

    Raises:
        InputError: If the factory cannot be pickled.
    """
    settings = WorkerSettings(factory, call_policy or CallPolicy(), config)
    grouped = draws.groupby("id").map_groups(_pack, batch_format="pyarrow")
    return _map_on_actors(grouped, _Labeler, settings, actors=actors, batch_size=batch_size, each=each)


def _map_on_actors(
    rows: Dataset,
    kind: type[_Collector],
    settings: WorkerSettings,
    *,
    actors: int,
    batch_size: int,
    each: Mapping[str, Any] | None,
) -> Dataset:
    settings.check_picklable()
    # A block is the unit of work of an actor, and the unit that is written to disk.
    return rows.repartition(target_num_rows_per_block=batch_size).map_batches(
        kind,
        fn_constructor_args=(settings,),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(
            min_size=1, max_size=actors, initial_size=actors, max_concurrent_calls_per_actor=_BATCHES
        ),
        **{"num_cpus": 0, **(each or {})},
    )


def _pack(group: Any) -> Any:
    """Return the candidates of one prompt as one row."""
    draws = pa.array([group.select(_DRAW_COLUMNS).to_pylist()], _DRAWS_TYPE)
    return group.select(_PROMPT_SCHEMA.names).slice(0, 1).cast(_PROMPT_SCHEMA).append_column("draws", draws)


class _Collector:
    """Draws, scores and labels batches of prompts; its components are created once."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._executor = settings.create_executor()
        known = self._executor.configuration
        self._configuration = json.dumps(known, sort_keys=True, ensure_ascii=False)

    async def __call__(self, batch: Any) -> AsyncIterator[Any]:
        """Yield the rows of a batch of prompts, which are processed concurrently."""
        rows = await asyncio.gather(*map(self._process, batch.to_pylist()))
        yield pa.Table.from_pylist(rows, schema=_RECORD_SCHEMA)

    async def _process(self, row: Mapping[str, Any]) -> dict[str, Any]:
        example = _read_example(row)
        prompt = {name: row[name] for name in _PROMPT_SCHEMA.names}
        made = {**prompt, "record": "", "error": "", "models": [], "configuration": self._configuration}
        try:
            drawn = await self._draw(example, row)
            record = await self._executor.make_record(example, drawn)
            # An answer without claims is no record, and nothing is left to do about its prompt.
            text = "" if record is None else record.model_dump_json(exclude_defaults=True)
        except (CFCError, ValueError) as error:  # pydantic raises a ValueError for text that JSON cannot hold
            return {**made, "error": describe_error(error)}
        return {**made, "record": text, "models": _name_models(drawn)}

    async def _draw(self, example: Example, row: Mapping[str, Any]) -> Outcome:
        del row
        return await self._executor.draw(example, Journal())


class _Labeler(_Collector):
    """Scores and labels candidates that a processor has drawn."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        known = self._executor.configuration
        if known.get("draws") is not None:
            msg = f"draws = {known['draws']} needs scores between the draws: use collect_prompts, or give n"
            raise InputError(msg)
        self._n: int = known["n"]

    async def _draw(self, example: Example, row: Mapping[str, Any]) -> Outcome:
        del example
        found = {one["slot"]: one for one in reversed(row["draws"])}
        wrong = {slot: one["error"] for slot, one in sorted(found.items()) if one["error"]}
        expected = range(self._n)
        missing = [slot for slot in expected if slot not in found]
        if wrong or missing or len(found) != self._n:
            failed = "; ".join(f"slot {slot}: {error:.300}" for slot, error in wrong.items())
            found_ones = f"{len(found) - len(wrong)} candidates were drawn; expected n = {self._n}"
            lacking = f"slots {missing} are missing" if missing else ""
            msg = "; ".join(part for part in (found_ones, lacking, failed) if part)
            raise DrawError(msg)
        messages = messages_from_dict([json.loads(found[slot]["message"]) for slot in expected])
        named = (one.response_metadata.get("model_name") for one in messages)
        usage = Usage.from_models(sorted({name for name in named if isinstance(name, str)}))
        return Outcome([make_candidate(slot, one) for slot, one in enumerate(messages)], usage)


def _read_example(row: Mapping[str, Any]) -> Example:
    fields = {name: row[name] for name in _PROMPT_SCHEMA.names if row[name] is not None}
    for name in _JSON_COLUMNS:
        if name in fields:
            fields[name] = json.loads(fields[name])
    return Example.model_validate(fields)


def _name_models(drawn: Outcome) -> list[str]:
    """Return the names reported by the models that drew candidates, sorted."""
    known = [one.model for one in drawn.usage.calls if one.drew]
    return sorted({name for name in known if name})
