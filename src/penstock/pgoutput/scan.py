# SPDX-License-Identifier: Apache-2.0
"""Find where everything is in a buffer of pgoutput messages; compiled, nothing is copied.

In:   a buffer of messages one after the other, and where each begins and ends.
Out:  ``index_messages``: the rows (one per changed row, one per truncated relation) with their
      relation, transaction and order, and the transactions that end in the buffer;
      ``scan_tuples``: for some rows of one relation, where each column's value is.

Protocol version 1, whole transactions or parts of one: a transaction may begin in one buffer and
end in a later one, what is known about it stays in ``state`` between the calls.

Every length is checked against the end of its message, so any bytes give rows or a fault.  The
faults' names are in FAULTS.  Relations are numbers here ("slots": one for each definition that a
connection has sent); ``keys`` and ``slots`` are a hash table from a relation's OID to its slot.
"""

from __future__ import annotations

import numpy as np

from penstock.compiled import Bytes, Ints, Positions, compiled
from penstock.pgoutput import messages

BEGIN, COMMIT, ORIGIN = messages.BEGIN, messages.COMMIT, messages.ORIGIN
RELATION, TYPE, MESSAGE = messages.RELATION, messages.TYPE, messages.MESSAGE
INSERT, UPDATE, DELETE, TRUNCATE = (
    messages.INSERT,
    messages.UPDATE,
    messages.DELETE,
    messages.TRUNCATE,
)
NEW_TUPLE, KEY_TUPLE, OLD_TUPLE = messages.NEW_TUPLE, messages.KEY_TUPLE, messages.OLD_TUPLE
NULL_VALUE, UNCHANGED_VALUE = messages.NULL_VALUE, messages.UNCHANGED_VALUE
TEXT_VALUE, BINARY_VALUE = messages.TEXT_VALUE, messages.BINARY_VALUE
EPOCH_US = messages.POSTGRES_EPOCH_US

# Fields of ``state``: the transaction that is open, and the order of its next row.
OPEN, COMMIT_LSN, COMMIT_TIME, XID, NEXT_SEQ = range(5)
STATE_FIELDS = 5

# Value starts that are not positions.
IS_NULL, IS_UNCHANGED = -1, -2

(
    OK,
    CUT_OFF,
    UNKNOWN_KIND,
    OUTSIDE_TRANSACTION,
    NESTED_TRANSACTION,
    WRONG_COMMIT,
    UNKNOWN_RELATION,
    WRONG_TUPLE,
    WRONG_COLUMN_COUNT,
    UNCHANGED_IN_OLD,
) = range(10)

FAULTS = {
    CUT_OFF: "a message has not the length that its kind needs",
    UNKNOWN_KIND: "a message has an unknown kind",
    OUTSIDE_TRANSACTION: "a message came outside of a transaction",
    NESTED_TRANSACTION: "a transaction begins inside another",
    WRONG_COMMIT: "a Commit message has another commit LSN than its Begin message",
    UNKNOWN_RELATION: "a row belongs to a relation that was not described",
    WRONG_TUPLE: "a row message has no valid tuple",
    WRONG_COLUMN_COUNT: "a row has another number of columns than its relation",
    UNCHANGED_IN_OLD: "an old row has an unchanged value",
}


@compiled
def be16(buf: Bytes, at: int) -> int:
    """A 16-bit number at a position."""
    number: int = buf[at] * 256 + buf[at + 1]  # a shifted byte would be unsigned for numba
    return number


@compiled
def be32(buf: Bytes, at: int) -> int:
    """A 32-bit number at a position, unsigned."""
    return be16(buf, at) * 65536 + be16(buf, at + 2)


@compiled
def be64(buf: Bytes, at: int) -> int:
    """A 64-bit number at a position, as int64: LSNs from 2^63 on come out negative."""
    return be32(buf, at) * 4294967296 + be32(buf, at + 4)


@compiled
def find_key(keys: Ints, oid: int) -> int:
    """Where an OID is in the hash table, or the free place (-1) where it would be put."""
    mask: int = keys.shape[0] - 1
    at: int = (oid * 2654435761) & mask
    while keys[at] != -1 and keys[at] != oid:
        at = (at + 1) & mask
    return at


@compiled
def _slot_of(keys: Ints, slots: Ints, oid: int) -> int:
    at = find_key(keys, oid)
    slot: int = slots[at] if keys[at] == oid else -1
    return slot


@compiled
def _row_capacity(buf: Bytes, offsets: Ints) -> int:
    rows = 0
    for i in range(offsets.shape[0] - 1):
        size = offsets[i + 1] - offsets[i]
        if size > 0:
            kind = buf[offsets[i]]
            if kind == TRUNCATE:
                rows += size // 4
            elif kind in (INSERT, UPDATE, DELETE):
                rows += 1
    return rows


