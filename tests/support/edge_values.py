# SPDX-License-Identifier: Apache-2.0
"""Values of every type, at their edges and at random, as text that PostgreSQL reads.

``COLUMNS`` are columns for one table; ``rows`` makes as many rows of literals as are wanted from
a seeded generator, so a failure can be repeated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'it''s "so" so', '', 'žluť \\ ');
CREATE DOMAIN small_number AS int CHECK (value > -1000);
CREATE DOMAIN words AS text;
CREATE DOMAIN amount AS numeric(9,2);
CREATE DOMAIN numbers AS int[];
CREATE TYPE pair AS (a int, b text, c numeric, d mood, e float8, f timestamptz);
CREATE TYPE span AS RANGE (subtype = float8);
"""

Make = Callable[[random.Random], str]

AWKWARD = "\\\"'{}(),;: \t\n\r\f\v%$ aZ09NULL\u00e9\u00df\u20ac\U0001f40e\u0660"


@dataclass(frozen=True)
class EdgeColumn:
    """A column: its edges come first, then what ``make`` makes; ``compared`` is how the server's
    value is shown for the comparison, with {} for the column."""

    name: str
    sql: str
    edges: Sequence[str | None]
    make: Make
    compared: str = "pg_catalog.format('%s', {})"


def _text(r: random.Random) -> str:
    return "".join(r.choice(AWKWARD) for _ in range(r.randrange(12)))


def _integer(bits: int) -> Make:
    return lambda r: str(r.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1)) >> r.randrange(bits))


def _numeric(digits: int, scale: int) -> Make:
    def make(r: random.Random) -> str:
        number = r.randrange(10 ** r.randrange(1, digits + 1))
        text = str(number).rjust(scale + 1, "0")
        sign = r.choice(["", "-"])
        return f"{sign}{text[:-scale]}.{text[-scale:]}" if scale else sign + text

    return make


def _any_numeric(r: random.Random) -> str:
    digits = "".join(r.choice("0123456789") for _ in range(r.randrange(1, 60)))
    return r.choice(["", "-"]) + f"{digits}e{r.randrange(-60, 60)}"


def _float(r: random.Random) -> str:
    return repr(r.uniform(-1, 1) * 10.0 ** r.randrange(-300, 300))


def _float4(r: random.Random) -> str:
    return repr(r.uniform(-1, 1) * 10.0 ** r.randrange(-36, 36))


def _date(r: random.Random) -> str:
    return f"{r.randrange(1, 10000):04}-{r.randrange(1, 13):02}-{r.randrange(1, 29):02}"


def _clock(r: random.Random) -> str:
    fraction = r.choice(["", ".5", ".000001", ".999999", f".{r.randrange(10**6):06}"])
    return f"{r.randrange(24):02}:{r.randrange(60):02}:{r.randrange(60):02}{fraction}"


def _moment(r: random.Random) -> str:
    return f"{_date(r)} {_clock(r)}"


def _any_moment(r: random.Random) -> str:
    year = r.randrange(1, 290000)
    return f"{year}-{r.randrange(1, 13):02}-{r.randrange(1, 29):02} {_clock(r)}"


def _interval(r: random.Random) -> str:
    parts = [f"{r.randrange(-9, 10)} {unit}" for unit in ("year", "mon", "day", "hour", "min")]
    parts.append(f"{r.randrange(-99, 100)}.{r.randrange(10**6):06} sec")
    return " ".join(r.sample(parts, r.randrange(1, 7)))


def _hexes(count: int) -> Make:
    return lambda r: "".join(r.choice("0123456789abcdef") for _ in range(count))


def _ip(r: random.Random) -> str:
    if r.random() < 0.3:
        return ".".join(str(r.randrange(256)) for _ in range(4)) + r.choice(["", "/8", "/0", "/31"])
    words = [r.choice(["0", "0", "0", "1", "ffff", f"{r.randrange(65536):x}"]) for _ in range(8)]
    return ":".join(words) + r.choice(["", "/64", "/0", "/127"])


def _json(r: random.Random) -> str:
    value = {_text(r): [_text(r), r.random(), None, True, {}], "n": r.randrange(10**20)}
    return json.dumps(value, ensure_ascii=r.random() < 0.5)


def _array(item: Make) -> Make:
    def make(r: random.Random) -> str:
        items = [item(r) if r.random() < 0.8 else None for _ in range(r.randrange(6))]
        return "{" + ",".join("NULL" if i is None else _quoted(i) for i in items) + "}"

    return make


