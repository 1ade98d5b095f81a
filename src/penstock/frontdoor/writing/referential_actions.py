# SPDX-License-Identifier: Apache-2.0
"""ON DELETE and ON UPDATE: what follows for the tables that refer to rows that a statement took.

In:   what the statement did to its relations, inside of its savepoint.
Out:  the same with what CASCADE, SET NULL and SET DEFAULT do, which is PostgreSQL's work as well.

    1  keys that tables lost                                     of the lake's rows and those there
    2  NO ACTION and RESTRICT: an error if rows refer to them    in the order of PostgreSQL's
                                                                 triggers, before what follows
    3  rows that refer to them are put into their relations      those that the lake has
    4  one DELETE or UPDATE for all keys of a constraint         what the statement has put in, too
    5  the relations are read again; 1, until no key is lost

The tables that refer are locked (foreign_keys.py), but the savepoint's end lets them go: when they
were changed before they are locked again, the statement is run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from penstock.control.guard import Guard
from penstock.errors import FeatureNotSupportedError
from penstock.frontdoor.writing.foreign_keys import ForeignKeys, not_yet
from penstock.frontdoor.writing.loading import Loader
from penstock.frontdoor.writing.write_targets import Target
from penstock.lake.references import (
    ACTING,
    Action,
    ForeignKey,
    Lost,
    referring_places,
    together,
)
from penstock.lake.writes import Change
from penstock.names import quote_pg, quote_pg_qualified
from penstock.wire.given_rows import given_rows, lake_rows_literal
from penstock.wire.responses import ServerError

ReadChange = Callable[[Target], Awaitable[Change]]
"""Reads what has been done to a relation so far."""


class ReferentialActions:
    """Those of one run of a statement."""

    def __init__(
        self, foreign: ForeignKeys, guard: Guard, loader: Loader, read_change: ReadChange
    ) -> None:
        self._foreign = foreign
        self._guard = guard
        self._loader = loader
        self._read_change = read_change
        self._done: dict[int, Lost] = {}

    async def run(self, made: dict[int, Change]) -> None:
        """Carry them out; ``made`` then has what was done to all tables.

        PostgreSQL's errors, of constraints and of the rows; 0A000 for what is not followed.
        """
        if not any(key.changes_rows for key in self._foreign.referring.values()):
            return
        turned, first = set(made), True
        while turned:
            lost = [
                (key, new)
                for key, each in await asyncio.to_thread(self._foreign.lost, made)
                if key.parent.relid in turned and (new := self._unseen(key, each)) is not None
            ]
            if not lost:
                return
            await self._foreign.lock_referring(key.parent.relid for key, _ in lost)
            # As the statement has left them, but PostgreSQL's triggers for new rows fire behind.
            error = await self._foreign.missing_error(made) if first else None
            turned, first = set(), False
            for key, each in lost:
                turned |= await self._follow(key, each, made)
            if error is not None:
                raise error

    def _unseen(self, key: ForeignKey, lost: Lost) -> Lost | None:
        """The keys that were not lost before."""
        seen = self._done.get(key.oid)
        if seen is None:
            self._done[key.oid] = lost
            return lost
        new = lost.beyond(seen)
        if new is None:
            raise not_yet(key, "actions that change a row again that the statement has changed")
        if not new.any():
            return None
        self._done[key.oid] = together([seen, lost.only(new)])
        return lost.only(new)

    async def _follow(self, key: ForeignKey, lost: Lost, made: dict[int, Change]) -> set[int]:
        """What a constraint says of some keys; the tables that were changed."""
        actions = np.where(lost.deleted, key.on_delete, key.on_update)
        held = lost.only(np.isin(actions, ["r"] if key.deferrable else ["a", "r"]))
        referred = await asyncio.to_thread(self._foreign.first_referred, key, held, made)
        if referred is not None:
            raise await self._foreign.referred_error(referred)
        turned: set[int] = set()
        for deleted in (True, False):
            action = key.on_delete if deleted else key.on_update
            of_action = lost.only(lost.deleted == deleted)
            if action in ACTING and of_action.keys.num_rows:
                if deleted:
                    self._refuse_moved(key, made)
                turned |= await self._act(key, action, deleted, of_action, made)
        return turned

    async def _act(
        self,
        key: ForeignKey,
        action: Action,
        deleted: bool,
        lost: Lost,
        made: dict[int, Change],
    ) -> set[int]:
        """Change the rows that refer to some keys."""
        children = [self._foreign.tables[relid] for relid in key.child.leaves]
        for child in children:
            (state,) = self._foreign.states([child.table.relid], {})
            places = await asyncio.to_thread(
                referring_places, self._foreign.session, state, key.child.columns, lost.keys
            )
            if len(places):
                for each in children:
                    _refuse_child(each)
                await self._loader.load_later(child, places)
        if not any(relid in made or relid in self._loader.loaded for relid in key.child.leaves):
            return set()
        if action == "d" and key.owned_default:
            raise not_yet(key, "a column whose default depends on who computes it")
        statement = _statement(key, action, deleted, children[0])
        keys = (*lost.keys.columns, *lost.after.columns)
        given = lake_rows_literal(self._foreign.columns(key.parent) * 2, keys)
        run = self._guard.load_rows(statement, given)
        try:
            await self._foreign.backend.binary_rows(run.sql, run.parameters)
        except ServerError as error:
            for internal in ("p", "q"):
                error.fields.pop(internal, None)
            error.fields["W"] = f'SQL statement "{_as_postgresql(key, action, deleted)}"'
            raise
        for child in children:  # all, as rows may move between partitions
            made[child.table.relid] = await self._read_change(child)
        return set(key.child.leaves)

    def _refuse_moved(self, key: ForeignKey, made: dict[int, Change]) -> None:
        """A row that leaves its partition is not known from one that is deleted."""
        roots = {each.parent.relid: each.root for each in self._foreign.referring.values()}
        others = [
            change
            for relid, change in made.items()
            if relid != key.parent.relid and roots.get(relid) == key.root
        ]
        came = any(
            change.rows.num_rows if change.updates is None else (change.updates.of < 0).any()
            for change in others
        )
        if came:
            raise not_yet(key, "actions on rows that change their partition")


def _refuse_child(child: Target) -> None:
    obstacle = child.obstacle or child.loading_obstacle
    if obstacle is not None:
        raise FeatureNotSupportedError(
            f'writing with lake table "{child.name}" is not supported yet',
            detail=f"It has {obstacle}, which the lake does not check.",
        )


def _statement(key: ForeignKey, action: Action, deleted: bool, child: Target) -> str:
    """The statement for all keys; $1 has arrays of their columns' old values, then of the new."""
    width = len(key.child.columns)
    types = [child.type_of(name) for name in key.child.columns]
    keys = given_rows(2 * width)
    meets = " AND ".join(
        f"c.{quote_pg(name)} = u.x{n + 1}::{types[n]}" for n, name in enumerate(key.child.columns)
    )
    table = quote_pg_qualified(key.child.schema, key.child.name)
    if action == "c" and deleted:
        return f"DELETE FROM {table} AS c USING {keys} WHERE {meets} RETURNING 1::pg_catalog.int8"
    if action == "c":
        values = [f"u.x{n}::{kind}" for n, kind in enumerate(types, width + 1)]
        sets = [f"{quote_pg(n)} = {v}" for n, v in zip(key.child.columns, values, strict=True)]
    else:
        value = "NULL" if action == "n" else "DEFAULT"
        sets = [f"{quote_pg(name)} = {value}" for name in _set_columns(key, deleted)]
    return (
        f"UPDATE {table} AS c SET {', '.join(sets)} FROM {keys} WHERE {meets}"
        " RETURNING 1::pg_catalog.int8"
    )


def _set_columns(key: ForeignKey, deleted: bool) -> tuple[str, ...]:
    return key.set_columns if deleted and key.set_columns else key.child.columns


def _as_postgresql(key: ForeignKey, action: Action, deleted: bool) -> str:
    """The statement for one key as ri_triggers.c writes it, for an error's context."""
    quoted = [_always_quoted(name) for name in key.child.columns]
    only = "ONLY " if key.child.leaves == (key.child.relid,) else ""
    table = f"{_always_quoted(key.child.schema)}.{_always_quoted(key.child.name)}"
    first = 1
    head = f"DELETE FROM {only}{table}"
    if not (action == "c" and deleted):
        if action == "c":
            sets = [f"{name} = ${n}" for n, name in enumerate(quoted, 1)]
            first += len(quoted)
        else:
            value = "NULL" if action == "n" else "DEFAULT"
            columns = _set_columns(key, deleted)
            sets = [f"{_always_quoted(name)} = {value}" for name in columns]
        head = f"UPDATE {only}{table} SET {', '.join(sets)}"
    meets = [f"${n} OPERATOR(pg_catalog.=) {name}" for n, name in enumerate(quoted, first)]
    return f"{head} WHERE {' AND '.join(meets)}"


def _always_quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
