# SPDX-License-Identifier: Apache-2.0
"""Delta's log of a table in a local folder: which data files a version has, and one commit more.

In:   a folder with a Delta table.
Out:  the ``add`` actions that count at a version; or a new version, on disk before it is returned.

A commit is the file ``_delta_log/<version>.json``, made by a link that fails when the version is
taken: so it is there whole or not at all, also for a reader or a writer of another program.
deltalake and Spark read the same log; this module exists because deltalake cannot commit deletion
vectors, and Spark takes a second for what is a millisecond here.

Source: Delta's protocol, sections "Delta Log Entries", "Action Reconciliation", "Checkpoints".
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from penstock.errors import ConcurrentWriteError, TableStateError
from penstock.lake.durable import log_entry, log_lines, sync_path

_COMMITS = "[0-9]" * 20 + ".json"
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.parquet$")

_TIGHT = re.compile(r',\s*"tightBounds"\s*:\s*(true|false)')

Action = Mapping[str, Any]


@dataclass(frozen=True)
class DataFile:
    """A data file that counts, as its ``add`` action has it."""

    add: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Relative to the table's folder."""
        return unquote(self.add["path"])

    @property
    def vector(self) -> Mapping[str, Any] | None:
        """The descriptor of its deletion vector."""
        vector: Mapping[str, Any] | None = self.add.get("deletionVector")
        return vector

    @property
    def identity(self) -> tuple[str, ...]:
        """What Delta knows a file by: its path and its deletion vector, whatever else is written.

        A checkpoint and a commit may write the same action with other incidental fields.
        """
        vector = self.vector or {}
        names = ("storageType", "pathOrInlineDv", "offset")
        return (self.add["path"], *(str(vector.get(name)) for name in names))

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        """Delta's statistics; decimals in them have lost digits, so nothing is decided by those."""
        stats: Mapping[str, Any] = json.loads(self.add.get("stats") or "{}")
        return stats

    @property
    def rows(self) -> int:
        """Rows in the file, those that are gone included; 0 when its statistics do not say."""
        return int(self.stats.get("numRecords", 0))

    def removed(self, now: int, data_change: bool = True) -> Action:
        """The action that takes the file out; ``now`` in milliseconds."""
        kept = ("path", "partitionValues", "size", "deletionVector", "tags")
        return {
            "remove": {name: self.add[name] for name in kept if self.add.get(name) is not None}
            | {
                "deletionTimestamp": now,
                "dataChange": data_change,
                "extendedFileMetadata": True,
            }
        }

    def again(self) -> Action:
        """The action that puts the file back as it was."""
        return {"add": {**self.add, "dataChange": True}}

    def masked(self, vector: Mapping[str, Any], data_change: bool = True) -> Action:
        """The action that puts the file back with another deletion vector."""
        add = {**self.add, "deletionVector": vector, "dataChange": data_change}
        if self.add.get("stats"):
            # In the text: a decimal in it would not survive being read as a number.
            stats = _TIGHT.sub("", self.add["stats"]).rstrip().removesuffix("}")
            add["stats"] = f'{stats},"tightBounds":false}}'
        return {"add": add}


@dataclass(frozen=True)
class Contents:
    """A version: its data files by the path in their action, its metaData and its protocol."""

    files: dict[str, DataFile]
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]


def head_version(location: str) -> int | None:
    """The newest version in the log; None when the folder holds no Delta table.

    Looks from the last checkpoint on: a table that is written every second for years has a log
    that nobody wants to list.
    """
    log = Path(location) / "_delta_log"
    head = _last_checkpoint(log)
    if head is None:
        return max((int(path.stem) for path in log.glob(_COMMITS)), default=None)
    while log_entry(location, head + 1).exists():
        head += 1
    return head


def data_files(location: str, version: int) -> dict[str, DataFile]:
    """The data files of a version, by the path in their action.

    TableStateError when the log does not reach back far enough.
    """
    files: dict[str, DataFile] = {}
    for actions in _history(location, version, "add"):
        _replay(files, actions)
    return files


def removed_files(location: str, version: int) -> Iterator[tuple[DataFile, float]]:
    """Files that were removed, by any commit that the log still knows, with the Unix time of it.

    One that was put back since may be among them.
    """
    for actions in _history(location, version, "remove"):
        for action in actions:
            if "remove" in action:
                removed = action["remove"]
                yield DataFile(removed), removed.get("deletionTimestamp", 0) / 1000


def latest_action(location: str, version: int, kind: str) -> Mapping[str, Any]:
    """The last action of a kind that replaces itself (metaData, protocol) up to a version."""
    found: Mapping[str, Any] = {}
    for actions in _history(location, version, kind):
        for action in actions:
            found = action.get(kind, found)
    return found


