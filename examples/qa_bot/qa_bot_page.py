"""The pages: ask the bot, help it as a person, watch its certificate. `streamlit run` starts them."""

from __future__ import annotations

import difflib
import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import streamlit as st
from langchain_cfc_monitor import CFCMonitor, Label, MonitorStatus
from qa_bot_model import Bot, load_bot
from qa_bot_store import Store, Turn, same_question

from langchain_cfc import CFCResult
from langchain_cfc.errors import CFCError
from langchain_cfc.guarantee import Guarantee, format_share

ASKED_BEFORE = (
    "You asked this before, with {rate}, and that decision stands. Asking until an answer comes would void "
    "the rate."
)
NOT_PASSED = (
    "These answers did not pass the check. No certified rate covers them: do not use one without checking it "
    "yourself."
)
SUGGESTED = 5
# Streamlit leaves much room above a page, and has no size of text between a heading and a paragraph.
STYLE = """
<style>
  [data-testid=stMainBlockContainer] { padding-top: 2rem; padding-bottom: 2rem; }
  [data-testid=stHeading] h1 { font-size: 1.75rem; padding: 0 0 .5rem; }
  [data-testid=stHeading] h3 { font-size: 1.25rem; padding: .75rem 0 .5rem; }
  [class*=st-key-answer-] [data-testid=stText] { font-size: 1.75rem; font-weight: 600; line-height: 1.3; }
  [data-testid=stRadio] [role=radiogroup] { gap: .25rem 1.5rem; }
</style>
"""


def ask_page() -> None:
    """Ask, and see the decision; the latest one stands first."""
    bot, conversation = the_bot(), conversation_id()
    st.title("Ask the bot")
    st.caption(f"It answers, or says that it cannot. {plain(bot.about)}")
    turns = the_store().conversation(conversation)
    choose_rate(bot, turns)
    with st.container():  # without one, Streamlit pins the input to the bottom of the window
        st.chat_input("Ask a question", key="typed", on_submit=lambda: ask(bot, conversation, "typed"))
    if notice := st.session_state.pop("notice", None):
        st.info(notice, icon=":material/info:")
    # The latest one stands first, or the one that was asked again.
    again = st.session_state.get("again")
    turns.sort(key=lambda turn: (turn.id == again, turn.id), reverse=True)
    for turn in turns[:1]:
        show(turn, bot)
    asked = {same_question(turn.question) for turn in turns}
    new = [question for key, question in bot.held_out.items() if key not in asked]
    if suggested := st.session_state.get("close", new)[:SUGGESTED]:
        st.pills(
            "Try one of these",
            suggested,
            format_func=plain,
            key="suggested",
            on_change=lambda: ask(bot, conversation, "suggested"),
        )
    if turns[1:]:
        st.subheader("Before")
    for turn in turns[1:]:
        show(turn, bot)
    waiting = sum(turn.waiting for turn in turns)
    if waiting:
        rerun_once_changed(
            lambda: sum(turn.waiting for turn in the_store().conversation(conversation)), waiting
        )


def choose_rate(bot: Bot, turns: Sequence[Turn]) -> None:
    """Offer the certified rates, each with the share of questions that it answers."""
    rates, everyone = bot.rates, [one.groups[0] for one in bot.certificates.values()]
    shares = [f"answers {format_part(one.answered, one.prompts)} of questions" for one in everyone]
    choose = "Choose before you ask: the rate is stored with the question."
    counted = (
        f"The shares are those of the {everyone[0].prompts:,} that certified the rates." if everyone else ""
    )
    if len(rates) == 1:
        st.session_state.rate = rates[0]
        st.text("; ".join([f"Promise: {format_rate(rates[0], bot)}", *shares]), help=counted or None)
        return
    last = turns[-1].rate if turns else None
    st.radio(
        "How many of its answers may be wrong?" if everyone else "How many questions may get a wrong answer?",
        rates,
        index=rates.index(last) if last in rates else len(rates) // 2,
        format_func=lambda rate: format_rate(rate, bot),
        captions=shares or None,
        key="rate",
        horizontal=True,
        help=f"{choose} {counted}",
    )
    for rate, why in bot.artifact.certified_bot.refused.items() if everyone else ():
        st.caption(f"Not offered: {format_rate(rate, bot)}, which could not be certified.", help=plain(why))


