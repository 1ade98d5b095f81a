# SPDX-License-Identifier: Apache-2.0
"""Publications as their catalog rows have them: what a publish plan is made of.

Plain values without a connection, so a plan can be made from the catalog of now or from records of
what it was at some commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.change.relation import LakeColumn, ReplicaIdentity

PublishAction = Literal["insert", "update", "delete", "truncate"]
"""A word of the publication parameter ``publish``."""


@dataclass(frozen=True)
class Publication:
    """A row of pg_publication.

    ``actions`` is the parameter ``publish``, ``generated_columns`` the parameter
    publish_generated_columns: n none (all before 18), s stored.
    """

    oid: int
    name: str
    actions: frozenset[PublishAction]
    all_tables: bool = False
    via_root: bool = False
    generated_columns: Literal["n", "s"] = "n"


@dataclass(frozen=True)
class PublicationTable:
    """A row of pg_publication_rel: a table that a publication names.

    ``where`` is the row filter's node tree, ``columns`` the numbers in the column list; None
    without one.
    """

    where: str | None = None
    columns: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PublishableColumn:
    """A live column; ``key`` when the replica identity contains it, with FULL always.

    ``generated`` is pg_attribute.attgenerated: s stored, v virtual, empty for an ordinary one.
    """

    column: LakeColumn
    key: bool
    generated: Literal["", "s", "v"] = ""


@dataclass(frozen=True)
class PublishableRelation:
    """A table that publications may have (pg_relation_is_publishable).

    ``ancestors`` of a partition begin with its parent and end with the root.
    """

    oid: int
    namespace: int
    schema: str
    name: str
    kind: Literal["r", "p"]
    identity: ReplicaIdentity
    columns: tuple[PublishableColumn, ...]
    ancestors: tuple[int, ...] = ()


@dataclass(frozen=True)
class PublicationFacts:
    """What a catalog says about some publications and some relations with all their ancestors.

    ``publications`` are in the order in which the subscriber names them.  ``tables`` has the rows
    of pg_publication_rel by (publication, relation), ``schemas`` those of pg_publication_namespace
    as (publication, schema).
    """

    publications: tuple[Publication, ...]
    relations: Mapping[int, PublishableRelation]
    tables: Mapping[tuple[int, int], PublicationTable] = field(default_factory=dict)
    schemas: frozenset[tuple[int, int]] = frozenset()