def contents(location: str, version: int) -> Contents:
    """All that makes a version up, by one reading of the log; otherwise as ``data_files``."""
    files: dict[str, DataFile] = {}
    found: dict[str, Mapping[str, Any]] = {}
    for actions in _history(location, version, "add", "metaData", "protocol"):
        _replay(files, actions)
        for action in actions:
            found |= action
    return Contents(files, found.get("metaData", {}), found.get("protocol", {}))


def physical_names(location: str, version: int | None = None) -> dict[str, str]:
    """What the columns of the Delta table in a folder are called in its files.

    At a version; by default at its head.
    """
    at = head_version(location) if version is None else version
    assert at is not None  # the caller has created the table
    metadata = latest_action(location, at, "metaData")
    mode = metadata.get("configuration", {}).get("delta.columnMapping.mode", "none")
    return {
        field["name"]: field["name"]
        if mode == "none"
        else field["metadata"]["delta.columnMapping.physicalName"]
        for field in json.loads(metadata["schemaString"])["fields"]
    }


def actions_of(location: str, version: int) -> Iterator[Action]:
    """The actions of one commit; TableStateError when the log does not have it."""
    entry = log_entry(location, version)
    try:
        lines = log_lines(entry)
    except FileNotFoundError:
        raise TableStateError(
            f"the Delta log in {location} lacks version {version}",
            detail="Neither its commit nor a checkpoint in one file that covers it is there.",
        ) from None
    return (json.loads(line) for line in lines)


def commit(
    location: str,
    version: int,
    actions: Iterable[Action],
    operation: str,
    metadata: str,
    parameters: Mapping[str, str] | None = None,
) -> None:
    """Make a version, the one after the head, from actions; durable on return.

    ``metadata`` is the commit's userMetadata, ``parameters`` are the operation's.  The files that
    the actions name are on disk already.  ConcurrentWriteError when somebody else made the version
    in between.

    Spark's own log store for local files looks whether a version is there and then renames its
    draft to it, so it may still replace an entry that was made between the two: that is looked at
    once the entry's folder is on disk, some milliseconds later.
    """
    info = {
        "timestamp": int(time.time() * 1000),
        "operation": operation,
        "operationParameters": dict(parameters or {}),
        "userMetadata": metadata,
    }
    lines = [json.dumps(action) for action in ({"commitInfo": info}, *actions)]
    entry = log_entry(location, version)
    draft = entry.with_name(f".{uuid.uuid4()}.tmp")
    with draft.open("x") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
        made = os.fstat(file.fileno()).st_ino
    try:
        os.link(draft, entry)
    except FileExistsError:
        raise overtaken(location, version) from None
    finally:
        draft.unlink()
    sync_path(entry.parent)
    if entry.stat().st_ino != made:
        raise overtaken(location, version)


def overtaken(location: str, version: int) -> ConcurrentWriteError:
    """The error for a version that another program made when we were about to."""
    return ConcurrentWriteError(
        f"the Delta table in {location} was written by another at the same time",
        detail=f"Its log has version {version} already.",
    )


def _history(location: str, version: int, *kinds: str) -> Iterator[list[Action]]:
    """What makes a version up: a checkpoint's actions of some kinds, then those of each commit."""
    log = Path(location) / "_delta_log"
    start = _last_checkpoint(log)
    if start is None or start > version or not _checkpoint_file(log, start).exists():
        found = (_CHECKPOINT.match(path.name) for path in log.iterdir())
        known = [int(match[1]) for match in found if match and int(match[1]) <= version]
        start = max(known, default=-1)
    if start >= 0:
        yield [action for kind in kinds for action in _checkpoint(log, start, kind)]
    for number in range(start + 1, version + 1):
        yield list(actions_of(location, number))


def _replay(files: dict[str, DataFile], actions: Iterable[Action]) -> None:
    for action in actions:
        if "remove" in action:
            files.pop(action["remove"]["path"], None)
    for action in actions:
        if "add" in action:
            files[action["add"]["path"]] = DataFile(action["add"])


def _last_checkpoint(log: Path) -> int | None:
    """The version that the log's pointer names; None without one, or when it is torn.

    The pointer is a hint: whoever cannot read it lists the log.
    """
    try:
        return int(json.loads((log / "_last_checkpoint").read_text())["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _checkpoint_file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.checkpoint.parquet"


def _checkpoint(log: Path, version: int, kind: str) -> Iterator[Action]:
    """A checkpoint's actions of one kind, with what is null in them left out."""
    column = pq.read_table(_checkpoint_file(log, version), columns=[kind]).column(0)
    for action in column.drop_null().to_pylist(maps_as_pydicts="strict"):
        plain = _plain(action)
        if kind == "add":
            plain.setdefault("partitionValues", {})
        yield {kind: plain}


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _plain(each) if isinstance(each, dict) else each
        for name, each in value.items()
        if each is not None and not name.endswith("_parsed")
    }
