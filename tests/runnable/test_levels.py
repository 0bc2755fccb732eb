"""The error level alpha is determined before anything is drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from langchain_core.runnables import ConfigurableField, Runnable

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable
from langchain_cfc.errors import InputError
from tests.calls import Invoke
from tests.factories import make_chain
from tests.fakes import TEXTS, ScriptedModel, topic_of

THRESHOLDS = {"0.25": 0.75, "0.5": 0.5}


def by_argument(chain: CFCRunnable, alpha: Any) -> CFCResult:
    return chain.invoke("x", alpha=alpha)


def by_async_argument(chain: CFCRunnable, alpha: Any) -> CFCResult:
    return asyncio.run(chain.ainvoke("x", alpha=alpha))


def by_batch(chain: CFCRunnable, alpha: Any) -> CFCResult:
    return chain.batch(["x"], alpha=alpha)[0]


def by_stream(chain: CFCRunnable, alpha: Any) -> CFCResult:
    return next(iter(chain.stream("x", alpha=alpha)))


def by_binding(chain: CFCRunnable, alpha: Any) -> CFCResult:
    return chain.bind(alpha=alpha).invoke("x")


def make_alpha_configurable(chain: CFCRunnable) -> Runnable[Any, CFCResult]:
    return chain.configurable_fields(alpha=ConfigurableField(id="alpha"))


def by_config(chain: CFCRunnable, alpha: Any) -> CFCResult:
    return make_alpha_configurable(chain).with_config(configurable={"alpha": alpha}).invoke("x")


def by_call_config(chain: CFCRunnable, alpha: Any) -> CFCResult:
    return make_alpha_configurable(chain).invoke("x", {"configurable": {"alpha": alpha}})


def by_field(chain: CFCRunnable, alpha: Any) -> CFCResult:
    return make_chain(chain.artifact, generator=chain.generator, alpha=alpha).invoke("x")


WAYS = [
    by_argument,
    by_async_argument,
    by_batch,
    by_stream,
    by_binding,
    by_config,
    by_call_config,
    by_field,
]
each_way = pytest.mark.parametrize("way", WAYS)
Way = Callable[[CFCRunnable, Any], CFCResult]


@each_way
@pytest.mark.parametrize("alpha", ["0.250", Decimal("0.5")])
def test_alpha_can_be_chosen_in_every_way_of_calling(
    two_levels: CalibrationArtifact, way: Way, alpha: Any
) -> None:
    result = way(make_chain(two_levels), alpha)
    text = "0.5" if float(alpha) == 0.5 else "0.25"
    assert result.threshold == pytest.approx(THRESHOLDS[text])
    assert result.guarantee.alpha == text
    assert result.guarantee.target_coverage == 1.0 - float(text)


@each_way
@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.1, "not calibrated at alpha = 0.1; it holds alpha=0.25, alpha=0.5"),
        (0, "alpha must be a decimal number strictly between 0 and 1"),
        (1.5, "alpha must be a decimal number strictly between 0 and 1"),
        ("a quarter", "alpha must be a decimal number strictly between 0 and 1"),
    ],
)
def test_chain_refuses_alpha_not_calibrated_before_drawing(
    two_levels: CalibrationArtifact, way: Way, alpha: Any, expected: str
) -> None:
    model = ScriptedModel(texts=TEXTS)
    with pytest.raises(InputError, match=expected):
        way(make_chain(two_levels, generator=model), alpha)
    assert model.drawn == []


def test_chain_with_several_levels_requires_alpha_before_drawing(
    two_levels: CalibrationArtifact, invoke: Invoke
) -> None:
    model = ScriptedModel(texts=TEXTS)
    asked: list[Any] = []
    chain = make_chain(two_levels, generator=model, metadata=asked.append)
    with pytest.raises(InputError, match=r"several promises \(alpha=0.25, alpha=0.5\)"):
        invoke(chain, "x")
    assert (model.drawn, asked) == ([], [])


def test_alpha_defaults_to_the_only_level() -> None:
    chain = make_chain()
    assert chain.invoke("x") == chain.invoke("x", alpha="0.25")


def test_alpha_of_a_call_overrides_the_field_for_that_call(two_levels: CalibrationArtifact) -> None:
    chain = make_chain(two_levels, alpha="0.25")
    assert chain.invoke("x").guarantee.alpha == "0.25"
    assert chain.invoke("x", alpha="0.5").guarantee.alpha == "0.5"
    # And only for that call.
    assert chain.invoke("x").guarantee.alpha == "0.25"


def test_invoke_refuses_unknown_arguments_before_drawing(invoke: Invoke) -> None:
    model = ScriptedModel(texts=TEXTS)
    with pytest.raises(TypeError, match="temperature"):
        invoke(make_chain(generator=model), "x", temperature=0.2)
    assert model.drawn == []


@pytest.mark.parametrize(
    ("field", "value"), [("alpha", "0.5"), ("artifact", None), ("generator", ScriptedModel())]
)
def test_fields_of_a_chain_cannot_be_assigned(
    two_levels: CalibrationArtifact, field: str, value: Any
) -> None:
    chain = make_chain(two_levels, alpha="0.25")
    with pytest.raises(ValueError, match="frozen"):
        setattr(chain, field, value)


def test_metadata_function_is_allowed_without_features_that_read_it(two_levels: CalibrationArtifact) -> None:
    assert not make_chain(two_levels, metadata=topic_of, alpha="0.5").invoke("an easy").abstained
