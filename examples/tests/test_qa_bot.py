"""The question-answering bot: started as its README states, and used in a browser."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="the page is looked at with playwright")

from langchain_cfc_monitor import CFCMonitor, MonitorStatus
from langchain_core.messages import HumanMessage
from langchain_core.prompts import PromptTemplate
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from examples.tests.running import REPOSITORY, serve_page
from integrations.lab.tests.report import browser as look
from langchain_cfc import calibrate, evaluate
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import CFCError
from tests import pages
from tests.recordings import list_facts
from tests.serving.openai_server import serving

# Looked for, not imported: each process that collects tests would wait for it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("streamlit") is None, reason="the page is made with streamlit"
)

EXAMPLE = REPOSITORY / "examples" / "qa_bot"
SIZES = [(1280, 900), (390, 844)]  # a laptop, a phone
PATIENCE = 30_000  # milliseconds; a busy machine is no fault


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bot keeps its artifact and its conversations."""
    return tmp_path_factory.mktemp("qa_bot")


@pytest.fixture(scope="module")
def modules(folder: Path) -> Iterator[Callable[[str], Any]]:
    """The example's modules, found by plain name as when it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QA_BOT_FOLDER", str(folder))
        patch.syspath_prepend(str(EXAMPLE))
        yield importlib.import_module
    for name in [name for name in sys.modules if name.startswith("qa_bot_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def bot(modules: Callable[[str], Any]) -> Any:
    """The bot that the page serves, in this process: what it says is what the page must show."""
    return modules("qa_bot_model").make_recorded_bot()


@pytest.fixture(scope="module")
def site(bot: Any, folder: Path) -> Iterator[str]:
    """The address of a server that was started with the README's last command."""
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    command = readme.split("```bash\n")[1].split("```")[0].strip().splitlines()[-1]
    program, *arguments = shlex.split(command)
    assert program == ".venv/bin/streamlit"
    assert bot  # its artifact is the one that the page serves
    with serve_page(arguments, QA_BOT_FOLDER=str(folder)) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with look.running() as browser:
        yield browser