@compiled
def _tuple_letter_fits(kind: int, letter: int) -> bool:
    if kind == INSERT:
        return letter == NEW_TUPLE
    if kind == DELETE:
        return letter in (KEY_TUPLE, OLD_TUPLE)
    return letter in (NEW_TUPLE, KEY_TUPLE, OLD_TUPLE)


@compiled
def _begin(buf: Bytes, at: int, size: int, state: Ints) -> int:
    if size != 21:
        return CUT_OFF
    if state[OPEN] != 0:
        return NESTED_TRANSACTION
    state[OPEN] = 1
    state[COMMIT_LSN] = be64(buf, at + 1)
    state[COMMIT_TIME] = be64(buf, at + 9) + EPOCH_US
    state[XID] = be32(buf, at + 17)
    state[NEXT_SEQ] = 0
    return OK if state[COMMIT_LSN] >= 0 else WRONG_COMMIT


@compiled
def _commit(buf: Bytes, at: int, size: int, state: Ints, transaction: Ints) -> int:
    if size != 26:
        return CUT_OFF
    if state[OPEN] == 0:
        return OUTSIDE_TRANSACTION
    end_lsn = be64(buf, at + 10)
    if be64(buf, at + 2) != state[COMMIT_LSN] or end_lsn < state[COMMIT_LSN]:
        return WRONG_COMMIT
    state[OPEN] = 0
    transaction[0] = state[COMMIT_LSN]
    transaction[1] = end_lsn
    transaction[2] = state[COMMIT_TIME]
    transaction[3] = state[XID]
    return OK


@compiled
def _check_change(buf: Bytes, at: int, size: int, state: Ints) -> int:
    if state[OPEN] == 0:
        return OUTSIDE_TRANSACTION
    if size < 6:
        return CUT_OFF
    kind = buf[at]
    if kind == TRUNCATE:
        return OK if size == 6 + 4 * be32(buf, at + 1) else CUT_OFF
    if size < 8:
        return CUT_OFF
    return OK if _tuple_letter_fits(kind, buf[at + 5]) else WRONG_TUPLE


@compiled
def index_messages(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    buf: Bytes,
    offsets: Ints,
    keys: Ints,
    slots: Ints,
    new_slots: Ints,
    after_lsn: int,
    state: Ints,
):
    """Find the rows and the ends of transactions in ``buf``.

    ``offsets``: n + 1 positions, message i is ``buf[offsets[i]:offsets[i + 1]]``.
    ``new_slots``: the slot of each Relation message in the buffer, in order; ``slots`` is updated.
    ``after_lsn``: transactions with a smaller commit LSN are checked and left out.
    ``state``: STATE_FIELDS numbers, updated.

    Returns (fault, message number), row arrays (message number, operation, slot, commit LSN,
    seq), transactions as rows of (commit LSN, end LSN, commit time in us since 1970, xid).
    """
    count = offsets.shape[0] - 1
    capacity = _row_capacity(buf, offsets)
    row_message = np.empty(capacity, np.int64)
    row_op = np.empty(capacity, np.uint8)
    row_slot = np.empty(capacity, np.int64)
    row_lsn = np.empty(capacity, np.int64)
    row_seq = np.empty(capacity, np.int64)
    transactions = np.empty((count + 1, 4), np.int64)
    rows = 0
    ended = 0
    described = 0
    fault = OK
    i = 0
    while i < count:
        at = offsets[i]
        size = offsets[i + 1] - at
        kind = buf[at] if size > 0 else 0
        if kind in (INSERT, UPDATE, DELETE, TRUNCATE):
            fault = _check_change(buf, at, size, state)
            relations = 1
            first = at + 1
            if kind == TRUNCATE and fault == OK:
                relations = be32(buf, at + 1)
                first = at + 6
            k = 0
            while fault == OK and k < relations:
                slot = _slot_of(keys, slots, be32(buf, first + 4 * k))
                if slot < 0:
                    fault = UNKNOWN_RELATION
                elif state[COMMIT_LSN] >= after_lsn:
                    row_message[rows] = i
                    row_op[rows] = kind
                    row_slot[rows] = slot
                    row_lsn[rows] = state[COMMIT_LSN]
                    row_seq[rows] = state[NEXT_SEQ]
                    rows += 1
                state[NEXT_SEQ] += 1
                k += 1
        elif kind == BEGIN:
            fault = _begin(buf, at, size, state)
        elif kind == COMMIT:
            fault = _commit(buf, at, size, state, transactions[ended])
            if fault == OK and transactions[ended, 0] >= after_lsn:
                ended += 1
        elif kind == RELATION:
            # The caller has parsed this message already and has put its OID into the table.
            slots[find_key(keys, be32(buf, at + 1))] = new_slots[described]
            described += 1
        elif kind != ORIGIN and kind != TYPE and kind != MESSAGE:
            fault = UNKNOWN_KIND
        if fault != OK:
            break
        i += 1
    return (
        (fault, i),
        (row_message[:rows], row_op[:rows], row_slot[:rows], row_lsn[:rows], row_seq[:rows]),
        transactions[:ended],
    )


