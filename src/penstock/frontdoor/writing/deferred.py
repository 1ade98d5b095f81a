# SPDX-License-Identifier: Apache-2.0
"""What a statement leaves of the foreign keys: an error, now or at the transaction's end.

In:   what was locked for the statement, and what it does to its tables.
Out:  PostgreSQL's error; or what violates deferrable constraints, kept with the transaction.

A constraint that is DEFERRABLE may be violated until COMMIT, or SET CONSTRAINTS.  The keys for
which it is are kept in the control database (schema/141_deferred_violations.sql), whose own trigger
raises the error.  Behind each statement on one of its tables they are looked for again, with those
that the statement adds: so what is kept is always what the transaction has left, after rollbacks
to savepoints as well.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.control.guard import Guard
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.frontdoor.actions import Backend
from penstock.frontdoor.session_commit import call
from penstock.frontdoor.writing.foreign_keys import ForeignKeys, Made
from penstock.frontdoor.writing.violations import (
    missing_violation,
    unique_violation,
)
from penstock.lake.references import ForeignKey, Missing, missing_keys, still_violating
from penstock.lake.writes import DuplicateKeyError, check_keys
from penstock.wire.responses import ServerError

_OF_CONSTRAINTS = """
SELECT c.relname FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
WHERE k.oid = ANY ($1::pg_catalog.oid[]) AND c.oid = ANY ($2::pg_catalog.oid[])"""

MOST_KEYS = 100_000
"""Keys that may violate one constraint for a while."""


@dataclass(frozen=True)
class Violated:
    """Keys that violate a constraint; by rows that went, ``by_parent``, in the columns of those."""

    key: ForeignKey
    by_parent: bool
    keys: pa.Table


async def check_foreign_keys(foreign: ForeignKeys, guard: Guard, made: Made) -> None:
    """PostgreSQL's error for what the statement leaves: 23503, or 23505, which comes first."""
    error = await foreign.error(made)
    violated = await _violated(foreign, guard, made)
    if error is not None or any(each.keys.num_rows for each in violated):
        for target, change in ((foreign.tables[relid], each) for relid, each in made.items()):
            try:
                await asyncio.to_thread(
                    check_keys, foreign.session, target.table, target.uniques, change
                )
            except DuplicateKeyError as found:
                raise await unique_violation(foreign.backend, target, found) from None
    if error is not None:
        raise error
    for each in violated:
        await _keep(foreign, guard, each)


async def refuse_pending(backend: Backend, guard: Guard, relids: Iterable[int]) -> None:
    """CheckTableNotInUse(), tablecmds.c: 55006 to TRUNCATE a table whose rows are still judged."""
    pending = [con for con, _, _ in await call(backend, guard.violations())]
    if not pending:
        return
    arrays = ["{" + ",".join(map(str, each)) + "}" for each in (pending, relids)]
    for (name,) in await backend.query(_OF_CONSTRAINTS, arrays):
        raise PenstockError(
            f'cannot TRUNCATE "{name}" because it has pending trigger events', sqlstate="55006"
        )


async def _violated(foreign: ForeignKeys, guard: Guard, made: Made) -> list[Violated]:
    """What violates deferrable constraints now, or did before, maybe not any more."""
    deferrable = {oid: key for oid, key in foreign.keys.items() if key.deferrable}
    if not deferrable:
        return []
    looked: dict[tuple[int, bool], list[pa.Table]] = {}
    for con, went, packed in await call(foreign.backend, guard.violations()):
        if int(con or 0) in deferrable:
            kept = looked.setdefault((int(con or 0), went == "t"), [])
            kept.append(_unpacked(packed or ""))
    # Tables that refer are known once they are locked.
    unknown = {deferrable[oid].parent.relid for oid, _ in looked
               if deferrable[oid].child.relid not in foreign.tables}  # fmt: skip
    if unknown:
        await foreign.lock_referring(unknown)
    for key, by_parent, keys in await asyncio.to_thread(
        lambda: list(_newly_violated(foreign, made))
    ):
        looked.setdefault((key.oid, by_parent), []).append(keys)
    return [
        await asyncio.to_thread(_still, foreign, made, deferrable[oid], by_parent, tables)
        for (oid, by_parent), tables in looked.items()
    ]


def _newly_violated(
    foreign: ForeignKeys, made: Made
) -> Iterator[tuple[ForeignKey, bool, pa.Table]]:
    """Keys that the statement may have made violate a constraint, in the order of triggers."""
    for key, lost in foreign.lost(made):
        if key.deferrable:
            held = np.where(lost.deleted, key.on_delete, key.on_update) == "a"
            if held.any():
                yield key, True, lost.only(held).keys
    for key in foreign.keys.values():
        if key.deferrable and key.checks and key.child.relid in made:
            parents = foreign.states(key.parent.leaves, made)
            (child,) = foreign.states([key.child.relid], made)
            keys, rows = missing_keys(foreign.session, parents, child, key)
            if keys.num_rows:
                yield key, False, keys.take(pa.array(np.argsort(rows)))


def _still(
    foreign: ForeignKeys, made: Made, key: ForeignKey, by_parent: bool, tables: list[pa.Table]
) -> Violated:
    children = foreign.states(key.child.leaves, made)
    parents = foreign.states(key.parent.leaves, made)
    keys = still_violating(foreign.session, children, parents, key, pa.concat_tables(tables))
    return Violated(key, by_parent, keys)


async def _keep(foreign: ForeignKeys, guard: Guard, violated: Violated) -> None:
    """Leave it in the control database, whose trigger raises its error if it is not deferred."""
    key, keys = violated.key, violated.keys
    if keys.num_rows > MOST_KEYS:
        raise FeatureNotSupportedError(
            "so many rows that violate a deferrable constraint for a while are not supported",
            detail=f'{keys.num_rows} keys violate foreign key constraint "{key.name}".',
            hint="Write the rows that are referred to first.",
        )
    fields: dict[str, str] = {}
    packed = None
    if keys.num_rows:
        foreign.backend.deferred = True
        first, packed = keys.slice(0, 1), _packed(keys)
        if violated.by_parent:
            error = await foreign.violation(key, first, restricts=False)
        else:
            mixed = any(column.null_count for column in first.columns)
            child = foreign.tables[key.child.relid]
            missing = Missing(0, first, mixed)
            error = await missing_violation(foreign.backend, key, child, missing)
        fields = error.fields
    try:
        kept = guard.set_violation(key.oid, violated.by_parent, key.deferred, packed, fields)
        await call(foreign.backend, kept)
    except ServerError as raised:
        raised.fields.pop("W", None)
        raise


def _packed(keys: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def _unpacked(text: str) -> pa.Table:
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()
