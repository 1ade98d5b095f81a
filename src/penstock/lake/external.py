# SPDX-License-Identifier: Apache-2.0
"""Commits of other programs to a lake table: what they did, and whether the lake can have it.

In:   a locked lake table with commits ahead of its version, some of them not ours.
Out:  the version that has them, and the ranges that are to be registered; or the named error that
      stops the table until somebody has mended it.

    the commits ahead                          what is done
    -----------------                          ------------
    other programs' only                       registered as they are
    theirs, then aborted ones of ours          theirs are registered, ours restored away
    aborted ones of ours, then theirs that     ours are restored away, then the files of theirs
      only add files                           are added again, in a commit of ours
    aborted ones of ours, then others          TableStateError, unless a RESTORE has brought back
                                               the rows from before

Another program may add and remove files, use deletion vectors, OPTIMIZE.  It may not change what
the table is (TableStateError): columns and their mapping, partitioning, the protocol, or a property
that our own writing would have to obey; the control database knows nothing of such a change.

Its rows are looked at before they are registered, since nothing has checked them: NOT NULL and the
key, by columns and only of rows that are new.  Not looked at: CHECK, foreign keys, other unique
indexes, partition constraints, lengths of varchar(n), texts of types that are kept as text.  A
table with wrong rows stops, and goes on when they have been deleted by whoever wrote them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import pyarrow as pa

from penstock.change.relation import LakeTable
from penstock.errors import TableStateError
from penstock.lake.durable import log_entry, sync_versions
from penstock.lake.log import (
    Action,
    DataFile,
    actions_of,
    data_files,
    head_version,
    latest_action,
)
from penstock.lake.new_rows import Files, key_twice, new_rows
from penstock.lake.session import GetSession
from penstock.lake.settle import (
    AheadCommit,
    XactStatus,
    author_of,
    check_undone,
    commits_ahead,
)
from penstock.lake.tables import arrow_schema, commit_actions, restore

HARMLESS_PROPERTIES = (
    "delta.autoOptimize",
    "delta.checkpointInterval",
    "delta.dataSkipping",
    "delta.deletedFileRetentionDuration",
    "delta.logRetentionDuration",
    "delta.targetFileSize",
    "delta.tuneFileSizesForRewrites",
)
"""Beginnings of the table properties of Delta that another program may change."""

KNOWN_FEATURES = frozenset(
    {"appendOnly", "columnMapping", "deletionVectors", "invariants", "timestampNtz"}
    | {"typeWidening", "typeWidening-preview", "vacuumProtocolCheck"}
)
"""Table features whose rules our own commits keep, as long as no property switches more on."""


@dataclass(frozen=True)
class Registered:
    """What became of the commits ahead of a table.

    ``table`` has the version that is to be committed, and no sole writer any more if rows have
    changed.  ``ranges`` are the versions (inclusive) that other programs' rows came in, ``kind``
    is ``append``, ``merge``, or ``optimize`` when no row has changed.
    """

    table: LakeTable
    ranges: tuple[tuple[int, int], ...]
    kind: Literal["append", "merge", "optimize"]


def written_by_another(location: str, version: int, node: str) -> bool:
    """Whether another program has a commit after a table's version: one look at its log.

    ``node`` is what this node calls itself in its commits (penstock.node).
    """
    if not log_entry(location, version + 1).exists():
        return False
    head = head_version(location) or version
    return any(author_of(location, each, node) is None for each in range(version + 1, head + 1))


def register(
    session: GetSession, table: LakeTable, xact_status: XactStatus, metadata: str
) -> Registered | None:
    """Take in what other programs have written on top of a locked table; None when nothing is.

    What it returns is on disk, and true when the caller's transaction commits it.  ``metadata`` is
    the userMetadata of a RESTORE and of files that are added again.  ``session`` does what is
    too much for one machine.  TableStateError (XX001) when the table must stop; ObjectInUseError
    when one of the commits ahead belongs to a transaction in progress.
    """
    head = head_version(table.location)
    if head == table.version:
        return None
    ahead = commits_ahead(table, head, json.loads(metadata)["penstock"])
    if all(each.author for each in ahead):
        return None
    if table.version is None:
        raise TableStateError(
            f"the Delta table of {_name(table)} was created by another program",
            detail="The lake's table is empty, and has no Delta table yet.",
            hint=f'Remove the folder "{table.location}".',
        )
    check_undone(table, ahead, xact_status, metadata)
    first = list(takewhile(lambda each: each.author is None, ahead))
    base, last = table.version + len(first), ahead[-1].version
    if len(first) == len(ahead):
        return _as_they_are(session, table, base)
    if _content(table, base) == _content(table, last):  # somebody has undone what came since
        _check_definition(table, last)
        there = _as_they_are(session, table, base)
        return dataclasses.replace(there, table=_at(there.table, last))
    added = _added_again(table, base, ahead[len(first) :])
    _check_rows(session, table, base, _with(data_files(table.location, base), added))
    there = _as_they_are(session, table, base)
    sync_versions(table.location, base + 1, last, missing_ok=True)
    version = restore(session, table.location, base, metadata)
    if not added:
        return dataclasses.replace(there, table=_at(there.table, version))
    version = commit_actions(_at(table, version), added, "WRITE", metadata)
    return Registered(
        _at(dataclasses.replace(table, sole_writer=None), version),
        (*there.ranges, (version, version)),
        "merge" if there.kind == "merge" else "append",
    )


def _as_they_are(session: GetSession, table: LakeTable, version: int) -> Registered:
    """Other programs' commits up to a version, which follow the table's own, if there are any."""
    assert table.version is not None
    first = table.version + 1
    _check_definition(table, version)
    actions = [a for n in range(first, version + 1) for a in actions_of(table.location, n)]
    changed = [a for a in actions if _changes_rows(a)]
    if changed:
        _check_rows(session, table, table.version, data_files(table.location, version))
    sync_versions(table.location, first, version, missing_ok=True)
    if not changed:
        return Registered(_at(table, version), (), "optimize")
    return Registered(
        _at(dataclasses.replace(table, sole_writer=None), version),
        ((first, version),),
        "merge" if any("remove" in action for action in changed) else "append",
    )


def _changes_rows(action: Action) -> bool:
    return any(action[kind].get("dataChange", True) for kind in ("add", "remove") if kind in action)


def _added_again(table: LakeTable, base: int, later: Sequence[AheadCommit]) -> list[Action]:
    """The files that other programs added on top of aborted commits of ours, to be put back."""
    added: list[Action] = []
    for commit in later:
        actions = list(actions_of(table.location, commit.version))
        ours = commit.author is not None
        if any("remove" in action for action in actions) and not ours:
            raise _on_top(table, base, commit.version, "removes files")
        if any("metaData" in action or "protocol" in action for action in actions):
            raise _on_top(table, base, commit.version, "changes the table's definition")
        added += [] if ours else [action for action in actions if "add" in action]
    return added


def _on_top(table: LakeTable, base: int, version: int, what: str) -> TableStateError:
    return TableStateError(
        f"the Delta table of {_name(table)} was written by another program on top of a commit"
        " that has been aborted",
        detail=f"Version {base} is valid, and version {version}, among those after it, {what}.",
        hint=f"With Spark, RESTORE TABLE delta.`{table.location}` TO VERSION AS OF {base}, then"
        " write again what the other program wrote.",
    )


def _check_definition(table: LakeTable, after: int) -> None:
    """Whether a version still is what the control database's definition says."""
    assert table.version is not None
    before = table.version
    old, new = (latest_action(table.location, each, "metaData") for each in (before, after))
    columns = [json.loads(each["schemaString"])["fields"] for each in (old, new)]
    partitions = [each.get("partitionColumns", []) for each in (old, new)]
    if columns[0] != columns[1] or partitions[0] != partitions[1]:
        raise _redefined(table, before, "Its columns are others now.")
    settings = [each.get("configuration", {}) for each in (old, new)]
    for name in settings[0].keys() | settings[1].keys():
        if (
            settings[0].get(name) != settings[1].get(name)
            and name.startswith("delta.")
            and not name.startswith(HARMLESS_PROPERTIES)
        ):
            raise _redefined(table, before, f'Its property "{name}" was changed.')
    protocols = [latest_action(table.location, each, "protocol") for each in (before, after)]
    features = [{*p.get("readerFeatures", ()), *p.get("writerFeatures", ())} for p in protocols]
    unknown = features[1] - features[0] - KNOWN_FEATURES
    if unknown:
        raise _redefined(table, before, f"It has the table feature {', '.join(sorted(unknown))}.")


