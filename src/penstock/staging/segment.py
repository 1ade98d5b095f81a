# SPDX-License-Identifier: Apache-2.0
"""A segment: some whole remote transactions, as files of changes, with a manifest.

A segment exists when its manifest does; a file that no manifest names is not part of the log.
The manifest is JSON; positions are plain integers in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.change.relation import Column, Relation
from penstock.errors import StagingError

MANIFEST_FORMAT = 1
"""Raised when a reader of the old form would misread the new one."""


@dataclass(frozen=True)
class ChangeFile:
    """One Parquet file in ``change_schema(relation)``, rows in commit order.

    ``rows`` is the sum of the four counts.  ``bytes`` is the file's size.
    """

    relation: Relation
    path: str
    bytes: int
    rows: int
    inserts: int
    updates: int
    deletes: int
    truncates: int


@dataclass(frozen=True)
class Segment:
    """Whole transactions that were staged together.

    ``end_lsn`` is the last transaction's end, the position of the segment; ``commit_time_us`` is
    that transaction's commit time in microseconds since 1970-01-01 UTC.  ``bytes`` is the size of
    the files together.  A relation can have several files; in order they are in commit order.
    """

    first_commit_lsn: int
    last_commit_lsn: int
    end_lsn: int
    commit_time_us: int
    transactions: int
    bytes: int
    files: tuple[ChangeFile, ...]


def to_manifest(segment: Segment) -> bytes:
    """The manifest's bytes; file names in it are relative to the manifest's folder."""
    content: dict[str, Any] = {"format": MANIFEST_FORMAT, **asdict(segment)}
    content["files"] = [{**file, "path": Path(file["path"]).name} for file in content["files"]]
    return json.dumps(content).encode()


def from_manifest(path: Path) -> Segment:
    """Read a manifest; StagingError when it is not one or when a file of it is not as it says."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != MANIFEST_FORMAT:
            raise StagingError(f"staged segment {path.name} has an unknown format")
        files = tuple(_file(path.parent, file) for file in content.pop("files"))
        segment = Segment(files=files, **content)
    except (ValueError, KeyError, TypeError) as error:
        raise StagingError(f"staged segment {path.name} has no valid manifest") from error
    for file in segment.files:
        if not Path(file.path).exists() or Path(file.path).stat().st_size != file.bytes:
            raise StagingError(
                f"staged file {Path(file.path).name} is missing or has not its recorded size",
                detail=f"The manifest {path.name} says {file.bytes} bytes.",
                hint="Staged changes were lost. Create the subscription again with a new copy.",
            )
    return segment


def _file(folder: Path, content: dict[str, Any]) -> ChangeFile:
    relation = content.pop("relation")
    columns = tuple(Column(**column) for column in relation.pop("columns"))
    path = str(folder / content.pop("path"))
    return ChangeFile(relation=Relation(columns=columns, **relation), path=path, **content)
