"""Name code so that equal names mean equal code: classes and functions of LangChain and of Python itself.

The code of a released package does not change under its name, or only with a new release. A user's own class
or function may change at any time, and what it does depends on all that it calls, on its module's variables
and on other packages. A digest of its source or byte code states none of that, and changes with each
reformatting or Python version. So own code is not compared: it is unnamed, unless an id vouches for it.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, TypeGuard

from langchain_core.runnables.base import RunnableBinding, RunnableBindingBase
from pydantic import BaseModel
from pydantic.fields import FieldInfo

# First parts of the names of packages with LangChain's classes, those of its providers included.
_PREFIXES = ("langchain", "langgraph")
_SUFFIX = "_langchain"


def is_known_code(part: Any) -> bool:
    """Return whether a class or function belongs to Python or a LangChain package, under its own name.

    A function inside a function of such a package counts too, if it comes from the package's file.
    """
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not is_known_module(module):
        return False
    found: Any = sys.modules.get(module)
    if "<locals>" in name:
        code = getattr(part, "__code__", None)
        return code is not None and code.co_filename == getattr(found, "__file__", None)
    for step in name.split("."):
        found = getattr(found, step, None)
    return found is part


def is_transparent(part: Any) -> TypeGuard[RunnableBindingBase[Any, Any]]:
    """Return whether a part is a binding or a retry; other wrappers may change the behaviour arbitrarily."""
    if isinstance(part, RunnableBinding) or not isinstance(part, RunnableBindingBase):
        return isinstance(part, RunnableBinding)
    # Imported late: few chains have other wrappers, and tenacity takes a twentieth of the import time.
    from langchain_core.runnables.retry import RunnableRetry

    return isinstance(part, RunnableRetry)


def is_configured_per_call(part: Any) -> bool:
    """Return whether a part may be another one in each call, so that it is not known yet what answers."""
    # Not imported here, which takes a while: without the module there is no such part.
    module = sys.modules.get("langchain_core.runnables.configurable")
    return module is not None and isinstance(part, module.DynamicRunnable)


def is_known_module(module: str) -> bool:
    """Return whether a module belongs to Python or to a LangChain package, by its name."""
    top = module.partition(".")[0]
    return top.startswith(_PREFIXES) or top.endswith(_SUFFIX) or top in sys.stdlib_module_names


def find_named_class(kind: type) -> type:
    """Return the class that names an object's code; for pydantic's generic classes, the one written."""
    generic = vars(kind).get("__pydantic_generic_metadata__") if issubclass(kind, BaseModel) else None
    origin = (generic or {}).get("origin")
    return origin if isinstance(origin, type) else kind


def name_code(part: Any) -> str:
    """Return the name of a class or function in fingerprints.

    For known code, the package and the name in it, such as `langchain_openai.ChatOpenAI`: releases may move a
    class to another module. For own code only its name, because the module of a script is `__main__`.
    """
    name = str(getattr(part, "__qualname__", None) or type(part).__qualname__)
    return f"{part.__module__.partition('.')[0]}.{name}" if is_known_code(part) else name


def name_in_words(part: Any) -> str:
    """Return what people read about a part that has no fingerprint: its name, or its class's."""
    # Not `getattr`, which would make a model that is only made when it is called.
    name = part.__name__ if inspect.isroutine(part) or isinstance(part, type) else type(part).__name__
    return "a function without a name" if name == "<lambda>" else str(name)


def is_described_by_base(part: object, attribute: str) -> bool:
    """Return whether an attribute of an own class's object comes from a class of LangChain or this library.

    It then describes the base class only: a subclass may override any method. A class speaks for itself if
    the attribute is in its own body, or if its known bases are abstract.
    """
    kind = find_named_class(type(part))
    if is_known_code(kind):
        return False
    for one in kind.__mro__:
        if one.__module__.startswith(_PREFIXES) and is_known_code(one):
            return not getattr(one, "__abstractmethods__", frozenset())
        if attribute in vars(one) or attribute in vars(one).get("__annotations__", {}):
            return False
    return False


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
