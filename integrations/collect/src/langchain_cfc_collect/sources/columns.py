"""`Columns` and `Examples`: turn the rows of a source into examples."""

from __future__ import annotations

import ast
import hashlib
import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from heapq import nsmallest
from io import StringIO
from itertools import chain, pairwise
from token import NL, OP, STRING
from tokenize import TokenError, generate_tokens, untokenize
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from langchain_cfc.errors import InputError, LabelerError, RecordError
from langchain_cfc.no_answers import is_invisible
from langchain_cfc.records.schema import Example, validate_fields
from langchain_cfc.support.json_text import check_json, parse_json, short_repr
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc.support.text import join_names, pluralize
from langchain_cfc_collect.sources.files import IN_MEMORY, BadRow, Row, Rows, open_rows, to_plain
from langchain_cfc_collect.sources.templates import Prompt, Template, parse_template

# Name of a reference column, or of several.
References: TypeAlias = str | tuple[str, ...]

# Long enough that the probability of any collision among a million examples is 3e-8.
_ID_DIGITS = 16
_MAX_LISTED = 20
# Makes the error of a row, given a part of the example and the problem.
_Flaw: TypeAlias = Callable[[str, str], RecordError]
_PLACEHOLDER_ID = "?"


def _check_format(how: str) -> str:
    if how not in {_TEXT, _JSON} and (not how or any(map(str.isalnum, how))):
        msg = f"found {how!r}; expected json, text, or a separator such as ; or |"
        raise ValueError(msg)
    return how