def ask(bot: Bot, conversation: str, source: str) -> None:
    """Store the question with the rate chosen by now; the page that follows has it decided."""
    question = st.session_state[source]
    st.session_state.pop("close", None)
    if source == "suggested":
        st.session_state.suggested = None
    if not question:
        return
    if refusal := bot.refusal(question):
        st.session_state.notice = refusal
        keys = difflib.get_close_matches(same_question(question), bot.held_out, n=SUGGESTED, cutoff=0.4)
        if keys:
            st.session_state.notice += " Those below come close."
            st.session_state.close = [bot.held_out[key] for key in keys]
        return
    worded = bot.held_out.get(same_question(question), question)
    stands = the_store().ask(conversation, worded, st.session_state.rate)
    st.session_state.again = stands and stands.id
    if stands:
        st.session_state.notice = ASKED_BEFORE.format(rate=format_rate(stands.rate, bot))


def show(turn: Turn, bot: Bot) -> None:
    """Show a question, the decision about it, and what a person said."""
    with st.container(border=True):
        st.text(turn.question)
        if turn.result is None:
            decide(turn, bot)
            return
        result = turn.result
        with st.container(key=f"answer-{turn.id}", gap=None):
            st.text("No answer" if result.best is None else result.best)
        why = result.explain_reason()
        st.text(why)
        st.caption(plain(result.explain().removeprefix(why).strip()))
        if result.abstained and turn.answer is None:
            st.button(
                "Waiting for a person" if turn.waiting else "Ask a person",
                key=f"escalate-{turn.id}",
                type="primary",
                icon=":material/person:",
                disabled=turn.waiting,
                on_click=the_store().escalate,
                args=(turn,),
            )
        if turn.answer is not None:
            st.markdown("**A person answered**")
            st.text(turn.answer)
            st.caption("Answers of people are not covered by the rate.")
        st.caption(count_draws(result, bot))
        show_rejected(turn.id, result)
        # Closed expanders are not filled, so that nothing of them is sent.
        details = st.expander("What is certified", key=f"certified-{turn.id}", on_change="rerun")
        if details.open:
            with details:
                show_guarantee(result.guarantee)


def decide(turn: Turn, bot: Bot) -> None:
    """Have the bot decide at the rate that was stored, and show the page again."""
    with st.spinner("Drawing answers"):
        try:
            result = bot.decide(turn.question, turn.rate)
            the_monitor().record(result, name_result(turn))
            the_store().save_decision(turn, result)
        except CFCError as error:
            the_store().forget(turn)
            st.session_state.notice = plain(f"Nothing was decided, so you may ask again: {error}")
    st.rerun()


def count_draws(result: CFCResult, bot: Bot) -> str:
    """Return how many answers were drawn, and how many could have been."""
    drawn = len(result.candidates)
    most = f" of at most {bot.artifact.n} answers" if bot.artifact.draws else " answers"
    return f"Drawn: {drawn}{most}"


def show_rejected(number: int, result: CFCResult) -> None:
    """Offer the answers that were not given, behind a click; only the click sends them to the browser."""
    given = {one.same_as for one in result.candidates if one.accepted and not result.abstained}
    votes = Counter(one.same_as for one in result.candidates if one.same_as not in given)
    if not votes:
        return
    count = f"{len(votes)} rejected answers" if len(votes) > 1 else "1 rejected answer"
    rejected = st.expander(f"Show {count}", key=f"rejected-{number}", on_change="rerun")
    if rejected.open:
        rejected.warning(NOT_PASSED, icon=":material/warning:")
        drawn = result.candidates
        rejected.text(
            "\n".join(
                f"{drawn[slot].answer or drawn[slot].text} ({times} of {len(drawn)})"
                for slot, times in votes.most_common()
            )
        )