@compiled
def group_rows(row_slot: Ints, slot_count: int) -> tuple[Ints, Ints]:
    """Row numbers ordered by slot, in their old order inside each; and where each slot begins."""
    begins = np.zeros(slot_count + 1, np.int64)
    for i in range(row_slot.shape[0]):
        begins[row_slot[i] + 1] += 1
    for s in range(slot_count):
        begins[s + 1] += begins[s]
    place = begins[:slot_count].copy()
    order = np.empty(row_slot.shape[0], np.int64)
    for i in range(row_slot.shape[0]):
        order[place[row_slot[i]]] = i
        place[row_slot[i]] += 1
    return order, begins


@compiled
def _scan_tuple(
    buf: Bytes, at: int, end: int, row: int, starts: Positions, lengths: Positions
) -> int:
    """Note one tuple's values; the position after it, or minus a fault."""
    columns = starts.shape[0]
    if at + 2 > end:
        return -CUT_OFF
    if be16(buf, at) != columns:
        return -WRONG_COLUMN_COUNT
    at += 2
    for c in range(columns):
        if at >= end:
            return -CUT_OFF
        kind = buf[at]
        at += 1
        if kind in (TEXT_VALUE, BINARY_VALUE):
            if at + 4 > end:
                return -CUT_OFF
            size = be32(buf, at)
            at += 4
            if size > end - at:
                return -CUT_OFF
            starts[c, row] = at
            lengths[c, row] = size if kind == TEXT_VALUE else -1 - size
            at += size
        elif kind == NULL_VALUE:
            starts[c, row] = IS_NULL
            lengths[c, row] = 0
        elif kind == UNCHANGED_VALUE:
            starts[c, row] = IS_UNCHANGED
            lengths[c, row] = 0
        else:
            return -WRONG_TUPLE
    return at


@compiled
def scan_tuples(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    buf: Bytes, begins: Ints, ends: Ints, ops: Bytes, columns: int, any_old: bool, any_new: bool
):
    """Find the values of some rows of one relation.

    ``begins``, ``ends``: each row's message.  Starts and lengths are arrays [column, row]; a start
    is a position in ``buf``, IS_NULL or IS_UNCHANGED; the length of a binary value is -1 - its
    size.  Arrays of a side that no row has (``any_old``, ``any_new``) have no columns.

    Returns (fault, row), (has_old, old starts, old lengths), (has_new, new starts, new lengths).
    """
    rows = begins.shape[0]
    has_old = np.zeros(rows, np.bool_)
    has_new = np.zeros(rows, np.bool_)
    old_columns = columns if any_old else 0
    new_columns = columns if any_new else 0
    old_starts = np.full((old_columns, rows), IS_NULL, np.int32)
    old_lengths = np.zeros((old_columns, rows), np.int32)
    new_starts = np.full((new_columns, rows), IS_NULL, np.int32)
    new_lengths = np.zeros((new_columns, rows), np.int32)
    fault = OK
    r = 0
    while r < rows:
        op = ops[r]
        if op != TRUNCATE:
            at = begins[r] + 6
            end = ends[r]
            letter = buf[at - 1]
            if letter != NEW_TUPLE:
                at = _scan_tuple(buf, at, end, r, old_starts, old_lengths)
                if at < 0:
                    fault = -at
                    break
                for c in range(old_columns):
                    if old_starts[c, r] == IS_UNCHANGED:
                        fault = UNCHANGED_IN_OLD
                has_old[r] = True
                if fault != OK:
                    break
                if op == UPDATE:
                    if at >= end or buf[at] != NEW_TUPLE:
                        fault = WRONG_TUPLE
                        break
                    at += 1
            if op != DELETE:
                at = _scan_tuple(buf, at, end, r, new_starts, new_lengths)
                if at < 0:
                    fault = -at
                    break
                has_new[r] = True
            if at != end:
                fault = CUT_OFF
                break
        r += 1
    return (
        (fault, r),
        (has_old, old_starts, old_lengths),
        (has_new, new_starts, new_lengths),
    )