def _quoted(item: str) -> str:
    return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _range(item: Make, key: Callable[[str], Any]) -> Make:
    def make(r: random.Random) -> str:
        low, high = sorted((item(r), item(r)), key=key)
        if r.random() < 0.1:
            return "empty"
        low, high = (_quoted(b) if r.random() < 0.8 else "" for b in (low, high))
        return r.choice("[(") + f"{low},{high}" + r.choice("])")

    return make


def _pair(r: random.Random) -> str:
    fields = [
        str(r.randrange(-9, 9)),
        _quoted(_text(r)),
        _any_numeric(r),
        "sad",
        _float(r),
        f'"{_moment(r)}+00"',
    ]
    return "(" + ",".join(f if r.random() < 0.8 else "" for f in fields) + ")"


def _point(r: random.Random) -> str:
    return f"({_float(r)},{_float(r)})"


def _vector(r: random.Random) -> str:
    lexeme = _text(r).replace("\\", "\\\\").replace("'", "''") or "x"
    return f"'{lexeme}':{r.randrange(1, 99)}A,{r.randrange(1, 99)} 'b' 'c':3C"


_BYTES = "\\x" + bytes(range(256)).hex()
_WORDS = [
    "",
    " ",
    "NULL",
    "null",
    "a\\b",
    'q"u',
    "it's",
    "l\ni\tn\re",
    "{a,b}",
    "(1,2)",
    "\\.",
    "\\N",
]

