# SPDX-License-Identifier: Apache-2.0
"""Where the control database is and how the node's superuser gets in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psycopg.conninfo import make_conninfo


@dataclass(frozen=True)
class ControlAddress:
    """``host`` is a socket folder (it starts with /) or a host name, as in libpq.

    ``options`` are further libpq parameters of an external control database, such as sslmode.
    """

    host: str
    port: int
    dbname: str
    user: str
    password: str = field(repr=False)
    options: tuple[tuple[str, str], ...] = ()

    def conninfo(self, **overrides: Any) -> str:
        """A libpq connection string, password included; ``overrides`` are libpq parameters."""
        parameters = dict(self.options)
        parameters.update(
            host=self.host,
            port=str(self.port),
            dbname=self.dbname,
            user=self.user,
            password=self.password,
        )
        return make_conninfo("", **{**parameters, **overrides})

    @property
    def socket_path(self) -> str | None:
        """The Unix socket, or None when the control database is reached by TCP."""
        return f"{self.host}/.s.PGSQL.{self.port}" if self.host.startswith("/") else None
