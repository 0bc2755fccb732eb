"""The public names, and which package may import which: the order of the map in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import langchain_cfc
import langchain_cfc.labelers
import langchain_cfc.verifiers

PACKAGE = Path(langchain_cfc.__file__).parent

# Names that users and other distributions rely on; a name may be added, none may go.
PROMISED = {
    "langchain_cfc": {
        "CFCChatModel",
        "CFCError",
        "CFCResult",
        "CFCRunnable",
        "CalibrationArtifact",
        "Candidate",
        "FeatureMap",
        "Guarantee",
        "PromptRecord",
        "calibrate",
        "evaluate",
        "read_records",
    },
    "langchain_cfc.certificates": {"certify"},
    "langchain_cfc.demo": {"demo_chain", "load_recording"},
    "langchain_cfc.runnable": {"ABSTAIN_MESSAGE", "CFCChatModel", "changes_generator", "find_cfc_runnable"},
    "langchain_cfc.sampling": {"DrawnCandidate", "walk_runnables", "without_streaming_and_cache"},
    "langchain_cfc.thresholds": {"ConditionalThreshold", "GroupedThreshold"},
    "langchain_cfc.verifiers": {
        "EntailmentJudge",
        "ModelJudge",
        "SelfConsistency",
        "SequenceProbability",
        "from_evaluator",
        "messages_to_text",
    },
    "langchain_cfc.records": {"Candidate", "PromptRecord", "Provenance", "read_records", "write_records"},
}

# A package and the packages that it may import, each of which stands above it. What is new gets a line of its
# own: where it stands is a decision, not an accident.
BASE = {"support", "errors"}
DATA = BASE | {"candidates", "thresholds", "set_rules", "features", "draw_rules"}
FILES = DATA | {"scoring", "records", "guarantee"}
OFFLINE = FILES | {"artifact", "decision", "certificates"}
SERVING = {"execution", "sampling", "verifiers"}
IMPORTS: dict[str, set[str]] = {
    "errors": set(),
    "support": {"errors"},
    "no_answers": {"support"},
    "candidates": BASE | {"no_answers"},
    "thresholds": BASE,
    "features": BASE | {"candidates"},
    "set_rules": BASE | {"candidates", "features", "thresholds"},
    "draw_rules": BASE | {"candidates", "features"},
    "scoring": BASE,
    "records": BASE | {"candidates", "scoring", "no_answers"},
    "guarantee": BASE | {"candidates", "features", "thresholds", "set_rules"},
    "artifact": FILES,
    "decision": FILES | {"artifact"},
    "certificates": FILES | {"artifact", "decision"},
    "calibration": OFFLINE,
    "evaluation": OFFLINE,
    "execution": BASE,
    "sampling": BASE | {"no_answers", "candidates", "execution"},
    "verifiers": BASE | {"no_answers", "candidates", "draw_rules", "execution", "sampling"},
    "claims": BASE | {"no_answers"} | SERVING,
    "labelers": BASE | {"no_answers", "execution", "sampling", "verifiers"},
    "runnable": DATA | {"no_answers"} | SERVING | {"scoring", "guarantee", "artifact", "decision", "claims"},
    "demo": OFFLINE
    | {"calibration", "claims", "evaluation", "execution", "runnable", "sampling", "verifiers"},
    "cli": OFFLINE
    | {
        "no_answers",
        "calibration",
        "evaluation",
        "sampling",
        "runnable",
        "demo",
    },
    "extend": {"support", "records", "sampling", "verifiers"},
}

# What each package may import from outside; `require`d modules, which come with an extra, count as well.
NOTHING: frozenset[str] = frozenset()
NUMPY = frozenset({"numpy", "typing_extensions"})
PLAIN = NUMPY | {"pydantic", "pydantic_core"}
LANGCHAIN = PLAIN | {"langchain_core"}
PLOTS = frozenset({"matplotlib"})  # `plot` methods, at the call
OUTSIDE: dict[str, frozenset[str]] = {
    **dict.fromkeys(["errors", "no_answers", "extend"], NOTHING),
    "support": PLOTS
    | {"numpy", "pydantic", "pydantic_core", "filelock", "sqlalchemy", "markdown_it", "pandas"},
    **dict.fromkeys(["candidates", "set_rules", "features", "draw_rules", "decision"], NUMPY),
    "thresholds": NUMPY | {"scipy"},  # for ranks that hold with confidence
    **dict.fromkeys(["scoring", "guarantee"], PLAIN),
    "artifact": PLAIN | PLOTS | {"cryptography"},
    "records": PLAIN | {"pyarrow"},
    "certificates": PLAIN | {"scipy", "cvxpy"},
    "calibration": PLAIN,
    "evaluation": PLAIN | PLOTS | {"scipy"},
    **dict.fromkeys(["execution", "verifiers", "labelers", "runnable", "demo"], LANGCHAIN),
    "sampling": LANGCHAIN | {"langchain"},
    "claims": LANGCHAIN | {"sentencex"},
    "cli": frozenset({"typer", "rich", "pydantic"}),
}


def list_modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def find_imports(source: str) -> Iterator[str]:
    """The dotted names that a module imports at any depth, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module="langchain_cfc", names=names, level=0):
                yield from (f"langchain_cfc.{name.name}" for name in names)
            case ast.ImportFrom(module=str() as module, level=0):
                yield module
            case ast.ImportFrom():
                pytest.fail(f"line {node.lineno}: a relative import hides which package it is from")
            case ast.Call(func=ast.Name(id="require"), args=[ast.Constant(value=str() as module), *_]):
                yield module
            case _:
                pass


