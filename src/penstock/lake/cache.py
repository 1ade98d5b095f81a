# SPDX-License-Identifier: Apache-2.0
"""The user's cache folder: what is made or fetched once for a machine, never a node's own state.

A folder in it appears complete or not at all: it is filled under a temporary name and renamed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/penstock``, by default ``~/.cache/penstock``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock"


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes ``final`` when the block ends well.

    When another process was quicker, its folder stays and this one is removed.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    folder.chmod(0o755)
    try:
        yield folder
        try:
            folder.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
