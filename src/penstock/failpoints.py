# SPDX-License-Identifier: Apache-2.0
"""Named places where a crash would matter; a test arms one and the process kills itself there.

``PENSTOCK_FAILPOINT=NAME`` in the node's environment arms a failpoint: the first time that it is
reached, the process gets SIGKILL, as in a power cut.  ``NAME:3`` waits for the third time.
Unarmed, a failpoint costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum


class Failpoint(StrEnum):
    """Every kill point that exists; K numbers are those of docs/architecture.md."""

    COPY_SNAPSHOT_EXPORTED = "copy_snapshot_exported"  # K2
    COPY_RANGE_READ = "copy_range_read"  # K3
    COPY_FILES_WRITTEN = "copy_files_written"  # K4
    COPY_DELTA_COMMITTED = "copy_delta_committed"  # K5
    COPY_TABLE_FINISHED = "copy_table_finished"  # K6, K8
    STREAM_BYTES_RECEIVED = "stream_bytes_received"  # K9
    STREAM_TRANSACTION_SPOOLED = "stream_transaction_spooled"  # K9, while it is in progress
    STAGING_SEGMENT_WRITTEN = "staging_segment_written"  # K10
    STAGING_SEGMENT_SYNCED = "staging_segment_synced"  # K11
    STAGING_SEGMENT_REGISTERED = "staging_segment_registered"  # K12
    APPLY_TABLES_LOCKED = "apply_tables_locked"  # K14
    APPLY_TABLE_COMMITTED = "apply_table_committed"  # K17
    APPLY_ALL_COMMITTED = "apply_all_committed"  # K18
    APPLY_BEFORE_COMMIT = "apply_before_commit"  # K19
    APPLY_AFTER_COMMIT = "apply_after_commit"  # K20, K21
    OPTIMIZE_BEFORE_COMMIT = "optimize_before_commit"  # K19 of a compaction
    VACUUM_FILES_REMOVED = "vacuum_files_removed"  # old files are gone, old log entries not
    EXTERNAL_BEFORE_COMMIT = "external_before_commit"  # K19 of another program's commit
    RESTORE_STARTED = "restore_started"  # K22
    DDL_RELAYED = "ddl_relayed"  # K23
    WRITE_DELTA_COMMITTED = "write_delta_committed"  # K17 of a statement
    WRITE_BEFORE_COMMIT = "write_before_commit"  # K19 of a statement
    COPY_OUT_PIECE_SENT = "copy_out_piece_sent"  # a subscriber of the lake has a part of a copy
    PUBLISH_PIECE_SENT = "publish_piece_sent"  # a subscriber has a part of a commit
    PUBLISH_COMMIT_SENT = "publish_commit_sent"  # it has all of it, and has not confirmed it


def _armed() -> dict[str, int]:
    text = os.environ.get("PENSTOCK_FAILPOINT", "")
    if not text:
        return {}
    name, _, count = text.partition(":")
    return {Failpoint(name).value: int(count or 1)}


_remaining = _armed()


def reach(point: Failpoint) -> None:
    """Die here by SIGKILL when this failpoint is armed and its count is used up."""
    if point.value not in _remaining:
        return
    _remaining[point.value] -= 1
    if _remaining[point.value] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