@cache
def find_imports_of(path: Path) -> frozenset[str]:
    """Return the imports of a file, which is read once."""
    return frozenset(find_imports(path.read_text()))


def find_inner_imports(path: Path) -> set[str]:
    """The other packages that a module imports."""
    names = (name.split(".") for name in find_imports_of(path))
    return {parts[1] for parts in names if parts[0] == "langchain_cfc"} - {package_of(path)}


def find_outer_imports(path: Path) -> set[str]:
    """The distributions that a module imports."""
    roots = {name.partition(".")[0] for name in find_imports_of(path)}
    # Python 3.10 has no `tomllib` yet.
    return roots - {"langchain_cfc", "tomllib"} - sys.stdlib_module_names


def find_loaded(statement: str) -> set[str]:
    """The root modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return set(run.stdout.split())


@pytest.mark.parametrize("module", PROMISED)
def test_promised_names_exist(module: str) -> None:
    home = importlib.import_module(module)
    for name in PROMISED[module]:
        assert getattr(home, name) is not None
        assert name in dir(home)
        assert name in home.__all__


@pytest.mark.parametrize("package", [langchain_cfc, langchain_cfc.verifiers])
def test_names_of_all_can_be_imported(package: Any) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    # Constants first, as Ruff sorts them.
    assert sorted(package.__all__, key=lambda name: (not name.isupper(), name)) == package.__all__
    assert set(package.__all__) <= set(dir(package))


def test_lazy_names_are_those_of_their_modules() -> None:
    for home, names in langchain_cfc._NAMES.items():
        module = importlib.import_module(f"langchain_cfc.{home}")
        assert all(getattr(langchain_cfc, name) is getattr(module, name) for name in names)
    listed = {name for names in langchain_cfc._NAMES.values() for name in names}
    assert listed | {"__version__"} == set(langchain_cfc.__all__)


def test_public_names_differ_from_module_names() -> None:
    # Once such a module is imported, the name would mean it.
    assert not set(langchain_cfc.__all__) & set(langchain_cfc._NAMES)


def test_type_checking_imports_match_lazy_names() -> None:
    # Type checkers read the imports under TYPE_CHECKING; the interpreter never does.
    tree = ast.parse(Path(langchain_cfc.__file__).read_text())
    names = {
        (node.module or "").removeprefix("langchain_cfc."): {alias.name for alias in node.names}
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }
    assert names == {home: set(listed) for home, listed in langchain_cfc._NAMES.items()}


@pytest.mark.parametrize("name", ["CFCRunable", "artifacts", "_homes", "__wrapped__"])
def test_package_refuses_unknown_attributes(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'langchain_cfc' has no attribute '{name}'"):
        getattr(langchain_cfc, name)
    assert not hasattr(langchain_cfc, name)
    with pytest.raises(ImportError, match=name):
        exec(f"from langchain_cfc import {name}", {})  # noqa: S102 - the statement is the test


def test_every_package_has_a_line_in_the_import_tables() -> None:
    found = {package_of(path) for path in list_modules()} - {"__init__"}
    assert found == set(IMPORTS), "a new package needs a line in IMPORTS, in OUTSIDE and on the map"
    assert set(OUTSIDE) == set(IMPORTS)


def test_modules_have_at_least_40_and_at_most_600_lines() -> None:
    sizes = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in list_modules()
        if path.name != "__init__.py"
    }
    assert not {name: size for name, size in sizes.items() if not 40 <= size <= 600}


def test_import_table_is_ordered_without_cycles() -> None:
    # So there is no circle. `_extras` and others that stand beside are named like the rest.
    order = list(IMPORTS)
    for package, allowed in IMPORTS.items():
        below = [other for other in allowed if order.index(other) >= order.index(package)]
        assert not below, f"{package} may not import {below}"


@pytest.mark.parametrize("path", list_modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_import_only_what_their_package_may(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        assert find_outer_imports(path) == set()
        return
    package = package_of(path)
    assert find_inner_imports(path) <= IMPORTS[package]
    assert find_outer_imports(path) <= OUTSIDE[package]


def test_every_permitted_library_is_used() -> None:
    # Otherwise the table would say less than it seems to.
    used: dict[str, set[str]] = {}
    for path in list_modules():
        used.setdefault(package_of(path), set()).update(find_outer_imports(path))
    for library in ("langchain_core", "scipy", "cvxpy", "typer", "rich"):
        permitted = {package for package, names in OUTSIDE.items() if library in names}
        users = {package for package, names in used.items() if library in names}
        assert users == permitted


# What each companion may import: packages of the core, all names without an underscore, as both are released
# together; and these companions, where they are installed.
RECORDS = {"candidates", "draw_rules", "errors", "records", "scoring", "support", "cli"}
REPORTS = RECORDS | {"artifact", "calibration", "certificates", "evaluation", "guarantee", "thresholds"}
COMPANIONS: dict[str, tuple[set[str], set[str]]] = {
    "collect": (REPORTS | {"claims", "features", "labelers", "no_answers", "runnable"} | SERVING, set()),
    "lab": (REPORTS | {"decision", "features", "set_rules"}, set()),
    "monitor": (REPORTS - {"draw_rules", "scoring"} | {"features", "runnable"}, {"lab"}),
}
INTEGRATIONS = PACKAGE.parent / "integrations"


def test_core_imports_no_companion_and_no_integration() -> None:
    for path in list_modules():
        assert not any(name.startswith("langchain_cfc_") for name in find_imports_of(path)), path


@pytest.mark.parametrize("name", COMPANIONS)
def test_companions_import_only_what_their_line_names(name: str) -> None:
    packages, others = COMPANIONS[name]
    paths = list((INTEGRATIONS / name / "src").rglob("*.py"))
    names = {
        one.split(".")[1]
        for path in paths
        for one in find_imports_of(path)
        if one.startswith("langchain_cfc.")
    }
    # A name of the root package stands for the package that it comes from.
    assert names - set(langchain_cfc.__all__) - {"extend"} == packages
    roots = {one.partition(".")[0] for path in paths for one in find_imports_of(path)}
    assert {root for root in roots if root.startswith("langchain_cfc_")} == {
        f"langchain_cfc_{other}" for other in (name, *others)
    }


def find_names_taken(*integrations: str) -> set[tuple[str, str]]:
    """The modules of the core that integrations import from, and the names that they take."""
    return {
        (str(node.module), one.name)
        for integration in integrations
        for path in (INTEGRATIONS / integration / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "langchain_cfc"
        for one in node.names
    }


def test_companions_import_no_private_name() -> None:
    taken = find_names_taken(*COMPANIONS)
    assert len(taken) > 100
    private = {
        (module, name)
        for module, name in taken
        if name != "__version__" and any(part.startswith("_") for part in (*module.split("."), name))
    }
    assert private == set()


def test_integrations_import_only_public_names() -> None:
    systems = {path.parents[1].name for path in INTEGRATIONS.glob("*/src/*/")} - set(COMPANIONS)
    for module, name in find_names_taken(*systems):
        # What adds commands uses the helpers of the command line.
        is_open = module.count(".") <= 1 or module.startswith("langchain_cfc.cli.")
        assert is_open, f"{module} is internal: `langchain_cfc.extend` has what may be used"
        home = importlib.import_module(module)
        # A module that is no package has no list of its own.
        public = getattr(home, "__all__", [name for name in vars(home) if not name.startswith("_")])
        assert name in public, module


def test_find_imports_sees_all_kinds_of_imports() -> None:
    source = """
