"""The question-answering bot: started as its README says, and used in a real browser."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from tests.scripts import load_module

pytest.importorskip("playwright.sync_api", reason="the page is looked at with playwright")
pytest.importorskip("streamlit", reason="the page is made with streamlit")

from langchain_openai import ChatOpenAI
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from langchain_cfc import CFCResult, write_records
from langchain_cfc.demo import load_recording
from langchain_cfc.monitor import CFCMonitor
from langchain_cfc.records import Provenance
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.report import browser as look
from tests.serving.openai_server import Script, serving

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "qa_bot"
LOCAL = REPOSITORY / "examples" / "local_model"
MODEL = Path("~/.cache/langchain-cfc/smollm2-135m-instruct-q4_1.gguf").expanduser()
PHONE = 390
PATIENCE = 30_000  # milliseconds; a busy machine is no fault
Scheme: TypeAlias = Literal["light", "dark"]

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert bot  # its artifact is the one that the page serves
    process = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("streamlit")),
            *arguments,
            "--server.port",
            str(port),
            "--server.headless",
            "true",
        ],
        cwd=REPOSITORY,
        env={**os.environ, "QA_BOT_FOLDER": str(folder), "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        _wait_for(f"{address}_stcore/health", process)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, "the server has ended"
        assert time.monotonic() < deadline, "the server does not answer"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310
                assert answer.status == 200
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with look.running() as browser:
        yield browser


@dataclass
class Visitor:
    """Somebody at the page, and all that the page was sent and has asked for."""

    page: Page
    received: list[bytes]
    requested: list[str]

    def open(self, address: str) -> None:
        self.page.goto(address)
        expect(self.typed).to_be_visible()

    @property
    def levels(self) -> Locator:
        return self.page.get_by_test_id("stRadio").get_by_role("radio")

    @property
    def typed(self) -> Locator:
        return self.page.get_by_test_id("stChatInputTextArea")

    def ask(self, question: str) -> None:
        """Type a question, Enter, and wait for what comes of it."""
        before = self.page.get_by_text("asked at").count()
        self.typed.fill(question)
        self.typed.press("Enter")
        expect(self.page.get_by_text("asked at")).to_have_count(before + 1)
        expect(self.page.get_by_test_id("stVegaLiteChart").nth(before).locator("svg.marks")).to_be_visible()
        self.settle()

    def unfold(self) -> None:
        """Open everything that opens."""
        for summary in self.page.locator("summary").all():
            summary.click()
        self.settle()

    def settle(self) -> None:
        """Wait until the page is not being made anew."""
        expect(self.page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible()
        expect(self.page.locator("[data-stale=true]")).to_have_count(0)

    def tab_to(self, target: Locator) -> None:
        """Reach an element by the Tab key alone."""
        for _ in range(60):
            if target.evaluate("one => one === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        pytest.fail("the Tab key does not get there")


@pytest.fixture(scope="module")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """One for all visitors, so that scripts are read once. Conversations are told apart by their address."""
    made = chromium.new_context()
    made.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    yield made
    expect.set_options(timeout=5_000)
    made.close()


@contextmanager
def _visiting(context: BrowserContext, *, scheme: Scheme = "light", width: int = 1280) -> Iterator[Visitor]:
    page = context.new_page()
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    visitor = Visitor(page, [], [])

    def keep(payload: str | bytes) -> None:
        visitor.received.append(payload.encode() if isinstance(payload, str) else payload)

    page.on("request", lambda request: visitor.requested.append(request.url))
    page.on("websocket", lambda socket: socket.on("framereceived", keep))
    try:
        yield visitor
    finally:
        page.close()


@pytest.fixture
def visitor(context: BrowserContext, site: str) -> Iterator[Visitor]:
    """Somebody new, with a conversation of their own."""
    with _visiting(context) as one:
        one.open(site)
        yield one


@pytest.fixture(scope="module")
def conversation(context: BrowserContext, site: str, answered: str, abstained: str) -> str:
    """The address of a conversation: one question answered, one abstained on."""
    with _visiting(context) as one:
        one.open(site)
        one.ask(answered)
        one.ask(abstained)
        return one.page.url


def _held_out(bot: Any, wanted: Callable[[str], bool]) -> str:
    questions: list[str] = list(bot.held_out.values())
    return next(question for question in questions if wanted(question))


@pytest.fixture(scope="module")
def answered(bot: Any) -> str:
    """A question with several answers in its set at 80 %, a correct one among them, and others rejected."""
    correct = {
        str(one.input): {c.answer_key for c in one.candidates if c.correct} for one in load_recording()
    }

    def wanted(question: str) -> bool:
        result = bot.decide(question, "0.2")
        several = len(result.answers) > 1 and not all(one.accepted for one in result.candidates)
        return several and bool(correct[question] & set(result.answers))

    return _held_out(bot, wanted)


@pytest.fixture(scope="module")
def abstained(bot: Any) -> str:
    return _held_out(bot, lambda question: bot.decide(question, "0.2").reason == "not_certifiable")


@pytest.mark.long
def test_asked_by_keyboard_it_answers(visitor: Visitor, bot: Any, answered: str) -> None:
    page = visitor.page
    visitor.tab_to(visitor.levels.nth(1))
    visitor.tab_to(visitor.typed)
    page.keyboard.type(answered)
    page.keyboard.press("Enter")
    expect(page.get_by_text("asked at 80 %")).to_be_visible()
    result = bot.decide(answered, "0.2")
    expect(page.get_by_text(f"The set holds {len(result.answers)} answers, best first")).to_be_visible()
    visitor.settle()
    texts = [one for one in page.get_by_test_id("stText").all_inner_texts() if re.match(r"\d+\. ", one)]
    assert texts == [f"{place}. {answer}" for place, answer in enumerate(result.answers, start=1)]
    _has_picture(page, result)


@pytest.mark.long
def test_the_picture_of_an_abstention_has_all_marks_too(
    visitor: Visitor, bot: Any, answered: str, abstained: str
) -> None:
    visitor.ask(abstained)
    page = visitor.page
    result = bot.decide(abstained, "0.2")
    expect(page.get_by_text("Abstained: not certifiable")).to_be_visible()
    expect(page.get_by_text(result.explain())).to_be_visible()
    expect(page.get_by_role("button", name="Ask a person")).to_be_visible()
    _has_picture(page, result)
    # The check sees a picture of something else.
    with pytest.raises(AssertionError):
        _has_picture(page, bot.decide(answered, "0.2"))


def _has_picture(page: Page, result: CFCResult) -> None:
    """One mark per candidate, discs and crosses apart by shape; a line where there is a threshold."""
    chart = page.get_by_test_id("stVegaLiteChart").last
    marks = chart.locator("svg g.mark-symbol.role-mark path")
    expect(marks).to_have_count(len(result.candidates))
    in_draw_order = sorted(_drawn(marks), key=lambda mark: mark[1])
    # A disc is drawn with arcs, a cross with straight lines only.
    discs = ["A" in shape for _, _, shape in in_draw_order]
    assert discs == [one.accepted for one in result.candidates]
    lines = _drawn(chart.locator("svg g.mark-rule.role-mark line"))
    assert len(lines) == (result.reason != "not_certifiable")
    for at, _, _ in lines:
        assert [across <= at for across, _, _ in in_draw_order] == discs


def _drawn(marks: Locator) -> list[tuple[float, float, str]]:
    """Where the middle of each is, from left to right and from top to bottom, and its path.

    All at once: between two looks, what stands above may grow and move them down.
    """
    seen: list[tuple[float, float, str]] = marks.evaluate_all(
        """them => them.map(one => {
            const box = one.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2, one.getAttribute("d") || ""];
        })"""
    )
    return seen


@pytest.mark.long
def test_the_level_is_chosen_before_asking_and_cannot_be_shopped_for(visitor: Visitor, bot: Any) -> None:
    question = _held_out(
        bot,
        lambda one: len(bot.decide(one, "0.1").answers) > len(bot.decide(one, "0.2").answers) > 0,
    )
    page = visitor.page
    levels = visitor.levels
    assert levels.count() == len(bot.artifact.alphas)
    expect(page.get_by_text("a level picked after seeing what comes of it voids the promise")).to_be_visible()
    visitor.tab_to(levels.nth(1))
    page.keyboard.press("ArrowLeft")
    expect(levels.nth(0)).to_be_checked()
    visitor.ask(question)
    expect(page.get_by_text("asked at 90 %")).to_be_visible()
    strict = bot.decide(question, "0.1")
    expect(page.get_by_text(f"The set holds {len(strict.answers)} answers")).to_be_visible()
    expect(levels.nth(0)).to_be_checked()
    # The same in other letters, at another level: what was decided first stands, and the page says so.
    levels.nth(2).focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    expect(levels.nth(2)).to_be_checked()
    visitor.typed.fill(f"  {question.upper()} ")
    visitor.typed.press("Enter")
    expect(page.get_by_text("You have asked this before, at 90 %")).to_be_visible()
    visitor.settle()
    expect(page.get_by_text("asked at")).to_have_count(1)


@pytest.mark.long
def test_the_promise_opens_by_a_key(visitor: Visitor, conversation: str, bot: Any, answered: str) -> None:
    visitor.open(conversation)
    page = visitor.page
    promise = page.locator("summary", has_text="What is promised").first
    guarantee = bot.decide(answered, "0.2").guarantee
    sentence = page.get_by_text(guarantee.sentence).first
    expect(sentence).not_to_be_visible()
    visitor.tab_to(promise)
    page.keyboard.press("Enter")
    expect(sentence).to_be_visible()
    expect(page.get_by_text("conditional, alpha 0.2, 692 calibration questions").first).to_be_visible()
    for said in (*guarantee.assumptions, *guarantee.not_promised, guarantee.artifact_digest):
        expect(page.get_by_text(said).first).to_be_visible()


@pytest.mark.long
def test_a_person_answers_what_the_bot_could_not_and_a_reload_keeps_it_all(
    visitor: Visitor, context: BrowserContext, site: str, answered: str, abstained: str
) -> None:
    visitor.ask(answered)
    visitor.ask(abstained)
    page = visitor.page
    visitor.tab_to(page.get_by_role("button", name="Ask a person"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Waiting for a person")).to_be_disabled()
    with _visiting(context) as somebody:
        somebody.page.goto(f"{site}person")
        form = somebody.page.get_by_test_id("stForm").filter(has_text=abstained)
        answer = form.get_by_label("Your answer")
        answer.fill("*It* is $5$, I think")
        answer.press("Enter")
        expect(form).to_have_count(0)
        # What is opened while the page is still being made anew is closed again.
        somebody.settle()
        somebody.page.locator("summary", has_text="Done").click()
        expect(somebody.page.get_by_text("*It* is $5$, I think")).to_be_visible()
    # Nobody reloads the asker's page here; and no Markdown is made of what a person typed.
    expect(page.get_by_text("*It* is $5$, I think")).to_be_visible()
    expect(page.get_by_text("From a person, without guarantee")).to_be_visible()
    expect(page.get_by_role("button", name="person")).to_have_count(0)
    visitor.settle()
    shown = page.get_by_test_id("stChatMessage").all_inner_texts()
    assert len(shown) == 5
    page.reload()
    expect(page.get_by_test_id("stChatMessage")).to_have_count(5)
    visitor.settle()
    expect(page.get_by_test_id("stVegaLiteChart").locator("svg.marks")).to_have_count(2)
    assert page.get_by_test_id("stChatMessage").all_inner_texts() == shown


@pytest.mark.long
def test_going_to_the_other_page_and_back_keeps_the_conversation(visitor: Visitor, answered: str) -> None:
    visitor.ask(answered)
    page = visitor.page
    page.get_by_role("link", name="For a person").click()
    expect(page.get_by_role("heading", name="Questions for a person")).to_be_visible()
    page.get_by_role("link", name="Ask").click()
    expect(page.get_by_text("asked at 80 %")).to_be_visible()


@pytest.mark.long
@pytest.mark.parametrize("seen_on", [("light", 1280), ("dark", PHONE)])
def test_the_monitor_shows_what_has_been_asked(
    context: BrowserContext, site: str, bot: Any, answered: str, seen_on: tuple[Scheme, int]
) -> None:
    scheme, width = seen_on
    with _visiting(context, scheme=scheme, width=width) as visitor:
        visitor.open(site)
        visitor.ask(answered)
        page = visitor.page
        page.get_by_role("link", name="Monitor").click()
        expect(page.get_by_role("heading", name="Does the promise still stand?")).to_be_visible()
        visitor.settle()
        # Whoever looks into the store from another process sees the same.
        with CFCMonitor(
            bot.artifact, Path(os.environ["QA_BOT_FOLDER"]) / "monitor.db", create=False
        ) as monitor:
            seen = monitor.status()
        assert seen.results >= 1
        assert f"Questions\n{seen.results}" in page.get_by_test_id("stMetric").first.inner_text().replace(
            "\n\n", "\n"
        )
        expect(page.get_by_test_id("stDataFrame")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if folder_of_screens := os.environ.get("CFC_SCREENS"):
            page.screenshot(path=f"{folder_of_screens}/monitor-{scheme}.png")


@pytest.mark.long
def test_what_the_recording_does_not_hold_is_explained(visitor: Visitor, bot: Any) -> None:
    page = visitor.page
    seen = next(iter(bot.seen.values()))
    for question, why in (
        ("Who are you?", "The bot answers from a recording, which holds no such question."),
        (seen, "The bot was calibrated with this question,"),
        ("What's the capital of Tunisa", "Those below come close."),
    ):
        visitor.typed.fill(question)
        visitor.typed.press("Enter")
        expect(page.get_by_text(why)).to_be_visible()
        expect(page.get_by_text("asked at")).to_have_count(0)
    # One of those below, by a click.
    page.get_by_role("radio", name="What is the capital of Tunisia?").or_(
        page.get_by_role("button", name="What is the capital of Tunisia?")
    ).click()
    expect(page.get_by_text("asked at 80 %")).to_be_visible()
    expect(page.get_by_text("Those below come close.")).to_have_count(0)


def test_no_text_of_a_rejected_candidate_reaches_the_browser(visitor: Visitor, bot: Any) -> None:
    """Neither in the page nor in anything that the server has sent it."""
    texts = {str(one.input): {str(c.text) for c in one.candidates} for one in load_recording()}
    suggested = " ".join(bot.held_out.values())

    def rejected(question: str) -> set[str]:
        return texts[question] - set(bot.decide(question, "0.2").answers)

    def wanted(question: str) -> bool:
        """Rejected texts that nothing else on the page could say."""
        result = bot.decide(question, "0.2")
        telling = {text for text in rejected(question) if len(text) > 5 and text not in suggested}
        within = any(text in answer for text in telling for answer in result.answers)
        return len(telling) > 1 and not within and bool(result.answers)

    question = _held_out(bot, wanted)
    visitor.ask(question)
    seen = visitor.page.content() + b"".join(visitor.received).decode("utf-8", errors="replace")
    for text in {one for one in rejected(question) if len(one) > 5}:
        assert text not in seen
    # The same search does find what was accepted, in both places.
    for answer in bot.decide(question, "0.2").answers:
        assert answer in visitor.page.content()
        assert answer.encode() in b"".join(visitor.received)


@pytest.mark.long
def test_nothing_is_fetched_from_elsewhere(visitor: Visitor, site: str, answered: str) -> None:
    visitor.ask(answered)
    visitor.page.get_by_role("link", name="For a person").click()
    visitor.settle()
    elsewhere = [one for one in visitor.requested if not one.startswith((site, "data:", "blob:"))]
    assert visitor.requested
    assert elsewhere == []


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_system_and_can_be_read(
    context: BrowserContext, conversation: str, scheme: Scheme
) -> None:
    with _visiting(context, scheme=scheme) as visitor:
        visitor.open(conversation)
        visitor.unfold()
        page = visitor.page
        background = page.get_by_test_id("stApp").evaluate("one => getComputedStyle(one).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 3 * 128) is (scheme == "dark")
        assert _faint(page) == []
        page.evaluate(
            "const one = document.createElement('p');"
            "one.textContent = 'too faint'; one.style.opacity = '0.3'; document.body.append(one)"
        )
        assert [found.split(" ", 1)[1] for found in _faint(page)] == ["too faint"]


def _faint(page: Page, least: float = 4.5) -> list[str]:
    """Texts with less contrast than WCAG AA asks of small text; translucent colours are mixed. No icons."""
    found: list[str] = page.evaluate(
        """least => {
          const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
          const parts = colour => {
            context.clearRect(0, 0, 1, 1);
            context.fillStyle = colour;
            context.fillRect(0, 0, 1, 1);
            const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
            return [r, g, b, a / 255];
          };
          const over = (top, below) => [0, 1, 2].map(at => top[at] * top[3] + below[at] * (1 - top[3]));
          const channel = value => {
            const share = value / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
          };
          const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
          const above = one => one ? [...above(one.parentElement), one] : [];
          const found = [];
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const text = walker.currentNode.textContent.trim();
            const one = walker.currentNode.parentElement;
            const hidden = !one.getClientRects().length || one.closest('style, script, noscript');
            if (!text || hidden || one.matches('[data-testid=stIconMaterial]')) continue;
            const chain = above(one);
            const page = chain.reduce(
              (below, at) => over(parts(getComputedStyle(at).backgroundColor), below), [255, 255, 255]);
            const style = getComputedStyle(one);
            const ink = parts(one.ownerSVGElement ? style.fill : style.color);
            ink[3] *= chain.reduce((left, at) => left * getComputedStyle(at).opacity, 1);
            const [dark, bright] = [light(over(ink, page)), light(page)].sort((a, b) => a - b);
            const ratio = (bright + 0.05) / (dark + 0.05);
            if (ratio < least) found.push(`${ratio.toFixed(2)} ${text.slice(0, 40)}`);
          }
          return found;
        }""",
        least,
    )
    return found


@pytest.mark.long
def test_the_picture_in_the_readme(
    context: BrowserContext, conversation: str, bot: Any, answered: str, tmp_path: Path
) -> None:
    """`CFC_SCREEN=examples/qa_bot/screen.png` keeps it."""
    target = Path(os.environ.get("CFC_SCREEN", tmp_path / "screen.png"))
    with _visiting(context) as visitor:
        visitor.page.set_viewport_size({"width": 820, "height": 2150})
        visitor.open(conversation)
        expect(visitor.page.get_by_test_id("stVegaLiteChart").locator("svg.marks")).to_have_count(2)
        visitor.settle()
        visitor.page.screenshot(path=target)
    # What the README says beside it.
    assert answered == "What is the atomic number of thallium?"
    assert bot.decide(answered, "0.2").answers == ("85", "81")
    for screen in (target, EXAMPLE / "screen.png"):
        assert 10_000 < screen.stat().st_size < 150_000


@pytest.mark.long
def test_it_fits_a_phone(context: BrowserContext, site: str, conversation: str) -> None:
    with _visiting(context, width=PHONE) as visitor:
        visitor.open(conversation)
        visitor.unfold()
        page = visitor.page
        page.get_by_role("button", name="Ask a person").click()
        expect(page.get_by_role("button", name="Waiting for a person")).to_be_disabled()
        visitor.settle()
        assert _sticking_out(page) == []
        page.goto(f"{site}person")
        expect(page.get_by_label("Your answer").first).to_be_visible()
        visitor.settle()
        assert _sticking_out(page) == []
        page.get_by_test_id("stHeading").evaluate("one => { one.style.width = '500px' }")
        assert _sticking_out(page) != []


def _sticking_out(page: Page) -> list[str]:
    """What of the page's content is wider than the screen."""
    found: list[str] = page.evaluate(
        """() => {
          const width = document.documentElement.clientWidth;
          const out = [...document.querySelectorAll('html, body, [data-testid=stMainBlockContainer]')]
            .filter(one => one.scrollWidth > width).map(one => `${one.tagName} scrolls sideways`);
          for (const one of document.querySelectorAll('[data-testid=stMainBlockContainer] *')) {
            const box = one.getBoundingClientRect();
            if (box.width && box.height && (box.right > width + 0.5 || box.left < -0.5))
              out.push(`<${one.tagName} ${one.dataset.testid || ''}> ${box.left}..${box.right}`);
          }
          return out;
        }"""
    )
    return found


