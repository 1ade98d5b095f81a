# SPDX-License-Identifier: Apache-2.0
"""Find the node that runs on a home and say how libpq reaches it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.config import load_settings
from penstock.errors import PenstockError
from penstock.home import Holder, Superuser, find_holder, read_superuser

SUPERUSER = "penstock"
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1", "": "127.0.0.1"}


class NotRunningError(PenstockError):
    """No node runs on this home, or none that listens yet."""

    sqlstate = "57P03"


@dataclass(frozen=True)
class FrontDoor:
    """Where the running node listens, and the file with its superuser's password."""

    pid: int
    host: str
    port: int
    database: str
    user: str
    passfile: Path

    @property
    def environment(self) -> dict[str, str]:
        """libpq's environment variables for a connection."""
        return {
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGDATABASE": self.database,
            "PGUSER": self.user,
            "PGPASSFILE": str(self.passfile),
        }


def find_node(home: Path) -> Holder:
    """The node's process; NotRunningError when there is none."""
    holder = find_holder(home)
    if holder is None:
        raise NotRunningError(f'no node runs on home "{home}"')
    return holder


def find_front_door(home: Path) -> FrontDoor:
    """Where the node listens; NotRunningError when there is none or it has not come so far."""
    holder = find_node(home)
    if holder.host is None or holder.port is None:
        raise NotRunningError(
            f'the node on home "{home}" (PID {holder.pid}) is starting and does not listen yet'
        )
    settings = load_settings(home=home)
    superuser = read_superuser(settings.pgpass_path) or Superuser(SUPERUSER, None)
    host = holder.host.strip("[]")
    return FrontDoor(
        pid=holder.pid,
        host=_ANY.get(host, host),
        port=holder.port,
        database=superuser.database or settings.database,
        user=superuser.name,
        passfile=settings.pgpass_path,
    )