COLUMNS = [
    EdgeColumn("i2", "int2", ["-32768", "32767", "0", None], _integer(16)),
    EdgeColumn("i4", "int4", ["-2147483648", "2147483647", "0", None], _integer(32)),
    EdgeColumn("i8", "int8", [str(-(2**63)), str(2**63 - 1), "0", None], _integer(64)),
    EdgeColumn("o", "oid", ["0", "4294967295", None], lambda r: str(r.randrange(2**32))),
    EdgeColumn(
        "x8", "xid8", ["0", str(2**64 - 1), str(2**63), None], lambda r: str(r.randrange(2**64))
    ),
    EdgeColumn(
        "f4",
        "float4",
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "-0",
            "1e-45",
            "3.4028235e38",
            "16777217",
            "1e15",
            "123456.7",
            "0.0001",
            "0.00001",
            None,
        ],
        _float4,
    ),
    EdgeColumn(
        "f8",
        "float8",
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "-0",
            "5e-324",
            "1.7976931348623157e308",
            "1e23",
            "9007199254740993",
            "1e15",
            "1e14",
            "0.1",
            None,
        ],
        _float,
    ),
    EdgeColumn("b", "bool", ["t", "f", None], lambda r: r.choice("tf")),
    EdgeColumn(
        "n",
        "numeric",
        [
            "0",
            "0.000000000000000001",
            "-99999999999999999999.999999999999999999",
            "99999999999999999999.999999999999999999",
            "1.500",
            "-0.0",
            "1e19",
            "10000",
            "0.0001",
            None,
        ],
        _numeric(38, 18),
        "{}::numeric(38,18)::text",
    ),
    EdgeColumn("n2", "numeric(38,0)", ["9" * 38, "-" + "9" * 38, "0", None], _numeric(38, 0)),
    EdgeColumn(
        "n3",
        "numeric(38,38)",
        ["0." + "9" * 38, "-0." + "0" * 37 + "1", None],
        lambda r: "0." + str(r.randrange(10**38)),
    ),
    EdgeColumn("n4", "numeric(5,-3)", ["12345678", "-99999000", "400", None], _numeric(8, 0)),
    EdgeColumn(
        "n5",
        "numeric(3,6)",
        ["0.000999", "-0.000001", None],
        lambda r: f"0.000{r.randrange(1000):03}",
    ),
    EdgeColumn("d", "date", ["0001-01-01", "9999-12-31", "1970-01-01", "2000-02-29", None], _date),
    EdgeColumn(
        "ts",
        "timestamp",
        [
            "0001-01-01",
            "9999-12-31 23:59:59.999999",
            "1969-12-31 23:59:59.999999",
            "2000-01-01",
            None,
        ],
        _moment,
    ),
    EdgeColumn(
        "tz",
        "timestamptz",
        [
            "0001-01-01 00:00+00",
            "9999-12-31 23:59:59.999999+00",
            "1883-11-18 12:03:58+00",
            "2024-07-01 00:00:00+05:30",
            None,
        ],
        _moment,
    ),
    EdgeColumn("raw", "bytea", ["", "\\x", "\\x00", _BYTES, None], lambda r: "\\x" + _hexes(8)(r)),
    EdgeColumn("t", "text", [*_WORDS, "\u00e9\U0001f40e", "m" * 1_000_000, None], _text),
    EdgeColumn("vc", "varchar(12)", [*_WORDS, None], _text),
    EdgeColumn("ch", "char(12)", ["", " a ", "full \u00e9 twelve"[:12], None], _text),
    EdgeColumn("one", '"char"', ["a", "", "\\", None], lambda r: r.choice("azAZ09 \"'")),
    EdgeColumn("nm", "name", ["n", "", None], lambda r: _text(r)),
    EdgeColumn("u", "uuid", ["0" * 32, "f" * 32, None], _hexes(32)),
    EdgeColumn("j", "json", ['{"a" : 1,  "a":2}', "null", '"\\u0041"', None], _json),
    EdgeColumn("jb", "jsonb", ['{"b":1,"a":[1e400, "\\u00e9"]}', "null", "[]", None], _json),
    EdgeColumn("c", "time", ["00:00", "24:00:00", "23:59:59.999999", None], _clock),
    EdgeColumn(
        "cz",
        "timetz",
        ["00:00+15:59", "24:00:00-15:59:59", "12:00+00", "1:02:03.4+05:30", None],
        lambda r: f"{_clock(r)}{r.choice('+-')}{r.randrange(15):02}:{r.randrange(60):02}",
    ),
    EdgeColumn(
        "iv",
        "interval",
        [
            "0",
            "-178000000 years",
            "178000000 years",
            "1 mon -1 day 00:00:01",
            "-1 mon 1 day",
            "-1 year 2 mons -3 days +04:05:06.000007",
            "-00:00:00.000001",
            "2562047788:00:54.775807",
            "-9223372036854775807 us",
            "1 day",
            "-1 day -01:00",
            None,
        ],
        _interval,
    ),
    EdgeColumn("m", "mood", ["sad", 'it\'s "so" so', "", "žluť \\ ", None], lambda r: "sad"),
    EdgeColumn("dom", "small_number", ["-999", "0", None], lambda r: str(r.randrange(999))),
    EdgeColumn("dw", "words", [*_WORDS, None], _text),
    EdgeColumn("da", "amount", ["-1.50", "9999999.99", None], _numeric(9, 2)),
    EdgeColumn(
        "dn",
        "numbers",
        ["{}", "{1,NULL}", "{{1,2},{3,4}}", "[0:1]={5,6}", None],
        _array(_integer(32)),
    ),
    EdgeColumn(
        "p",
        "pair",
        [
            "(,,,,,)",
            '(1,"",NaN,"it\'s ""so"" so",-0,infinity)',
            '(1," \\" \\\\ ",-Infinity,,,"0044-03-15 BC")',
            None,
        ],
        _pair,
    ),
    EdgeColumn(
        "ip",
        "inet",
        [
            "0.0.0.0",
            "255.255.255.255/0",
            "10.1.2.3/8",
            "::",
            "::1",
            "::/0",
            "::ffff:1.2.3.4",
            "::1.2.3.4",
            "1::",
            "1:0:0:2::3",
            "::2:0:0:0:0",
            "::ffff:0:0",
            None,
        ],
        _ip,
    ),
    EdgeColumn(
        "net",
        "cidr",
        ["0.0.0.0/0", "10.0.0.0/8", "1.2.3.4/32", "::/0", "::1/128", None],
        lambda r: f"10.{r.randrange(256)}.0.0/16",
    ),
    EdgeColumn("mac", "macaddr", ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", None], _hexes(12)),
    EdgeColumn("mac8", "macaddr8", ["00:00:00:00:00:00:00:0a", None], _hexes(16)),
    EdgeColumn(
        "bi",
        "bit(9)",
        ["000000001", "111111111", None],
        lambda r: "".join(r.choice("01") for _ in range(9)),
    ),
    EdgeColumn(
        "vb",
        "varbit",
        ["", "1", "10101010", "1" * 100, None],
        lambda r: "".join(r.choice("01") for _ in range(r.randrange(30))),
    ),
    EdgeColumn(
        "lsn",
        "pg_lsn",
        ["0/0", "FFFFFFFF/FFFFFFFF", "A/B0", None],
        lambda r: f"{r.randrange(2**32):X}/{r.randrange(2**32):X}",
    ),
    EdgeColumn("tv", "tsvector", ["", "a:1A fat:2B,4C cat:5D", "'it''s' 'a\\\\b'", None], _vector),
    EdgeColumn(
        "r4",
        "int4range",
        ["empty", "(,)", "[1,5)", "(1,1]", None],
        lambda r: f"[{r.randrange(-9, 0)},{r.randrange(9)}]",
    ),
    EdgeColumn(
        "rn",
        "numrange",
        ["(,)", "[-Infinity,NaN]", "[1.50,2.0)", None],
        _range(_numeric(9, 3), float),
    ),
    EdgeColumn(
        "rt", "tsrange", ["(-infinity,infinity)", '["0044-03-15 BC",)', None], _range(_moment, str)
    ),
    EdgeColumn("rf", "span", ["[-0,1e23]", "(-Infinity,NaN)", None], _range(_float, float)),
    EdgeColumn(
        "mr",
        "int4multirange",
        ["{}", "{(,)}", "{[1,3),[5,9)}", None],
        lambda r: f"{{[{r.randrange(9)},10),[{r.randrange(20, 30)},)}}",
    ),
    EdgeColumn("ai", "int4[]", ["{}", "{NULL}", "{1,NULL,-3}", None], _array(_integer(32))),
    EdgeColumn("a2", "int2[]", ["{-32768,32767}", None], _array(_integer(16))),
    EdgeColumn("a8", "int8[]", [f"{{{-(2**63)}}}", None], _array(_integer(64))),
    EdgeColumn("an", "numeric(12,3)[]", ["{}", "{-0.001,NULL}", None], _array(_numeric(12, 3))),
    EdgeColumn("ab", "bool[]", ["{t,f,NULL}", None], _array(lambda r: r.choice("tf"))),
    EdgeColumn("af", "float8[]", ["{NaN,-Infinity,-0,NULL}", None], _array(_float)),
    EdgeColumn("a4", "float4[]", ["{NaN,Infinity,-0,1e-45}", None], _array(_float4)),
    EdgeColumn("ad", "date[]", ["{0001-01-01,9999-12-31,NULL}", None], _array(_date)),
    EdgeColumn("ats", "timestamp[]", ["{1969-12-31 23:59:59.999999}", None], _array(_moment)),
    EdgeColumn("atz", "timestamptz[]", ["{1969-12-31 23:59:59.999999+00}", None], _array(_moment)),
    EdgeColumn(
        "ar",
        "bytea[]",
        ['{"\\\\x","\\\\x00ff",NULL}', None],
        _array(lambda r: "\\x" + _hexes(6)(r)),
    ),
    EdgeColumn("at", "text[]", ["{}", '{"",NULL,"NULL",null}', None], _array(_text)),
    EdgeColumn("av", "varchar(12)[]", ["{a}", None], _array(_text)),
    EdgeColumn("ac", "char(12)[]", ["{a,NULL}", None], _array(_text)),
    EdgeColumn("ao", "oid[]", ["{4294967295}", None], _array(lambda r: str(r.randrange(2**32)))),
    EdgeColumn("au", "uuid[]", ["{}", "{NULL}", None], _array(_hexes(32))),
    EdgeColumn("aj", "jsonb[]", ["{}", None], _array(_json)),
    EdgeColumn(
        "am", "mood[]", ['{sad,"","it\'s \\"so\\" so",NULL}', None], _array(lambda r: "sad")
    ),
    EdgeColumn("aiv", "interval[]", ["{}", None], _array(_interval)),
    EdgeColumn("aip", "inet[]", ["{{::1},{10.0.0.0/8}}", None], _array(_ip)),
    EdgeColumn("ap", "pair[]", ['{"(1,\\"a b\\",,,,)",NULL}', None], _array(_pair)),
    EdgeColumn(
        "arn", "numrange[]", ['{"[1.0,2)",empty}', None], _array(_range(_numeric(9, 3), float))
    ),
    EdgeColumn("pt", "point", ["(0,-0)", "(Infinity,NaN)", "(1e-300,1e23)", None], _point),
    EdgeColumn("bx", "box", ["(1,2),(3,4)", None], lambda r: f"{_point(r)},{_point(r)}"),
    EdgeColumn("abx", "box[]", ["{(1,2),(3,4);(5,6),(7,8)}", None], lambda r: "{}"),
    EdgeColumn("pa", "path", ["[(1,2),(3,4)]", "((1,2))", None], lambda r: f"[{_point(r)}]"),
    EdgeColumn("ci", "circle", ["<(1,2),3>", None], lambda r: f"<{_point(r)},1>"),
    EdgeColumn("ls", "lseg", ["[(1,2),(3,4)]", None], lambda r: f"[{_point(r)},{_point(r)}]"),
    EdgeColumn("po", "polygon", ["((0,0),(1,1e15),(2,0))", None], lambda r: f"({_point(r)})"),
    EdgeColumn("li", "line", ["{1,-1,0}", None], lambda r: f"{{1,{_float(r)},{_float(r)}}}"),
]

