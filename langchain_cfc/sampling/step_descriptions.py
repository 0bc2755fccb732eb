"""Describe a chain as plain data: its models, its prompt templates, and all steps around them.

Equal descriptions mean equal steps, in any process. A step is described by its class and all settings that
differ from their defaults, and only if each of them can be. Schemas of pydantic classes are described if the
class has no code of its own, such as a validator, which could change what is parsed.
"""

from __future__ import annotations

import inspect
import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.passthrough import RunnableAssign
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, SecretStr
from typing_extensions import is_typeddict

from langchain_cfc.sampling.code_identity import (
    find_named_class,
    is_default,
    is_known_code,
    is_known_module,
    is_transparent,
    list_shadowed_methods,
    name_code,
    name_in_words,
)
from langchain_cfc.sampling.fingerprints import describe_model

# Fields of Runnables that concern tracing and schemas, and that do not change what a step returns.
_IGNORED_FIELDS = frozenset(
    {
        *("name", "callbacks", "metadata", "tags", "config", "config_factories"),
        *("input_type", "input_types", "custom_input_type", "custom_output_type"),
    }
)
# What such a part does depends on more than its settings: on documents, on a call's config, on a server.
_UNDESCRIBED = (BaseLanguageModel, BaseRetriever, BaseTool, DynamicRunnable, SecretStr)
# Runnables that pass the arguments of a call on to all their parts.
_PASSING_ON = (RunnableParallel, RunnableAssign, RunnableBranch, RunnableWithFallbacks)
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)

Arguments = Mapping[str, Any]
_NO_ARGUMENTS: Arguments = {}


@dataclass
class ChainDescription:
    """What is met in a chain while its steps are described.

    Attributes:
        models: The fingerprints of the models, in the order of the chain.
        prompts: The prompt templates that are steps of their own, as JSON.
        unnamed: Names of the parts that cannot be described.
    """

    models: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    _entered: set[int] = field(default_factory=set)

    def describe(self, value: Any, bound: Arguments = _NO_ARGUMENTS, *, is_last: bool = False) -> Any:
        """Return a step that is called with arguments, or a value in it, as JSON-compatible data.

        Models, and prompt templates between other steps, are replaced by their places in the lists; what
        cannot be described is left out. The output of the last step is that of the whole chain.
        """
        if value is None or type(value) in {bool, int, float, str}:
            return value
        known = len(self.unnamed)
        if id(value) in self._entered:  # a part that holds itself, such as a message history
            self.unnamed.append(name_in_words(value))
            return None
        self._entered.add(id(value))
        try:
            described = self._describe(value, bound, is_last=is_last)
        except Exception:  # noqa: BLE001 - a schema or a setting may fail in ways of its own
            self.unnamed.append(name_in_words(value))
        finally:
            self._entered.remove(id(value))
        is_chain = isinstance(value, (RunnableSequence, RunnableBindingBase, RunnableWithFallbacks))
        return described if is_chain or len(self.unnamed) == known else None

    def _describe(self, value: Any, bound: Arguments, *, is_last: bool) -> Any:
        if known := describe_model(value, bound):
            self.models.append(known)
            return {"model": len(self.models) - 1}
        if isinstance(value, RunnableBindingBase):
            # Other wrappers, such as a message history, may change the prompt.
            self.unnamed += [] if is_transparent(value) else [type(value).__name__]
            return self.describe(value.bound, {**value.kwargs, **bound}, is_last=is_last)
        if isinstance(value, RunnableSequence):
            described = []
            for place, step in enumerate(value.steps):  # LangChain has taken nested sequences apart
                ends = is_last and place == len(value.steps) - 1
                # A sequence passes its arguments to its first step.
                one = self._describe_step(step, {} if place else bound, is_last=ends)
                described += [] if one is None or _is_identity(step, is_last=ends) else [one]
            return described
        before, passed_on = len(self.models), bound if isinstance(value, _PASSING_ON) else {}
        if bound and not passed_on:
            self.unnamed.append(f"the arguments {', '.join(bound)}")
        # What a fallback returns is the chain's output as well.
        ends = is_last and isinstance(value, (RunnableWithFallbacks, list))
        described = _describe_value(value, partial(self.describe, bound=passed_on, is_last=ends))
        if isinstance(value, RunnableWithFallbacks) and len(self.models) > before:
            self.unnamed.append("fallbacks, of which any may answer")
        return described

    def _describe_step(self, step: Any, bound: Arguments, *, is_last: bool) -> Any:
        described = self.describe(step, bound, is_last=is_last)
        if described is None or not isinstance(step, BasePromptTemplate):
            return described
        self.prompts.append(json.dumps(described, sort_keys=True))
        return {"prompt": len(self.prompts) - 1}


def _is_identity(step: Any, *, is_last: bool) -> bool:
    """Return whether a step changes nothing; a message and its text count as the same candidate."""
    if type(step) is RunnablePassthrough:
        return step.func is None and step.afunc is None
    return type(step) is StrOutputParser and is_last


def _describe_value(value: Any, again: Callable[[Any], Any]) -> Any:
    """Return a value without models, where `again` describes what is in it; raise TypeError if unknown."""
    if isinstance(value, type) or is_typeddict(value):
        return _describe_class(value)
    describe = next((one for kinds, one in _DESCRIBE.items() if isinstance(value, kinds)), _describe_object)
    return describe(value, again)


def _describe_function(function: Any, again: Callable[[Any], Any]) -> Any:
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        if not isinstance(owner, (str, type, Runnable)):  # others may change while they serve
            raise TypeError
        return {"method": [again(owner), function.__name__]}
    if isinstance(function, MethodDescriptorType):
        return again(function.__objclass__) + "." + function.__name__
    if not is_known_code(function):
        raise TypeError
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    # Lambdas of one name may differ in their constants, such as the key that they select.
    code = getattr(function, "__code__", None) if function.__name__ == "<lambda>" else None
    constants = [] if code is None else [one for one in code.co_consts if type(one) in {str, int, float}]
    return {"function": name_code(function), "holds": again([*cells, *constants])}


def _describe_object(value: Any, again: Callable[[Any], Any]) -> Any:
    if isinstance(value, _UNDESCRIBED):
        raise TypeError
    kind = find_named_class(type(value))
    if not is_known_code(kind):
        raise TypeError
    if isinstance(value, (RunnableLambda, RunnableGenerator)):
        fields = {name: one for name, one in vars(value).items() if callable(one)}
    elif isinstance(value, BaseModel) and not list_shadowed_methods(value):
        fields = {
            name: one
            for name, one in {**vars(value), **(value.model_extra or {})}.items()
            # Other attributes are caches of what was computed from the fields.
            if name in type(value).model_fields.keys() | (value.model_extra or {}).keys()
            # A message's name and a document's metadata may be part of a prompt.
            and not (isinstance(value, Runnable) and name in _IGNORED_FIELDS)
            and not is_default(type(value).model_fields.get(name), one)
        }
    else:
        raise TypeError
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
    raise TypeError


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
