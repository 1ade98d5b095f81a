# SPDX-License-Identifier: Apache-2.0
"""Run psql against a server or a node, with the same surroundings on every machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PLAIN = ("-At",)
"""Flags for rows only: unaligned, no header, fields apart by ``|``."""

NATIVE: tuple[str, ...] = ()
"""No flags: the output that PostgreSQL's documentation shows."""


class PsqlError(AssertionError):
    """psql ended with an error; ``stderr`` is what it said."""

    def __init__(self, sql: str, stderr: str) -> None:
        super().__init__(f"{stderr.strip()}\n--- for:\n{sql}")
        self.stderr = stderr


def run_psql(
    psql: Path,
    conninfo: str,
    sql: str,
    *,
    flags: Sequence[str] = PLAIN,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> str:
    """Feed ``sql`` to psql on its standard input; what it printed, without the last newline.

    Stops at the first error and raises PsqlError.  Times are UTC and dates ISO.
    """
    done = subprocess.run(
        [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", *flags, "-d", conninfo],
        input=sql,
        env=client_environment(env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode != 0:
        raise PsqlError(sql, done.stderr)
    return done.stdout.removesuffix("\n")


def client_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of client programs: none of the caller's libpq settings, UTC, ISO dates."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    fixed = {"PGTZ": "UTC", "PGDATESTYLE": "ISO, MDY", "PGCLIENTENCODING": "UTF8", "LC_ALL": "C"}
    return {**kept, **fixed, "PGCONNECT_TIMEOUT": "20", "PAGER": "", **(extra or {})}