import numpy.typing as npt
from langchain_cfc import artifact, calibration
if TYPE_CHECKING:
    from langchain_cfc.runnable import CFCResult
def later():
    import scipy.stats
    require("cvxpy.problems", "verify", "this")
"""
    assert set(find_imports(source)) == {
        "numpy.typing",
        "langchain_cfc.artifact",
        "langchain_cfc.calibration",
        "langchain_cfc.runnable",
        "scipy.stats",
        "cvxpy.problems",
    }


def test_importing_langchain_cfc_loads_no_other_library() -> None:
    before, after = find_loaded("pass"), find_loaded("import langchain_cfc")
    assert "langchain_cfc" in after
    assert not after - before - {"langchain_cfc"} - sys.stdlib_module_names


def test_importing_errors_loads_no_heavy_library() -> None:
    assert not {"numpy", "pydantic", "langchain_core"} & find_loaded("from langchain_cfc import CFCError")


HEAVY = {"scipy", "cvxpy", "matplotlib", "pandas", "typer", "rich", "openai", "anthropic", "langchain_openai"}


def test_calibrate_and_decide_do_not_load_langchain() -> None:
    loaded = find_loaded(
        "from langchain_cfc import CalibrationArtifact, FeatureMap, Guarantee, PromptRecord\n"
        "from langchain_cfc import calibrate, evaluate\n"
        "from langchain_cfc.decision import decide\n"
        "from langchain_cfc.thresholds import ConditionalThreshold"
    )
    assert "langchain_cfc" in loaded
    assert not {"langchain_core", "langsmith"} & loaded


SERVE = """
from langchain_core.language_models import FakeListChatModel
from langchain_cfc import CalibrationArtifact, Candidate, CFCChatModel, CFCResult, CFCRunnable, PromptRecord
from langchain_cfc import calibrate, read_records
from langchain_cfc.demo.replay import ReplayChatModel
from langchain_cfc.verifiers import SequenceProbability, from_evaluator
records = [
    PromptRecord(id=str(k), input=str(k), candidates=(Candidate(text="a", score=k / 40, correct=True),))
    for k in range(1, 40)
]
artifact = calibrate(records, alpha=0.25, features="1")
chain = CFCRunnable(
    generator=FakeListChatModel(responses=["a"]), verifier=lambda prompt, candidates: [0.1], artifact=artifact
)
assert chain.invoke("x").best == "a"
"""


def test_calibrating_and_serving_load_no_heavy_library() -> None:
    loaded = find_loaded(SERVE)
    assert {"numpy", "pydantic", "langchain_core"} <= loaded
    assert not HEAVY & loaded