def test_a_question_is_decided_once(modules: Callable[[str], Any], bot: Any, tmp_path: Path) -> None:
    store = modules("qa_bot_store").Store(tmp_path / "new" / "qa_bot.db")
    assert store.ask("one", "What is the capital of Peru?", "0.1") is None
    assert store.ask("two", "What is the capital of Peru?", "0.2") is None
    assert store.ask("one", " what is the  capital of peru", "0.3").alpha == "0.1"
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


def test_the_command_prints_the_table_of_the_readme(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(EXAMPLE / "qa_bot_model.py")]
    elsewhere = {**os.environ, "QA_BOT_FOLDER": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=elsewhere)
    assert ran.stdout.strip() in (EXAMPLE / "README.md").read_text(encoding="utf-8")


def _changed(folder: Path, name: str) -> Any:
    """The module of models with its one line changed."""
    text = (EXAMPLE / "qa_bot_model.py").read_text(encoding="utf-8")
    line = "make_bot: Callable[[], Bot] = make_recorded_bot"
    assert text.count(line) == 1
    assert line in (EXAMPLE / "README.md").read_text(encoding="utf-8")
    path = folder / f"qa_bot_model_{name}.py"
    path.write_text(text.replace(line, line.replace("= make_recorded_bot", f"= {name}")), encoding="utf-8")
    return load_module(path)


