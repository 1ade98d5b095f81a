# SPDX-License-Identifier: Apache-2.0
"""Window functions and frames.

Frames are those that both know alike: ROWS with constant bounds, RANGE without offsets.  The
frame's clause is left out where PostgreSQL ignores it (ranking functions, lag, lead), because
Spark demands it there to be as it wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.change import types
from penstock.sql.translate.aggregates import OrderKey
from penstock.sql.translate.registry import Function
from penstock.sql.translate.values import Expr, failure, refusal

_RANGE, _ROWS, _GROUPS = 0x2, 0x4, 0x8
_START_UNBOUNDED, _END_UNBOUNDED = 0x20, 0x100
_START_CURRENT, _END_CURRENT = 0x200, 0x400
_START_BEFORE, _END_BEFORE, _START_AFTER, _END_AFTER = 0x800, 0x1000, 0x2000, 0x4000
_EXCLUDE = 0x8000 | 0x10000 | 0x20000


@dataclass(frozen=True)
class Window:
    """A window definition; ``partition`` is SQL, offsets are constants or None."""

    partition: Sequence[str]
    order: Sequence[OrderKey]
    options: int
    start: int | None
    end: int | None

    def over(self, framed: bool) -> str:
        """The OVER clause, with the frame or for functions that have none."""
        parts = []
        if self.partition:
            parts.append(f"PARTITION BY {', '.join(self.partition)}")
        keys = [key.sql for key in self.order]
        if not framed and not keys:
            keys = ["NULL"]  # Spark wants an order for ranking functions: all rows are peers
        if keys:
            parts.append(f"ORDER BY {', '.join(keys)}")
        frame = self._frame() if framed else ""
        if frame:
            parts.append(frame)
        return f" OVER ({' '.join(parts)})"

    def _frame(self) -> str:
        options = self.options
        if options & (_EXCLUDE | _GROUPS):
            raise refusal("a window frame with GROUPS or EXCLUDE")
        if options & _RANGE and (self.start is not None or self.end is not None):
            raise refusal("a window frame with RANGE and an offset")
        start, end = self._bound(options, True), self._bound(options, False)
        if not self.order and options & _RANGE:
            return ""  # all rows of the partition are peers
        return f"{'RANGE' if options & _RANGE else 'ROWS'} BETWEEN {start} AND {end}"

    def _bound(self, options: int, first: bool) -> str:
        if options & (_START_UNBOUNDED if first else _END_UNBOUNDED):
            return "UNBOUNDED PRECEDING" if first else "UNBOUNDED FOLLOWING"
        if options & (_START_CURRENT if first else _END_CURRENT):
            return "CURRENT ROW"
        offset = self.start if first else self.end
        if offset is None or not 0 <= offset < 2**31:
            raise refusal("a window frame whose offset is not a constant")
        before = options & (_START_BEFORE if first else _END_BEFORE)
        return f"{offset} {'PRECEDING' if before else 'FOLLOWING'}"


def window_function(function: Function, args: Sequence[Expr], window: Window) -> Expr:
    """A function that only exists over windows; refusal when it is not in the list."""
    handler = _HANDLERS.get(function.name) if function.schema == "pg_catalog" else None
    if handler is None:
        raise refusal(f"window {function}")
    return handler(args, window)


_Handler = Callable[[Sequence[Expr], Window], Expr]


def _rank(name: str, oid: int) -> _Handler:
    kind = "BIGINT" if oid == types.INT8 else "DOUBLE"

    def handler(args: Sequence[Expr], window: Window) -> Expr:
        if args:
            raise refusal(f"hypothetical {name}()")
        return Expr(f"CAST({name}(){window.over(False)} AS {kind})", oid)

    return handler


def _ntile(args: Sequence[Expr], window: Window) -> Expr:
    buckets = args[0].value
    if not isinstance(buckets, int):
        raise refusal("ntile() of a number that is not a constant")
    if buckets <= 0:
        return Expr(failure("22014", "argument of ntile must be greater than zero"), types.INT4)
    return Expr(f"ntile({buckets}){window.over(False)}", types.INT4)


def _moved(name: str) -> _Handler:
    def handler(args: Sequence[Expr], window: Window) -> Expr:
        offset = args[1].value if len(args) > 1 else 1
        if not isinstance(offset, int):
            raise refusal(f"{name}() with an offset that is not a constant")
        other = "NULL"
        if len(args) > 2:
            if args[2].oid == types.NUMERIC:
                raise refusal(f"{name}() with a numeric default")
            other = args[2].sql
        over = window.over(False)
        return _kept(args[0], lambda sql: f"{name}({sql}, {offset}, {other}){over}")

    return handler


def _kept(arg: Expr, use: Callable[[str], str]) -> Expr:
    """A function whose result is one of the argument's values."""
    sql = use(arg.sql)
    if arg.oid != types.NUMERIC:
        return Expr(sql, arg.oid, arg.typmod)
    digits = arg.numeric
    if not digits.fixed:
        raise refusal("a window function of numeric values with different display scales",
                      "Use round().")  # fmt: skip
    return Expr(sql, arg.oid, digits=digits)


def _at_edge(name: str) -> _Handler:
    def handler(args: Sequence[Expr], window: Window) -> Expr:
        over = window.over(True)
        return _kept(args[0], lambda sql: f"{name}({sql}){over}")

    return handler


def _nth_value(args: Sequence[Expr], window: Window) -> Expr:
    number = args[1].value
    if not isinstance(number, int) or number < 1:
        raise refusal("nth_value() of a number that is not a positive constant")
    over = window.over(True)
    return _kept(args[0], lambda sql: f"nth_value({sql}, {number}){over}")


_HANDLERS: dict[str, _Handler] = {
    "row_number": _rank("row_number", types.INT8),
    "rank": _rank("rank", types.INT8),
    "dense_rank": _rank("dense_rank", types.INT8),
    "percent_rank": _rank("percent_rank", types.FLOAT8),
    "cume_dist": _rank("cume_dist", types.FLOAT8),
    "ntile": _ntile,
    "lag": _moved("lag"),
    "lead": _moved("lead"),
    "first_value": _at_edge("first_value"),
    "last_value": _at_edge("last_value"),
    "nth_value": _nth_value,
}
