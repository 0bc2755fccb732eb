"""Check, build and try what a release would publish; `.ci/release` runs this with the tools that it needs.

Nothing is published here. The distributions are left in dist/, the bills of materials in build/sbom/.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
# Lines of a version in the changelog.
MOST_LINES = 60
# It asks for NumPy 1, so it is not installed beside the others; `.ci/integration uqlm` tries it alone.
APART = "langchain-cfc-uqlm"
# A release is announced by its tag, and this is the tag of a version.
TAG = "v{}"


class ReleaseError(Exception):
    """What stands in the way of a release, and what to do about it."""


@dataclass(frozen=True)
class Distribution:
    """One of the distributions that are released together."""

    folder: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        """Its name on PyPI."""
        return str(self.project["name"])

    @property
    def package(self) -> str:
        """The package that it installs."""
        return self.name.replace("-", "_")


def read_distributions(root: Path = ROOT) -> list[Distribution]:
    """Return langchain-cfc and its integrations, in this order."""
    files = [root / "pyproject.toml", *sorted(root.glob("integrations/*/pyproject.toml"))]
    return [
        Distribution(file.parent, tomllib.loads(file.read_text(encoding="utf-8"))["project"])
        for file in files
    ]


def read_version(root: Path = ROOT) -> str:
    """Return the version of langchain-cfc, from where its build reads it."""
    text = (root / "langchain_cfc" / "support" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(version)


def list_version_problems(root: Path = ROOT) -> list[str]:
    """Return where a version is not that of langchain-cfc, or another one would be installed beside it."""
    version = Version(read_version(root))
    wanted = f">={version.major}.{version.minor},<{version.major}.{version.minor + 1}"
    problems = []
    for one in read_distributions(root)[1:]:
        if one.project["version"] != str(version):
            problems.append(
                f"{one.name} has version {one.project['version']}, langchain-cfc {version}: make them equal"
            )
        ours = [Requirement(text) for text in one.project["dependencies"]]
        (main,) = [requirement for requirement in ours if requirement.name == "langchain-cfc"]
        if main.specifier != Requirement(f"langchain-cfc{wanted}").specifier:
            problems.append(f"{one.name} depends on {main}: write langchain-cfc{wanted}")
    return problems


def list_file_problems(root: Path = ROOT) -> list[str]:
    """Return what each distribution lacks beside its code: the licence, a home page, a mark of its types."""
    main, *others = read_distributions(root)
    licence = (root / "LICENSE").read_bytes()
    problems = []
    for one in [main, *others]:
        file = one.folder / "LICENSE"
        if not file.is_file() or file.read_bytes() != licence:
            problems.append(f"{one.name} has no copy of LICENSE: cp LICENSE {one.folder.relative_to(root)}/")
        if one.project.get("urls", {}) != main.project.get("urls", {}) or "urls" not in one.project:
            problems.append(f"{one.name} has no [project.urls], or others than langchain-cfc: copy its own")
        source = root if one is main else one.folder / "src"
        if not (source / one.package / "py.typed").is_file():
            problems.append(f"{one.name} has no py.typed")
    return problems


def read_changes(root: Path = ROOT) -> dict[str, tuple[str | None, list[str]]]:
    """Return the date and the lines of each version in the changelog, the newest first."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    changes = {}
    for part in parts:
        heading, *lines = part.strip().splitlines()
        found = re.fullmatch(r"\[(.+?)\](?: - (\d{4}-\d\d-\d\d))?", heading)
        if found is None:
            msg = f"CHANGELOG.md: {heading!r} is no heading like '[0.1.0] - 2026-01-31'"
            raise ReleaseError(msg)
        changes[found[1]] = (found[2], lines)
    return changes


def list_changelog_problems(root: Path = ROOT) -> list[str]:
    """Return what is wrong with the changelog's entry of this version."""
    version, changes = read_version(root), read_changes(root)
    if list(changes)[:2] != ["Unreleased", version]:
        return [f"CHANGELOG.md: write '## [{version}] - <date>' below '## [Unreleased]'"]
    date, lines = changes[version]
    problems = []
    if date is None:
        problems.append(f"CHANGELOG.md: {version} has no date")
    if len(lines) > MOST_LINES:
        problems.append(
            f"CHANGELOG.md: {version} has {len(lines)} lines, at most {MOST_LINES} are for users to read"
        )
    return problems