@dataclass
class Visitor:
    """A visitor of the page, with all that the page has received and requested."""

    page: Page
    received: list[bytes] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def keep(self, payload: str | bytes) -> None:
        self.received.append(payload.encode() if isinstance(payload, str) else payload)

    def open(self, address: str) -> None:
        self.page.goto(address)
        expect(self.typed).to_be_visible()

    @property
    def rates(self) -> Locator:
        return self.page.get_by_test_id("stRadio").get_by_role("radio")

    @property
    def typed(self) -> Locator:
        return self.page.get_by_test_id("stChatInputTextArea")

    @property
    def answers(self) -> Locator:
        """The answers, or what stands in their place; the latest first."""
        return self.page.locator("[class*=st-key-answer-]")

    def ask(self, question: str) -> None:
        """Type a question, Enter, and wait for the decision."""
        before = self.answers.count()
        self.typed.fill(question)
        self.typed.press("Enter")
        expect(self.answers).to_have_count(before + 1)
        self.settle()

    def settle(self) -> None:
        """Wait until the page is not being rendered again."""
        expect(self.page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible()
        expect(self.page.locator("[data-stale=true]")).to_have_count(0)

    def scrolls_sideways(self) -> bool:
        """Whether the page, or the part of it that scrolls, is wider than its window."""
        found: bool = self.page.evaluate(
            """() => [...document.querySelectorAll('html, body, [data-testid=stMain]')]
              .some(one => one.scrollWidth > one.clientWidth)"""
        )
        return found

    def was_sent(self, text: str) -> bool:
        """Whether a text is in the page, or in anything that the server has sent it."""
        return text in self.page.content() or any(text.encode() in one for one in self.received)


@pytest.fixture(scope="module")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """One for all visitors, so that scripts are read once. Conversations are told apart by their address."""
    made = chromium.new_context()
    made.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    yield made
    expect.set_options(timeout=5_000)
    made.close()


@pytest.fixture(params=SIZES)
def visitor(context: BrowserContext, site: str, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    """A new visitor with a new conversation."""
    page = context.new_page()
    width, height = request.param
    page.set_viewport_size({"width": width, "height": height})
    visitor = Visitor(page)

    page.on("request", lambda request: visitor.requested.append(request.url))
    page.on("websocket", lambda socket: socket.on("framereceived", visitor.keep))
    try:
        visitor.open(site)
        yield visitor
        elsewhere = [one for one in visitor.requested if not one.startswith((site, "data:", "blob:"))]
        assert visitor.requested
        assert elsewhere == []
    finally:
        page.close()


@pytest.fixture(scope="module")
def questions(bot: Any) -> tuple[str, str]:
    """A question answered at 10 %, and one that is not; both have rejected answers."""

    def find(*, is_answered: bool) -> str:
        held_out: list[str] = list(bot.held_out.values())
        return next(
            question
            for question in held_out
            if bool(bot.decide(question, "0.1")) is is_answered and _list_rejected(bot, question)
        )

    return find(is_answered=True), find(is_answered=False)


def _list_rejected(bot: Any, question: str) -> set[str]:
    """Rejected answers at 10 % that are long enough to search for."""
    result = bot.decide(question, "0.1")
    return {one.answer for one in result.candidates if one.answer != result.best and len(one.answer) > 5}


@pytest.mark.long
def test_qa_bot_sends_rejected_answers_only_after_a_click(
    visitor: Visitor, bot: Any, questions: tuple[str, str]
) -> None:
    page = visitor.page
    for question in questions:
        visitor.ask(question)
        result = bot.decide(question, "0.1")
        latest = visitor.answers.first
        expect(latest).to_have_text(result.best or "No answer")
        expect(latest).to_be_in_viewport(ratio=1)
        expect(page.get_by_text(result.explain_reason()).first).to_be_in_viewport(ratio=1)
        assert not visitor.scrolls_sideways()
        assert visitor.was_sent(result.best or "No answer")
        assert not any(visitor.was_sent(text) for text in _list_rejected(bot, question))
        expect(
            page.get_by_text(f"Drawn: {len(result.candidates)} of at most 10 answers").first
        ).to_be_visible()
    expect(page.get_by_role("button", name="Ask a person")).to_be_in_viewport(ratio=1)
    expect(page.get_by_test_id("stAlert")).to_have_count(0)  # an abstention is no error
    page.locator("summary", has_text="rejected answer").first.click()
    expect(page.get_by_text("These answers did not pass the check.")).to_be_visible()
    visitor.settle()
    assert [any(map(visitor.was_sent, _list_rejected(bot, one))) for one in questions] == [False, True]
    assert all(map(visitor.was_sent, _list_rejected(bot, questions[1])))
    assert not visitor.scrolls_sideways()


@pytest.mark.long
def test_qa_bot_keeps_the_first_decision_at_any_later_rate(visitor: Visitor, bot: Any) -> None:
    question = next(
        one for one in bot.held_out.values() if not bot.decide(one, "0.05") and bot.decide(one, "0.2")
    )
    other = next(one for one in bot.held_out.values() if bot.decide(one, "0.05"))
    answer = bot.decide(other, "0.05").best
    page, rates = visitor.page, visitor.rates
    assert rates.count() == len(bot.certificates) == 3
    for rate, certificate in bot.certificates.items():
        everyone = certificate.groups[0]
        expect(page.get_by_text(f"at most {100 * float(rate):g} % wrong").first).to_be_visible()
        expect(
            page.get_by_text(f"answers {100 * everyone.answered / everyone.prompts:.0f} %")
        ).to_be_visible()
    rates.nth(1).focus()
    page.keyboard.press("ArrowLeft")
    expect(rates.nth(0)).to_be_checked()
    visitor.ask(question)
    expect(visitor.answers).to_have_text("No answer")
    expect(page.get_by_text("at most 5 % get a wrong answer")).to_be_visible()
    # The same in other letters, at another rate: the first decision stands, and is shown first.
    visitor.ask(other)
    expect(visitor.answers).to_have_text([answer, "No answer"])
    rates.nth(0).focus()
    page.keyboard.press("ArrowLeft")
    expect(rates.nth(2)).to_be_checked()
    visitor.typed.fill(f"  {question.upper()} ")
    visitor.typed.press("Enter")
    expect(page.get_by_text("You asked this before, with at most 5 % wrong")).to_be_visible()
    expect(visitor.answers).to_have_text(["No answer", answer])


@pytest.mark.long
def test_qa_bot_person_answers_and_checks_and_the_monitor_counts(
    visitor: Visitor, context: BrowserContext, site: str, bot: Any, questions: tuple[str, str]
) -> None:
    for question in questions:
        visitor.ask(question)
    page, person = visitor.page, Visitor(context.new_page())
    page.get_by_role("button", name="Ask a person").click()
    expect(page.get_by_role("button", name="Waiting for a person")).to_be_disabled()
    other = person.page
    other.goto(f"{site}person")
    person.settle()
    form = other.get_by_test_id("stForm").filter(has_text=questions[1])
    form.get_by_label("Your answer").fill("*It* is $5$, I think")
    form.get_by_label("Your answer").press("Enter")
    expect(form).to_have_count(0)
    # The page that asked is not reloaded here, and no Markdown is made of what a person typed.
    expect(page.get_by_text("*It* is $5$, I think")).to_be_visible()
    expect(page.get_by_role("button", name="person")).to_have_count(0)
    # The oldest answer that has not been checked; it may be that of another conversation.
    person.settle()
    before = _read_status(bot)
    unchecked = other.get_by_role("heading", name="Answers to check")
    counted = unchecked.inner_text()
    other.get_by_role("button", name="Right").click()
    expect(unchecked).not_to_have_text(counted)
    person.settle()
    assert _read_status(bot).labels == before.labels + 1
    other.get_by_role("link", name="Monitor").click()
    expect(other.get_by_text("No alarm: nothing seen so far speaks against them.")).to_be_visible()
    row = other.get_by_test_id("stTable").get_by_role("row").filter(has_text="at most 10 % wrong")
    expect(row).to_contain_text(f"0 of {before.labels + 1} checked")
    other.close()


def _read_status(bot: Any) -> MonitorStatus:
    """What the monitor shows of its store to another process."""
    with CFCMonitor(bot.artifact, bot.folder / "monitor.db", create=False) as monitor:
        return monitor.read_status()


@pytest.mark.long
def test_qa_bot_store_decides_a_question_once(
    modules: Callable[[str], Any], bot: Any, tmp_path: Path
) -> None:
    store = modules("qa_bot_store").Store(tmp_path / "new" / "qa_bot.db")
    assert store.ask("one", "What is the capital of Peru?", "0.1") is None
    assert store.ask("two", "What is the capital of Peru?", "0.2") is None
    assert store.ask("one", " what is the  capital of peru", "0.3").rate == "0.1"
    turn = store.conversation("one")[0]
    first, second = (bot.decide(question, "0.1") for question in list(bot.held_out.values())[:2])
    store.save_decision(turn, first)
    store.save_decision(turn, second)
    store.forget(turn)  # too late
    assert [one.result for one in store.conversation("one")] == [first]
    store.escalate(turn)
    assert [one.id for one in store.queue()] == [turn.id]
    assert store.answer(turn, "Lima")
    assert not store.answer(turn, "Cusco")
    store.escalate(turn)
    assert store.queue() == []
    assert [one.answer for one in store.list_answered()] == ["Lima"]
    assert [one.result for one in store.conversation("two")] == [None]
    assert [one.id for one in store.list_decided()] == [turn.id]


@pytest.mark.long
def test_qa_bot_model_command_prints_the_readme_table(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(EXAMPLE / "qa_bot_model.py")]
    elsewhere = {**os.environ, "QA_BOT_FOLDER": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=elsewhere)
    assert ran.stdout.strip() in (EXAMPLE / "README.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_qa_bot_readme_states_the_effect_of_the_draw_rule(modules: Callable[[str], Any]) -> None:
    module, readme = modules("qa_bot_model"), (EXAMPLE / "README.md").read_text(encoding="utf-8")
    records = load_recording()
    options = {"max_wrong_rate": module.RATES, "test_fraction": 0.3}
    whole, stopping = (
        evaluate(calibrate(records, draws=draws, **options), records) for draws in (None, module.DRAWS)
    )
    every, kept = ([round(100 * one.answered_rate) for one in seen.answers] for seen in (whole, stopping))
    assert "with all ten\ndrawn, {} %, {} % and {} % are answered".format(*every) in readme
    assert all(after >= before for before, after in zip(every, kept, strict=True))


# What docs/your-own-data.md has its readers write, with files of this test.
OWN_BOT = """
from langchain_cfc_collect import build_bot

bot = build_bot("openai:gpt-4o-mini", "{0}/questions.csv", max_wrong_rate=0.1, store="{0}/questions.db")
model = bot.generator
"""


@pytest.fixture(scope="module")
def own(modules: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a user's own bot, with its saved artifact; a server here plays the provider."""
    folder = tmp_path_factory.mktemp("own")
    pages._write_questions(folder / "questions.csv", list_facts())
    (folder / "own_bot.py").write_text(OWN_BOT.format(folder), encoding="utf-8")
    with serving(pages.hosted_model(list_facts())) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("OPENAI_BASE_URL", url)
        arguments = ["--chain", f"{folder}/own_bot.py:bot"]
        with ThreadPoolExecutor(1) as alone:  # Playwright runs an event loop in this thread
            made = alone.submit(modules("qa_bot_model").load_bot, arguments).result()
        made.artifact.save(folder / "artifact.json")
        yield folder


@pytest.fixture(scope="module")
def own_site(own: Path) -> Iterator[str]:
    arguments = ["--artifact", f"{own}/artifact.json", "--chain", f"{own}/own_bot.py:bot"]
    with serve_page(["run", str(EXAMPLE / "qa_bot_page.py"), "--", *arguments]) as address:
        yield address


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_qa_bot_page_serves_the_users_own_bot(
    modules: Callable[[str], Any], own: Path, own_site: str, context: BrowserContext, size: tuple[int, int]
) -> None:
    parts = ["--artifact", f"{own}/artifact.json", "--chain", f"{own}/own_bot.py:model"]
    bot = modules("qa_bot_model").load_bot([*parts, "--verifier", "SequenceProbability"])
    questions = [str(one.input) for one in list_facts()[200:]]
    decided = {one: bot.decide(one, "0.1") for one in questions[:20]}
    answered = next(one for one, result in decided.items() if result)
    unanswered = next(one for one, result in decided.items() if not result)
    visitor = Visitor(context.new_page())
    page = visitor.page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.on("websocket", lambda socket: socket.on("framereceived", visitor.keep))
    page.goto(own_site)
    expect(visitor.typed).to_be_visible(timeout=4 * PATIENCE)  # the first visitor's page reads the bot
    expect(page.get_by_text(re.compile("Promise: at most 10.% wrong; answers 87.% of"))).to_be_visible()
    expect(visitor.rates).to_have_count(0)
    visitor.ask(answered)
    expect(visitor.answers).to_have_text(str(decided[answered].best))
    visitor.ask(unanswered)
    expect(visitor.answers).to_have_text(["No answer", str(decided[answered].best)])
    expect(page.get_by_text("at most 10 % get a wrong answer").first).to_be_visible()
    drafts = {one.text for one in decided[unanswered].candidates if len(str(one.text)) > 5}
    assert drafts
    assert not any(map(visitor.was_sent, drafts))
    page.locator("summary", has_text="rejected answer").first.click()
    expect(page.get_by_text("These answers did not pass the check.")).to_be_visible()
    visitor.settle()
    assert all(map(visitor.was_sent, drafts))
    page.get_by_role("button", name="Ask a person").click()
    expect(page.get_by_role("button", name="Waiting for a person")).to_be_disabled()
    assert not visitor.scrolls_sideways()
    page.get_by_role("link", name="For a person").click()
    expect(page.get_by_test_id("stForm").filter(has_text=unanswered).first).to_be_visible()
    page.get_by_role("link", name="Monitor").click()
    expect(page.get_by_test_id("stTable").get_by_role("row")).to_have_count(2)
    expect(page.get_by_test_id("stTable")).to_contain_text("at most 10 % wrong")
    assert not visitor.scrolls_sideways()
    page.close()


@pytest.mark.long
def test_qa_bot_page_says_why_there_is_no_bot(context: BrowserContext) -> None:
    arguments = ["run", str(EXAMPLE / "qa_bot_page.py"), "--", "--artifact", "artifact.json"]
    with serve_page(arguments) as address:
        page = context.new_page()
        page.goto(address)
        expect(page.get_by_text("There is no bot to ask: ")).to_contain_text("add --chain mybot.py:bot")
        expect(page.get_by_test_id("stChatInputTextArea")).to_have_count(0)
        page.close()


BOTS = """
from langchain_cfc import CFCRunnable, calibrate
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts

records = load_recording()
parts = make_replay_parts(records)
model, judge = parts["generator"], parts["verifier"]

def make(**options):
    return calibrate(records, test_fraction=0.3, **options)

def rates():
    return CFCRunnable(artifact=make(max_wrong_rate=[0.05, 0.1]), max_wrong_rate=0.05, **parts)

def of_all():
    made = make(max_wrong_of_all=[0.05, 0.1])
    return CFCRunnable(artifact=made, max_wrong_of_all=0.1, on_abstain="raise", **parts)

def sets():
    return CFCRunnable(artifact=make(alpha=0.2, features="1"), **parts)

make(max_wrong_rate=[0.05, 0.1]).save("two.json")
"""


@pytest.fixture
def bots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: Callable[[str], Any]
) -> Callable[..., Any]:
    """The function that makes a bot of arguments, in a folder with bots of several promises."""
    (tmp_path / "some_bots.py").write_text(BOTS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "some_bots", raising=False)
    return lambda *arguments: modules("qa_bot_model").load_bot(arguments)


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.FingerprintWarning")  # without the extractor
def test_qa_bot_offers_a_bots_own_promise_or_all_rates_of_an_artifact(bots: Callable[..., Any]) -> None:
    of_model = ("--chain", "some_bots:model", "--artifact", "two.json", "--verifier", "some_bots:judge")
    for rates, option, arguments in (
        (["0.05"], "max_wrong_rate", ("--chain", "some_bots.py:rates")),
        (["0.1"], "max_wrong_of_all", ("--chain", "some_bots:of_all")),
        (["0.05", "0.1"], "max_wrong_rate", ("--chain", "some_bots:rates", "--artifact", "two.json")),
        (["0.05", "0.1"], "max_wrong_rate", of_model),
    ):
        made = bots(*arguments)
        assert (made.rates, {one.option for one in made.promises}) == (rates, {option})
        for rate in rates:
            for question in ("What is the capital of Peru?", "757 * 902"):
                result = made.decide(question, rate)
                assert result.abstained is (question == "757 * 902")
                assert all(one.text for one in result.candidates)
                certified = result.guarantee.wrong_answers
                assert (certified.max_wrong_rate if certified else result.guarantee.alpha) == rate


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--artifact", "two.json"), "add --chain"),
        (("--chain",), "expected one argument"),
        (("--model", "x"), "unrecognized arguments"),
        (("--chain", "some_bots:model"), "is no bot yet: add --artifact"),
        (("--chain", "some_bots:model", "--artifact", "two.json"), "and --verifier"),
        (("--chain", "some_bots:rates", "--verifier", "some_bots:judge"), "leave out --verifier"),
        (("--chain", "some_bots:sets"), "alpha=0.2 is the promise of answer sets"),
        (("--chain", "some_bots:nothing"), "cannot import"),
        (("--chain", "some_bots:rates", "--artifact", "other.json"), "other.json: cannot be read"),
    ],
)
def test_qa_bot_refuses_what_is_no_bot_with_one_error(
    bots: Callable[..., Any], arguments: tuple[str, ...], says: str
) -> None:
    with pytest.raises(CFCError, match=re.escape(says)):
        bots(*arguments)


@pytest.mark.parametrize("kind", ["messages", "object"])
def test_qa_bot_asks_in_the_form_that_the_chain_was_calibrated_with(
    modules: Callable[[str], Any], kind: str
) -> None:
    module = modules("qa_bot_model")
    chain = SimpleNamespace(
        artifact=SimpleNamespace(calibration=SimpleNamespace(prompt_kinds={kind})),
        get_input_schema=PromptTemplate.from_template("{topic}").get_input_schema,
    )
    asked = {"messages": [HumanMessage("gold")], "object": {"topic": "gold"}}
    assert module._choose_input(chain)("gold") == asked[kind]
    chain.get_input_schema = PromptTemplate.from_template("{topic} {place}").get_input_schema
    if kind == "object":
        with pytest.raises(CFCError, match="takes place, topic"):
            module._choose_input(chain)
