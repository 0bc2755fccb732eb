"""`Parts`: a folder of Parquet files in which a Ray Data pipeline keeps its finished rows.

Each write task creates one file atomically, under a name that a repeated task reuses. A file is therefore
both result and checkpoint: after any crash, a row is either in the folder or not, and the next run computes
only the missing rows. Ray Data's own checkpoints filter rows where a dataset is read, which is before prompts
are repeated, and never retry a failed row.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import ray
from langchain_cfc_collect import make_provenance
from pyarrow.fs import FileSelector, FileSystem, FileType  # type: ignore[import-untyped]
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink
from ray.exceptions import RayError

from langchain_cfc.errors import CFCError, CollectionError, InputError, RecordError
from langchain_cfc.records import write_records

if TYPE_CHECKING:
    from ray.data import Dataset


@dataclass(frozen=True)
class Merged:
    """The result of `Parts.merge`: the number of records, and the prompts that have none.

    Attributes:
        labelled: Number of records.
        failed: Errors of failed prompts, by prompt id.
        without_claims: Number of prompts whose answers make no claims.
    """

    labelled: int
    failed: Mapping[str, str]
    without_claims: int


class Parts:
    """A folder of finished rows, so that nothing is computed or paid for twice.

    Args:
        path: The folder, accessible from all nodes: a path, or a URI such as `s3://bucket/parts`.
        key: The column with unique values: `id` for prompts, `draw` for candidates.
    """

    def __init__(self, path: str | os.PathLike[str], key: str = "id") -> None:
        self.path = str(path)
        self.key = key
        uri = self.path if "://" in self.path else str(Path(self.path).absolute())
        self._files, self._folder = FileSystem.from_uri(uri)

    def skip_finished(self, rows: Dataset, *, retry_failed: bool = False) -> Dataset:
        """Return the rows whose key is not in the folder yet.

        Args:
            rows: Any dataset with the key column.
            retry_failed: Whether failed rows count as missing.

        Returns:
            The remaining rows.
        """
        finished = self._read_finished(retry_failed=retry_failed)
        if not len(finished):
            return rows
        known = {"key": self.key, "finished": ray.put(finished)}
        return rows.map_batches(_skip, fn_kwargs=known, batch_format="pyarrow", zero_copy_batch=True)

    def write(self, rows: Dataset) -> None:
        """Run a pipeline and write its rows to the folder as they are finished.

        Args:
            rows: A dataset with the key column, and a text column `error` that is empty for successful rows.

        Raises:
            InputError: If records were made by other components than those in the folder.
            CollectionError: If the pipeline ends early, for example because an actor cannot create its
                components; rows written so far are kept.
        """
        try:
            known = next(self._read_configurations(), None)
            rows.write_datasink(_PartsSink(self._files, self._folder, known))
        except RayError as error:
            reason = getattr(error, "cause", None)
            if isinstance(reason, CFCError):
                raise reason from error
            msg = (
                f"the pipeline ended with {_find_reason(str(error))}. Finished prompts are in {self.path}; "
                "fix the cause and run it again"
            )
            raise CollectionError(msg) from error

    def merge(self, path: str | os.PathLike[str]) -> Merged:
        """Write the labelled prompts to one records file, for `read_records` and `calibrate`.

        Args:
            path: The file, in JSON Lines; it appears, or replaces an older one, only when it is complete.

        Returns:
            The number of labelled prompts, and the failed ones. A calibration without the failed prompts
            covers only prompts like the others.

        Raises:
            CollectionError: If no prompt was labelled.
            InputError: If the records were made by different components.
            RecordError: If two prompts have the same id.
        """
        chosen, merged, models = self._choose_rows()
        if not chosen:
            failed = merged.failed
            reason = f"; {len(failed)} failed, such as {next(iter(failed.items()))}" if failed else ""
            msg = f"no prompt was labelled in {self.path}{reason}"
            raise CollectionError(msg)
        configurations = self._read_configurations()
        first = json.loads(next(configurations))
        for other in configurations:
            raise InputError(_explain_difference(first, json.loads(other)))
        write_records(path, self._read_records(chosen), make_provenance(first, sorted(models)))
        return merged

    def _list_files(self) -> list[str]:
        """Return the names of all complete files, oldest run first."""
        found = self._files.get_file_info(FileSelector(self._folder, allow_not_found=True))
        names = (one.path for one in found if one.type == FileType.File and _is_part(one.base_name))
        return sorted(names)

    def _read_columns(self, *names: str) -> Iterator[tuple[str, Any]]:
        for name in self._list_files():
            yield name, pq.read_table(name, filesystem=self._files, columns=list(names), partitioning=None)

    def _read_finished(self, *, retry_failed: bool) -> Any:
        """Return the keys of the finished rows, as an Arrow array."""
        keys = [pa.array([], pa.string())]
        for _, rows in self._read_columns(self.key, "error"):
            good = rows.filter(pc.equal(rows["error"], "")) if retry_failed else rows
            keys.append(good[self.key].cast(pa.string()).combine_chunks())
        return pa.concat_arrays(keys)

    def _read_configurations(self) -> Iterator[str]:
        """Yield the distinct configurations that made the records."""
        seen = set()
        for name in self._list_files():
            if "configuration" not in pq.read_schema(name, filesystem=self._files).names:
                return
            rows = pq.read_table(name, filesystem=self._files, columns=["configuration"], partitioning=None)
            for one in pc.unique(rows["configuration"]).to_pylist():
                if one not in seen:
                    seen.add(one)
                    yield one

    def _choose_rows(self) -> tuple[dict[str, list[int]], Merged, set[str]]:
        """Return the row numbers to keep by file, what becomes of the prompts, and the models that drew.

        Each prompt is kept once, even if its task was repeated.
        """
        inputs: dict[str, int] = {}
        chosen: dict[str, list[int]] = {}
        failed: dict[str, str] = {}
        models: set[str] = set()
        for name in self._list_files():
            names = ["id", "input", "reference", "error", "models", "record"]
            table = pq.read_table(name, filesystem=self._files, columns=names, partitioning=None)
            for number, row in enumerate(zip(*(table[one].to_pylist() for one in names), strict=True)):
                prompt, given, reference, error, drew, record = row
                content = hash((given, reference))
                if error:
                    failed.setdefault(prompt, error)
                elif prompt not in inputs:
                    inputs[prompt] = content
                    if record:  # an answer without claims makes none
                        chosen.setdefault(name, []).append(number)
                        models.update(drew)
                elif inputs[prompt] != content:
                    raise RecordError(self.path, 0, "id", f"two prompts are called {prompt!r}")
        labelled = sum(map(len, chosen.values()))
        failed = {prompt: error for prompt, error in failed.items() if prompt not in inputs}
        return chosen, Merged(labelled, failed, len(inputs) - labelled), models

    def _read_records(self, chosen: Mapping[str, list[int]]) -> Iterator[Mapping[str, Any]]:
        """Yield the fields of the records in the chosen rows."""
        for name, numbers in chosen.items():
            table = pq.read_table(name, filesystem=self._files, columns=["record"], partitioning=None)
            yield from map(json.loads, table["record"].take(numbers).to_pylist())


class _PartsSink(Datasink[None]):  # type: ignore[misc]  # Ray is not typed
    """Writes the rows of each task to one file, which appears only when it is complete."""

    def __init__(self, files: FileSystem, folder: str, configuration: str | None) -> None:
        self._files = files
        self._folder = folder
        self._configuration = configuration
        self._run = f"{time.time_ns():020}-{uuid4().hex}"

    def on_write_start(self, schema: Any = None) -> None:
        """Create the folder."""
        del schema
        self._files.create_dir(self._folder, recursive=True)

    def write(self, blocks: Iterable[Any], ctx: Any) -> None:
        """Write the rows of one task."""
        tables = [BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [_type_null_columns(table) for table in tables if len(table)]
        if not tables:
            return
        table = pa.concat_tables(tables, promote_options="permissive")
        self._check_configuration(table)
        name = f"{self._run}-{ctx.task_idx:06}.parquet"
        partial = f"{self._folder}/.{name}"
        pq.write_table(table, partial, filesystem=self._files, compression="zstd")
        self._files.move(partial, f"{self._folder}/{name}")

    def _check_configuration(self, table: Any) -> None:
        if self._configuration is None or "configuration" not in table.column_names:
            return
        for other in pc.unique(table["configuration"]).to_pylist():
            if other != self._configuration:
                raise InputError(_explain_difference(json.loads(self._configuration), json.loads(other)))


def _type_null_columns(table: Any) -> Any:
    """Return a table whose all-null columns have the type text, so that all files have the same schema."""
    fields = [
        field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _is_part(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith(".")


def _skip(batch: Any, key: str, finished: Any) -> Any:
    """Return the rows of a batch whose keys are not in `finished`, a reference into Ray's object store."""
    return batch.filter(pc.invert(pc.is_in(batch[key].cast(pa.string()), value_set=ray.get(finished))))


def _find_reason(text: str) -> str:
    """Return the first error message in a Ray error's text, which begins with a traceback."""
    found = re.search(r"^\s*([\w.]+(?:Error|Exception): .+)$", text, re.MULTILINE)
    return found[1] if found else text[-500:]


def _explain_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return a message that explains how the configurations of two actors differ."""
    different = [name for name in {**one, **other} if one.get(name, math.nan) != other.get(name)]
    listed = "; ".join(f"{name}: {one.get(name)!r:.80} and {other.get(name)!r:.80}" for name in different)
    return (
        f"two actors created different components ({listed}), so their records would not be exchangeable: "
        "use the same code and settings on all nodes"
    )
