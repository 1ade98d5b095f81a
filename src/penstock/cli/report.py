# SPDX-License-Identifier: Apache-2.0
"""Draw a status: bars and colours on a terminal, plain lines without one.

Plain lines are for scripts and tests: one line for each thing, names first, no drawing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.progress import LastError, SubscriptionStatus, TableStatus
from penstock.logs import printable

BAR_WIDTH = 30  # characters
_COLOURS = {"r": "green", "s": "cyan", "f": "cyan", "d": "yellow", "i": "dim"}


def plain_lines(subscriptions: Sequence[SubscriptionStatus]) -> Iterator[str]:
    """One line for each subscription, table and error."""
    if not subscriptions:
        yield "no subscriptions"
    for subscription in subscriptions:
        yield f"subscription {printable(subscription.name)}: {_headline(subscription)}"
        for table in subscription.tables:
            name = printable(table.name)
            yield f"  table {name}: {table.state_words}{_after(', ', _rows(table))}"
        for error in subscription.errors:
            yield from (f"  {line}" for line in _error_lines(error))


def drawn(subscriptions: Sequence[SubscriptionStatus]) -> RenderableType:
    """The same for a terminal: a table for each subscription, a bar for each running copy."""
    if not subscriptions:
        return Text("no subscriptions")
    return Group(*(part for each in subscriptions for part in _drawn_one(each)))


def _drawn_one(subscription: SubscriptionStatus) -> Iterator[RenderableType]:
    yield Text.assemble((printable(subscription.name), "bold"), "  ", _headline(subscription))
    publications = ", ".join(map(printable, subscription.publications))
    yield Text(f"  {publications} from {printable(subscription.publisher)}", style="dim")
    rows = Table(box=None, pad_edge=True, show_header=False)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(width=BAR_WIDTH)
    rows.add_column(no_wrap=True, justify="right")
    for table in subscription.tables:
        rows.add_row(
            Text(printable(table.name)),
            Text(table.state_words, style=_COLOURS.get(table.state, "")),
            _bar(table),
            _rows(table),
        )
    yield rows
    for error in subscription.errors:
        yield Text("\n".join(_error_lines(error)), style="red")


def _bar(table: TableStatus) -> RenderableType:
    if table.state in "fsr":
        return ProgressBar(total=1, completed=1, width=BAR_WIDTH)
    total = max(table.rows_total or 0, table.rows_copied or 0, 1)
    return ProgressBar(total=total, completed=table.rows_copied or 0, width=BAR_WIDTH)


def _headline(subscription: SubscriptionStatus) -> str:
    words = [subscription.state_words]
    if subscription.lag_bytes is not None:
        words.append(f"lag {size(subscription.lag_bytes)}")
        if subscription.lag_seconds is not None:
            words[-1] += f" and {subscription.lag_seconds:.1f} s"
    if subscription.applied is not None:
        words.append(f"applied up to {subscription.applied}")
    return ", ".join(words)


def _rows(table: TableStatus) -> str:
    if table.rows_copied is None:
        return ""
    text = f"{table.rows_copied:,} rows copied"
    if table.state == "d" and table.rows_total:
        share = min(100, 100 * table.rows_copied // table.rows_total)
        return f"{text} of about {table.rows_total:,} ({share} %)"
    if table.copy_seconds:
        text += f" in {table.copy_seconds:.1f} s"
    return text


def _error_lines(error: LastError) -> list[str]:
    place = f"{printable(error.table)}: " if error.table else ""
    lines = [f"error at {error.time}: {place}{error.message} (SQLSTATE {error.sqlstate})"]
    lines.extend(
        f"{title}:  {text}"
        for title, text in (
            ("DETAIL", error.detail),
            ("HINT", error.hint),
            ("CONTEXT", error.context),
        )
        if text
    )
    return [printable(line, newline="\n    ") for line in lines]


def size(count: int) -> str:
    """Bytes for people: ``0 bytes``, ``12.3 kB``; 1 kB is 1024 bytes as in PostgreSQL."""
    value, unit = float(count), "bytes"
    for bigger in ("kB", "MB", "GB", "TB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"


def _after(separator: str, text: str) -> str:
    return separator + text if text else ""
