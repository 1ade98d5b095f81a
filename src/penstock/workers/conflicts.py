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
from penstock.workers.failures import context

log = logging.getLogger(__name__)

LINES = 10
"""Conflicts of one batch and table that are shown each; the log is not a table."""


def log_conflict(origin: str, table: LakeTable, conflict: LoggedConflict) -> None:
    """One conflict; ``origin`` is the subscription's."""
    name = f"{table.schema}.{table.name}"
    log.info(
        'conflict detected on relation "%s": conflict=%s\nDETAIL:  %s\nCONTEXT:  %s',
        name,
        conflict.kind,
        conflict_detail(conflict, table.key_index),
        context(conflict.op, origin, name, conflict.xid, conflict.commit_lsn),
    )


def log_conflicts(origin: str, table: LakeTable, conflicts: Conflicts) -> None:
    """The conflicts of a batch."""
    shown = conflicts.shown[:LINES]
    for each in shown:
        log_conflict(origin, table, each)
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
