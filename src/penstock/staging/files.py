# SPDX-License-Identifier: Apache-2.0
"""Make files durable: what is written here survives a power cut once the call has returned."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import DiskFullError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def sync(path: Path) -> None:
    """Write a file's or a folder's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes) -> None:
    """Give a file this content, all of it or none, also over a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


@contextmanager
def room_needed(folder: Path) -> Iterator[None]:
    """Raise DiskFullError instead of the operating system's error when there is no room left."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise DiskFullError(
            "no room left for staged changes",
            detail=f"Writing to {folder} failed: {os.strerror(error.errno)}.",
            hint="Nothing was lost. The publisher keeps the changes until there is room again.",
        ) from error
