# SPDX-License-Identifier: Apache-2.0
"""The same statements on a plain PostgreSQL and on the node: both must print the same.

A script runs in a schema of its own, ``name``, which it finds empty, and which is in search_path.
"""

from __future__ import annotations

import subprocess
from difflib import unified_diff

from tests.support.binaries import NEWEST, installations
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import client_environment


def printed(conninfo: str, name: str, script: str) -> tuple[str, str]:
    """What psql prints for a script: its output, and its errors, verbose, without a source line."""
    head = f"\\set VERBOSITY verbose\nCREATE SCHEMA {name};\nSET search_path = {name};\n"
    done = subprocess.run(
        [installations()[NEWEST] / "bin" / "psql", "-X", "-a", "-d", conninfo],
        input=head + script,
        env=client_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    errors = [line for line in done.stderr.splitlines() if not line.startswith("LOCATION:")]
    return done.stdout, "\n".join(errors)


def check_same(node: Node, postgres: Database, name: str, script: str) -> None:
    """Assert that a script prints on the node what it prints on PostgreSQL."""
    wanted = printed(postgres.conninfo, name, script)
    found = printed(node.conninfo(), name, script)
    # Errors first: they say why the output differs.
    for mine, theirs in zip(reversed(found), reversed(wanted), strict=True):
        lines = unified_diff(theirs.splitlines(), mine.splitlines(), "PostgreSQL", "node", n=1)
        assert mine == theirs, "\n".join(lines)
