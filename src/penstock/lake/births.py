# SPDX-License-Identifier: Apache-2.0
"""When the rows of a data file came, for a file that does not say so itself.

In:   data files that another program has written, so without the columns of change/last_change.py.
Out:  the time of the Delta commit that brought a file, when it brought nothing but changed rows.

    the commit                                       its rows
    ----------                                       --------
    adds files; takes none out, or only to give      changed
    them a deletion vector
    is a WRITE, which may overwrite                  changed: all are the writer's
    says that it has copied no row (its metrics)     changed: UPDATE, DELETE, MERGE
    changes no data (OPTIMIZE), or anything else     some may be carried along: nothing is known
    is a RESTORE                                     were there before: the search goes on

Nothing is known either when the log no longer reaches back to the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from penstock.lake.durable import log_entry
from penstock.lake.log import Action, actions_of


def born(location: str, version: int, paths: Iterable[str]) -> dict[str, int]:
    """The times of data files, by the path in their action; those not known are absent.

    Microseconds since 1970-01-01 UTC, by the clock of the program that committed.  ``version`` is
    one that has the files; the log is read backwards from it, as far as needed.
    """
    wanted = set(paths)
    times: dict[str, int] = {}
    while wanted and version >= 0 and log_entry(location, version).exists():
        actions = list(actions_of(location, version))
        version -= 1
        added = {a["add"]["path"]: a["add"] for a in actions if "add" in a}
        removed = {a["remove"]["path"] for a in actions if "remove" in a}
        info: Action = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        if info.get("operation") == "RESTORE":
            continue
        # A file that is removed and added at once has got a deletion vector: it is older.
        for path in wanted.intersection(added) - removed:
            wanted.remove(path)
            changed = added[path].get("dataChange") and not _carries(info, removed - added.keys())
            if changed and "timestamp" in info:
                times[path] = int(info["timestamp"]) * 1000
    return times


def _carries(info: Mapping[str, Any], out: Set[str]) -> bool:
    """Whether a commit may have rows that it did not change; ``out`` are files that it took out."""
    if not out or info.get("operation") == "WRITE":
        return False
    metrics = info.get("operationMetrics", {})  # Spark's names, and deltalake's
    names = ("numCopiedRows", "numTargetRowsCopied", "num_copied_rows", "num_target_rows_copied")
    copied = [int(metrics[name]) for name in names if name in metrics]
    return not copied or any(copied)
