"""Check, build and try what a release would publish; `.ci/release` runs this with the tools that it needs.

Nothing is published here. The distributions are left in dist/, the bills of materials in build/sbom/.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
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
# It asks for NumPy 1, so it is not installed beside the others; `.ci/integration uqlm` tries it alone.
APART = "langchain-cfc-uqlm"


@dataclass(frozen=True, eq=False)
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


def list_problems(root: Path = ROOT) -> list[str]:
    """Return where distributions differ in version, licence or addresses, or the changelog is wrong."""
    main, *others = read_distributions(root)
    text, version = read_version(root), Version(read_version(root))
    wanted = f"langchain-cfc>={version.major}.{version.minor},<{version.major}.{version.minor + 1}"
    licence, problems = (root / "LICENSE").read_bytes(), []
    for one in others:
        if one.project["version"] != text:
            problems.append(f"{one.name} has version {one.project['version']}, and langchain-cfc {text}")
        needed = map(Requirement, one.project["dependencies"])
        (ours,) = [each for each in needed if each.name == "langchain-cfc"]
        if ours.specifier != Requirement(wanted).specifier:
            problems.append(f"{one.name} depends on {ours}: write {wanted}")
        if not (one.folder / "LICENSE").is_file() or (one.folder / "LICENSE").read_bytes() != licence:
            problems.append(f"{one.name} has no copy of LICENSE")
        if one.project.get("urls") != main.project["urls"]:
            problems.append(f"{one.name} has other [project.urls] than langchain-cfc")
    sources = {main: root, **{one: one.folder / "src" for one in others}}
    problems += [
        f"{one.name} has no py.typed"
        for one, source in sources.items()
        if not (source / one.package / "py.typed").is_file()
    ]
    headings = read_headings(root)
    if headings[:1] != ["[Unreleased]"] or not headings[1].startswith(f"[{text}] - "):
        problems.append(f"CHANGELOG.md: write '## [{text}] - <date>' below '## [Unreleased]'")
    return problems


def list_tag_problems(root: Path = ROOT) -> list[str]:
    """Return what a trial may leave open, and a tagged version may not."""
    version, today = read_version(root), dt.datetime.now(dt.timezone.utc).date().isoformat()
    problems = []
    if f"[{version}] - {today}" not in read_headings(root):
        problems.append(f"CHANGELOG.md: {version} is not dated {today}, which is today")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(r"^## \[Unreleased\]\s+## ", changelog, re.MULTILINE):
        problems.append(f"CHANGELOG.md: move what is below Unreleased to {version}, or raise the version")
    repository = read_distributions(root)[0].project["urls"].get("Repository")
    for file, key in [("mkdocs.yml", "repo_url"), ("CITATION.cff", "repository-code")]:
        stated = re.findall(rf"^{key}: *(\S+)$", (root / file).read_text(encoding="utf-8"), re.MULTILINE)
        if stated != [repository]:
            problems.append(f"{file}: {key} is {stated}, and [project.urls] has Repository = {repository}")
    return problems


def read_headings(root: Path) -> list[str]:
    """Return the headings of versions in the changelog, the newest first."""
    return re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


def build_wheels(distributions: list[Distribution], out: Path) -> None:
    """Build each source distribution and its wheel, and check what they hold and how PyPI shows them."""
    shutil.rmtree(out, ignore_errors=True)
    for one in distributions:
        run(sys.executable, "-m", "build", "-q", "--no-isolation", "--outdir", str(out), str(one.folder))
        (wheel,) = out.glob(f"{one.package}-*.whl")
        inside = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
        if inside != {one.package, f"{one.package}-{read_version()}.dist-info"}:
            sys.exit(f"no release: {wheel.name} holds {sorted(inside)}")
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir())))


def try_wheels(python: str, names: list[str], out: Path, folder: Path) -> None:
    """Install built wheels in a fresh environment and run the demo there, outside the checkout.

    Args:
        python: The interpreter of the environment.
        names: The distributions to install, langchain-cfc the first.
        out: The folder with the wheels.
        folder: An empty folder for the environment and for what the demo writes.
    """
    run(python, "-m", "venv", str(folder / "venv"))
    inside = folder / "venv" / "bin"
    pip = [str(inside / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # First our own, from these wheels alone; what they need then comes from the index.
    run(*pip, "--no-deps", "--no-index", "--find-links", str(out), *names)
    run(*pip, f"langchain-cfc[calibrate]=={read_version()}", *names[1:])
    run(*pip[:3], "check", cwd=folder)
    run(str(inside / "python"), "-c", f"import {', '.join(names).replace('-', '_')}", cwd=folder)
    if "at most 5% wrong" not in run(str(inside / "langchain-cfc"), "demo", cwd=folder).replace(" %", "%"):
        sys.exit(f"no release: with {python} the demo does not show its certified rates")


def write_bills_of_materials(python: Path, out: Path) -> None:
    """Write what an environment with langchain-cfc holds, and what the server's container installs."""
    out.mkdir(parents=True, exist_ok=True)
    options = ["--of", "JSON", "--output-reproducible", "--validate", "-o"]
    tool, version = [sys.executable, "-m", "cyclonedx_py"], read_version()
    described = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library", str(python)]
    run(*tool, "environment", *options, str(out / f"langchain-cfc-{version}.cdx.json"), *described)
    locked = str(ROOT / ".ci" / "locks" / "server.txt")
    run(*tool, "requirements", *options, str(out / f"langchain-cfc-server-{version}.cdx.json"), locked)


def does_run(python: str) -> bool:
    """Return whether a Python in PATH runs; those of a version manager may be there and not be chosen."""
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run a command without what would lead Python to the checkout, and return what it prints."""
    print("  ", Path(command[0]).name, *command[1:6], flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(command, cwd=cwd, env=environment, check=False, text=True, capture_output=True)
    if ran.returncode:
        sys.exit(f"no release: {' '.join(command)}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def main() -> None:
    """Run all checks in turn and stop at the first that fails; `--tag` signs the tag in the end."""
    is_tagging = sys.argv[1:] == ["--tag"]
    distributions, tag, out = read_distributions(), f"v{read_version()}", ROOT / "dist"
    versions = re.findall(r":: (3\.\d+)", " ".join(distributions[0].project["classifiers"]))
    pythons = [one for version in versions if (one := shutil.which(f"python{version}")) and does_run(one)]
    open_points = list_tag_problems()
    if len(pythons) < len(versions):
        open_points.append(f"Python {', '.join(versions)} must be in PATH, found {pythons}")
    if changed := run("git", "status", "--porcelain"):
        open_points.append(f"commit these, or remove them\n{changed}")
    problems = list_problems() + (open_points if is_tagging else [])
    if problems:
        sys.exit("\n".join(["no release:", *problems]))
    build_wheels(distributions, out)
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            try_wheels(python, ["langchain-cfc"], out, Path(folder))
            write_bills_of_materials(Path(folder) / "venv" / "bin" / "python", ROOT / "build" / "sbom")
    with tempfile.TemporaryDirectory() as folder:
        names = [one.name for one in distributions if one.name != APART]
        try_wheels(pythons[-1], names, out, Path(folder))
    if is_tagging:
        run("git", "tag", "-s", tag, "-m", f"langchain-cfc {tag}")
    else:
        print(*(f"before a tag: {one}" for one in open_points), sep="\n")
    print(f"{tag} is ready in dist/" + (", and tagged" if is_tagging else ""))


if __name__ == "__main__":
    main()
