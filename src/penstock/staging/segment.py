# SPDX-License-Identifier: Apache-2.0
"""A segment: some whole remote transactions, as files of changes, with a manifest.

A segment exists when its manifest does; a file that no manifest names is not part of the log.
The manifest is JSON; positions are plain integers in it.  Its table of transactions is packed: an
error needs an xid, and a batch that is cut inside the segment needs the end of a transaction.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.change.relation import Column, Relation
from penstock.compiled import Ints
from penstock.errors import StagingError
from penstock.pgoutput.decode import Transaction

MANIFEST_FORMAT = 2
"""Raised when a reader of the old form would misread the new one."""


@dataclass(frozen=True)
class ChangeFile:
    """One Parquet file in ``change_schema(relation)``, rows in commit order.

    ``rows`` is the sum of the four counts.  ``bytes`` is the file's size.  ``restarts`` are the
    commit LSNs of transactions with a TRUNCATE that restarts identity.
    """

    relation: Relation
    path: str
    bytes: int
    rows: int
    inserts: int
    updates: int
    deletes: int
    truncates: int
    restarts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Segment:
    """Whole transactions that were staged together.

    ``end_lsn`` is the last transaction's end, the position of the segment; ``commit_time_us`` is
    that transaction's commit time in microseconds since 1970-01-01 UTC.  ``bytes`` is the size of
    the files together.  A relation can have several files; in order they are in commit order.
    ``packed`` holds the transactions (``pack_transactions``), ``transactions`` is their number.
    """

    first_commit_lsn: int
    last_commit_lsn: int
    end_lsn: int
    commit_time_us: int
    transactions: int
    bytes: int
    files: tuple[ChangeFile, ...]
    packed: str = field(repr=False)

    def transaction_rows(self) -> Ints:
        """The transactions in commit order: array [n, 4], the fields of Transaction."""
        size = len(Transaction._fields)
        deltas = np.frombuffer(zlib.decompress(b64decode(self.packed)), "<i8")
        rows: Ints = np.cumsum(deltas.reshape(size, -1), axis=1).T.astype(np.int64)
        return rows


def pack_transactions(rows: Ints) -> str:
    """Transactions (array [n, 4]) as text: some 5 bytes each.

    Each column as differences, which are small and alike, deflated, in base 64.
    """
    first = np.zeros((1, rows.shape[1]), np.int64)
    deltas = np.ascontiguousarray(np.diff(rows, axis=0, prepend=first).T, "<i8")
    return b64encode(zlib.compress(deltas.tobytes(), 1)).decode()


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
    restarts = tuple(content.pop("restarts", ()))
    return ChangeFile(
        relation=Relation(columns=columns, **relation), path=path, restarts=restarts, **content
    )
