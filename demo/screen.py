# SPDX-License-Identifier: Apache-2.0
"""What the demo prints: numbered steps, SQL as it is sent, copies as bars, a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.syntax import Syntax
from rich.table import Table

from penstock.cli.progress import SubscriptionStatus
from penstock.cli.report import drawn, plain_lines

PACE = 0.3  # seconds between two looks at a running copy


class Screen:
    """Prints steps with the time that each took."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._step = 0
        self._facts: list[tuple[str, str]] = []
        self._began = time.monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A numbered step; its seconds are printed when it is done."""
        self._step += 1
        self.console.print(f"\n[bold cyan]{self._step}. {title}[/]")
        began = time.monotonic()
        yield
        self.console.print(f"   [dim]{time.monotonic() - began:.1f} s[/]")

    def say(self, text: str) -> None:
        """One indented line."""
        self.console.print(f"   {text}", soft_wrap=True)

    def sql(self, text: str) -> None:
        """A statement, as it is sent."""
        lines = "\n".join(f"   {line}" for line in text.strip().splitlines())
        if self.console.is_terminal:
            self.console.print(Syntax(lines, "postgresql", background_color="default"))
        else:
            self.console.print(lines, markup=False, soft_wrap=True)

    def output(self, text: str) -> None:
        """What a program printed, as it is."""
        for line in text.splitlines():
            self.console.print(f"   {line}", markup=False, soft_wrap=True)

    def fact(self, name: str, value: str) -> None:
        """A line of the summary; printed now, too."""
        self._facts.append((name, value))
        self.say(f"{name}: [bold]{value}[/]")

    def watch(
        self,
        read: Callable[[], Sequence[SubscriptionStatus]],
        done: Callable[[Sequence[SubscriptionStatus]], bool],
    ) -> None:
        """Show a status until ``done`` says so: bars on a terminal, otherwise changed lines."""
        if self.console.is_terminal:
            with Live(console=self.console, auto_refresh=False) as live:
                while True:
                    status = read()
                    live.update(drawn(status), refresh=True)
                    if done(status):
                        return
                    time.sleep(PACE)
        before: set[str] = set()
        while True:
            status = read()
            lines = [line for each in status for line in list(plain_lines([each]))[1:]]
            self.output("\n".join(line for line in lines if line not in before))
            before.update(lines)
            if done(status):
                return
            time.sleep(PACE)

    def summary(self) -> None:
        """All facts again, in one table, and the whole time."""
        table = Table(title="\nWhat happened", title_justify="left", show_header=False)
        for name, value in self._facts:
            table.add_row(name, value)
        table.add_row("whole demo", f"{time.monotonic() - self._began:.0f} s")
        self.console.print(table)
