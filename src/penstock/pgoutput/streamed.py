# SPDX-License-Identifier: Apache-2.0
"""Messages of a transaction in progress, in the form in which they come at a commit; compiled.

In:   the messages between Stream Start and Stream Stop (protocol 2): behind their letter stands
      the xid of the subtransaction that they belong to.
Out:  the same messages without the xid, and without those of aborted subtransactions.
"""

from __future__ import annotations

import numpy as np

from penstock.compiled import Bytes, Ints, compiled
from penstock.pgoutput import messages, scan

XID_SIZE = 4

_ORIGIN = messages.ORIGIN
_RELATION, _TYPE, _MESSAGE = messages.RELATION, messages.TYPE, messages.MESSAGE
_INSERT, _UPDATE = messages.INSERT, messages.UPDATE
_DELETE, _TRUNCATE = messages.DELETE, messages.TRUNCATE


@compiled
def _holds(aborted: Ints, xid: int) -> bool:
    low, high = 0, aborted.shape[0]
    while low < high:
        middle = (low + high) // 2
        if aborted[middle] < xid:
            low = middle + 1
        else:
            high = middle
    found: bool = low < aborted.shape[0] and aborted[low] == xid
    return found


@compiled
def strip_xids(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    buf: Bytes, offsets: Ints, aborted: Ints
):
    """Copy a stream block's messages without their xids.

    ``offsets``: n + 1 positions, message i is ``buf[offsets[i]:offsets[i + 1]]``.
    ``aborted``: xids of subtransactions in ascending order; their messages are left out.
    Origin messages are left out, too: they have no xid there, and nobody reads them.

    Returns (fault of scan.FAULTS, message number), the buffer, and its m + 1 offsets from 0.
    """
    count = offsets.shape[0] - 1
    out = np.empty(offsets[count] - offsets[0], np.uint8)
    out_offsets = np.zeros(count + 1, np.int64)
    fault = scan.OK
    kept = 0
    to = 0
    last_xid = -1
    skipped = False
    i = 0
    while i < count:
        at, end = offsets[i], offsets[i + 1]
        kind = buf[at] if end > at else 0
        if kind not in (_INSERT, _UPDATE, _DELETE, _RELATION, _TRUNCATE, _TYPE, _MESSAGE):
            if kind != _ORIGIN:
                fault = scan.UNKNOWN_KIND
                break
        elif end - at < 1 + XID_SIZE:
            fault = scan.CUT_OFF
            break
        else:
            xid = scan.be32(buf, at + 1)
            if xid != last_xid:
                skipped = _holds(aborted, xid)
                last_xid = xid
            if not skipped:
                out[to] = kind
                to += 1
                for k in range(at + 1 + XID_SIZE, end):
                    out[to] = buf[k]
                    to += 1
                kept += 1
                out_offsets[kept] = to
        i += 1
    return (fault, i), out[:to], out_offsets[: kept + 1]
