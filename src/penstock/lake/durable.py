# SPDX-License-Identifier: Apache-2.0
"""Put Delta commits on disk: neither Spark nor deltalake calls fsync for a local file.

The control database's COMMIT says that versions of a table exist and survives a power cut; so
what those versions consist of must be on disk before it: data files, deletion vectors, change
files, the log entries, and the folders' entries for them.  Object stores are durable by
themselves.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85 = bytes.maketrans(_Z85, _B85)
_B85_TO_Z85 = bytes.maketrans(_B85, _Z85)


def sync_versions(location: str, first: int, last: int, missing_ok: bool = False) -> None:
    """fsync all that Delta versions ``first`` to ``last`` (inclusive) of a local table added.

    ``missing_ok`` for versions of which only the last counts: a VACUUM may have come in between.
    """
    if "://" in location or last < first:
        return
    root = Path(location)
    folders = {root / "_delta_log"}
    for version in range(first, last + 1):
        entry = log_entry(location, version)
        for path in _added_files(root, entry):
            if missing_ok and not path.exists():
                continue
            sync_path(path)
            folders.add(path.parent)
        sync_path(entry)
        checkpoint = entry.with_name(f"{version:020d}.checkpoint.parquet")
        for path in (checkpoint, entry.with_name("_last_checkpoint")):
            if checkpoint.exists():
                sync_path(path)
    for folder in folders:
        sync_path(folder)


def sync_path(path: Path) -> None:
    """fsync one file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def log_entry(location: str, version: int) -> Path:
    """The file of Delta's log that is this version of a local table."""
    return Path(location) / "_delta_log" / f"{version:020d}.json"


def log_lines(entry: Path) -> list[str]:
    """The actions in a file of Delta's log, as JSON.

    Only a line feed ends a line: U+2028 and the like may stand in a string, as they are.
    """
    return [line for line in entry.read_text(encoding="utf-8").split("\n") if line.strip()]


def _added_files(root: Path, entry: Path) -> Iterator[Path]:
    for line in log_lines(entry):
        action: dict[str, Any] = json.loads(line)
        added = action.get("add") or action.get("cdc")
        if added is None:
            continue
        yield root / unquote(added["path"])
        vector = added.get("deletionVector")
        if vector is not None and vector["storageType"] == "u":
            yield root / deletion_vector_path(vector["pathOrInlineDv"])


def deletion_vector_path(text: str) -> str:
    """A deletion vector's file, relative to its table: ``[prefix]`` and a UUID in Z85."""
    prefix, encoded = text[:-20], text[-20:]
    name = uuid.UUID(bytes=decode_z85(encoded))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def encode_z85(value: bytes) -> str:
    """Z85, as Delta writes UUIDs and inline vectors; a multiple of 4 bytes."""
    return base64.b85encode(value).translate(_B85_TO_Z85).decode()


def decode_z85(text: str) -> bytes:
    """The bytes that a Z85 text stands for."""
    return base64.b85decode(text.encode().translate(_Z85_TO_B85))
