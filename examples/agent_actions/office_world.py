"""A made-up office whose state shows whether an agent's calls were right.

`Office` holds a calendar, contacts and drafts; `make_tools` gives an agent tools on one office. Three tools
only read and need no guard; the four in `GUARDED` change something.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from langchain_core.tools import BaseTool, ToolException, tool
from pydantic import Field, StringConstraints

Day: TypeAlias = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
Text: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Start: TypeAlias = Annotated[str, Field(pattern=r"^[0-2][0-9]:[0-5][05]$")]
Call: TypeAlias = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""

GUARDED = ("book", "move", "cancel", "draft_mail")
UNGUARDED = ("find_contact", "list_events", "convert")
_UNITS = {"km": ("mi", 0.621371), "mi": ("km", 1.609344), "kg": ("lb", 2.204623), "lb": ("kg", 0.453592)}


@dataclass
class Event:
    """One event; `start` and `end` are minutes after midnight."""

    title: str
    day: str
    start: int
    end: int


@dataclass
class Office:
    """The state that tools read and change.

    Attributes:
        events: The calendar of a week.
        contacts: Mail addresses by full name.
        drafts: Address and subject of each draft.
    """

    events: list[Event]
    contacts: dict[str, str]
    drafts: list[tuple[str, str]] = field(default_factory=list)

    def find_event(self, title: str) -> Event:
        """Return the event with a title, whatever its capitals.

        Raises:
            ToolException: If there is none; the agent reads the message.
        """
        for event in self.events:
            if event.title.casefold() == title.casefold():
                return event
        msg = f"no event is called {title!r}"
        raise ToolException(msg)

    def check_free(self, day: str, start: int, end: int, moved: Event | None = None) -> None:
        """Raise a `ToolException` if another event than the moved one is in the way."""
        for event in self.events:
            if event is not moved and event.day == day and event.start < end and start < event.end:
                msg = f"{event.title} is then"
                raise ToolException(msg)


def make_tools(office: Office) -> list[BaseTool]:
    """Return the seven tools on an office; refusals become messages that the agent reads."""

    @tool
    def find_contact(name: Text) -> str:
        """Mail address of a person."""
        words = name.casefold().split()
        found = [
            f"{full}: {address}"
            for full, address in office.contacts.items()
            if all(word in full.casefold().split() for word in words)
        ]
        return "; ".join(found) or f"{name} is not in the contacts"

    @tool
    def list_events(day: Day) -> str:
        """Events of a day."""
        found = sorted((event for event in office.events if event.day == day), key=lambda one: one.start)
        lines = [f"{show_time(one.start)}-{show_time(one.end)} {one.title}" for one in found]
        return "; ".join(lines) or "nothing"

    @tool
    def convert(value: float, unit: Literal["km", "mi", "kg", "lb"]) -> str:
        """Kilometres to miles, kilograms to pounds, and back."""
        other, factor = _UNITS[unit]
        return f"{value:g} {unit} = {value * factor:.2f} {other}"

    @tool
    def book(title: Text, day: Day, start: Start, minutes: int) -> str:
        """Put an event into the calendar."""
        first = read_time(start)
        office.check_free(day, first, first + minutes)
        office.events.append(Event(title, day, first, first + minutes))
        return "booked"

    @tool
    def move(title: Text, day: Day, start: Start) -> str:
        """Move an event to another day or time."""
        event, first = office.find_event(title), read_time(start)
        length = event.end - event.start
        office.check_free(day, first, first + length, event)
        event.day, event.start, event.end = day, first, first + length
        return "moved"

    @tool
    def cancel(title: Text) -> str:
        """Delete an event."""
        office.events.remove(office.find_event(title))
        return "cancelled"

    @tool
    def draft_mail(to: Text, subject: Text) -> str:
        """Make a draft of a mail to an address."""
        if to not in office.contacts.values():
            msg = f"{to} is not the address of a contact"
            raise ToolException(msg)
        office.drafts.append((to, subject))
        return "drafted"

    tools: list[BaseTool] = [find_contact, list_events, convert, book, move, cancel, draft_mail]
    for one in tools:
        one.handle_tool_error = True
    return tools


def make_expected_office(office: Office, reference: Iterable[Call]) -> Office:
    """Return the office as it is after the calls of a reference."""
    expected = copy.deepcopy(office)
    tools = {one.name: one for one in make_tools(expected)}
    for name, args in reference:
        tools[name].invoke(args)
    return expected


def read_time(text: str) -> int:
    """Minutes after midnight of a text such as `14:30`."""
    hours, minutes = text.split(":")
    return 60 * int(hours) + int(minutes)


def show_time(minutes: int) -> str:
    """The text of minutes after midnight, such as `14:30`."""
    return f"{minutes // 60:02}:{minutes % 60:02}"