def list_unsettled(root: Path = ROOT) -> list[str]:
    """Return what a trial may leave open, and a tagged commit may not."""
    problems = []
    if any(line.strip() for line in read_changes(root)["Unreleased"][1]):
        version = read_version(root)
        problems.append(f"CHANGELOG.md: move what is below Unreleased to {version}, or raise the version")
    repository = read_distributions(root)[0].project["urls"].get("Repository")
    if repository is None:
        problems.append(
            "pyproject.toml: [project.urls] has no Repository: write its address there and in that of each "
            "integration, as repo_url in mkdocs.yml and as repository-code in CITATION.cff"
        )
    for file, key in [("mkdocs.yml", "repo_url"), ("CITATION.cff", "repository-code")]:
        stated = re.findall(rf"^{key}: *(\S+)$", (root / file).read_text(encoding="utf-8"), re.MULTILINE)
        if repository is not None and stated != [repository]:
            problems.append(f"{file}: {key} is {stated or 'missing'}, and pyproject.toml says {repository}")
    return problems


def list_tag_problems(root: Path = ROOT) -> list[str]:
    """Return why the tag cannot be made now: another date, or a tag that is there already."""
    version = read_version(root)
    date, today = read_changes(root)[version][0], dt.datetime.now(dt.timezone.utc).date().isoformat()
    problems = []
    if date != today:
        problems.append(f"CHANGELOG.md: {version} is dated {date}, today is {today}")
    if _say("git", "tag", "--list", TAG.format(version)):
        problems.append(f"the tag {TAG.format(version)} is there already: raise the version")
    return problems


def read_tags() -> list[str]:
    """Return the tags of versions that the commit has."""
    return [tag for tag in _say("git", "tag", "--points-at", "HEAD").split() if tag.startswith("v")]


def list_tree_problems() -> list[str]:
    """Return why the commit is not what would be released: changed files, or a tag of another version."""
    problems = []
    if changed := _say("git", "status", "--porcelain"):
        problems.append(f"the tree is not clean: commit these, or remove them\n{changed}")
    if read_tags() not in ([], [TAG.format(read_version())]):
        problems.append(f"the commit is tagged {read_tags()}, and the version is {read_version()}")
    return problems


def build_distributions(distributions: Sequence[Distribution], out: Path) -> None:
    """Build a source distribution of each, and the wheel from that, and check how PyPI would show them."""
    shutil.rmtree(out, ignore_errors=True)
    for one in distributions:
        command = ["-m", "build", "-q", "--no-isolation", "--outdir", str(out), str(one.folder)]
        _run(sys.executable, *command)
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir())))


def list_content_problems(distributions: Sequence[Distribution], out: Path) -> list[str]:
    """Return what the built files hold too much or too little of, and print their sizes."""
    version, problems = read_version(), []
    for one in distributions:
        wheel = out / f"{one.package}-{version}-py3-none-any.whl"
        source = out / f"{one.package}-{version}.tar.gz"
        if not wheel.is_file() or not source.is_file():
            return [f"{one.name}: {wheel.name} or {source.name} was not built"]
        with zipfile.ZipFile(wheel) as archive:
            inside = set(archive.namelist())
        with tarfile.open(source) as packed:
            shipped = {name.partition("/")[2] for name in packed.getnames()}
        metadata = f"{one.package}-{version}.dist-info/"
        if strange := {name for name in inside if not name.startswith((f"{one.package}/", metadata))}:
            problems.append(f"{wheel.name} holds {sorted(strange)[:5]}")
        if lacking := {f"{one.package}/py.typed", f"{metadata}licenses/LICENSE"} - inside:
            problems.append(f"{wheel.name} lacks {sorted(lacking)}")
        if lacking := {"LICENSE", "README.md", "pyproject.toml"} - shipped:
            problems.append(f"{source.name} lacks {sorted(lacking)}")
        for file, held in ((wheel, inside), (source, shipped)):
            print(f"   {file.name}: {file.stat().st_size / 1024:,.0f} KiB, {len(held)} files")
    return problems


def find_pythons() -> tuple[list[str], list[str]]:
    """Return the supported Pythons that run here, and the versions of those that do not."""
    found, missing = [], []
    for text in read_distributions()[0].project["classifiers"]:
        if version := re.search(r":: (3\.\d+)$", text):
            python = shutil.which(f"python{version[1]}")
            ran = python and subprocess.run([python, "--version"], capture_output=True, check=False)
            if python and ran and ran.returncode == 0:
                found.append(python)
            else:
                missing.append(version[1])
    return found, missing