def _redefined(table: LakeTable, version: int, detail: str) -> TableStateError:
    return TableStateError(
        f"the definition of the Delta table of {_name(table)} was changed by another program",
        detail=detail,
        hint=f"With Spark, RESTORE TABLE delta.`{table.location}` TO VERSION AS OF {version}; then"
        " change the table with ALTER TABLE on this node.",
    )


def _with(files: Files, added: Sequence[Action]) -> dict[str, DataFile]:
    """The files, and those that actions add."""
    return {**files, **{each["add"]["path"]: DataFile(each["add"]) for each in added}}


def _check_rows(session: GetSession, table: LakeTable, before: int, now: Files) -> None:
    """NOT NULL and the key, for rows that are in some files and were not in a version."""
    there = data_files(table.location, before)
    for path in now.keys() - there.keys():
        if "://" in path or path.startswith(("/", "file:")):
            raise _wrong_rows(table, f'The data file "{path}" is not in the table\'s folder.')
    wanted = [c.name for c in table.columns if c.not_null or c.name in table.key]
    if not wanted:
        return
    schema = pa.schema([arrow_schema(table).field(name) for name in wanted])
    try:
        rows = pa.concat_tables([schema.empty_table(), *new_rows(table, there, now, schema)])
        for column in table.columns:
            if column.not_null and rows.column(column.name).null_count:
                raise _wrong_rows(
                    table, f'Null value in column "{column.name}" violates not-null constraint.'
                )
        twice = key_twice(session, table, rows, now.values())
        if twice is not None:
            raise _wrong_rows(table, f"{twice} is there more than once.")
    except (OSError, pa.ArrowException) as error:
        raise TableStateError(
            f"a file that another program has written to table {_name(table)} cannot be read",
            detail=str(error),
            hint=_undo(table),
        ) from error


def _wrong_rows(table: LakeTable, detail: str) -> TableStateError:
    return TableStateError(
        f"another program has written rows that table {_name(table)} cannot have",
        detail=detail,
        hint=f"With Spark, DELETE them from delta.`{table.location}`; or {_undo(table)}",
    )


def _undo(table: LakeTable) -> str:
    return f"RESTORE TABLE delta.`{table.location}` TO VERSION AS OF {table.version} with Spark."


def _content(table: LakeTable, version: int) -> set[tuple[str, ...]]:
    return {file.identity for file in data_files(table.location, version).values()}


def _at(table: LakeTable, version: int) -> LakeTable:
    return dataclasses.replace(table, version=version)


def _name(table: LakeTable) -> str:
    return f'"{table.schema}.{table.name}"'
