# SPDX-License-Identifier: Apache-2.0
"""``penstock status``: read the running node's state and show it, once or until Ctrl-C."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live

from penstock.cli.progress import connect_to_node, read_status
from penstock.cli.report import drawn, plain_lines
from penstock.running import FrontDoor, find_front_door

PACE = 0.5  # seconds between two looks with --watch; the workers report once a second


def status(home: Path, *, watch: bool) -> None:
    """Show the node and its subscriptions; NotRunningError when no node runs."""
    door = find_front_door(home)
    console = Console()
    if watch:
        _watch(door, console)
        return
    typer.echo(_node_line(door))
    with connect_to_node(door) as connection:
        subscriptions = read_status(connection)
    if console.is_terminal:
        console.print(drawn(subscriptions))
    else:
        typer.echo("\n".join(plain_lines(subscriptions)))


def _watch(door: FrontDoor, console: Console) -> None:
    with connect_to_node(door) as connection:
        try:
            if console.is_terminal:
                with Live(console=console, auto_refresh=False) as live:
                    while True:
                        live.update(drawn(read_status(connection)), refresh=True)
                        time.sleep(PACE)
            before: list[str] = []
            while True:  # plain lines are printed when they change
                lines = list(plain_lines(read_status(connection)))
                if lines != before:
                    typer.echo("\n".join(lines))
                    before = lines
                time.sleep(PACE)
        except KeyboardInterrupt:
            return


def _node_line(door: FrontDoor) -> str:
    return f"node: running, PID {door.pid}, listening on {door.host}:{door.port}"
