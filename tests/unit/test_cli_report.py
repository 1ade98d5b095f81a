# SPDX-License-Identifier: Apache-2.0
"""How a status reads, with and without a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from penstock.cli.progress import LastError, SubscriptionStatus, TableStatus
from penstock.cli.report import drawn, plain_lines, size

COPYING = TableStatus("flights", "d", 120_000, 336_776, None)
READY = TableStatus("weather", "r", 26_115, None, 1.25)
SUBSCRIPTION = SubscriptionStatus(
    name="s",
    enabled=True,
    streaming=True,
    publisher="host=h password=********",
    publications=("p",),
    received="0/20",
    applied="0/10",
    lag_bytes=16,
    lag_seconds=0.25,
    tables=(COPYING, READY),
    errors=(),
)


def test_plain_lines_say_everything() -> None:
    """One line for each subscription and table: state, rows, lag in bytes and seconds."""
    assert list(plain_lines([SUBSCRIPTION])) == [
        "subscription s: streaming, lag 16 bytes and 0.2 s, applied up to 0/10",
        "  table flights: copying, 120,000 rows copied of about 336,776 (35 %)",
        "  table weather: ready, 26,115 rows copied in 1.2 s",
    ]


def test_states_in_words() -> None:
    """A disabled subscription is not one that has lost its connection."""
    disabled = replace(SUBSCRIPTION, enabled=False, streaming=False, lag_bytes=None, tables=())
    lost = replace(disabled, enabled=True)
    assert list(plain_lines([disabled, lost])) == [
        "subscription s: disabled, applied up to 0/10",
        "subscription s: not connected, applied up to 0/10",
    ]
    assert list(plain_lines([])) == ["no subscriptions"]


def test_an_error_is_shown_with_detail_hint_and_context() -> None:
    """The last error of a subscription has its time, place and SQLSTATE."""
    error = LastError(
        "flights", "2026-01-31 09:00:00 UTC", "22003", "out of range", "D.", "H.", "C"
    )
    lines = list(plain_lines([replace(SUBSCRIPTION, tables=(), errors=(error,))]))
    assert lines[1:] == [
        "  error at 2026-01-31 09:00:00 UTC: flights: out of range (SQLSTATE 22003)",
        "  DETAIL:  D.",
        "  HINT:  H.",
        "  CONTEXT:  C",
    ]


def test_a_terminal_gets_a_bar_for_each_table() -> None:
    """The same facts, drawn."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    console.print(drawn([SUBSCRIPTION]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "━" in text
    assert "120,000 rows copied of about 336,776 (35 %)" in text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 kB"), (5 * 1024**3, "5.0 GB")],
)
def test_sizes(count: int, text: str) -> None:
    """1 kB is 1024 bytes, as pg_size_pretty has it."""
    assert size(count) == text


def test_a_name_of_any_characters_stays_in_its_line() -> None:
    """Escapes of a terminal, new lines and rich's markup in names are shown, not obeyed."""
    name = "a\n\x1b[31m\u2028[/red]"
    error = LastError(name, "now", "22003", "one\ntwo", None, None, None)
    hostile = replace(SUBSCRIPTION, name=name, tables=(replace(READY, name=name),), errors=(error,))
    shown = r"a\n\x1b[31m\u2028[/red]"
    assert [line.partition(": ")[0] for line in list(plain_lines([hostile]))[:2]] == [
        f"subscription {shown}",
        f"  table {shown}",
    ]
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    console.print(drawn([hostile]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count(shown) == 3
    assert "\x1b[31m" not in text
