# SPDX-License-Identifier: Apache-2.0
"""Remove what no version within retention needs: data files, deletion vectors, log entries.

In:   a locked and settled table, whose version is its head.
Out:  a smaller folder; no version is made.

    expired_files   names that VACUUM would remove, by one look at the folder and the log
    vacuum          Delta's own VACUUM, by Spark, which costs seconds: only if there are any
    clean_log       entries and checkpoints before the last checkpoint that is old enough

The retention is the table's own, in Delta's properties: ``delta.deletedFileRetentionDuration`` (7
days) counts from a file's removal, and for files that no commit names, such as those of a batch
that crashed, from when they were written; ``delta.logRetentionDuration`` (30 days) from a log
entry's writing.  The version, and what any version removed later than that needs, stays.

deltalake's own vacuum is not used: it takes deletion vectors that count for files that no commit
names (1.6.6).  Its cleaning of the log is right: it keeps all from a checkpoint on.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from deltalake import DeltaTable

from penstock.change.relation import LakeTable
from penstock.failpoints import Failpoint, reach
from penstock.lake.durable import deletion_vector_path
from penstock.lake.log import DataFile, data_files, latest_action, removed_files
from penstock.lake.session import GetSession
from penstock.lake.tables import delta_path

FILES_KEPT = "delta.deletedFileRetentionDuration", 7 * 86400.0
LOG_KEPT = "delta.logRetentionDuration", 30 * 86400.0
"""Delta's table properties and their defaults in seconds."""

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


def expired_files(table: LakeTable) -> list[str]:
    """Names in the table's folder that VACUUM would remove."""
    assert table.version is not None
    before = time.time() - retention(table, FILES_KEPT)
    needed = set()
    for file in data_files(table.location, table.version).values():
        needed |= _names(file)
    for file, removed_at in removed_files(table.location, table.version):
        if removed_at >= before:
            needed |= _names(file)
    with os.scandir(table.location) as entries:
        return [
            entry.name
            for entry in entries
            if entry.name not in needed
            and not entry.name.startswith(("_", "."))
            and entry.is_file()
            and entry.stat().st_mtime < before
        ]


def vacuum(session: GetSession, table: LakeTable) -> None:
    """Delta's VACUUM with the table's own retention; it leaves no commit in the log."""
    spark = session()
    spark.conf.set("spark.databricks.delta.vacuum.logging.enabled", "false")
    spark.sql(f"VACUUM {delta_path(table.location)}")
    reach(Failpoint.VACUUM_FILES_REMOVED)


def clean_log(table: LakeTable) -> bool:
    """Remove the log's entries that are old enough, if there are any; whether there were."""
    before = time.time() - retention(table, LOG_KEPT)
    log = Path(table.location) / "_delta_log"
    oldest = min(log.glob("[0-9]" * 20 + ".json"), default=None)
    if oldest is None or oldest.stat().st_mtime >= before:
        return False
    DeltaTable(table.location, version=table.version).cleanup_metadata()
    return True


def _names(file: DataFile) -> set[str]:
    """A data file's name, and that of its deletion vector's file."""
    vector = file.vector
    if vector is None or vector["storageType"] != "u":
        return {file.path}
    return {file.path, deletion_vector_path(vector["pathOrInlineDv"])}