def try_wheel(python: str, names: Sequence[str], out: Path, folder: Path) -> Path:
    """Install built wheels in a fresh environment and run the demo there, outside the checkout.

    Args:
        python: The interpreter of the environment.
        names: The distributions to install, langchain-cfc the first.
        out: The folder with the wheels.
        folder: An empty folder for the environment and for what the demo writes.

    Returns:
        The environment's interpreter.
    """
    _run(python, "-m", "venv", str(folder / "venv"))
    inside = folder / "venv" / "bin"
    pip = [str(inside / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # First our own, from these wheels alone; what they need then comes from the index.
    _run(*pip, "--no-deps", "--no-index", "--find-links", str(out), *names)
    version = read_version()
    _run(*pip, f"langchain-cfc[calibrate]=={version}", *(f"{name}=={version}" for name in names[1:]))
    _run(*pip[:3], "check", cwd=folder)
    packages = [name.replace("-", "_") for name in names]
    script = (
        f"import sys, {', '.join(packages)}\n"
        f"for one in ({''.join(f'{package}, ' for package in packages)}):\n"
        "    assert one.__file__.startswith(sys.prefix), one.__file__\n"
    )
    _run(str(inside / "python"), "-c", script, cwd=folder)
    program = str(inside / "langchain-cfc")
    if (said := _say(program, "--version", cwd=folder)).split()[-1] != version:
        msg = f"langchain-cfc --version says {said!r}, not {version}"
        raise ReleaseError(msg)
    shown = _say(program, "demo", cwd=folder)
    if "at most 5% wrong" not in shown.replace(" %", "%"):
        msg = f"langchain-cfc demo does not show its certified rates:\n{shown}"
        raise ReleaseError(msg)
    return inside / "python"


def write_bills_of_materials(python: Path, out: Path) -> None:
    """Write what an environment with langchain-cfc holds, and what the server's container installs."""
    out.mkdir(parents=True, exist_ok=True)
    version = read_version()
    tool = [sys.executable, "-m", "cyclonedx_py"]
    common = ["--of", "JSON", "--output-reproducible", "--validate"]
    library = out / f"langchain-cfc-{version}.cdx.json"
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    _run(*tool, "environment", *common, *options, "-o", str(library), str(python))
    server = out / f"langchain-cfc-server-{version}.cdx.json"
    _run(*tool, "requirements", *common, "-o", str(server), str(ROOT / ".ci" / "locks" / "server.txt"))
    for file in (library, server):
        print(f"   {file.name}: {file.read_text(encoding='utf-8').count('pkg:pypi/')} references to packages")


def main() -> int:
    """Run all checks in turn and stop at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", action="store_true", help="sign the tag of this version in the end")
    tagging = parser.parse_args().tag
    distributions, version, out = read_distributions(), read_version(), ROOT / "dist"
    settled = tagging or bool(read_tags())
    try:
        with _step("the tree, versions, changelog, licences, addresses"):
            problems = list_tree_problems() + list_version_problems() + list_file_problems()
            problems += list_changelog_problems()
            problems += list_unsettled() if settled else []
            _refuse(problems + (list_tag_problems() if tagging else []))
        with _step(f"building {len(distributions)} distributions"):
            build_distributions(distributions, out)
            _refuse(list_content_problems(distributions, out))
        pythons, missing = find_pythons()
        if missing and (settled or not pythons):
            _refuse([f"Python {', '.join(missing)} must run here: install it, and put it in PATH"])
        for python in pythons:
            with _step(f"wheel and demo with {python}"), tempfile.TemporaryDirectory() as folder:
                interpreter = try_wheel(python, ["langchain-cfc"], out, Path(folder))
                if python == pythons[-1]:
                    write_bills_of_materials(interpreter, ROOT / "build" / "sbom")
        names = [one.name for one in distributions if one.name != APART]
        with _step(f"all wheels but {APART} with {pythons[-1]}"), tempfile.TemporaryDirectory() as folder:
            try_wheel(pythons[-1], names, out, Path(folder))
        if tagging:
            with _step(f"signing {TAG.format(version)}"):
                _run("git", "tag", "-s", TAG.format(version), "-m", f"langchain-cfc {version}", cwd=ROOT)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        output = getattr(error, "output", None)
        print(f"no release: {error}\n{output or ''}", file=sys.stderr)
        return 1
    if not settled:
        absent = [f"Python {one} was not found here" for one in missing]
        for problem in list_unsettled() + list_tag_problems() + absent:
            print(f"before a tag: {problem}")
    print(f"{version} is ready in {out.relative_to(ROOT)}/" + (", and tagged" if tagging else ""))
    return 0


@contextmanager
def _step(name: str) -> Iterator[None]:
    print(f"== {name}", flush=True)
    start = time.monotonic()
    yield
    print(f"   {time.monotonic() - start:.0f} s", flush=True)


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ReleaseError("\n".join(["", *problems]))


def _environment() -> dict[str, str]:
    """Return the environment without what would lead Python to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _run(*command: str, cwd: Path = ROOT) -> None:
    """Run a command; its output is shown only with the error if it fails."""
    subprocess.run(
        command,
        cwd=cwd,
        env=_environment(),
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _say(*command: str, cwd: Path = ROOT) -> str:
    ran = subprocess.run(command, cwd=cwd, env=_environment(), check=True, text=True, capture_output=True)
    return ran.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
