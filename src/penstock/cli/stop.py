# SPDX-License-Identifier: Apache-2.0
"""``penstock stop``: SIGTERM to the node, then wait until its home is free."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import typer

from penstock.errors import WrongStateError
from penstock.home import find_holder
from penstock.running import find_node

PATIENCE = 15.0  # seconds in which a node has to drain and end


def stop(home: Path) -> None:
    """Stop the node; NotRunningError when none runs, WrongStateError when it does not end."""
    holder = find_node(home)
    os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while find_holder(home) is not None:
        if time.monotonic() > deadline:
            raise WrongStateError(
                f"the node (PID {holder.pid}) has not stopped within {PATIENCE:.0f} seconds",
                hint=f"Its log is {home / 'log' / 'penstock.log'}. After kill -9 the next start"
                " recovers by itself.",
            )
        time.sleep(0.05)
    typer.echo("penstock: stopped")
