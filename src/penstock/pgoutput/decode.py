# SPDX-License-Identifier: Apache-2.0
"""Turn pgoutput messages into tables of changes.

In:   buffers of messages, protocol version 1, as one connection sent them, in order.
Out:  per buffer the transactions that ended in it, and per relation a table in its change schema.

    messages -> scan.index_messages -> rows grouped by relation -> scan.tuples -> columns -> tables
    (bytes)     where is what          (row numbers)              where is which   (typed)
                                                                  value

A decoder belongs to one connection: relations are described once for each connection, and a
transaction may begin in one buffer and end in a later one (``Decoded.open``), so that a huge one
needs no huge memory.  A relation whose definition changes gets a new table from there on.  After
an error a decoder is of no use any more.

A buffer is worked off in blocks of rows, so what is needed beside the result stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change import types
from penstock.change.mapping import TYPED, ValueMapping, not_held, shortened
from penstock.change.relation import Column, Relation
from penstock.change.schema import RESTART_IDENTITY, change_schema
from penstock.compiled import Bytes, Ints, Positions
from penstock.errors import (
    FeatureNotSupportedError,
    PenstockError,
    ProtocolError,
)
from penstock.lsn import format_lsn
from penstock.pgoutput import messages, scan
from penstock.pgoutput.columns import Cells, UnreadableValue, bitmap
from penstock.pgoutput.forms import Ask, Forms, ask_nobody
from penstock.pgoutput.values import ValueType, shown, to_array

BLOCK_CELLS = 1 << 20
"""Values (rows times columns) that are converted together: 8 MiB of positions, about L2 and L3."""

MAX_BUFFER = 2**31 - 1
"""Positions in a buffer are 32 bits."""


class Transaction(NamedTuple):
    """One remote transaction; the time is in microseconds since 1970-01-01 UTC."""

    commit_lsn: int
    end_lsn: int
    commit_time_us: int
    xid: int


@dataclass(frozen=True)
class Decoded:
    """What one buffer held.

    ``transactions``: array [n, 4], the fields of Transaction, of those that ended in the buffer.
    ``tables``: rows in commit order; the same relation can come twice if its definition changed.
    ``restarts``: for each of ``tables`` the commit LSNs of those of its rows that are TRUNCATEs
    with RESTART IDENTITY.
    ``open``: the last transaction goes on in the next buffer; its rows so far are in ``tables``.
    """

    transactions: Ints
    tables: tuple[tuple[Relation, pa.Table], ...]
    restarts: tuple[tuple[int, ...], ...]
    open: bool

    @property
    def last(self) -> Transaction | None:
        """The last transaction that ended in the buffer."""
        if not len(self.transactions):
            return None
        return Transaction(*map(int, self.transactions[-1]))

    @property
    def first_commit_lsn(self) -> int | None:
        """The first transaction's commit LSN, also if it has not ended yet; None without any."""
        firsts = [int(table["commit_lsn"][0].as_py()) for _, table in self.tables]
        if len(self.transactions):
            firsts.append(int(self.transactions[0, 0]))
        return min(firsts, default=None)


class _Rows(NamedTuple):
    """Rows of one relation: their messages' place in the buffer, and what they are."""

    begins: Ints
    ends: Ints
    ops: Bytes
    commit_lsns: Ints
    seqs: Ints

    def part(self, part: slice | Ints) -> _Rows:
        return _Rows(
            self.begins[part],
            self.ends[part],
            self.ops[part],
            self.commit_lsns[part],
            self.seqs[part],
        )


class _Described(NamedTuple):
    """A relation as it is staged, and how its columns' values come."""

    relation: Relation
    values: tuple[ValueType, ...]


