# SPDX-License-Identifier: Apache-2.0
"""Rows and filters for ``filter_oracle``: awkward values, and expressions over all types."""

from __future__ import annotations

import random

from tests.support.expressions import SHARED, Grammar, together

Row = dict[str, str | None]

_TEXTS = [
    "", "a", "A", "b", "ab", "aB c", "a ", " a", "é", "Éa", "😀", "z😀", "a_b%c\\d", "100%", "x\ny",
    "\n", "a\n", "o'k", "ä\u0308", "\uffff", "abcabcabc", "${x}", "a\tb", "A1_9", "zz", "Zz",
]  # fmt: skip
_DAYS = ["0001-01-01", "1582-10-10", "1969-12-31", "1970-01-01", "2000-02-29", "2024-02-29",
         "2024-03-31", "2024-12-30", "9999-12-31"]  # fmt: skip
_CLOCKS = ["00:00:00", "23:59:59.999999", "02:30:00.000001", "12:00:00.5", "10:20:30"]
_FLOATS = ["0", "-0.0", "1", "-1.5", "NaN", "Infinity", "-Infinity", "0.1", "16777217", "1e-30",
           "1e30", "3.4e38", "2.5"]  # fmt: skip

EDGES: dict[str, list[str]] = {
    "i2": ["0", "1", "-1", "2", "32767", "-32768", "7"],
    "i4": ["0", "1", "-1", "2", "3", "2147483647", "-2147483648", "100"],
    "i8": ["0", "1", "-1", "5", "9007199254740993", "9223372036854775807", "-9223372036854775808"],
    "f4": _FLOATS,
    "f8": [*_FLOATS, "1e308", "5e-324", "1e-308", "9007199254740993", "0.30000000000000004"],
    "n": ["0", "1.5", "-1.5", "0.000000000000000001", "99999999999999999999.999999999999999999",
          "-99999999999999999999", "2.50", "3", "0.1", "9007199254740993"],
    "n2": ["0.00", "0.01", "-0.01", "1.50", "99999999.99", "-99999999.99", "2.00", "3.25"],
    "n38": ["0", "1", "-7", "9" * 38, "-" + "9" * 38, "10000000000000000000"],
    "b": ["true", "false"],
    "t": _TEXTS,
    "v": [each for each in _TEXTS if len(each) <= 20],
    "c": ["", "a", "ab", "é", "a b", "abcde", " a", "A"],
    "d": _DAYS,
    "ts": [f"{day} {clock}" for day in _DAYS for clock in _CLOCKS],
    "tz": [f"{day} {clock}+00" for day in _DAYS for clock in _CLOCKS],
    "y": ["\\x", "\\x00", "\\x00ff", "\\x61", "\\xff", "\\x6162", "\\x7f", "\\x80"],
    "u": ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
          "ffffffff-ffff-ffff-ffff-ffffffffffff", "0fffffff-ffff-ffff-ffff-ffffffffffff"],
    "tm": [*_CLOCKS, "24:00:00", "10:20:30.1"],
    "nm": ["a", "A", "ab", "é", "zz"],
    "ch": ["a", "b", "", "Z"],
    "o": ["0", "1", "4294967295", "2147483648"],
    "j": ['{"a": 1}', "[]", "null"],
    "iv": ["1 day", "24:00:00", "1 mon"],
    "ip": ["10.0.0.1", "::1", "10.0.0.0/8"],
    "ta": ["{}", "{a}", "{a,NULL}", '{"",ab}', "{é,a}"],
    "ia": ["{}", "{1}", "{1,2,3}", "{NULL}", "{2147483647,NULL,0}"],
    "fa": ["{}", "{NaN}", "{0,1}", "{-0.0,1}", "{Infinity,NULL}"],
    'odd "name': ["0", "1", "-1"],
}  # fmt: skip


def random_rows(seed: int, count: int) -> list[Row]:
    """Rows of edge values and of values between them; one in eight is NULL."""
    draw = random.Random(seed)
    return [{name: _value(draw, name) for name in EDGES} for _ in range(count)]


def edge_rows() -> list[Row]:
    """Each edge value of each column in some row, one row of NULLs."""
    length = max(len(values) for values in EDGES.values())
    rows: list[Row] = [{}]
    for i in range(length):
        rows.append({name: values[i % len(values)] for name, values in EDGES.items()})
    return rows


