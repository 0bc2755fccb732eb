"""The soak in small, ten minutes of it if `CFC_LONG` is set, and its findings for a server that leaks."""

from __future__ import annotations

import os
import sys

import pytest

from integrations.server.tests.soaking import Found, Plan, run_soak

LONG = bool(os.environ.get("CFC_LONG"))
SHORT = Plan(rounds=6, seconds=1.5, pause=0.15)
WHOLE = Plan(rounds=30, seconds=20.0)
# So many bytes that a server that keeps them is noticed; what is kept of the last two thirds is some 70 MiB.
HEAVY = Plan(rounds=6, seconds=2.0, pause=0.1, padding=250_000)
BROKEN_SERVER = [sys.executable, "-m", "integrations.server.tests.broken_server", "serve"]


def print_found(found: Found) -> None:
    """Print what was found, which pytest shows with `-s` or on failure."""
    for what, said in found.rows():
        print(f"{what:34} {said}")  # noqa: T201 - figures to report


@pytest.mark.long
def test_soak_finds_no_fault(bots: dict[str, str]) -> None:
    found = run_soak(WHOLE if LONG else SHORT, bots)
    print_found(found)
    assert found.violations == []
    # Decisions and failures were both seen, else it would show less than it says.
    ends = {end for _, end in found.outcomes}
    assert {"answered", "fallback", "draw_failed", "verifier_failed", "request_timeout", "left"} <= ends
    assert len({manner for manner, _ in found.outcomes}) == 16


@pytest.mark.long
def test_soak_finds_no_kept_bodies(bots: dict[str, str]) -> None:
    found = run_soak(HEAVY, bots)
    print_found(found)
    assert found.violations == []


@pytest.mark.long
def test_soak_finds_server_that_keeps_bodies(bots: dict[str, str]) -> None:
    found = run_soak(HEAVY, {**bots, "BROKEN": "keeps bodies"}, BROKEN_SERVER)
    print_found(found)
    # On a busy machine more may be found of a server that is broken.
    assert any(said.startswith("memory grew by") for said in found.violations)
