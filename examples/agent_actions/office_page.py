"""The page: give the agent a task, and decide about the calls that wait. `streamlit run` starts it."""

from __future__ import annotations

import copy
import json
from typing import Any

import streamlit as st
from langchain_cfc_agents import GuardedActions, RecordedRun, read_outcome
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from office_record import SETTINGS, VERIFIERS, make_agent
from office_replay import ReplayModel, load_bot
from office_tasks import make_tasks
from office_world import GUARDED, Office, make_expected_office, show_time

from langchain_cfc import CalibrationArtifact

CONFIG: Any = {"configurable": {"thread_id": "office"}}
# Streamlit leaves much room above a page.
STYLE = "<style>[data-testid=stMainBlockContainer] { padding-top: 2rem; padding-bottom: 2rem; }</style>"
WORDS = {"run": "ran unattended", "ask": "asks a person"}


def main() -> None:
    """Show the task, what the agent did, and the call that waits."""
    bot, runs = st.cache_resource(load_bot)()
    tasks = {task.id: task for task in make_tasks()}
    st.html(STYLE)
    st.title("Office agent")
    st.caption("Its calls run on their own, or wait for you. A recording of a small model: no key is needed.")
    rates = [one.level for one in bot.promises]
    rate = st.radio(
        "How many unattended runs may contain a wrong call?",
        rates,
        format_func=lambda one: f"at most {float(one):.0%}",
        horizontal=True,
        on_change=st.session_state.clear,
        key="rate",
    )
    name = st.selectbox("Task", list(runs), format_func=lambda one: tasks[one].text, key="task")
    if st.session_state.get("begun") != (rate, name):
        begin(bot, runs[name], tasks[name].office, rate)
        st.session_state.begun = (rate, name)
    result = st.session_state.result
    for message in result["messages"]:
        show_message(message)
    if result.get("__interrupt__"):
        ask(result["__interrupt__"][0].value)
    else:
        show_end(
            result, st.session_state.office, make_expected_office(tasks[name].office, tasks[name].reference)
        )


def begin(bot: CalibrationArtifact, run: RecordedRun, office: Office, rate: str) -> None:
    """Let the agent work until it ends or asks."""
    guard = GuardedActions(bot, VERIFIERS, max_wrong_rate=rate, **SETTINGS)
    st.session_state.office = copy.deepcopy(office)
    st.session_state.agent = make_agent(
        ReplayModel(run=run), st.session_state.office, guard, checkpointer=InMemorySaver()
    )
    st.session_state.result = st.session_state.agent.invoke({"messages": run.prompt}, CONFIG)


def decide(*decisions: dict[str, Any]) -> None:
    """Resume the run with a person's decision about each call."""
    answer: Command[Any] = Command(resume={"decisions": list(decisions)})
    st.session_state.result = st.session_state.agent.invoke(answer, CONFIG)


def ask(request: dict[str, Any]) -> None:
    """Offer to approve, edit or reject the calls that wait."""
    calls = request["action_requests"]
    with st.container(border=True, key="waiting"):
        st.markdown("**This call waits for you.**" if len(calls) == 1 else "**These calls wait for you.**")
        with st.form("edit", border=False):
            typed = [
                {
                    name: st.text_input(f"{call['name']}: {name}", str(value))
                    for name, value in call["args"].items()
                }
                for call in calls
            ]
            columns = st.columns(2)
            edited = columns[0].form_submit_button("Approve", type="primary")
            rejected = columns[1].form_submit_button("Reject")
        if edited:
            decide(*(approve_or_edit(call, args) for call, args in zip(calls, typed, strict=True)))
            st.rerun()
        if rejected:
            decide(*({"type": "reject"} for _ in calls))
            st.rerun()


def approve_or_edit(call: dict[str, Any], typed: dict[str, str]) -> dict[str, Any]:
    """Return the decision about a call: edited if a field was changed."""
    args = {
        name: int(typed[name]) if isinstance(value, int) else typed[name]
        for name, value in call["args"].items()
    }
    if args == call["args"]:
        return {"type": "approve"}
    return {"type": "edit", "edited_action": {"name": call["name"], "args": args}}


def show_message(message: Any) -> None:
    """Show what was asked, called, returned or answered."""
    if isinstance(message, HumanMessage):
        st.chat_message("user").text(message.text)
    elif isinstance(message, ToolMessage):
        st.text(f"→ {message.text}")
    elif isinstance(message, AIMessage):
        decision = (message.response_metadata.get("cfc") or {}).get("decision")
        for call in message.tool_calls:
            how = WORDS.get(decision or "", "") if call["name"] in GUARDED else "only reads"
            st.markdown(f"**{call['name']}** · {how}")
            st.code(json.dumps(call["args"], ensure_ascii=False), language="json", wrap_lines=True)
        if message.text:
            st.chat_message("assistant").text(message.text)


def show_end(result: dict[str, Any], office: Office, expected: Office) -> None:
    """Show what is promised about the run, and the office beside what it should be."""
    st.text(read_outcome(result).explain())
    st.text(f"Checked: the office is {'as it should be' if office == expected else 'not as it should be'}.")
    with st.expander("The office now"):
        st.table(
            [
                {"day": one.day, "time": f"{show_time(one.start)}-{show_time(one.end)}", "event": one.title}
                for one in office.events
            ]
        )
        st.table([{"to": to, "subject": subject} for to, subject in office.drafts])


st.set_page_config(page_title="Office agent", page_icon=":material/event_available:")
main()