def _unpack_single(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _check_prompt(prompt: Prompt) -> Prompt:
    parse_template(prompt)
    return prompt


_Column: TypeAlias = Annotated[str, Field(min_length=1)]
_ColumnList: TypeAlias = tuple[_Column, ...]
_TEXT, _JSON = "text", "json"
# Parts of which exactly one must be given.
_INPUT_PARTS = ("input", "prompt", "inputs")
# What cells with several answers look like, in the order tried.
_LIKELY_FORMATS = (_JSON, "|", ";")
_CellFormat: TypeAlias = Annotated[str, AfterValidator(_check_format)]
_References: TypeAlias = Annotated[
    _Column | Annotated[tuple[_Column, ...], Field(min_length=1)], BeforeValidator(_unpack_single)
]


class Columns(BaseModel):
    """Mapping from the columns of a dataset to the parts of an `Example`.

    A value inside an object, or in each object of a list, is named with dots, as in `answer.aliases`, unless
    a column has exactly that name; inside null, everything is null. Values stay as they are, also lists and
    objects. NumPy and Arrow scalars and arrays become plain JSON; a row with any other value that is not JSON
    is a bad row. Columns that are not named here are not used.

    Attributes:
        input: The column whose value is the input: text, a list of messages, or an object. Exactly one of
            `input`, `prompt` and `inputs` must be given.
        prompt: The template that makes the input from columns: text such as `Question: {question}`, which
            gives text; a list of `[role, text]`, which gives messages. A row with a null, an object or a list
            in one of its columns is a bad row. A LangChain prompt is part of the chain: `prompt | model`,
            with `inputs`.
        inputs: The columns that make an object, for chains that take several values by name.
        id: The column with a unique text or number for every row. Without it, the id is a digest of input and
            reference: it does not change when rows move, and a row that repeats an earlier one is a bad row.
        reference: The column of the reference, which labelers compare candidates with. With several columns,
            the reference is the list of all their different answers, without nulls and empty cells.
        metadata: Columns of texts, numbers and booleans, for feature maps and groups; nulls are left out.
        cluster: The column with the name (text or number) of the conversation or set of paraphrases; null or
            empty if the row stands alone.
        cells: How text in the columns above is read, by column: as `json`, such as a list of answers in CSV,
            or an object that a dotted name leads into (lists and objects may be written as Python);
            as a list, by the separator of its parts, such as `;` or `|`; or as `text`, the default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: _Column | None = None
    prompt: Annotated[Prompt, AfterValidator(_check_prompt)] | None = None
    inputs: Annotated[_ColumnList, Field(min_length=1)] | None = None
    id: _Column | None = None
    reference: _References | None = None
    metadata: _ColumnList = ()
    cluster: _Column | None = None
    cells: dict[_Column, _CellFormat] = {}

    @model_validator(mode="after")
    def _check_columns(self) -> Columns:
        given = [name for name in _INPUT_PARTS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            msg = f"found {found} of input, prompt and inputs; expected one, such as prompt='{{question}}'"
            raise ValueError(msg)
        used = {name for names in self._required.values() for name in names}
        unused = set(self.cells) - used - {name.partition(".")[0] for name in used}
        if unused:
            names = ", ".join(sorted(unused))
            msg = f"found {names} in cells, but nowhere else; expected columns in use"
            raise ValueError(msg)
        return self

    @property
    def input_cells(self) -> dict[str, str]:
        """Those of `cells` that the input or the id is read from."""
        names = [name for part in ("id", *_INPUT_PARTS) for name in self._required[part]]
        return {
            one: how
            for one, how in self.cells.items()
            if how != _TEXT and any(f"{name}.".startswith(f"{one}.") for name in names)
        }

    def find_lists(self, sample: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return the reference columns most of whose texts look like lists or objects, with how to read them.

        Columns whose cells have a setting are left out.
        """
        found = {}
        for name in (one for one in self._required["reference"] if one not in self.cells):
            texts = []
            for row in sample:
                with suppress(LookupError, ValueError):  # a bad row, which is reported with its number
                    value = self._look_up(row, name)
                    texts += [value] if isinstance(value, str) and value.strip() else []
            for how in _LIKELY_FORMATS:
                if 2 * sum(_is_list(one, how) for one in texts) > len(texts):
                    found[name] = how
                    break
        return found

    def render_question(self, question: str) -> Any:
        """Return the input of the chain for one question, as if it came from a dataset.

        Args:
            question: The text for the only column that the prompt template names.

        Returns:
            The rendered template; the question itself without a template.

        Raises:
            InputError: If the input is made of several columns.
        """
        template = self._template
        if self.inputs is not None or (template is not None and len(template.required) > 1):
            names = ", ".join(self._required["inputs"] + self._required["prompt"])
            msg = f"the input is made of several columns ({names}), so one text is not enough"
            raise InputError(msg)
        return question if template is None else template.render({template.required[0]: question})

    def create_example(self, row: Mapping[str, Any], source: str, number: int) -> Example:
        """Create the example of one row.

        Args:
            row: Values by column.
            source: Name of the dataset in errors.
            number: Number of the row in errors.

        Returns:
            The example.

        Raises:
            RecordError: If a column is missing, or its value does not suit its part of the example.
        """
        read = partial(self._read_value, row, partial(RecordError, source, number))
        metadata = {name: read("metadata", name) for name in self.metadata}
        cluster = read("cluster", self.cluster)
        fields = {
            "id": _PLACEHOLDER_ID if self.id is None else _to_text(read("id", self.id)),
            "input": self._create_input(row, partial(RecordError, source, number)),
            "reference": self._read_reference(read),
            "metadata": {name: value for name, value in metadata.items() if value is not None},
            # CSV cannot express null.
            "cluster": None if cluster == "" else _to_text(cluster),
        }
        example = validate_fields(Example, fields, source, number)
        return example if self.id is not None else example.model_copy(update={"id": _compute_id(example)})

    def read_value(self, row: Mapping[str, Any], name: str, source: str, number: int) -> Any:
        """Return the value of any column, or of a dotted path; raise `RecordError` if there is none."""
        return self._read_value(row, partial(RecordError, source, number), name, name)

    def _read_reference(self, read: Callable[[str, str | None], Any]) -> Any:
        if not isinstance(self.reference, tuple):
            return read("reference", self.reference)
        answers: list[Any] = []
        for name in self.reference:
            value = read("reference", name)
            for one in value if isinstance(value, list) else [value]:
                if one is not None and one != "" and one not in answers:
                    answers.append(one)
        return answers or None

    def _create_input(self, row: Mapping[str, Any], flaw: _Flaw) -> Any:
        template = self._template
        part = next(one for one in _INPUT_PARTS if getattr(self, one) is not None)
        names = self._required[part]
        values = {name: self._read_value(row, flaw, part, name) for name in names}
        # A model would answer something, and no reference is right for a question that is not there.
        if names and all(isinstance(one, str) and is_invisible(one) for one in values.values()):
            raise flaw(part, f"found nothing in {join_names(names)}; expected a question")
        if template is None:
            return values if self.inputs is not None else values[names[0]]
        try:
            return template.render(values)
        except Exception as error:  # a format may raise anything
            problem = f"the prompt cannot be made: {type(error).__name__}: {error}"
            raise flaw(part, problem) from error

    def _read_value(self, row: Mapping[str, Any], flaw: _Flaw, part: str, name: str | None) -> Any:
        if name is None:
            return None
        try:
            return self._look_up(row, name)
        except KeyError as error:
            raise flaw(part, _explain_missing(row, name)) from error
        except ValueError as error:
            raise flaw(part, f"the column {name!r} cannot be read: {error}") from error

    def _look_up(self, row: Mapping[str, Any], name: str) -> Any:
        """Return the value of a column, or of a path into one; raises `KeyError` if neither exists."""
        head, dot, rest = name.partition(".")
        if name in row:
            value = to_plain(row[name])
        elif dot:
            value = _follow_path(self._look_up(row, head), rest)
        else:
            raise KeyError(name)
        how = self.cells.get(name, _TEXT)
        return value if how == _TEXT or value is None else parse_cell(value, how)

    @cached_property
    def _template(self) -> Template | None:
        return None if self.prompt is None else parse_template(self.prompt)

    @cached_property
    def _required(self) -> dict[str, list[str]]:
        """The columns that every row must have, by the part of the example."""
        parts = ("id", "input", "cluster", "reference", "inputs", "metadata")
        given = {**{part: getattr(self, part) for part in parts}, "prompt": ()}
        if self._template is not None:
            given["prompt"] = self._template.required
        return {
            part: [names] if isinstance(names, str) else list(names or ()) for part, names in given.items()
        }


def _explain_missing(row: Mapping[str, Any], name: str) -> str:
    names = list(map(str, row))
    listed = join_names(names, _MAX_LISTED) if names else "none"
    head = name.partition(".")[0]
    if head != name and isinstance(row.get(head), str):
        setting = shlex.quote(f"source.cells.{head}=json")
        return (
            f"no column {name!r}, and the cells of {head!r} are text; there are {listed}. If they hold JSON, "
            f"read them by:\n  --set {setting}"
        )
    return f"no column {name!r}; there are {listed}{suggest_name(name, names)}"


def _follow_path(value: Any, path: str) -> Any:
    """Return the value at a dotted path, None inside null; raises `KeyError` if the path does not exist."""
    if value is None:
        return None
    head, dot, rest = path.partition(".")
    if isinstance(value, list) and head.isdecimal():
        value = {head: value[int(head)] if int(head) < len(value) else None}
    if isinstance(value, list):  # of objects, as in [{"text": "Lima"}]
        found = [_follow_path(one, path) for one in value]
        flat = [part for one in found for part in (one if isinstance(one, list) else [one])]
        return [one for one in flat if one is not None]
    if not isinstance(value, Mapping):
        raise KeyError(path)
    return value[path] if path in value or not dot else _follow_path(value[head], rest)


def _is_list(text: str, how: str) -> bool:
    try:
        value = parse_cell(text, how)
    except ValueError:
        return False
    return isinstance(value, list | dict) and (how == _JSON or len(value) > 1)


def parse_cell(value: Any, how: str) -> Any:
    """Return what a cell of one of `cells` holds; raises `ValueError` if it cannot be read."""
    if not isinstance(value, str):
        msg = f"found {short_repr(value)}; expected text, by cells"
        raise ValueError(msg)  # noqa: TRY004 - handled like text that is not JSON
    if how != _JSON:
        return [part.strip() for part in value.split(how) if part.strip()]
    try:
        return parse_json(value)
    except (RecursionError, ValueError) as error:
        # ['A', 'B'] as pandas writes lists to CSV, and array(['A', 'B']) or ['A' 'B'], as NumPy does.
        with suppress(ValueError, SyntaxError, TokenError, MemoryError, RecursionError):
            tree = _ListReader().visit(ast.parse(_separate_texts(value.strip()), mode="eval"))
            objects = [node.keys for node in ast.walk(tree) if isinstance(node, ast.Dict)]
            is_unique = all(len({ast.dump(one) for one in keys if one}) == len(keys) for keys in objects)
            written = ast.literal_eval(tree)
            if is_unique and isinstance(written, list | dict):
                return check_json(written)
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        msg = f"found {short_repr(value)}, which cells says is JSON: {reason}"
        raise ValueError(msg) from error


class _ListReader(ast.NodeTransformer):
    """Replaces `array([...], dtype=object)`, as NumPy writes lists, by the list."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_array = isinstance(node.func, ast.Name) and node.func.id == "array" and node.args
        return node.args[0] if is_array else node


def _separate_texts(written: str) -> str:
    """Put commas between the texts of NumPy's `['A' 'B']`, which Python would join."""
    tokens = [one[:2] for one in generate_tokens(StringIO(written).readline) if one.type != NL]
    separated = (
        [before, (OP, ",")] if before[0] == after[0] == STRING else [before]
        for before, after in pairwise(tokens)
    )
    return untokenize(chain.from_iterable(separated))


def _to_text(value: Any) -> Any:
    """Return a finite number as text, and any other value unchanged for Pydantic to validate."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number and math.isfinite(value) else value


def _compute_id(example: Example) -> str:
    content = [example.input, example.reference]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:_ID_DIGITS]


BadRowPolicy: TypeAlias = Literal["refuse", "set_aside"]


def read_examples(
    source: str | os.PathLike[str] | Rows | Iterable[Mapping[str, Any]],
    columns: Columns,
    bad_rows: BadRowPolicy = "refuse",
    limit: int | None = None,
) -> Examples:
    """Open an evaluation dataset as a stream of examples.

    Args:
        source: A file or `SCHEME:REST` as `open_rows` takes it, its `Rows`, a pandas DataFrame, or anything
            that iterates over mappings, such as a list of dicts or a Hugging Face dataset.
        columns: What its columns mean; a row that lacks one of them is a bad row.
        bad_rows: How to handle rows that cannot be used or that repeat an earlier id: `refuse` the whole
            dataset, or continue without these rows (`set_aside`).
        limit: Use only so many prompts, at least 1, drawn at random: files are often sorted, and labels of
            their first rows certify nothing about the others. The sample is the same in every run, and a
            larger limit keeps the prompts of a smaller one. None for all, in the order of the source.

    Returns:
        The examples, which can be iterated over as often as the source can.

    Raises:
        RecordError: If a file or scheme does not exist, or a file has an unknown format.
        InputError: If the source is a mapping, such as several datasets by name, or the limit is below 1.
    """
    if limit is not None and limit < 1:
        msg = f"limit is {limit}; expected a number of prompts, at least 1"
        raise InputError(msg)
    return Examples(open_rows(source), columns, bad_rows, limit)


class Examples:
    """Examples of a dataset; every iteration reads the source again, keeping only ids and row numbers.

    If bad rows are refused, no example is yielded after the first bad row. The remaining rows are only read
    to find further bad ones, and then one `RecordError` lists them. So read all examples before paying for
    anything. If bad rows are set aside, at least one row must be good.

    Attributes:
        source: Name of the dataset in errors.
        bad_rows: The bad rows that the latest iteration has found so far.
        check: Called with each example; a row is bad if it raises a `LabelerError`. None to check nothing.
    """

    def __init__(self, rows: Rows, columns: Columns, policy: BadRowPolicy, limit: int | None = None) -> None:
        self.source = rows.name
        self.bad_rows: list[BadRow] = []
        self.check: Callable[[Example], None] | None = None
        self._rows = rows
        self._columns = columns
        self._policy = policy
        self._limit = limit

    def __iter__(self) -> Iterator[Example]:
        """Read from the start; with a limit, read everything, then yield the sample in random order.

        Raises:
            RecordError: If there are no rows, the source is damaged, or bad rows are refused.
        """
        if self._limit is None:
            return self._check()
        # Ids that are digests change when a reference is corrected, which must not change the sample.
        is_digest = self._columns.id is None

        def compute_hash(one: Example) -> bytes:
            name = canonical_json(one.input) if is_digest else one.id
            return hashlib.sha256(f"0\0sample\0{name}".encode("utf-8", "surrogatepass")).digest()

        # Bottom-k sampling (Cohen and Kaplan 2007): a larger sample begins with a smaller one.
        return iter(nsmallest(self._limit, self._check(), key=compute_hash))

    def _check(self) -> Iterator[Example]:
        """Yield the good rows; raise at the end if there is none, or bad rows are refused."""
        bad = self.bad_rows = []
        first_seen: dict[str, int] = {}  # rows of good examples, by id
        for row in self._rows:
            example = row if isinstance(row, BadRow) else self._create_example(row, first_seen)
            if isinstance(example, BadRow):
                bad.append(example)
            elif self._policy == "set_aside" or not bad:
                yield example
        if not bad and not first_seen:
            again = " (an iterator gives its rows only once)" if self.source == IN_MEMORY else ""
            raise RecordError(self.source, 0, "", f"no rows; expected at least one{again}")
        if bad and (self._policy != "set_aside" or not first_seen):
            raise self._make_error(bad)

    def _create_example(self, row: Row, first_seen: dict[str, int]) -> Example | BadRow:
        number, values = row
        try:
            example = self._columns.create_example(values, self.source, number)
            if self.check is not None:
                self.check(example)
        except RecordError as error:
            return BadRow(number, error.field, error.problem)
        except LabelerError as error:
            return BadRow(number, "reference", str(error))
        if example.id not in first_seen:
            first_seen[example.id] = number
            return example
        earlier = f"{self._rows.unit} {first_seen[example.id]}"
        if self._columns.id is None:
            return BadRow(number, "", f"the same input and reference as {earlier}; expected rows to differ")
        problem = f"{short_repr(example.id)} is also the id of {earlier}; expected ids to differ"
        return BadRow(number, "id", problem)

    def _make_error(self, bad: list[BadRow]) -> RecordError:
        unit, (first, *others) = self._rows.unit, bad
        advice = "correct them"
        if self._policy != "set_aside":
            advice += ", or skip them: bad_rows='set_aside' "
            advice += "(on the command line --set source.bad_rows=set_aside)"
        numbers = [str(row.number) for row in others]
        also = f". Others: {unit} {join_names(numbers, _MAX_LISTED // 2)}" if others else ""
        problem = f"{pluralize(len(bad), 'bad row')}; {advice}\n  {unit} {first}{also}"
        return RecordError(self.source, 0, "", problem)