def _value(draw: random.Random, name: str) -> str | None:
    if draw.random() < 0.125:
        return None
    if draw.random() < 0.7:
        return draw.choice(EDGES[name])
    if name in ("i2", "i4", "i8", "f4", "f8", "n", "n2", "n38", "o", 'odd "name'):
        return str(draw.randint(0 if name == "o" else -9, 9))
    if name in ("t", "v"):
        letters = "abAB01_%\\é😀 \n.-" if name == "t" else "abAB é"
        return "".join(draw.choice(letters) for _ in range(draw.randint(0, 8)))
    return draw.choice(EDGES[name])


GRAMMAR = Grammar(
    columns={
        "int": ["i2", "i4", "i8", "id", '"odd ""name"'],
        "numeric": ["n", "n2", "n2", "n38"],
        "float": ["f4", "f8"],
        "text": ["t", "v", "c", "nm"],
        "date": ["d"],
        "time": ["ts"],
        "zoned": ["tz"],
        "bool": ["b"],
        "bytes": ["y"],
        "uuid": ["u"],
        "clock": ["tm"],
        "oid": ["o"],
        "texts": ["ta"],
        "ints": ["ia"],
        "floats": ["fa"],
    },
    constants={
        "int": ["0", "1", "-3", "7", "32767", "2147483647", "NULL::int", "2::int2", "5::int8",
                "9007199254740993", "(-9223372036854775808)"],
        "numeric": ["0.5", "-1.25", "3.0", "0.00", "1000000.001", "NULL::numeric", "1e-20", "1.50",
                    "12345678901234567890.5"],
        "float": ["1.5::float8", "0::float8", "'-Infinity'::float8", "'NaN'::float8",
                  "1e10::float8", "'-0.0'::float8", "0.1::float4", "pi()"],
        "text": ["'a'", "''", "'aB '", "'é_%'", "NULL::text", "'b'::char(3)", "'o''k'", "'\\'",
                 "'z😀'", "'a'::varchar", "'ab'::varchar(1)"],
        "date": ["date '2024-02-29'", "date '0001-01-01'", "NULL::date", "date '9999-12-31'"],
        "time": ["timestamp '2024-03-31 02:30:00.000001'", "timestamp '1969-12-31 23:59:59.5'"],
        "zoned": ["timestamptz '2024-03-31 02:30:00+02'", "NULL::timestamptz",
                  "timestamptz '0001-01-01 00:00:00+00'"],
        "bool": ["true", "false", "NULL::bool"],
        "bytes": ["'\\x61'::bytea", "''::bytea", "NULL::bytea", "'\\x80'::bytea"],
        "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "NULL::uuid"],
        "clock": ["time '10:20:30'", "time '24:00'", "NULL::time"],
        "oid": ["1::oid", "4294967295::oid"],
        "texts": ["'{a,NULL}'::text[]", "'{}'::text[]", "NULL::text[]", "array['a', t]"],
        "ints": ["'{1,2,3}'::int[]", "'{}'::int[]", "array[1, i4, NULL]", "NULL::int[]"],
        "floats": ["'{0,1}'::float8[]", "'{NaN}'::float8[]"],
    },
    rules=together(SHARED, {
        "int": [
            "({int} | {int})", "({int} # {int})", "(~{int})",
            "CASE {int} WHEN 1 THEN {int} WHEN {int} THEN 2 END", "length({bytes})",
            "char_length({text})", "bit_length({text})", "cardinality({ints})",
            "array_length({ints}, 1)", "{float}::int8", "mod({int}, {int})", "{int}::int2",
        ],
        "numeric": [
            "{int}::numeric", "sign({numeric})", "round({numeric})", "extract(isodow from {time})",
            "extract(doy from {date})", "extract(milliseconds from {time})",
            "greatest({numeric}, {int})", "extract(epoch from {time} - {time})",
            "{numeric}::numeric(6,1)",
        ],
        "float": [
            "{int}::float4", "{numeric}::float4", "sqrt({float})", "coalesce({float}, {float})",
            "date_part('hour', {time})", "nullif({float}, {float})", "{float}::float4",
            "CASE WHEN {bool} THEN {float} ELSE {float} END",
        ],
        "text": [
            "substring({text} from 1 for 1)", "lpad({text}, {length}, {text})",
            "rpad({text}, {length})", "trim(both 'a' from {text})", "split_part({text}, {text}, 2)",
            "nullif({text}, {text})", "repeat({text}, {length})", "greatest({text}::text, {text})",
            "encode({bytes}, 'hex')", "{text}::text",
            "CASE {text} WHEN 'a' THEN {text} ELSE 'no' END",
        ],
        "time": [
            "date_trunc('quarter', {time})", "({zoned} at time zone 'UTC')",
            "date_trunc('hour', {time})",
        ],
        "zoned": [
            "least({zoned}, {zoned})", "({time} at time zone 'UTC')", "coalesce({zoned}, {zoned})",
        ],
        "bool": [
            "({int} {compared} {int})", "({numeric} {compared} {numeric})",
            "({float} {compared} {float})", "({text} {compared} {text})",
            "({date} {compared} {time})", "({date} {compared} {date})",
            "({time} {compared} {time})", "({zoned} {compared} {zoned})",
            "({bytes} {compared} {bytes})", "({uuid} {compared} {uuid})",
            "({clock} {compared} {clock})", "({oid} {compared} {oid})",
            "({bool} {compared} {bool})", "({texts} = {texts})", "({ints} <> {ints})",
            "({floats} = {floats})", "({int} {compared} {numeric})", "({int} {compared} {float})",
            "({numeric} {compared} {float})", "(ch = 'a')", "({int} IN ({int}, {int}, {int}))",
            "({text} IN ({text}, {text}))",
            "({float} IN ({float}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))",
            "({numeric} NOT IN ({numeric}, {int}))", "({int} = ANY ({ints}))",
            "({int} > ALL (array[{int}, 1]))", "({text} = ANY ({texts}))",
            "({float} = ANY ({floats}))", "({float} IS NOT DISTINCT FROM {float})",
            "({text} IS DISTINCT FROM {text})", "({date} NOT BETWEEN {date} AND {date})",
            "({int} BETWEEN SYMMETRIC {int} AND {int})", "({bool} IS {truth})",
            "({text} {like} {pattern})", "({text} {matches} {regex})", "({any} IS {nothing})",
            "(({int}, {text}) {compared} ({int}, {text}))",
            "(row({numeric}, {date}, {bool}) {compared} row({numeric}, {date}, {bool}))",
            "(row({int}, {text}) IS {nothing})", "((i4, t) IN ((1, 'a'), ({int}, {text})))",
            "((i4, f8) IS DISTINCT FROM ({int}, {float}))", "CASE WHEN {bool} THEN {bool} END",
            "coalesce({bool}, {bool})", "(position({text} in {text}) > 0)",
        ],
    }),
    leaves={
        "small": ["-2", "0", "1", "2", "5", "(id - 3)", "NULL"],
        "length": ["-1", "0", "3", "12", "NULL"],
        "compared": ["=", "<>", "<", "<=", ">", ">="],
        "truth": ["TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "UNKNOWN", "NOT UNKNOWN"],
        "nothing": ["NULL", "NOT NULL"],
        "any": ["j", "iv", "ip", "ch", "ta", "u", "t", "n", "f4"],
        "like": ["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"],
        "pattern": ["'a%'", "'%b'", "'%A_%'", "''", "'%'", "'_'", "'a\\_b\\%%'", "'é%'", "NULL",
                    "'a!%' ESCAPE '!'", "'%\\\\%'", "'x_y'"],
        "matches": ["~", "!~", "~*", "!~*"],
        "regex": ["'a'", "'^a'", "'a$'", "'^$'", "'^.$'", "'x.y'", "'[ab]+'", "'^[^a-c]*$'",
                  "'(a|b)c?'", "'\\d'", "'^\\w+$'", "'\\s'", "'\\.'", "'a{2,3}'", "'é|😀'",
                  "'[[:upper:]]'", "'^(?:abc){3}$'", "'[]x]'", "'.*b'", "'[^\\w\\s]'",
                  "''", "NULL"],
    },
)  # fmt: skip