class Decoder:
    """Decodes what one connection sends; one call at a time."""

    def __init__(
        self,
        after_lsn: int = 0,
        mapping: ValueMapping = TYPED,
        ask: Ask = ask_nobody,
    ) -> None:
        """Transactions with a commit LSN below ``after_lsn`` are left out: they are known.

        ``mapping`` is what the subscription says about values; ``ask`` finds the binary forms of
        types that are not PostgreSQL's own.  ``described`` counts the Relation messages: a
        publisher repeats one when the relation's definition, or what publications have of it, may
        have changed.
        """
        self.described = 0
        self._after_lsn = after_lsn
        self._mapping = mapping
        self._forms = Forms(ask)
        self._state = np.zeros(scan.STATE_FIELDS, np.int64)
        self._relations: list[_Described] = []
        self._current: dict[int, tuple[Relation, int]] = {}
        self._keys = np.full(64, -1, np.int64)
        self._slots = np.full(64, -1, np.int64)
        self._known_oids = 0
        self._below: dict[int, int] = {}

    def feed(self, buffer: Bytes, offsets: Ints) -> Decoded:
        """Decode the next buffer; message i is ``buffer[offsets[i]:offsets[i + 1]]``.

        ProtocolError for what pgoutput does not send; ValueNotHeldError for a value that the
        lake's types have no room for; FeatureNotSupportedError for a type or a message form that
        is not supported.
        """
        if len(buffer) > MAX_BUFFER:
            raise ProtocolError("more than 2 GiB of messages in one buffer")
        new_slots = self._learn_relations(buffer, offsets)
        fault, columns, transactions = scan.index_messages(
            buffer, offsets, self._keys, self._slots, new_slots, self._after_lsn, self._state
        )
        if fault[0] != scan.OK:
            raise _protocol_error(fault[0], int(self._state[scan.COMMIT_LSN]))
        message, ops, slots, commit_lsns, seqs = columns
        rows = _Rows(offsets[message], offsets[message + 1], ops, commit_lsns, seqs)
        order, begins = scan.group_rows(slots, len(self._relations))
        parts = [
            (described, rows.part(order[begins[slot] : begins[slot + 1]]))
            for slot, described in enumerate(self._relations)
            if begins[slot] < begins[slot + 1]
        ]
        return Decoded(
            transactions,
            tuple(
                (described.relation, _table(described, buffer, part)) for described, part in parts
            ),
            tuple(_restarts(buffer, part) for _, part in parts),
            bool(self._state[scan.OPEN]),
        )

    def _learn_relations(self, buffer: Bytes, offsets: Ints) -> Ints:
        filled = np.flatnonzero(np.diff(offsets) > 0)
        for index in filled[buffer[offsets[filled]] == messages.TYPE]:
            self._learn_type(bytes(buffer[offsets[index] : offsets[index + 1]]))
        found = filled[buffer[offsets[filled]] == messages.RELATION]
        new_slots = np.empty(len(found), np.int64)
        self.described += len(found)
        for number, index in enumerate(found):
            relation = messages.parse_relation(bytes(buffer[offsets[index] : offsets[index + 1]]))
            known, slot = self._current.get(relation.oid, (None, -1))
            if known != relation:
                # Never the slot of an older definition that is like it: slots are in the order of
                # the rows, and those of the definition in between would come after both.
                slot = len(self._relations)
                self._current[relation.oid] = relation, slot
                self._relations.append(self._describe(relation))
                self._reserve_key(relation.oid)
            new_slots[number] = slot
        return new_slots

    def _learn_type(self, message: bytes) -> None:
        """Note a domain over a type that is kept as text: its values are of that type."""
        oid, schema, name = messages.parse_type(message)
        if not schema and name in types.KEPT_AS_TEXT:
            self._below[oid] = types.KEPT_AS_TEXT[name]

    def _describe(self, relation: Relation) -> _Described:
        self._forms.note({column.type_oid for column in relation.columns})
        staged = self._mapping.staged(relation, self._below)
        clamp = self._mapping.clamps
        values = tuple(
            ValueType(self._forms, sent.type_oid, held.type_oid, held.typmod, clamp)
            for sent, held in zip(relation.columns, staged.columns, strict=True)
        )
        return _Described(staged, values)

    def _reserve_key(self, oid: int) -> None:
        """Give an OID a place in the hash table, which stays at most half full."""
        at = scan.find_key(self._keys, oid)
        if self._keys[at] == oid:
            return
        self._keys[at] = oid
        self._known_oids += 1
        if 2 * self._known_oids > len(self._keys):
            known = self._keys >= 0
            old_keys, old_slots = self._keys[known], self._slots[known]
            self._keys = np.full(2 * len(self._keys), -1, np.int64)
            self._slots = np.full(len(self._keys), -1, np.int64)
            for key, slot in zip(old_keys, old_slots, strict=True):
                place = scan.find_key(self._keys, key)
                self._keys[place], self._slots[place] = key, slot


def _restarts(buffer: Bytes, rows: _Rows) -> tuple[int, ...]:
    truncates = np.flatnonzero(rows.ops == scan.TRUNCATE)
    restart = (buffer[rows.begins[truncates] + 5] & RESTART_IDENTITY) != 0
    return tuple(np.unique(rows.commit_lsns[truncates[restart]]).tolist())


