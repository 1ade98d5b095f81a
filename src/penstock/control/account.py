# SPDX-License-Identifier: Apache-2.0
"""The operating system's account that runs the embedded server.

PostgreSQL refuses to run as root.  A node that is root runs it as another account, which must be
able to enter every folder above the home and to read the server's programs; a node that is not
root runs it as itself.  Nothing here changes a folder that is not the node's own.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError

PREFERRED_ACCOUNTS = ("postgres", "nobody")
"""Tried in this order when the node is root and no account is set."""


@dataclass(frozen=True)
class Account:
    """Who runs the server; ``name`` is None when the node does so as itself."""

    name: str | None
    uid: int
    gid: int

    def popen_arguments(self) -> dict[str, Any]:
        """Arguments of ``subprocess`` that start a program as this account."""
        if self.name is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Make this account the owner of a file or folder of the node's."""
        if self.name is not None:
            os.chown(path, self.uid, self.gid)

    def can(self, test: str, path: Path) -> bool:
        """Whether ``test -x`` (enter), ``-r`` (read) … holds for a path, asked as this account."""
        if self.name is None:
            return os.access(path, {"-x": os.X_OK, "-r": os.R_OK}[test])
        arguments = self.popen_arguments()
        return subprocess.run(["test", test, str(path)], cwd="/", **arguments).returncode == 0

    def unreachable_part(self, path: Path) -> Path | None:
        """The first folder on the way to ``path``, itself included, that it cannot enter."""
        for folder in [*reversed(path.parents), path]:
            if not self.can("-x", folder):
                return folder
        return None


def server_account(wanted: str | None) -> Account:
    """The account for the server; ConfigurationError when a root node finds none."""
    if os.geteuid() != 0:
        return Account(None, os.geteuid(), os.getegid())
    for name in (wanted,) if wanted else PREFERRED_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(
        f'user "{wanted}" cannot run the control database'
        if wanted
        else "no user to run the control database",
        detail="PostgreSQL does not run as root, and this user does not exist or is root.",
        hint="Set control_user to an existing unprivileged user.",
    )
