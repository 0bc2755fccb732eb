"""The page of the office agent in a browser: a person approves, changes and rejects calls."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="the page is looked at with playwright")

from playwright.sync_api import Page, expect

from examples.tests.running import REPOSITORY, list_readme_commands, read_section, serve_page
from integrations.lab.tests.report import browser as look

if TYPE_CHECKING:
    from office_tasks import Task

EXAMPLE = REPOSITORY / "examples" / "agent_actions"
SIZES = [(1280, 900), (390, 844)]  # a laptop, a phone
PATIENCE = 60_000  # milliseconds; a busy machine is no fault

pytestmark = pytest.mark.usefixtures("modules_of_example")


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a server that was started with the README's last command."""
    if importlib.util.find_spec("streamlit") is None:
        pytest.skip("the page is made with streamlit")
    program, *arguments = shlex.split(list_readme_commands(read_section("agent_actions"))[-1])
    assert program == ".venv/bin/streamlit"
    with serve_page(arguments) as address:
        yield address


@pytest.fixture(params=SIZES)
def page(site: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    width, height = request.param
    with look.running() as browser:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        page.goto(site)
        expect(page.get_by_text("Checked: ").or_(page.get_by_role("button", name="Approve"))).to_be_visible()
        yield page
        expect.set_options(timeout=5_000)


def choose_task(page: Page, text: str) -> None:
    """Choose a task, and wait until the agent ends or asks."""
    settle(page)
    box = page.get_by_role("combobox")
    box.fill(text)
    box.press("Enter")
    expect(page.get_by_test_id("stChatMessage").filter(has_text=text)).to_be_visible()
    settle(page)


def settle(page: Page) -> None:
    """Wait until the page is not being rendered again."""
    expect(page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible()
    expect(page.locator("[data-stale=true]")).to_have_count(0)


def scrolls_sideways(page: Page) -> bool:
    """Whether the page, or the part of it that scrolls, is wider than its window."""
    found: bool = page.evaluate(
        """() => [...document.querySelectorAll('html, body, [data-testid=stMain]')]
          .some(one => one.scrollWidth > one.clientWidth)"""
    )
    return found


@pytest.mark.long
def test_page_lets_a_person_approve_edit_and_reject_the_calls_that_wait(page: Page) -> None:
    from office_replay import load_bot
    from office_tasks import make_tasks

    tasks: dict[str, Task] = {task.id: task for task in make_tasks()}
    bot, new = load_bot()
    cut = bot.certified_bot.find_certificate(bot.promises[0].level).cut

    def find(*, asks: bool, right: bool) -> str:
        """The task of a run with one guarded call and nothing else to do."""
        return next(
            tasks[run.id].text
            for run in new.values()
            if len(run.guarded) == 1 == len(run.guarded[0].calls) == len(tasks[run.id].reference)
            and (run.guarded[0].score > cut) is asks
            and run.right == [right]
        )

    approve, reject = (page.get_by_role("button", name=name) for name in ("Approve", "Reject"))
    choose_task(page, find(asks=False, right=True))
    expect(page.get_by_text("ran unattended")).to_be_visible()
    expect(page.get_by_text("The run went through unattended")).to_be_visible()
    expect(page.get_by_text("Checked: the office is as it should be.")).to_be_visible()
    assert not scrolls_sideways(page)
    wrong = find(asks=True, right=False)
    for decision, state in ((approve, "not as it should be"), (reject, "not as it should be")):
        choose_task(page, find(asks=False, right=True))
        choose_task(page, wrong)
        expect(page.get_by_text("This call waits for you.")).to_be_visible()
        assert not scrolls_sideways(page)
        decision.click()
        expect(page.get_by_text(f"Checked: the office is {state}.")).to_be_visible()
        expect(page.get_by_text("The run left the unattended path")).to_be_visible()
    # A person repairs the call: the office is then as it should be.
    choose_task(page, find(asks=False, right=True))
    choose_task(page, wrong)
    ((name, args),) = next(task.reference for task in tasks.values() if task.text == wrong)
    for argument, value in args.items():
        page.get_by_label(f"{name}: {argument}").fill(str(value))
    approve.click()
    expect(page.get_by_text("because a person edited an action")).to_be_visible()
    expect(page.get_by_text("Checked: the office is as it should be.")).to_be_visible()
    assert not scrolls_sideways(page)
