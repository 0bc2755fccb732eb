"""Generated tasks: what a person asks, the office as it is then, and the guarded calls that are right.

    python office_tasks.py    print one task of each kind

The tasks are always the same ones. Kinds differ in how many guarded calls they need (none to two), whether
these can be parallel, and how much the agent has to look up or compute.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from office_world import Call, Event, Office, show_time

TASKS = 400
# The kinds take turns in this order: easy ones more often than hard ones.
TURNS = (
    "book", "move", "cancel", "mail", "cancel_at", "book_two", "read", "book", "move", "cancel",
    "mail_two", "cancel_at", "mail_unknown", "book", "book_after", "move", "mail", "cancel", "convert",
    "book_and_mail",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
NOON = 12 * 60
SHARE_FROM_TO = 0.25  # of bookings are worded with their end
_FIRST = (
    "Ana", "Ben", "Clara", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Leo",
)  # fmt: skip
_LAST = (
    "Costa", "Berg", "Moreau", "Novak", "Silva", "Weber", "Kaya", "Rossi",
)  # fmt: skip
_TITLES = (
    "Budget review", "Team lunch", "Design check", "Sales call", "Hiring interview", "Release planning",
    "Security audit", "Customer demo", "Yoga class", "Board meeting", "Dentist", "Photo session",
    "Data workshop", "Press call", "Fire drill", "Book club", "Code review", "Site visit",
)  # fmt: skip
_SUBJECTS = (
    "the new contract", "the invoice of May", "parking spaces", "the summer party", "the printer",
    "holiday plans", "the price list", "the broken door", "travel costs", "the audit report",
)  # fmt: skip
_LENGTHS = {
    30: ("half an hour", "30 minutes"),
    45: ("45 minutes", "three quarters of an hour"),
    60: ("an hour", "60 minutes"),
    90: ("an hour and a half", "90 minutes"),
    120: ("two hours", "120 minutes"),
}
_HOURS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What a person asks of the agent, and the calls that are right.

    Attributes:
        id: Kind and number, unique.
        kind: What sort of task it is.
        text: What the person asks.
        office: The office before the run; make a copy for each run.
        reference: The guarded calls that are right, all of them needed.
    """

    id: str
    kind: str
    text: str
    office: Office
    reference: tuple[Call, ...]


def make_tasks(count: int = TASKS) -> list[Task]:
    """Return the first `count` tasks; the kinds take turns, and no two texts are equal."""
    tasks: dict[str, Task] = {}
    for number in range(count):
        rng = random.Random(number)  # noqa: S311 - not for secrets
        kind = TURNS[number % len(TURNS)]
        while True:
            writer = _Writer(rng)
            text, *reference = getattr(writer, kind)()
            if text not in tasks:
                break
        tasks[text] = Task(f"{kind}-{number}", kind, text, writer.office, tuple(reference))
    return list(tasks.values())


