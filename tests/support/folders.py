# SPDX-License-Identifier: Apache-2.0
"""Temporary folders that the unprivileged user of the servers may enter.

pytest's ``tmp_path`` is private to the caller, and so of no use to a server of another user.
The path is short, because a socket's path may have 107 bytes at most.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_folder(prefix: str) -> Iterator[Path]:
    """A new folder that everybody may enter, deleted at the end with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
