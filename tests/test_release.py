"""Releases have consistent versions and files, and workflows call scripts that exist.

`.ci/release` checks the same before it builds. Nothing is built here, and no network is needed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mkdocs.utils.yaml import yaml_load
from packaging.requirements import Requirement
from packaging.version import Version

from tests.scripts import load_module

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCKS = sorted((ROOT / ".ci" / "locks").glob("*.txt"))
MAIN = "langchain-cfc"
(VERSION,) = re.findall('"(.+)"$', (ROOT / "langchain_cfc/support/__init__.py").read_text("utf-8").strip())


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """The module `.ci/release.py`, whose folder is no package."""
    return load_module(ROOT / ".ci" / "release.py")


@pytest.fixture
def checkout_copy(tmp_path: Path) -> Path:
    """The files that are compared, to be changed."""
    names = ["pyproject.toml", "LICENSE", "CHANGELOG.md", "mkdocs.yml", "CITATION.cff"]
    names += [str(path.relative_to(ROOT)) for path in ROOT.glob("integrations/*/pyproject.toml")]
    names += [str(path.relative_to(ROOT)) for path in ROOT.glob("integrations/*/LICENSE")]
    names += [str(path.relative_to(ROOT)) for path in ROOT.glob("integrations/*/src/*/py.typed")]
    for name in [*names, "langchain_cfc/support/__init__.py", "langchain_cfc/py.typed"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_distributions_have_consistent_versions_and_files(release: ModuleType) -> None:
    assert len(release.read_distributions()) == 1 + len(list((ROOT / "integrations").glob("*/README.md")))
    assert release.list_problems() == []


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return what changes a file of the copy."""

    def change(root: Path) -> None:
        text = (root / name).read_text(encoding="utf-8")
        assert old in text
        (root / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (replace("integrations/ray/pyproject.toml", f'"{VERSION}"', '"0.0.1"'), "ray has version 0.0.1"),
        (
            replace("langchain_cfc/support/__init__.py", f'"{VERSION}"', '"9.2.0"'),
            "write langchain-cfc>=9.2,<9.3",
        ),
        (
            replace("integrations/openai/pyproject.toml", f"{MAIN}>=", f"{MAIN}>"),
            "openai depends on langchain-cfc",
        ),
        (
            replace("integrations/server/pyproject.toml", "Homepage", "Home"),
            "other [project.urls] than langchain-cfc",
        ),
        (lambda root: (root / "integrations/uqlm/LICENSE").unlink(), "uqlm has no copy of LICENSE"),
        (lambda root: (root / "langchain_cfc/py.typed").unlink(), "langchain-cfc has no py.typed"),
        (replace("CHANGELOG.md", f"## [{VERSION}]", "## [0.0.9]"), f"write '## [{VERSION}] - <date>'"),
    ],
)
def test_release_checks_name_inconsistencies(
    release: ModuleType, checkout_copy: Path, change: Callable[[Path], None], said: str
) -> None:
    change(checkout_copy)
    problems = release.list_problems(checkout_copy)
    assert any(said in problem for problem in problems), problems


def test_release_tag_requires_an_address_and_a_dated_changelog_entry(
    release: ModuleType, checkout_copy: Path
) -> None:
    replace("CHANGELOG.md", "## [Unreleased]", "## [Unreleased]\n\n- New.")(checkout_copy)
    text = (checkout_copy / "CHANGELOG.md").read_text(encoding="utf-8")
    (checkout_copy / "CHANGELOG.md").write_text(
        re.sub(r"\d{4}-\d\d-\d\d", "2020-01-01", text), encoding="utf-8"
    )
    problems = "\n".join(release.list_tag_problems(checkout_copy))
    assert "move what is below Unreleased" in problems
    assert f"CHANGELOG.md: {VERSION} is not dated" in problems
    address = '[project.urls]\nRepository = "https://git.example/cfc"'
    for file in [checkout_copy / "pyproject.toml", *checkout_copy.glob("*/*/pyproject.toml")]:
        replace(str(file.relative_to(checkout_copy)), "[project.urls]", address)(checkout_copy)
    assert release.list_problems(checkout_copy) == []
    problems = "\n".join(release.list_tag_problems(checkout_copy))
    assert "mkdocs.yml: repo_url is [], and [project.urls] has Repository = https://git.example" in problems
    replace("mkdocs.yml", "# repo_url: https://...", "repo_url: https://git.example/cfc")(checkout_copy)
    replace("CITATION.cff", "license:", "repository-code: https://git.example/cfc\nlicense:")(checkout_copy)
    assert "git.example" not in "\n".join(release.list_tag_problems(checkout_copy))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_only_scripts_of_ci(path: Path) -> None:
    steps = [step for job in yaml_load(path.read_text("utf-8"))["jobs"].values() for step in job["steps"]]
    installs = "sudo apt-get install "  # programs that tests are skipped without
    commands = [step["run"] for step in steps if not step.get("run", installs).startswith(installs)]
    assert commands or path.name == "release.yml"
    for command in commands:
        script = ROOT / command.split()[0]
        assert script.parent.name == ".ci"
        assert os.access(script, os.X_OK)


def test_workflows_cover_every_python_and_integration() -> None:
    pythons = re.findall(r":: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    jobs = {path.name: yaml_load(path.read_text("utf-8"))["jobs"] for path in WORKFLOWS}
    assert jobs["tests.yml"]["tests"]["strategy"]["matrix"]["python-version"] == pythons
    integrations = sorted(path.parent.name for path in ROOT.glob("integrations/*/pyproject.toml"))
    assert jobs["long.yml"]["integrations"]["strategy"]["matrix"]["integration"] == integrations


def test_ci_run_runs_every_script_of_the_tests_workflow() -> None:
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    scripts = set(re.findall(r"run: (\.ci/\w+)", text))
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    # The site is built in the tests that `.ci/tests` runs, and in an environment of its own by the long ones.
    assert {script for script in scripts if f"\n{script}" not in run} == {".ci/docs"}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_locks_hold_hashes_and_no_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\w)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert MAIN not in text


def list_needed(project: dict[str, Any], extra: str) -> list[Requirement]:
    """Return what an extra asks for, those that it names of ours included."""
    found = []
    for text in project["dependencies"] + project["optional-dependencies"][extra]:
        one = Requirement(text)
        if one.name == MAIN:
            found += [each for name in one.extras for each in list_needed(project, name)]
        else:
            found.append(one)
    return found


@pytest.mark.parametrize(
    ("lock", "extra"),
    [
        ("dev", "dev"),
        ("server", "calibrate"),
        ("server", "openai"),
        ("server", "signing"),
    ],
)
def test_locks_satisfy_the_requirements(release: ModuleType, lock: str, extra: str) -> None:
    text = (ROOT / ".ci" / "locks" / f"{lock}.txt").read_text(encoding="utf-8")
    locked: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE):
        locked.setdefault(name, []).append(Version(version))
    main, *others = release.read_distributions()
    needed = list_needed(main.project, extra)
    if lock == "server":
        (server,) = [one for one in others if one.folder.name == "server"]
        needed += [Requirement(text) for text in server.project["dependencies"] if MAIN not in text]
    for one in needed:
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        # One release for each range of Pythons.
        assert any(one.specifier.contains(version) for version in locked[name]), one