class _Writer:
    """An office, and a method for each kind that returns a text about it and the calls that are right."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        people = [f"{first} {rng.choice(_LAST)}" for first in rng.sample(_FIRST, 5)]
        first, last = people[0].split()
        # Two people share a first name.
        people.append(f"{first} {rng.choice([one for one in _LAST if one != last])}")
        contacts = {one: self._address(one) for one in people}
        titles = rng.sample(_TITLES, 9)
        self.new = titles[6:]
        hours = [(day, hour) for day in rng.sample(DAYS, 3) for hour in (8, 13)]
        starts = [(day, 60 * hour + 15 * rng.randrange(12)) for day, hour in hours]
        events = [
            Event(title, day, start, start + rng.choice((30, 60, 90)))
            for title, (day, start) in zip(titles, starts, strict=False)
        ]
        self.office = Office(events, contacts)

    def book(self) -> tuple[str, Call]:
        words, call = self._booking(self.new[0])
        return f"{self.rng.choice(('Book', 'Please book', 'Schedule'))} {words}.", call

    def book_two(self) -> tuple[str, Call, Call]:
        first, one = self._booking(self.new[0])
        second, other = self._booking(self.new[1], avoid=one[1]["day"])
        return f"Book {first}, and {second}.", one, other

    def book_after(self) -> tuple[str, Call]:
        event, minutes = self.rng.choice(self.office.events), self.rng.choice((30, 45, 60))
        length = self.rng.choice(_LENGTHS[minutes])
        text = f"Book {self.new[0]} on {event.day} right after the {event.title}, for {length}."
        return text, _book(self.new[0], event.day, event.end, minutes)

    def move(self) -> tuple[str, Call]:
        event = self.rng.choice(self.office.events)
        day, start = self._free()
        text = f"Move the {event.title} to {day} at {self._time(start)}."
        return text, ("move", {"title": event.title, "day": day, "start": show_time(start)})

    def cancel(self) -> tuple[str, Call]:
        event = self.rng.choice(self.office.events)
        text = f"{self.rng.choice(('Cancel', 'Please cancel'))} the {event.title} on {event.day}."
        return text, ("cancel", {"title": event.title})

    def cancel_at(self) -> tuple[str, Call]:
        event = self.rng.choice(self.office.events)
        part = "morning" if event.start < NOON else "afternoon"
        text = f"Cancel what I have on {event.day} {self.rng.choice((part, f'at {show_time(event.start)}'))}."
        return text, ("cancel", {"title": event.title})

    def mail(self) -> tuple[str, Call]:
        name, subject = self.rng.choice(list(self.office.contacts)), self.rng.choice(_SUBJECTS)
        return f"Draft a mail to {self._call(name)} about {subject}.", self._draft(name, subject)

    def mail_two(self) -> tuple[str, Call, Call]:
        (one, other), subject = self.rng.sample(list(self.office.contacts), 2), self.rng.choice(_SUBJECTS)
        text = f"Draft a mail about {subject} to {self._call(one)}, and one to {self._call(other)}."
        return text, self._draft(one, subject), self._draft(other, subject)

    def mail_unknown(self) -> tuple[str]:
        known = {name.split()[0] for name in self.office.contacts}
        stranger = self.rng.choice([name for name in _FIRST if name not in known])
        return (f"Draft a mail to {stranger} about {self.rng.choice(_SUBJECTS)}.",)

    def book_and_mail(self) -> tuple[str, Call, Call]:
        words, call = self._booking(self.new[0])
        name = self.rng.choice(list(self.office.contacts))
        text = f"Book {words}, and draft a mail to {self._call(name)} about {self.new[0]}."
        return text, call, self._draft(name, self.new[0])

    def read(self) -> tuple[str]:
        part = self.rng.choice(("", " morning", " afternoon", " at noon", " before ten", " after three"))
        return (f"What do I have on {self.rng.choice(DAYS)}{part}?",)

    def convert(self) -> tuple[str]:
        unit, other = self.rng.choice((("km", "miles"), ("kg", "pounds"), ("miles", "km"), ("pounds", "kg")))
        return (f"How many {other} are {self.rng.randint(3, 90)} {unit}?",)

    def _booking(self, title: str, avoid: str = "") -> tuple[str, Call]:
        day, start = self._free(avoid)
        minutes = self.rng.choice(list(_LENGTHS))
        call = _book(title, day, start, minutes)
        if self.rng.random() < SHARE_FROM_TO:
            return f"{title} on {day} from {show_time(start)} to {show_time(start + minutes)}", call
        return f"{title} on {day} at {self._time(start)} for {self.rng.choice(_LENGTHS[minutes])}", call

    def _free(self, avoid: str = "") -> tuple[str, int]:
        """Return a day and a start between which and two hours later nothing is in the calendar."""
        while True:
            day, start = self.rng.choice(DAYS), self.rng.choice(range(8 * 60, 17 * 60, 15))
            events = [one for one in self.office.events if one.day == day]
            if day != avoid and not any(one.start < start + 120 and start < one.end for one in events):
                return day, start

    def _time(self, start: int) -> str:
        """Return a start in one of the ways in which people say it."""
        hour, minute = divmod(start, 60)
        half = f"{(hour - 1) % 12 + 1}:{minute:02} {'am' if start < NOON else 'pm'}"
        this, following = _HOURS[(hour - 1) % 12], _HOURS[hour % 12]
        spoken = {0: f"{this} o'clock", 15: f"quarter past {this}", 30: f"half past {this}"}
        part = "in the morning" if start < NOON else "in the afternoon"
        words = f"{spoken.get(minute, f'quarter to {following}')} {part}"
        return self.rng.choice((show_time(start), show_time(start), half, words))

    def _address(self, name: str) -> str:
        """Return an address that cannot be guessed from the name."""
        first, last = name.lower().split()
        return f"{first[0]}{last[:3]}{self.rng.randint(10, 99)}@office.example"

    def _call(self, name: str) -> str:
        """Return how a person names a contact: by the first name if only one has it."""
        first, _ = name.split()
        return first if sum(one.startswith(f"{first} ") for one in self.office.contacts) == 1 else name

    def _draft(self, name: str, subject: str) -> Call:
        return "draft_mail", {"to": self.office.contacts[name], "subject": subject}


def _book(title: str, day: str, start: int, minutes: int) -> Call:
    return "book", {"title": title, "day": day, "start": show_time(start), "minutes": minutes}


if __name__ == "__main__":
    for task in make_tasks(len(TURNS)):
        print(f"{task.id}: {task.text}", *task.reference, sep="\n  ")