def show_guarantee(guarantee: Guarantee) -> None:
    """Show the guarantee as the result carries it."""
    st.text(guarantee.sentence)
    write_list("It rests on", guarantee.assumptions)
    write_list("Not promised", guarantee.not_promised)
    st.caption("Digest of the artifact")
    st.code(guarantee.artifact_digest, language=None, wrap_lines=True)


def write_list(title: str, sentences: Sequence[str]) -> None:
    """Write a short list under a title."""
    st.markdown(f"**{title}**\n" + "".join(f"\n- {plain(sentence)}" for sentence in sentences))


def person_page() -> None:
    """Answer what the bot could not, and check what it answered."""
    st.title("For a person")
    if notice := st.session_state.pop("late", None):
        st.info(notice, icon=":material/info:")
    queue, done = the_store().queue(), the_store().list_answered()
    st.subheader(f"Questions to answer: {len(queue)}")
    if not queue:
        st.caption("Where the bot has no answer, its page offers to ask a person. Such questions wait here.")
    for turn in queue:
        with st.container(border=True):
            with st.form(f"turn-{turn.id}", border=False):
                st.text(turn.question)
                text = st.text_input("Your answer", key=f"answered-{turn.id}", max_chars=2000)
                sent = st.form_submit_button("Send", icon=":material/send:")
            if turn.result is not None:
                show_rejected(turn.id, turn.result)
        if sent and text.strip():
            if not the_store().answer(turn, text.strip()):
                st.session_state.late = "Another person was quicker; their answer stands."
            st.rerun()
    check_answer()
    with st.expander(f"Answered by a person: {len(done)}", icon=":material/check:"):
        for turn in reversed(done):
            st.text(f"{turn.question}\n{turn.answer}")
    rerun_once_changed(lambda: len(the_store().queue()), len(queue))


def check_answer() -> None:
    """Have a person judge the oldest unchecked answer; to pick others would bias the tests of the rates."""
    unchecked = set(the_monitor().list_unlabelled())
    turns = [turn for turn in the_store().list_decided() if turn.result and name_result(turn) in unchecked]
    st.subheader(f"Answers to check: {len(turns)}")
    st.caption("The monitor compares the checks with the certified rates. Oldest first, without choosing.")
    if not turns:
        return
    turn = turns[0]
    with st.container(border=True):
        st.text(turn.question)
        st.text(f"The bot answered: {turn.result and turn.result.best}")
        with st.container(horizontal=True):
            for word, right in (("Right", True), ("Wrong", False)):
                st.button(
                    word,
                    key=f"{word}-{turn.id}",
                    on_click=store_label,
                    args=(turn, right),
                )


def store_label(turn: Turn, right: bool) -> None:
    """Tell the monitor whether an answer was right."""
    the_monitor().label(Label(name_result(turn), right))


def watch_page() -> None:
    """Show what all questions so far say about the certificate."""
    st.title("Do the rates still hold?")
    bot, status, decided = the_bot(), the_monitor().read_status(), the_store().list_decided()
    for alarm in status.alarms:
        st.error(plain(alarm.sentence), icon=":material/warning:")
    for breach in status.breaches:
        st.error(plain(breach), icon=":material/warning:")
    if status.sound:
        st.success("No alarm: nothing seen so far speaks against them.", icon=":material/check:")
    st.caption(
        "Look as often as you like: while nothing changes and the rates hold, the chance of any alarm is at "
        f"most {format_share(status.level)} for drift and {format_share(status.level)} for the rates."
    )
    st.subheader("Certified rates" if bot.is_certified else "Promised rates")
    st.table(list_rates(bot, status, decided))
    st.subheader("Drift")
    for together in status.together:
        if together.kind == "drift":
            st.progress(
                together.progress,
                text="Do questions look like those of the calibration? "
                f"{format_share(round(together.progress, 2))} of the way to an alarm.",
            )
    drift = [one for one in status.tests if one.kind == "drift"]
    details = st.expander(f"All {len(drift)} tests of drift", key="drift", on_change="rerun")
    if details.open:
        details.dataframe(
            [
                {
                    "What": one.what_name,
                    "Among": one.group_name,
                    "Way": one.progress,
                    "Questions": one.outcomes,
                    "Direction": one.shift,
                }
                for one in drift
            ],
            column_config={"Way": st.column_config.ProgressColumn("Way to an alarm", max_value=1.0)},
            hide_index=True,
        )
    for note in status.notes:
        st.caption(plain(note))


