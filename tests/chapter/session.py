# SPDX-License-Identifier: Apache-2.0
"""The chapter's example sessions: read them, carry them out through psql, compare what it prints.

A session is a sequence of steps: a prompt (``test_pub=#`` or ``test_sub=#``), a command, and what
psql prints for it.  The publisher's steps run once.  A step of the subscriber that reads runs
until it prints what the chapter shows, up to a deadline: the chapter's reader waits, too.

Compared are psql's own words, without the blanks that align them.  Rows of a query without ORDER
BY are compared as a set: PostgreSQL's order there is that of its heap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.waits import wait_until

FOLDER = Path(__file__).parent / "sessions"
DEADLINE = 60.0

_PROMPT = re.compile(r"^(test_pub|test_sub)=# (.*)$")
_RULE = re.compile(r"^[-+ ]*$")
_CONTINUED = re.compile(r"^(?:test_pub|test_sub)-# (.*)$")

_NOT_READY = "SELECT srrelid FROM pg_subscription_rel WHERE srsubstate NOT IN ('s', 'r')"

RunSql = Callable[[str], str]


@dataclass(frozen=True)
class Step:
    """One command at one prompt, and the lines that the chapter shows for it."""

    side: str
    command: str
    expected: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Whether the order of the lines is part of the answer."""
        return "ORDER BY" in self.command or not self.command.startswith("SELECT")

    @property
    def reads(self) -> bool:
        """Whether it may be repeated until its answer is there."""
        return self.command.startswith(("SELECT", "\\d"))


def read_session(name: str) -> Iterator[Step]:
    """The steps of a session, in order."""
    side, command = "", ""
    expected: list[str] = []
    for line in (FOLDER / f"{name}.session").read_text().splitlines():
        prompt, continued = _PROMPT.match(line), _CONTINUED.match(line)
        if prompt:
            if side:
                yield Step(side, command, tuple(expected))
            side, command, expected = prompt[1], prompt[2], []
        elif continued:
            command += "\n" + continued[1]
        elif line.strip():
            expected.append(line)
    yield Step(side, command, tuple(expected))


def carry_out(name: str, publisher: RunSql, subscriber: RunSql, connection: str) -> int:
    """Run a session; the number of steps.  ``connection`` replaces the chapter's host."""
    count = 0
    for step in read_session(name):
        command = step.command.replace("host=localhost dbname=test_pub", connection)
        run = publisher if step.side == "test_pub" else subscriber
        if step.side == "test_sub" and step.reads:
            _wait_for_answer(step, run, command)
        else:
            printed = run(command)
            assert _answer(step, printed) == _wanted(step), (
                f"{step.side}: {step.command}\n{printed}"
            )
        if "SUBSCRIPTION" in command:
            # A reader who types does not overtake the initial copy; a program would.
            wait_until(lambda: "(0 rows)" in subscriber(_NOT_READY), DEADLINE, "table sync")
        count += 1
    return count


def _wait_for_answer(step: Step, run: RunSql, command: str) -> None:
    printed = ""

    def as_shown() -> bool:
        nonlocal printed
        printed = run(command)
        return _answer(step, printed) == _wanted(step)

    try:
        wait_until(as_shown, DEADLINE, step.command)
    except AssertionError as error:
        expected = "\n".join(step.expected)
        raise AssertionError(f"{step.command}\nprinted\n{printed}\nnot\n{expected}") from error


def _wanted(step: Step) -> list[str]:
    return _comparable(step, step.expected)


def _answer(step: Step, printed: str) -> list[str]:
    return _comparable(step, printed.splitlines())


def _comparable(step: Step, lines: Sequence[str]) -> list[str]:
    plain = ["".join(line.split()) for line in lines if not _RULE.match(line)]
    return plain if step.ordered else sorted(plain)