TEXT_COLUMNS = [
    EdgeColumn(
        "n",
        "numeric",
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "0",
            "-0.000",
            "1e131071",
            "1e-16383",
            "1.50",
            "10000",
            "0.0001",
            "-123456789.0000",
            None,
        ],
        _any_numeric,
    ),
    EdgeColumn("n2", "numeric(50,3)", ["NaN", "9" * 47, "-0.001", None], _numeric(50, 3)),
    EdgeColumn(
        "d",
        "date",
        ["infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "0001-01-01 BC", None],
        _date,
    ),
    EdgeColumn(
        "ts",
        "timestamp",
        [
            "infinity",
            "-infinity",
            "4714-11-24 00:00:00 BC",
            "294276-12-31 23:59:59.999999",
            "0001-01-01 12:00:00.5 BC",
            None,
        ],
        _any_moment,
    ),
    EdgeColumn(
        "tz",
        "timestamptz",
        [
            "infinity",
            "-infinity",
            "4714-11-24 00:00:00+00 BC",
            "294276-12-31 23:59:59.999999+00",
            None,
        ],
        _any_moment,
    ),
    EdgeColumn(
        "an",
        "numeric[]",
        ["{NaN,1e50,NULL}", "{{1,2},{3,4}}", "[-1:0]={1,2}", None],
        _array(_any_numeric),
    ),
    EdgeColumn("ad", "date[]", ["{infinity,0044-03-15 BC}", None], _array(_date)),
    EdgeColumn(
        "at",
        "text[]",
        ['{{a,"b c"},{NULL,""}}', "[2:3]={x,y}", "[1:1][-2:-1][3:3]={{{1},{2}}}", None],
        _array(_text),
    ),
    EdgeColumn("ai", "int4[]", ["{{{1},{2}},{{3},{4}}}", "{}", None], _array(_integer(32))),
]
"""What only text holds: numeric_as, datetime_as and array_as make it so."""


