# SPDX-License-Identifier: Apache-2.0
"""Conflicts in the node's log, in PostgreSQL 18's words (ReportApplyConflict in conflict.c).

Of one batch at most LINES conflicts with a table are shown each; a last line for each kind says how
many more there were.  penstock.conflict_log has more of them.
"""

from __future__ import annotations

import logging
from collections import Counter

from penstock.change.relation import LakeTable
from penstock.control.conflict_log import Conflicts, LoggedConflict, conflict_detail

log = logging.getLogger(__name__)

LINES = 10
"""Conflicts of one batch and table that are shown each; the log is not a table."""


def log_conflict(table: LakeTable, conflict: LoggedConflict) -> None:
    """One conflict."""
    log.info(
        'conflict detected on relation "%s.%s": conflict=%s\nDETAIL:  %s',
        table.schema,
        table.name,
        conflict.kind,
        conflict_detail(conflict, table.key_index),
    )


def log_conflicts(table: LakeTable, conflicts: Conflicts) -> None:
    """The conflicts of a batch."""
    shown = conflicts.shown[:LINES]
    for each in shown:
        log_conflict(table, each)
    more = Counter(conflicts.counts)
    more.subtract((each.kind, each.resolution) for each in shown)
    for (kind, resolution), count in more.items():
        if count:
            log.info(
                'conflict detected on relation "%s.%s": conflict=%s\n'
                "DETAIL:  %d more in the same batch, resolution %s.",
                table.schema,
                table.name,
                kind,
                count,
                resolution,
            )
