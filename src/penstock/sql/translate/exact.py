# SPDX-License-Identifier: Apache-2.0
"""What a row filter needs more than a query: a result for every value, not an error for some.

A query may end with 0A000 when it meets a value whose result Spark cannot hold.  A row filter is
evaluated for all rows to come, so what may fail like that is refused when it is made:

    rule                                              why
    ----                                              ---
    numerics in one operation fit together into       Spark's decimals have 38 digits
      38 digits, and so does the result
    nothing that raises 0A000 while it runs           a text form or quotient not held
    a length in LENGTHS is a constant                 the text could be as long as all memory
    nothing of REFUSED                                see there

PostgreSQL's own errors (division by zero, overflow) stay errors while it runs, as in PostgreSQL.
PostgreSQL computes all arguments of a function before it looks for NULL; Spark leaves out those
behind a NULL.  So an argument that can fail is also computed when one before it is NULL.  But with
NULL itself as an argument, PostgreSQL's planner has made NULL of the whole before the first row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.change import types
from penstock.sql.nodes import walk
from penstock.sql.translate import numeric
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.operators import EQUALITY, ORDERINGS
from penstock.sql.translate.registry import Function
from penstock.sql.translate.values import Expr, refusal

LENGTHS = {
    "repeat(text,int4)": 1,
    "lpad(text,int4)": 1,
    "lpad(text,int4,text)": 1,
    "rpad(text,int4)": 1,
    "rpad(text,int4,text)": 1,
}
"""Functions that make texts, and which argument says how long."""

MAX_LENGTH = 10_000

REFUSED = {
    "make_date(int4,int4,int4)": "it has years that Spark reads otherwise",
}
"""Functions whose translation is not exact for every argument, and why."""

_FAILURE = re.compile(r"penstock:0A000:([^'\\]*)")
_FEWER_DIGITS = "Give the operands fewer digits with a cast, for example ::numeric(18,6)."


_SAFE_NAMES = EQUALITY | ORDERINGS | {
    "numeric_add", "numeric_sub", "numeric_mul", "numeric_uminus", "numeric_uplus", "numeric_abs",
    "float4um", "float8um", "float4up", "float8up", "float4abs", "float8abs", "textcat", "byteacat",
    "date_trunc", "extract", "date_part", "md5", "reverse", "translate", "btrim", "ltrim", "rtrim",
    "lower", "upper", "length", "char_length", "character_length", "octet_length", "bit_length",
    "strpos", "position", "replace", "starts_with", "left", "right", "cardinality", "array_length",
    "timestamp", "timestamptz", "date", "timezone", "bool", "text", "varchar", "bpchar", "float8",
    "floor", "ceil", "ceiling", "like", "notlike", "like_escape", "array_eq", "array_ne", "pi",
}  # fmt: skip
_SAFE_PATTERN = re.compile(
    r".*(_ne|ne|like|_like|regexeq|regexne)|int8\(int[24]\)|int4\((int2|bool)\)"
    r"|(float4|numeric)\(int[248]\)"
)


def can_fail(node: Any, facts: Facts) -> bool:
    """Whether an expression may raise an error for some row."""
    for each in walk(node):
        oid = each.get("opfuncid") or each.get("funcid")
        function = facts.functions.get(oid) if oid else None
        if function is None or function.name in _SAFE_NAMES:
            continue
        if not any(map(_SAFE_PATTERN.fullmatch, (function.name, function.signature))):
            return True
    return False


def computed_too(nodes: Sequence[Any], args: Sequence[Expr], result: Expr, facts: Facts) -> Expr:
    """``result`` of a strict function, with its arguments computed although one is NULL."""
    for at, node in enumerate(nodes[1:], 1):
        if args[at].constant or not can_fail(node, facts):
            continue
        before = " OR ".join(
            f"{arg.sql} IS NULL" for arg in args[:at] if arg.value is None or not arg.constant
        )
        if before:
            sql = f"IF(({before}) AND {args[at].sql} IS NULL, NULL, {result.sql})"
            result = replace(result, sql=sql)
    return result


def planned_away(nodes: Sequence[Any], args: Sequence[Expr], facts: Facts) -> bool:
    """Whether PostgreSQL's planner makes NULL of a strict function with these arguments.

    One of them is the constant NULL (clauses.c, evaluate_function), and none of the others has a
    constant part that fails when the planner computes it.
    """
    others = [node for node, arg in zip(nodes, args, strict=True) if arg.value is not None]
    return len(others) < len(nodes) and not any(
        can_fail(part, facts)
        for part in walk(others)
        if not any(inner.tag == "VAR" for inner in walk(part))
    )


def check_call(function: Function, args: Sequence[Expr]) -> None:
    """Refuse a call that is not exact for every argument."""
    reason = REFUSED.get(function.signature)
    if reason is not None:
        raise refusal(f"{function}, because {reason},")
    place = LENGTHS.get(function.signature)
    if place is not None:
        length = args[place].value
        if length is not None and not (isinstance(length, int) and length <= MAX_LENGTH):
            raise refusal(f"{function} to a length that is not a constant up to {MAX_LENGTH}")
    check_operands(args)


def check_operands(args: Sequence[Expr]) -> None:
    """Refuse numerics that one decimal type cannot hold together."""
    decimals = [arg for arg in args if arg.oid == types.NUMERIC]
    if len(decimals) > 1 and numeric.unify(decimals)[0].overflows:
        raise refusal("an operation on numerics that need more than 38 digits", _FEWER_DIGITS)


def check_result(expr: Expr) -> None:
    """Refuse an expression that can fail for a value where PostgreSQL has a result."""
    failure = _FAILURE.search(expr.sql) or _FAILURE.search(expr.text or "")
    if failure is not None:
        if "quotient" in failure.group(1):
            raise refusal(
                "division of numerics",
                "Multiply instead: a > 3 * b for a / b > 3; or divide ::float8 values.",
            )
        raise refusal(f"what can end with: {failure.group(1)};")
    if expr.digits is not None and expr.digits.overflows:
        raise refusal("a numeric result that may need more than 38 digits", _FEWER_DIGITS)
