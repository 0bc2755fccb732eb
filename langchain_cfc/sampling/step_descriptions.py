"""Describe the steps around a model as plain data: prompt templates, parsers, maps and functions.

Equal descriptions mean equal steps, in any process. A step is described by its class and all settings that
differ from their defaults, and only if each of them can be. Schemas of pydantic classes are described if the
class has no code of its own, such as a validator, which could change what is parsed.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableLambda
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from langchain_cfc.sampling.code_identity import find_named_class, is_known_code, is_known_module, name_code

# Fields that concern tracing, caching and schemas, and that do not change what a step returns.
_IGNORED_FIELDS = frozenset(
    {
        *(
            "name",
            "callbacks",
            "metadata",
            "tags",
            "verbose",
            "cache",
            "rate_limiter",
            "custom_get_token_ids",
        ),
        *(
            "input_type",
            "input_types",
            "custom_input_type",
            "custom_output_type",
            "config",
            "config_factories",
        ),
    }
)
# What such a part does depends on more than its settings: on documents, on a call's config, on a server.
_UNDESCRIBED = (BaseLanguageModel, BaseRetriever, BaseTool, DynamicRunnable, SecretStr)
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)

DescribeRunnable = Callable[[Runnable[Any, Any]], Any]


def describe_step(value: Any, describe_runnable: DescribeRunnable) -> Any:
    """Return a step, or a value in it, as plain data.

    Args:
        value: Any object.
        describe_runnable: Called with each Runnable inside; returns its description, None to use this one.

    Returns:
        JSON-compatible data.

    Raises:
        TypeError: If it cannot be described; the message names the part.
    """
    if value is None or type(value) in {bool, int, float, str}:
        return value
    again = partial(describe_step, describe_runnable=describe_runnable)
    if isinstance(value, Runnable) and (found := describe_runnable(value)) is not None:
        return found
    if isinstance(value, type) or is_typeddict(value):
        return _describe_class(value)
    describe = next((one for kinds, one in _DESCRIBE.items() if isinstance(value, kinds)), _describe_object)
    return describe(value, again)


def _describe_function(function: Any, again: Callable[[Any], Any]) -> Any:
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        if not isinstance(owner, (str, type, Runnable)):  # others may change while they serve
            raise _make_error(function, "method of an object")
        return {"method": [again(owner), function.__name__]}
    if isinstance(function, MethodDescriptorType):
        return again(function.__objclass__) + "." + function.__name__
    if not is_known_code(function):
        raise _make_error(function, "function")
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    # Lambdas of one name may differ in their constants, such as the key that they select.
    code = getattr(function, "__code__", None) if function.__name__ == "<lambda>" else None
    constants = [] if code is None else [one for one in code.co_consts if type(one) in {str, int, float}]
    return {"function": name_code(function), "holds": again([*cells, *constants])}


def _describe_object(value: Any, again: Callable[[Any], Any]) -> Any:
    if isinstance(value, _UNDESCRIBED):
        raise _make_error(value, "part whose behaviour is not in its settings")
    kind = find_named_class(type(value))
    if not is_known_code(kind):
        raise _make_error(value, "object")
    if isinstance(value, (RunnableLambda, RunnableGenerator)):
        fields = {name: one for name, one in vars(value).items() if callable(one)}
    elif isinstance(value, RunnableBindingBase):
        fields = {"bound": value.bound, "kwargs": value.kwargs}
    elif isinstance(value, BaseModel) and not list_shadowed_methods(value):
        fields = {
            name: one
            for name, one in {**vars(value), **(value.model_extra or {})}.items()
            # Other attributes are caches of what was computed from the fields.
            if name in type(value).model_fields.keys() | (value.model_extra or {}).keys()
            and name not in _IGNORED_FIELDS
            and not is_default(type(value).model_fields.get(name), one)
        }
    else:
        raise _make_error(value, "object")
    return {"class": name_code(kind), **{name: again(one) for name, one in fields.items() if one is not None}}


_DESCRIBE: Mapping[Any, Callable[[Any, Callable[[Any], Any]], Any]] = {
    (list, tuple): lambda value, again: [again(one) for one in value],
    Mapping: lambda value, again: {"mapping": [[again(key), again(one)] for key, one in value.items()]},
    (set, frozenset): lambda value, again: {"set": sorted((again(one) for one in value), key=repr)},
    re.Pattern: lambda value, again: {"pattern": again([value.pattern, value.flags])},
    Enum: lambda value, again: again(value.value),
    partial: lambda value, again: {"partial": again([value.func, value.args, value.keywords])},
    _GETTERS: lambda value, again: {type(value).__name__: again(value.__reduce__()[1])},
    (FunctionType, BuiltinFunctionType, MethodType, MethodDescriptorType): _describe_function,
}


def list_shadowed_methods(value: BaseModel) -> list[str]:
    """Return the names of attributes of an object that replace methods of its class."""
    kind = type(value)
    return [
        name
        for name in vars(value)
        if name not in kind.model_fields and inspect.isfunction(getattr(kind, name, None))
    ]


def is_default(field: FieldInfo | None, value: Any) -> bool:
    """Return whether a field has its default value; False if that cannot be found out."""
    if field is None:
        return False
    try:
        return bool(value == field.get_default(call_default_factory=True, validated_data={}))
    except Exception:  # noqa: BLE001 - a provider's default factory, or a comparison without a boolean result
        return False


def _describe_class(kind: Any) -> Any:
    """Return the name of a known class, or the schema of an own class without code of its own."""
    if is_known_code(kind):
        return name_code(kind)
    if is_typeddict(kind):
        return {"schema": convert_to_openai_tool(kind)}
    if issubclass(kind, BaseModel) and not _has_own_code(kind):
        return {"schema": kind.model_json_schema()}
    if issubclass(kind, BaseException):
        return kind.__qualname__
    raise _make_error(kind, "class with code of its own")


def _has_own_code(kind: type[BaseModel]) -> bool:
    """Return whether a pydantic class, or one that it refers to, validates or writes by own functions."""
    for one in kind.__mro__:
        if is_known_module(one.__module__) or one.__module__.startswith("pydantic"):
            continue
        own = [
            name
            for name, value in vars(one).items()
            if inspect.isroutine(value) or isinstance(value, property)
        ]
        if any(hasattr(BaseModel, name) for name in own):
            return True
    kind.model_json_schema()  # completes a class with references to later ones
    return _holds_own_function(kind.__pydantic_core_schema__)


def _holds_own_function(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return any(_holds_own_function(one) for key, one in schema.items() if key not in {"cls", "metadata"})
    if isinstance(schema, (list, tuple)):
        return any(map(_holds_own_function, schema))
    if not inspect.isroutine(schema):
        return False
    module = getattr(schema, "__module__", None) or "builtins"
    return not (is_known_module(module) or module.startswith("pydantic"))


def _make_error(part: Any, what: str) -> TypeError:
    name = getattr(part, "__name__", None) or type(part).__name__
    return TypeError(f"{name}: a {what}, which cannot be compared")
