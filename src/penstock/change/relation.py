# SPDX-License-Identifier: Apache-2.0
"""Relations as the two ends of a subscription know them.

``Relation`` is what a publisher sends about a table (pgoutput's Relation message).
``LakeTable`` is what the control database knows of the lake's own table, with the Delta table
that holds its rows.  Columns of the two are matched by name, never by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReplicaIdentity = Literal["d", "n", "f", "i"]
"""pg_class.relreplident: default (primary key), nothing, full, index."""


@dataclass(frozen=True)
class Column:
    """One column of a published relation; ``key`` when the replica identity contains it."""

    name: str
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True)
class Relation:
    """A published table, as the latest Relation message describes it."""

    oid: int
    schema: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class LakeColumn:
    """One live column of a lake table; ``type_oid`` and ``typmod`` as in pg_attribute.

    ``generated``: GENERATED ALWAYS AS ... STORED.
    """

    attnum: int
    name: str
    type_oid: int
    typmod: int
    not_null: bool
    generated: bool = False


@dataclass(frozen=True)
class LakeTable:
    """A table of the lake: its definition in the control database and its Delta table.

    ``version`` is the committed Delta version, None while no Delta table exists (an empty table).
    ``location`` is the folder of the Delta table; it never contains a name.
    ``key`` are the columns of the replica identity index, else of the primary key, else none;
    ``key_index`` is that index's name.
    ``sole_writer`` is the origin that alone has written the table since it was empty, or None.
    ``kind`` is pg_class.relkind: r a table with rows of its own, p a partitioned table without.
    """

    relid: int
    schema: str
    name: str
    kind: Literal["r", "p"]
    identity: ReplicaIdentity
    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]
    location: str
    version: int | None
    sole_writer: str | None
    key_index: str | None = None
