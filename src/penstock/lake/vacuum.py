# SPDX-License-Identifier: Apache-2.0
"""Remove what nobody needs: data files, deletion vectors, log entries.

In:   a locked and settled table, whose version is its head; and the version from which on all stay
      readable for the slots of subscribers (control/retention.py).
Out:  a smaller folder; no version is made.

    needed_files    names of all files that some versions have
    expired_files   names that none of them has and that are old, by one look at the folder and log
    remove_files    removes them
    clean_log       entries and checkpoints before the last checkpoint that is old enough

The retention is the table's own, in Delta's properties: ``delta.deletedFileRetentionDuration`` (7
days) counts from a file's removal, and for files that no commit names, such as those of a batch
that crashed, from when they were written; ``delta.logRetentionDuration`` (30 days) from a log
entry's writing.  What is younger stays for whoever reads an older version, as with Delta's VACUUM.

That VACUUM is not used: it knows the table's current version only, and forgets with a checkpoint
which files a slot that is longer behind than the retention needs.  deltalake's takes deletion
vectors that count for files that no commit names (1.6.6).  Its cleaning of the log is right: it
keeps all from a checkpoint on.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Set
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.change.relation import LakeTable
from penstock.errors import PenstockError
from penstock.failpoints import Failpoint, reach
from penstock.lake.checksum import remove_checksums
from penstock.lake.durable import deletion_vector_path, log_entry
from penstock.lake.log import DataFile, actions_of, data_files, latest_action, removed_files

FILES_KEPT = "delta.deletedFileRetentionDuration", 7 * 86400.0
LOG_KEPT = "delta.logRetentionDuration", 30 * 86400.0
"""Delta's table properties and their defaults in seconds."""

_ENTRIES = "[0-9]" * 20 + ".json"
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
_PART = re.compile(r"(\d+)\s+(second|minute|hour|day|week)s?\b")


def retention(table: LakeTable, kept: tuple[str, float]) -> float:
    """Seconds that one of Delta's two properties asks for."""
    assert table.version is not None
    name, default = kept
    metadata = latest_action(table.location, table.version, "metaData")
    text = metadata.get("configuration", {}).get(name, "").lower()
    parts = _PART.findall(text)
    return sum(int(count) * _SECONDS[unit] for count, unit in parts) if parts else default


def needed_files(location: str, first: int, last: int) -> set[str]:
    """Names in a table's folder that the versions ``first`` to ``last`` have, both inclusive.

    TableStateError when the log does not reach back to ``first``.
    """
    needed = set()
    for version in {first, last}:
        for file in data_files(location, version).values():
            needed |= _names(file)
    for version in range(first + 1, last + 1):
        for action in actions_of(location, version):
            if "remove" in action:
                needed |= _names(DataFile(action["remove"]))
    return needed


def expired_files(table: LakeTable, needed: Set[str]) -> list[str]:
    """Paths in the table's folder that are old, and neither ``needed`` nor the version's own."""
    assert table.version is not None
    before = time.time() - retention(table, FILES_KEPT)
    needed = needed | needed_files(table.location, table.version, table.version)
    for file, removed_at in removed_files(table.location, table.version):
        if removed_at >= before:
            needed |= _names(file)
    return [
        path
        for path, written_at in _files(table.location)
        if path not in needed and written_at < before
    ]


def remove_files(table: LakeTable, paths: Iterable[str]) -> None:
    """Remove files of the table's folder, by their paths in it."""
    for path in paths:
        Path(table.location, path).unlink(missing_ok=True)
    reach(Failpoint.VACUUM_FILES_REMOVED)


def clean_log(table: LakeTable, needed_from: int) -> bool:
    """Remove the log's entries that are old enough, if there are any; whether there were.

    None goes while the entry of a version that is ``needed_from`` is old itself.
    """
    assert table.version is not None
    before = time.time() - retention(table, LOG_KEPT)
    if needed_from < table.version and _is_old(log_entry(table.location, needed_from), before):
        return False
    log = Path(table.location) / "_delta_log"
    oldest = min(log.glob(_ENTRIES), default=None)
    if oldest is None or oldest.stat().st_mtime >= before:
        return False
    try:
        DeltaTable(table.location, version=table.version).cleanup_metadata()
    except DeltaError as error:
        raise PenstockError("the Delta log cannot be cleaned", detail=str(error)) from error
    left = min((int(path.stem) for path in log.glob(_ENTRIES)), default=table.version)
    remove_checksums(table.location, left)
    return True


def _is_old(path: Path, before: float) -> bool:
    return not path.exists() or path.stat().st_mtime < before


def _names(file: DataFile) -> set[str]:
    """A data file's path, and that of its deletion vector's file.

    Of what is named by an absolute path, the last part: it may lie in this folder.
    """
    names = {file.path, PurePosixPath(file.path).name}
    vector = file.vector
    if vector is not None and vector["storageType"] == "u":
        names.add(deletion_vector_path(vector["pathOrInlineDv"]))
    elif vector is not None and vector["storageType"] == "p":
        names.add(PurePosixPath(unquote(vector["pathOrInlineDv"])).name)
    return names


def _files(location: str) -> Iterator[tuple[str, float]]:
    """Paths in a table's folder with the Unix time of their writing; not below names with _ or ."""
    for folder, folders, names in os.walk(location):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        for name in names:
            path = Path(folder, name)
            if not name.startswith(("_", ".")) and path.is_file():
                yield str(path.relative_to(location)), path.stat().st_mtime
