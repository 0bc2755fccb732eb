"""`collect.toml`: how it is read, what overrides it, and the parts that it makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.config import CollectionConfig, read_config

from langchain_cfc.errors import InputError
from langchain_cfc.verifiers import ModelJudge

TOML = """
store = "facts.db"
n = 4

[source]
path = "questions.csv"
prompt = [["system", "Answer."], ["human", "{question}"]]
reference = "answer"
metadata = ["topic"]

[generator]
model = "openai:gpt-4o-mini"
arguments = { temperature = 0.7, api_key = "sk-1", max_tokens = 9 }

[verifier]
factory = "langchain_cfc.verifiers:SequenceProbability"

[labeler]
factory = "langchain_cfc.labelers:NormalisedMatch"
arguments = { articles = "de" }

[run]
concurrency = 3
max_cost = 1.5

[prices."gpt-4o"]
input = 1.0
output = 2.0
"""

Read = Callable[..., CollectionConfig]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A function that reads the file after replacing parts of it."""

    def reading(
        *replaced: tuple[str, str], settings: tuple[str, ...] = (), **overrides: Any
    ) -> CollectionConfig:
        written = TOML
        for old, new in replaced:
            assert written.count(old) == 1
            written = written.replace(old, new)
        path = tmp_path / "collect.toml"
        path.write_text(written)
        return read_config(path, overrides, settings)

    return reading


def test_read_config_overrides_and_settings_take_precedence(read: Read) -> None:
    overrides = {"n": 7, "source": {"reference": "gold", "id": None}, "run": {"concurrency": None}}
    settings = ("generator.arguments.temperature=0.1", "generator.reasoning=keep", "labeler.id=mine")
    config = read(settings=settings, **overrides)
    assert (config.n, config.source.reference, config.source.id) == (7, "gold", None)
    assert config.run.concurrency == 3
    assert config.generator.arguments["temperature"] == 0.1
    assert (config.create_components().reasoning, read().create_components().reasoning) == ("keep", "strip")
    # Text whose quotes a shell has taken off.
    assert config.labeler.id == "mine"


def test_short_names_of_verifier_and_labeler_mean_the_same(read: Read) -> None:
    short = [("langchain_cfc.verifiers:", ""), ("langchain_cfc.labelers:", "")]
    assert read(*short) == read()
    assert read(*short).record_settings() == read().record_settings()


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (("n = 4", "n = 0"), r"collect.toml: n: must be greater than or equal to 1"),
        (("n = 4", ""), r"found neither of n and draws; expected one, such as n = 10 \(--n 10\)"),
        (("reference =", "referense ="), r"source.referense: there is no such setting"),
        (('model = "openai:gpt-4o-mini"', ""), r"generator: found neither of model and factory"),
        (
            ('model = "openai:gpt-4o-mini"', 'model = "x"\nfactory = "a:b"'),
            r"found both of model and factory",
        ),
        (("langchain_cfc.labelers:NormalisedMatch", "NormalizedMatch"), "did you mean 'NormalisedMatch'"),
        (
            ('[verifier]\nfactory = "langchain_cfc.verifiers:SequenceProbability"', ""),
            "found neither of verifier",
        ),
        (
            ('prompt = [["system", "Answer."], ["human", "{question}"]]', ""),
            r"none of input, prompt and inputs",
        ),
        (("concurrency = 3", "concurrency = 3\nhurry = true"), r"run.hurry: Unexpected"),
        (("max_cost = 1.5", "max_cost = -1"), r"run.max_cost: must be greater than 0"),
        (("input = 1.0", "input = -1.0"), r"prices.gpt-4o.input"),
        (("n = 4", "n = ="), r"is not TOML"),
    ],
)
def test_read_config_refuses_invalid_settings_by_name(
    read: Read, replaced: tuple[str, str], message: str
) -> None:
    assert read(("[verifier]", "[verifiers.one]")).verifiers is not None
    with pytest.raises(InputError, match=message):
        read(replaced)


def test_read_config_reports_all_errors_at_once(read: Read) -> None:
    with pytest.raises(InputError) as caught:
        read(("n = 4", "n = 0"), ("concurrency = 3", "concurrency = 0"))
    assert "n: " in str(caught.value)
    assert "run: concurrency is 0" in str(caught.value)


def test_read_config_refuses_a_missing_file_and_a_malformed_setting(tmp_path: Path, read: Read) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(InputError, match="'n' is not a setting; expected KEY=VALUE"):
        read(settings=("n",))


def test_create_budget_refuses_max_cost_without_prices(read: Read) -> None:
    config = read(('[prices."gpt-4o"]\ninput = 1.0\noutput = 2.0\n', ""))
    with pytest.raises(InputError, match="max_cost needs the prices"):
        config.create_budget()


def test_config_makes_the_model_of_a_judge_by_name(read: Read) -> None:
    named = [
        'factory = "langchain_cfc.verifiers:ModelJudge"',
        'model = "openai:gpt-4o"',
        'model_arguments = { api_key = "k", temperature = 0 }',
    ]
    config = read(('factory = "langchain_cfc.verifiers:SequenceProbability"', "\n".join(named)))
    judge = config.create_components().verifier
    assert isinstance(judge, ModelJudge)
    assert judge.fingerprint["model.model"] == "gpt-4o"


def test_config_refuses_an_unknown_model_provider(read: Read) -> None:
    with pytest.raises(InputError, match="cannot make a chat model from the name 'unknown:x'"):
        read(("openai:gpt-4o-mini", "unknown:x")).create_components()


# Record settings


def format_record_settings(config: CollectionConfig) -> str:
    return str(config.record_settings())


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("temperature = 0.7", "temperature = 0.8", True),
        ("gpt-4o-mini", "gpt-4o", True),
        ("Answer.", "Answer!", True),
        ('"de"', '"en"', True),
        ("sk-1", "sk-2", False),
        ("concurrency = 3", "concurrency = 30", False),
        ("max_cost = 1.5", "max_cost = 2.5", False),
        # The store compares the references themselves.
        ('reference = "answer"', 'reference = "other"', False),
    ],
)
def test_record_settings_change_only_with_what_changes_records(
    read: Read, old: str, new: str, *, changes: bool
) -> None:
    assert (format_record_settings(read((old, new))) != format_record_settings(read())) == changes


def test_record_settings_contain_no_secret(read: Read) -> None:
    secret = read(("sk-1", "very-secret"), ('articles = "de"', 'hidden = "also-secret"'))
    assert "secret" not in format_record_settings(secret)