OTHER_COLUMNS = [
    EdgeColumn("mo", "money", ["-92233720368547758.08", "1234.5", None], _numeric(9, 2)),
    EdgeColumn("tq", "tsquery", ["'a' & !('b' | 'c':*A)", "", None], lambda r: "fat <-> rat"),
    EdgeColumn("jp", "jsonpath", ['$."a b"[*] ? (@ > 1)', None], lambda r: "$.a"),
    EdgeColumn("rc", "regclass", ["pg_class", "0", None], lambda r: "pg_type"),
    EdgeColumn("ov", "oidvector", ["1 2 4294967295", "", None], lambda r: "7"),
    EdgeColumn("td", "tid", ["(0,0)", "(4294967295,65535)", None], lambda r: "(1,2)"),
    EdgeColumn("sn", "pg_snapshot", ["10:20:10,14,15", None], lambda r: "1:1:"),
]
"""Types whose binary form is not read; as text they come by copy and by stream all the same."""


def rows(columns: Sequence[EdgeColumn], count: int, seed: int) -> list[list[Any]]:
    """So many rows with an id first; every edge of every column is in them."""
    r = random.Random(seed)
    return [
        [
            number,
            *(c.edges[number] if number < len(c.edges) else c.make(r) for c in columns),
        ]
        for number in range(count)
    ]


def create_table(name: str, columns: Sequence[EdgeColumn]) -> str:
    """The statement that creates the table."""
    defined = ", ".join(f"{c.name} {c.sql}" for c in columns)
    return f"CREATE TABLE {name} (id int PRIMARY KEY, {defined}, changed int DEFAULT 0)"


def insert(name: str, columns: Sequence[EdgeColumn]) -> str:
    """The statement that inserts one of ``rows``."""
    return f"INSERT INTO {name} VALUES (%s, {', '.join(f'%s::{c.sql}' for c in columns)})"


def shown(name: str, columns: Sequence[EdgeColumn]) -> str:
    """A query for what the server shows, by id; null stays null."""
    items = ", ".join(
        f"CASE WHEN {c.name} IS DISTINCT FROM NULL THEN {c.compared.format(c.name)} END"
        for c in columns
    )
    return f"SELECT {items} FROM {name} ORDER BY id"