def _table(described: _Described, buffer: Bytes, rows: _Rows) -> pa.Table:
    relation = described.relation
    if not relation.columns:
        raise FeatureNotSupportedError(
            f'cannot hold changes of table "{relation.schema}.{relation.name}" without columns'
        )
    try:
        schema = change_schema(relation)
    except FeatureNotSupportedError as error:
        lsn = int(rows.commit_lsns[0])
        error.where = f"{_of(relation)}, {_transaction(lsn)}"
        raise
    step = max(1, BLOCK_CELLS // len(relation.columns))
    batches = [
        _block(described, schema, buffer, rows.part(slice(begin, begin + step)))
        for begin in range(0, len(rows.ops), step)
    ]
    return pa.Table.from_batches(batches, schema)


def _block(described: _Described, schema: pa.Schema, buffer: Bytes, rows: _Rows) -> pa.RecordBatch:
    relation = described.relation
    inserts_only = bool((rows.ops == scan.INSERT).all())
    any_old = not inserts_only and bool(
        (buffer[rows.begins + 5] != scan.NEW_TUPLE)[rows.ops != scan.TRUNCATE].any()
    )
    any_new = bool(((rows.ops == scan.INSERT) | (rows.ops == scan.UPDATE)).any())
    fault, old, new = scan.scan_tuples(
        buffer, rows.begins, rows.ends, rows.ops, len(relation.columns), any_old, any_new
    )
    if fault[0] != scan.OK:
        raise _protocol_error(fault[0], int(rows.commit_lsns[fault[1]]), relation)
    row_type = schema.field("new").type
    return pa.RecordBatch.from_arrays(
        [
            _operations(rows.ops),
            pa.array(rows.commit_lsns),
            pa.array(rows.seqs),
            _structs(described, row_type, buffer, rows, *old)
            if any_old
            else _nulls(rows, row_type),
            _structs(described, row_type, buffer, rows, *new)
            if any_new
            else _nulls(rows, row_type),
            _unchanged(relation, new[1]),
        ],
        schema=schema,
    )


def _nulls(rows: _Rows, arrow_type: pa.DataType) -> pa.Array:
    return pa.nulls(len(rows.ops), arrow_type)


def _operations(ops: Bytes) -> pa.StringArray:
    offsets = np.arange(len(ops) + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(ops)]
    return pa.Array.from_buffers(pa.string(), len(ops), buffers)


def _structs(
    described: _Described,
    row_type: pa.StructType,
    buffer: Bytes,
    rows: _Rows,
    present: NDArray[np.bool_],
    starts: Positions,
    lengths: Positions,
) -> pa.StructArray:
    children = []
    relation = described.relation
    for number, (column, kind) in enumerate(zip(relation.columns, described.values, strict=True)):
        cells = Cells(buffer, starts[number], lengths[number])
        try:
            children.append(to_array(cells, kind))
        except UnreadableValue as bad:
            lsn = int(rows.commit_lsns[bad.index])
            raise _value_error(relation, column, shown(cells, bad.index, kind), bad, lsn) from None
        except FeatureNotSupportedError as error:
            lsn = int(rows.commit_lsns[0])
            error.where = f'column "{column.name}" of {_of(relation)}, {_transaction(lsn)}'
            raise
    return pa.Array.from_buffers(row_type, len(present), [bitmap(present)], children=children)


def _unchanged(relation: Relation, starts: Positions) -> pa.Array:
    """The names of each row's unchanged columns, null for a row without any."""
    marks = starts.T == scan.IS_UNCHANGED
    rows, columns = np.nonzero(marks)
    if not len(rows):
        return pa.nulls(starts.shape[1], pa.list_(pa.string()))
    counts = marks.sum(axis=1)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    names = pa.array([column.name for column in relation.columns], pa.string())
    return pa.Array.from_buffers(
        pa.list_(pa.string()),
        len(counts),
        [bitmap(counts > 0), pa.py_buffer(offsets)],
        children=[names.take(pa.array(columns))],
    )


def _protocol_error(fault: int, lsn: int, relation: Relation | None = None) -> PenstockError:
    of_relation = f"{_of(relation)}, " if relation is not None else ""
    where = of_relation + _transaction(lsn)
    return ProtocolError(
        "the publisher sent invalid replication messages",
        detail=f"{scan.FAULTS[fault].capitalize()}.",
        where=where,
    )


def _value_error(
    relation: Relation, column: Column, value: str, bad: UnreadableValue, lsn: int
) -> PenstockError:
    name = f"{relation.schema}.{relation.name}"
    where = _transaction(lsn)
    if bad.not_held:
        return not_held(value, column.name, column.type_oid, name, where)
    return ProtocolError(
        f'value "{shortened(value)}" of column "{column.name}" of table "{name}" is not of its'
        " type",
        detail=f"The column's type has the OID {column.type_oid}.",
        where=where,
    )


def _of(relation: Relation) -> str:
    return f'table "{relation.schema}.{relation.name}"'


def _transaction(lsn: int) -> str:
    return f"transaction with commit LSN {format_lsn(lsn)}"