def list_rates(bot: Bot, status: MonitorStatus, decided: Sequence[Turn]) -> list[dict[str, str]]:
    """Return a row for each rate: what it answers, and if certified, how many checked answers were wrong."""
    tests = {round(1.0 - (one.certified or 0.0), 9): one for one in status.tests if one.kind == "right"}
    rows = []
    for rate in bot.rates:
        mine = [turn.result for turn in decided if turn.result is not None and turn.rate == rate]
        answered = f"{sum(map(bool, mine))} of {len(mine)} asked"
        row = {"Promise": format_rate(rate, bot), "Answered": answered}
        if rate in bot.certificates:
            everyone, test = bot.certificates[rate].groups[0], tests[float(rate)]
            wrong = round(test.outcomes * (1.0 - test.seen)) if test.seen is not None else 0
            row |= {
                "Expected to answer": format_part(everyone.answered, everyone.prompts),
                "Wrong": f"{wrong} of {test.outcomes} checked",
                "Test": "alarm" if test.alarm else "no alarm",
            }
        rows.append(row)
    return rows


@st.fragment(run_every="2s")
def rerun_once_changed(count: Callable[[], int], seen: int) -> None:
    """Look into the store now and then, and show the page again when a count has changed."""
    if count() != seen:
        st.rerun()


@st.cache_resource(show_spinner="Calibrating")
def the_bot() -> Bot:
    """Return the bot, made once for all visitors; if that fails, the page says why and asks nothing."""
    try:
        return load_bot(sys.argv[1:])
    except CFCError as error:
        st.error(plain(f"There is no bot to ask: {error}"), icon=":material/warning:")
        st.stop()


@st.cache_resource(show_spinner=False)
def the_store() -> Store:
    """Return the store of this bot's conversations."""
    return Store(the_bot().folder / "qa_bot.db")


@st.cache_resource(show_spinner=False)
def the_monitor() -> CFCMonitor:
    """Return the monitor of every decision, made once for all visitors."""
    return CFCMonitor(the_bot().artifact, the_bot().folder / "monitor.db")


def name_result(turn: Turn) -> str:
    """Return the name that the monitor has for a decision."""
    return f"turn-{turn.id}"


def conversation_id() -> str:
    """Return the conversation of this address; a new one where the address names none."""
    known = st.query_params.get("conversation") or st.session_state.get("conversation")
    st.session_state.conversation = st.query_params["conversation"] = known or secrets.token_urlsafe(12)
    return str(st.session_state.conversation)


def format_rate(rate: str, bot: Bot) -> str:
    """Format a rate as people read it."""
    return f"at most {format_share(float(rate))} {'' if bot.is_certified else 'of all questions '}wrong"


def format_part(count: int, total: int) -> str:
    """Format a share in whole percent."""
    return format_share(round(count / total, 2))


def plain(text: str) -> str:
    """Return text that Streamlit does not read as Markdown, with percent signs kept by their numbers."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text.replace(" %", "\u00a0%"))


st.set_page_config(page_title="Ask the bot")
st.html(STYLE)
pages = [
    st.Page(ask_page, title="Ask", default=True),
    st.Page(person_page, title="For a person", url_path="person"),
    st.Page(watch_page, title="Monitor", url_path="monitor"),
]
opened = st.navigation(pages, position="hidden")
with st.container(horizontal=True):
    for page in pages:
        st.page_link(page)
opened.run()
