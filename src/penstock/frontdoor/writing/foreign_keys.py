# SPDX-License-Identifier: Apache-2.0
"""The foreign keys of a statement that writes lake tables.

In:   what was locked for it, and what it does to its tables.
Out:  nothing, or PostgreSQL's error.

PostgreSQL's own triggers would look into empty relations: they do not fire while the statement is
run there.  What they would find is looked for in the lake, in the session's own versions, so what
the transaction has written counts (lake/references.py).  What they would do to the tables that
refer is done by referential_actions.py; constraints that are DEFERRABLE are in deferred.py.

Two writers (schema/140_foreign_keys.sql): who refers to rows of a table holds its row in
table_version FOR KEY SHARE from before the statement on.  Who has taken keys from it asks for FOR
UPDATE, and holds the tables that refer FOR SHARE; only then are their versions read.  So a new row
and the end of the row that it refers to cannot both commit, while writers that take no key away,
and those that refer, do not wait for each other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.change.relation import LakeColumn
from penstock.control.guard import Guard
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.session_commit import call
from penstock.frontdoor.writing.violations import missing_violation, referred_violation
from penstock.frontdoor.writing.write_targets import Locked, Target, read_locked
from penstock.lake.references import (
    ForeignKey,
    Lost,
    Missing,
    Relation,
    State,
    comparable,
    first_missing,
    lost_keys,
    referred_to,
    there_again,
)
from penstock.lake.session import GetSession
from penstock.lake.writes import Change
from penstock.wire.responses import ServerError

Made = Mapping[int, Change]
"""What a statement does, by the relid of the table."""


@dataclass(frozen=True)
class Referred:
    """Rows refer to a key that a table lost; ``row`` is its place among those that are gone."""

    row: int
    key: ForeignKey
    lost: pa.Table
    restricts: bool


class ForeignKeys:
    """Those of one statement; ``locked`` is what was locked before it.

    ``tables`` are all that are known by relid, ``referring`` the foreign keys that refer to those
    that are, or may be, written.
    """

    def __init__(
        self,
        backend: ControlBackend,
        guard: Guard,
        session: GetSession,
        locked: Locked,
        lake_root: Path,
    ) -> None:
        self.backend = backend
        self.session = session
        self.tables = _tables(locked)
        self.referring = {key.oid: key for key in locked.referring}
        self._references = {key.oid: key for key in locked.references}
        self._guard = guard
        self._lake_root = lake_root
        self._own = _tables(locked).keys() - {each.table.relid for each in locked.partners}
        self._locked: set[int] = set()
        self._refuse(locked.references)

    async def disable(self) -> None:
        """PostgreSQL's triggers do not fire until the subtransaction's end."""
        if self._references or self.referring:
            await call(self.backend, self._guard.without_foreign_keys())

    async def error(self, made: Made) -> PenstockError | None:
        """PostgreSQL's error for constraints that are not deferrable; the tables are locked."""
        lost = await asyncio.to_thread(self.lost, made)
        if lost:
            await self.lock_referring(key.parent.relid for key, _ in lost)
        return await self._referring(made) or await self.missing_error(made)

    @property
    def keys(self) -> dict[int, ForeignKey]:
        """All that are known, by OID."""
        return self._references | self.referring

    def lost(self, made: Made) -> list[tuple[ForeignKey, Lost]]:
        """Keys that tables lost, by the constraints that refer to them."""
        found = []
        for _, key in sorted(self.referring.items()):
            change = made.get(key.parent.relid)
            if key.acts and change is not None:
                state = State(self.tables[key.parent.relid].table, change)
                lost = lost_keys(state, key.parent.columns)
                if lost is not None:
                    found.append((key, lost))
        return found

    async def lock_referring(self, relids: Iterable[int]) -> bool:
        """Hold what refers to tables that lost keys; whether it is as it was before.

        Their versions are then those that count.
        """
        self._locked |= set(relids)
        locking = self._guard.lock_referring(sorted(self._locked))
        try:
            ((text,),) = await call(self.backend, locking)
        except ServerError as error:
            error.fields.pop("W", None)  # it would tell of our function
            raise
        locked = read_locked(json.loads(text or "{}"), self._lake_root)
        found = {relid: e for relid, e in _tables(locked).items() if relid not in self._own}
        same = all(
            self.tables[relid].table == each.table
            for relid, each in found.items()
            if relid in self.tables
        )
        self.tables |= found
        self.referring |= {key.oid: key for key in locked.referring}
        self._references |= {key.oid: key for key in locked.references}
        self._refuse((*locked.references, *locked.referring))
        return same

    async def lock_again(self) -> bool:
        """Behind a rollback to a savepoint, which lets go: whether nothing has happened since."""
        return not self._locked or await self.lock_referring(())

    def first_referred(self, key: ForeignKey, lost: Lost, made: Made) -> Referred | None:
        """The first of some keys that may not go: rows refer to it, and no row has it again."""
        states = self.states(key.child.leaves, made)
        referred = referred_to(self.session, states, key.child.columns, lost.keys)
        restricts = np.where(lost.deleted, key.on_delete, key.on_update) == "r"
        (parent,) = self.states([key.parent.relid], made)
        referred &= restricts | ~there_again(parent, key.parent.columns, lost.keys)
        if not referred.any():
            return None
        first = int(np.flatnonzero(referred)[0])
        keys = lost.keys.slice(first, 1)
        return Referred(int(lost.row[first]), key, keys, bool(restricts[first]))

    async def referred_error(self, referred: Referred) -> PenstockError:
        """PostgreSQL's error for it."""
        return await self.violation(referred.key, referred.lost, referred.restricts)

    async def violation(self, key: ForeignKey, lost: pa.Table, restricts: bool) -> ServerError:
        """PostgreSQL's error for a key that is gone, in the only row of ``lost``."""
        columns = self.columns(key.parent)
        return await referred_violation(self.backend, key, columns, lost, restricts)

    def columns(self, side: Relation) -> list[LakeColumn]:
        """The columns of a side, if a table of it is known."""
        known = [self.tables[relid] for relid in side.leaves if relid in self.tables]
        return known[0].columns(side.columns) if known else []

    def states(self, relids: Iterable[int], made: Made) -> list[State]:
        """The tables, and what is done to them."""
        return [State(self.tables[relid].table, made.get(relid)) for relid in relids]

    async def missing_error(self, made: Made) -> PenstockError | None:
        """PostgreSQL's error for the first new row that refers to none."""
        found: list[tuple[int, ForeignKey, Missing]] = []
        for _, key in sorted(self._references.items()):
            change = made.get(key.child.relid)
            if not key.checks or key.deferrable or change is None:
                continue
            parents = self.states(key.parent.leaves, made)
            (child,) = self.states([key.child.relid], made)
            missing = await asyncio.to_thread(first_missing, self.session, parents, child, key)
            if missing is not None:
                found.append((missing.row, key, missing))
        if not found:
            return None
        _, key, missing = min(found, key=lambda each: each[0])
        return await missing_violation(self.backend, key, self.tables[key.child.relid], missing)

    async def _referring(self, made: Made) -> PenstockError | None:
        """The error for the first key that was taken away, and is referred to."""
        found = []
        for key, lost in await asyncio.to_thread(self.lost, made):
            if key.deferrable:
                actions = np.where(lost.deleted, key.on_delete, key.on_update)
                lost = lost.only(actions != "a")
            # Actions were carried out, but SET DEFAULT may have given back what was there.
            referred = await asyncio.to_thread(self.first_referred, key, lost, made)
            if referred is not None:
                found.append(referred)
        if not found:
            return None
        return await self.referred_error(min(found, key=lambda each: each.row))

    def _refuse(self, keys: Iterable[ForeignKey]) -> None:
        """0A000 for a constraint that is not kept."""
        for key in keys:
            if not (key.checks or key.acts):
                continue
            if key.deferrable and key.partitioned:
                raise not_yet(key, "DEFERRABLE and partitions")
            sides = (self.columns(key.child), self.columns(key.parent))
            if not key.kept or not all(comparable(*pair) for pair in zip(*sides, strict=False)):
                raise not_yet(key, "columns whose equality is not that of their text")


def not_yet(key: ForeignKey, what: str) -> FeatureNotSupportedError:
    """0A000 for what is not kept of a constraint."""
    return FeatureNotSupportedError(
        f'writing with lake table "{key.child.schema}.{key.child.name}" is not supported yet',
        detail=f'Its foreign key constraint "{key.name}" has {what}, which the lake does not'
        " follow.",
    )


def _tables(locked: Locked) -> dict[int, Target]:
    return {each.table.relid: each for each in (*locked.targets, *locked.partners)}