def test_one_line_makes_it_a_paid_model(
    modules: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server on this machine plays the provider; the records are those of its model."""
    assert modules("qa_bot_store")
    rows = [
        one.model_copy(
            update={"candidates": tuple(c.model_copy(update={"answer": None}) for c in one.candidates)}
        )
        for one in load_recording()
    ]
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    hosted = compute_fingerprint(ChatOpenAI(model="gpt-4o-mini", temperature=0.7))
    write_records(
        tmp_path / "records.jsonl",
        rows,
        Provenance(n=10, generator=hosted, verifier={"id": "sequence-probability"}),
    )
    monkeypatch.chdir(tmp_path)
    with serving(replace(Script.of(rows), model="gpt-4o-mini-2024-07-18")) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        paid = _changed(tmp_path, "make_paid_bot").make_bot()
        assert paid.refusal("Any question at all?") is None
        assert "calibrated with" in paid.refusal(next(iter(paid.seen.values())))
        for question in list(paid.held_out.values())[:3]:
            result = paid.decide(question, "0.2")
            assert result.guarantee.binding == "matched"
            assert result.guarantee.alpha == "0.2"
            assert len(result.candidates) == 10


@pytest.mark.live
@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or not MODEL.is_file(),
    reason="no local model: pip install xllamacpp && python examples/local_model/local_model.py get",
)
def test_one_line_makes_it_the_local_model(
    modules: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert modules("qa_bot_store")
    monkeypatch.chdir(tmp_path)
    quick = ["--questions", "48", "--n", "5"]
    subprocess.run([sys.executable, str(LOCAL / "run.py"), *quick], check=True, timeout=540)
    monkeypatch.syspath_prepend(str(LOCAL))
    module = _changed(tmp_path, "make_local_bot")
    local = module.make_bot()
    try:
        result = local.decide(next(iter(local.held_out.values())), "0.2")
        assert result.guarantee.binding == "matched"
        assert len(result.candidates) == local.artifact.n == 5
        # No record holds this one, and it is answered or abstained on all the same.
        assert local.refusal("What is the plural of cat?") is None
        assert local.decide("What is the plural of cat?", "0.3").guarantee.alpha == "0.3"
    finally:
        module._RUNNING.close()
        for name in ("local_model", "questions", "run"):
            sys.modules.pop(name, None)
