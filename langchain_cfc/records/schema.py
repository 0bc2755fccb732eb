"""The models of a records file: prompts with their candidates, and their provenance.

Error messages quote the `description` of a field as the expected value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, core_schema
from typing_extensions import NotRequired, TypedDict

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.no_answers import NoAnswer
from langchain_cfc.support.json_text import NotJsonError, check_json, short_repr
from langchain_cfc.support.serialization import OmitsDefaults, canonical_json
from langchain_cfc.support.suggestions import suggest_name

_Item = TypeVar("_Item")


def _check_input(value: object) -> object:
    # Check here once, before each type of the union reports its own error.
    if not isinstance(value, (str, list, dict)):
        raise NotJsonError(short_repr(value))
    return check_json(value)


def _accept_lists(kind: Any, make_schema: GetCoreSchemaHandler) -> CoreSchema:
    # Not for JSON, all of which would become Python objects before it is validated.
    schema = make_schema(kind)
    converting = core_schema.no_info_before_validator_function(_convert_to_tuple, schema)
    return core_schema.json_or_python_schema(schema, converting)


def _convert_to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


# Only a text with a length limit is read as a whole by pydantic, which then refuses half a surrogate pair.
_Text: TypeAlias = Annotated[str, Field(min_length=0)]
_Name: TypeAlias = Annotated[str, Field(min_length=1)]
_Object: TypeAlias = Annotated[dict[str, Any], AfterValidator(check_json)]
_Numbers: TypeAlias = dict[_Text, FiniteFloat]
_Input: TypeAlias = Annotated[str | list[Any] | dict[str, Any], BeforeValidator(_check_input)]
_Several: TypeAlias = Annotated[tuple[_Item, ...], Field(min_length=1), GetPydanticSchema(_accept_lists)]
_Metadata: TypeAlias = dict[_Text, _Text | bool | int | FiniteFloat]
_Score: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


def _check_judged(one: Candidate | Claim, *, label: bool) -> None:
    if one.no_verdict and one.score != 1.0:
        msg = f"found the score {one.score} without a verdict; expected 1"
        raise ValueError(msg)
    if one.no_label and label:
        msg = "found the label true with no_label; expected false"
        raise ValueError(msg)


_RARE_FIELDS = frozenset({"message", "no_answer", "no_verdict", "no_label"})
# Of most candidates, whose text is the only text.
_PLAIN_FIELDS = frozenset({"text", "score", "correct"})


class Candidate(_Model):
    """One sampled answer with its verifier score and its label.

    Attributes:
        text: The answer, exactly one of `text` and `message`. Empty text is an answer like any other.
        message: A structured answer or a tool call, as a JSON object.
        score: Verifier score in [0, 1], smaller is better.
        correct: Whether the answer is correct (the paper's A(X, y)).
        answer: The answer that an extractor found, if any.
        scores: Finite raw outputs of several verifiers by name; `score` is their mean.
        no_answer: Why it is no answer; then its text is empty, its score 1 and its label wrong.
        no_verdict: True if the verifier had no verdict on it; then its score is 1.
        no_label: True if no label could be read; then it counts as wrong.
    """

    text: _Text | None = Field(default=None, description="text")
    message: _Object | None = Field(default=None, description="a JSON object")
    score: _Score = Field(description="a number in [0, 1], smaller is better")
    correct: bool = Field(description="true or false")
    answer: _Text | None = Field(default=None, description="text")
    scores: _Numbers | None = Field(default=None, description="an object of finite numbers, by verifier")
    no_answer: NoAnswer | None = Field(default=None, description=f"one of {', '.join(get_args(NoAnswer))}")
    no_verdict: Literal[True] | None = Field(default=None, description="true, or nothing")
    no_label: Literal[True] | None = Field(default=None, description="true, or nothing")

    @model_validator(mode="after")
    def _check_content(self) -> Candidate:
        if self.text and _RARE_FIELDS.isdisjoint(self.__pydantic_fields_set__):
            return self
        if (self.text is None) == (self.message is None):
            found = "neither" if self.text is None else "both"
            msg = f"found {found} of text and message; expected exactly one"
            raise ValueError(msg)
        if self.no_answer and (self.text != "" or self.answer or self.correct or self.score != 1.0):
            msg = (
                f"found no_answer {self.no_answer!r}; expected empty text, score 1 and correct false with it"
            )
            raise ValueError(msg)
        if self.no_verdict or self.no_label:
            _check_judged(self, label=self.correct)
        return self

    @property
    def answer_key(self) -> str:
        """Key of equal answers: `answer` if given, else the text, else the canonical JSON of the message."""
        if self.answer is not None:
            return self.answer
        if self.text is not None:
            return self.text
        return canonical_json(self.message)


class Example(_Model):
    """One prompt of an evaluation dataset, before candidates are drawn for it.

    Attributes:
        id: Name of the prompt, not empty, unique within a dataset.
        input: Input of the chain: text, a list of messages, or a JSON object.
        reference: Any JSON value that the labeler needs.
        metadata: Texts, finite numbers and booleans by name, for feature maps and groups.
        cluster: Name of its conversation or set of paraphrases, not empty; None for a prompt on its own.
    """

    id: _Name = Field(description="text, not empty")
    input: _Input = Field(description="text, a list of messages or an object, all of finite JSON")
    reference: Annotated[Any, AfterValidator(check_json)] = Field(default=None, description="finite JSON")
    metadata: _Metadata = Field(default={}, description="an object of texts, finite numbers, true or false")
    cluster: _Name | None = Field(default=None, description="text, not empty")


class PromptRecord(Example):
    """One prompt with its n labelled candidates.

    Attributes:
        candidates: The n >= 1 candidates, ordered by request slot.
    """

    candidates: _Several[Candidate] = Field(description="a list of at least one candidate")


class _PlainCandidate(TypedDict):
    text: _Text
    score: _Score
    correct: bool
    answer: NotRequired[_Text]


class PlainRecord(Example):
    """One prompt whose candidates have no rare field, as mappings, which are made faster than `Candidate`s.

    Every one is a valid `PromptRecord`. The mappings are as strict as the models, and hold only given fields.
    """

    candidates: _Several[_PlainCandidate]


class Claim(_Model):
    """One claim of an answer with its verifier score and its label.

    Attributes:
        text: The claim, as in the answer or in other words.
        start: Start of the part of the answer that makes the claim, in characters; None if unknown or not
            found.
        end: End of that part, exclusive; given together with `start`.
        score: Verifier score in [0, 1], smaller is better.
        supported: Whether the claim is right.
        scores: Finite raw outputs of several verifiers by name; `score` is their mean.
        no_verdict: True if the verifier had no verdict on it; then its score is 1.
        no_label: True if no label could be read; then it counts as wrong.
    """

    text: _Name = Field(description="text, not empty")
    start: int | None = Field(default=None, ge=0, description="a number of characters, at least 0")
    end: int | None = Field(default=None, ge=1, description="a number of characters, above start")
    score: _Score = Field(description="a number in [0, 1], smaller is better")
    supported: bool = Field(description="true or false")
    scores: _Numbers | None = Field(default=None, description="an object of finite numbers, by verifier")
    no_verdict: Literal[True] | None = Field(default=None, description="true, or nothing")
    no_label: Literal[True] | None = Field(default=None, description="true, or nothing")

    @model_validator(mode="after")
    def _check_span(self) -> Claim:
        _check_judged(self, label=self.supported)
        if (self.start is None) != (self.end is None) or (self.end or 1) <= (self.start or 0):
            msg = f"found start {self.start} and end {self.end}; expected start < end, or neither"
            raise ValueError(msg)
        return self


class ClaimsRecord(Example):
    """One prompt with an answer that is split into labelled claims.

    Attributes:
        answer: The whole answer, which the spans of the claims refer to; None if only the claims are known.
        claims: The claims, at least one, in the order of the answer.
    """

    answer: _Text | None = Field(default=None, description="text")
    claims: _Several[Claim] = Field(description="a list of at least one claim")

    @model_validator(mode="after")
    def _check_spans(self) -> ClaimsRecord:
        last = max((one.end or 0 for one in self.claims), default=0)
        if self.answer is not None and last > len(self.answer):
            msg = f"a claim ends at {last}, but the answer has {len(self.answer)} characters"
            raise ValueError(msg)
        return self


LabelledRecord: TypeAlias = PromptRecord | ClaimsRecord
"""A prompt with labelled candidates, or with one answer of labelled claims; a dataset holds one kind."""

# A record made for any use, or only for a table.
RecordT = TypeVar("RecordT", bound=Example)


def count_texts(record: Example) -> int:
    """Return the number of texts in a record as it was given, the names of fields included."""
    texts = len(record.model_fields_set) + 1 + (record.cluster is not None)
    texts += sum(map(_count_json_texts, (record.input, record.reference, record.metadata)))
    if isinstance(record, PlainRecord):
        # Of the fields of a candidate, all but the score and the label are texts.
        texts += 2 * sum(map(len, record.candidates)) - 2 * len(record.candidates)
    elif isinstance(record, ClaimsRecord):
        texts += sum(len(one.model_fields_set) + 1 + len(one.scores or ()) for one in record.claims)
        texts += record.answer is not None
    elif isinstance(record, PromptRecord):
        for one in record.candidates:
            given = one.__pydantic_fields_set__
            texts += len(given)
            if given == _PLAIN_FIELDS:
                texts += 1
            else:
                texts += _count_json_texts([one.text, one.message, one.no_answer, one.answer, one.scores])
    return texts


def _count_json_texts(value: object) -> int:
    if isinstance(value, str):
        return 1
    if isinstance(value, dict):
        return len(value) + sum(map(_count_json_texts, value.values()))
    return sum(map(_count_json_texts, value)) if isinstance(value, list) else 0


class Provenance(OmitsDefaults, _Model):
    """The provenance of all records of a file; its first line.

    Attributes:
        format: The name of the format.
        version: Version of the format.
        n: Number of candidates of every record, at least 1; for claims, the number of answers drawn for a
            prompt, the first of which is split into claims.
        generator: Fingerprint of the generator of the candidates.
        verifier: Fingerprint of their verifier.
        labeler: Fingerprint of their labeler.
        answer: Fingerprint of the answer extractor; None without one.
        separate_scores: Whether the verifier scores each candidate separately, so that scores do not change
            if fewer are drawn; None if unknown.
        unit: `claims` if the records hold claims in place of candidates; otherwise None.
        splitter: Fingerprint of the splitter of answers into claims; None if there is none or it is unknown.
        draws: The draw rule of the candidates, with which records have at most n; None if all have n.
        subject: What sentences speak of if the records are runs of an agent: the `runs`, or the guarded
            `calls`, which are then their claims. None for answers and claims.
    """

    _omitted: ClassVar[tuple[str, ...]] = ("separate_scores", "unit", "splitter", "draws", "subject")

    format: Literal["langchain-cfc/records"] = Field(
        default="langchain-cfc/records", description="'langchain-cfc/records'"
    )
    version: Literal[1] = Field(default=1, description="1, the only version that this release reads")
    n: int = Field(ge=1, description="a whole number of candidates, at least 1")
    generator: _Object | None = Field(default=None, description="a JSON object")
    verifier: _Object | None = Field(default=None, description="a JSON object")
    labeler: _Object | None = Field(default=None, description="a JSON object")
    answer: _Object | None = Field(default=None, description="a JSON object")
    separate_scores: bool | None = Field(default=None, description="true or false")
    unit: Literal["claims"] | None = Field(default=None, description="'claims', or nothing for candidates")
    splitter: _Object | None = Field(default=None, description="a JSON object")
    draws: str | None = Field(default=None, description="a draw rule such as 'lead(3, at_most=10)'")
    subject: Literal["runs", "calls"] | None = Field(default=None, description="'runs', 'calls' or nothing")


def name_part(fingerprint: Mapping[str, Any] | None) -> str:
    """Return what people call a part: its id or model, or the class of a verifier or labeler of this package.

    Without a given id, the id of such a class names its method.
    """
    known = fingerprint or {}
    kind, is_named = str(known.get("class", "")), "model" in known or {"id", "method"} <= set(known)
    if kind.startswith("langchain_cfc") and not is_named:
        return kind.rpartition(".")[2]
    return str(known.get("id") or known.get("model") or "not named")


def require_candidates(record: LabelledRecord) -> PromptRecord:
    """Return a record of candidates; refuse a record of claims.

    Raises:
        InputError: If the record holds claims.
    """
    if isinstance(record, PromptRecord):
        return record
    msg = f"record {record.id!r} holds claims of one answer; records with several candidates are needed here"
    raise InputError(msg)


def require_claims(record: LabelledRecord) -> ClaimsRecord:
    """Return a record of claims; refuse a record of candidates.

    Raises:
        InputError: If the record holds candidates.
    """
    if isinstance(record, ClaimsRecord):
        return record
    msg = f"record {record.id!r} holds several candidates; records with the claims of one answer are needed"
    raise InputError(msg)


ModelT = TypeVar("ModelT", bound=BaseModel)

_UNLABELLED_CANDIDATE = (
    'the candidate is unlabelled; calibration needs "correct": true or false for every candidate, so label '
    "it by hand or with a labeler, or leave the prompt out"
)

_UNLABELLED_CLAIM = _UNLABELLED_CANDIDATE.replace("candidate", "claim").replace('"correct"', '"supported"')


NO_CANDIDATES = (
    "missing. If this is a table of answers, with their scores and labels, make records of it:\n"
    "  langchain-cfc store import answers.csv answers.db"
)


def validate_fields(model: type[ModelT], fields: dict[str, Any], source: str, line: int) -> ModelT:
    """Validate the fields of one parsed line; a RecordError names the first field that does not fit."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False)
    is_record = model in {PromptRecord, ClaimsRecord}
    if is_record and line == 1 and not fields.keys() & {"candidates", "claims"}:
        raise RecordError(source, line, "candidates", NO_CANDIDATES)
    # A misspelt field is missing too, but its unknown name says more.
    detail = next((one for one in details if one["type"] == "extra_forbidden"), details[0])
    flaw: Exception | None = detail.get("ctx", {}).get("error")  # that a check of ours raised
    path = detail["loc"]
    if path[:1] == ("metadata",):
        path = path[:2]  # what follows is a type that a value may have
    elif isinstance(flaw, NotJsonError):
        path = (*path, *flaw.path)
    raise RecordError(source, line, _format_path(path), _describe_problem(model, detail, flaw))


def _describe_problem(model: type[BaseModel], detail: ErrorDetails, flaw: Exception | None) -> str:
    kind, value = detail["type"], detail["input"]
    owner, path = model, detail["loc"]
    if path[:1] in {("candidates",), ("claims",)} and path[2:]:  # a field of one of the list
        owner, path = Candidate if path[0] == "candidates" else Claim, path[2:]
    name = str(path[0]) if path else ""
    if kind == "extra_forbidden":
        known = owner.model_fields
        return f"unknown field; known fields: {', '.join(known)}{suggest_name(str(name), known)}"
    if name in {"correct", "supported"} and (kind == "missing" or value is None):
        return _UNLABELLED_CANDIDATE if name == "correct" else _UNLABELLED_CLAIM
    if kind == "model_type":
        return f"found {short_repr(value)}; expected a JSON object"
    if isinstance(flaw, NotJsonError):
        found = f"found {flaw.found}"
    elif flaw:
        return str(flaw)
    else:
        found = "missing" if kind == "missing" else f"found {short_repr(value)}"
    expected = owner.model_fields[name].description if name else "names of fields"
    return f"{found}; expected {expected}"


def _format_path(path: Iterable[str | int]) -> str:
    """Format a path as in code, such as `candidates[3].score`."""
    text = ""
    for step in path:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{short_repr(step)}]"
    return text
