# SPDX-License-Identifier: Apache-2.0
"""Node trees and constants are read as PostgreSQL wrote them; grouping sets are written out."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from penstock.change import types
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.sql.constants import Interval, from_binary, from_datum
from penstock.sql.nodes import Datum, Node, parse_nodes, walk
from penstock.sql.translate.grouping import grouping_sets
from penstock.sql.translate.values import let


def test_a_tree_is_read() -> None:
    """Every form of value that outfuncs.c writes."""
    text = (
        r'({VAR :varno 1 :varattno -1 :names ("a\ b" "q"x" "\"") :set (b 3 4) :oids (o 25 16)'
        r" :alias <> :name odd\ name :digits \1x :flag true :cost 1.50 :empty <>"
        r" :constvalue 4 [ 1 0 -1 0 ] :inner {CONST :list (i 1 2)}})"
    )
    assert parse_nodes(text) == [
        Node(
            "VAR",
            {
                "varno": 1, "varattno": -1, "names": ["a b", 'q"x', '"'], "set": [3, 4],
                "oids": [25, 16], "alias": None, "name": "odd name", "digits": "1x", "flag": True,
                "cost": "1.50", "empty": None, "constvalue": Datum(4, b"\x01\x00\xff\x00"),
                "inner": Node("CONST", {"list": [1, 2]}),
            },
        )
    ]  # fmt: skip


def test_names_of_any_characters_are_read() -> None:
    """PostgreSQL escapes few: a carriage return, a quote inside, and the word true are not."""
    tree = parse_nodes('{T :resname true :ctename a\r"b\\{c :colnames ("true" "x\xa0\r")}')
    assert tree.fields == {
        "resname": "true",
        "ctename": 'a\r"b{c',
        "colnames": ["true", "x\xa0\r"],
    }


def test_walk_finds_every_node() -> None:
    """Nodes in fields and in lists, outer ones first."""
    tree = parse_nodes("{A :x ({B :y {C}} {D}) :z {E}}")
    assert [node.tag for node in walk(tree)] == ["A", "B", "C", "D", "E"]


@pytest.mark.parametrize("text", ["", "(", "{A :x", "{A x}", "{A :x 1} {B}"])
def test_what_is_no_tree_is_refused(text: str) -> None:
    """A broken text is an error, never half a tree."""
    with pytest.raises(PenstockError):
        parse_nodes(text)


def varlena(content: str) -> bytes:
    size = len(bytes.fromhex(content)) + 4
    return (size << 2).to_bytes(4, "little") + bytes.fromhex(content)


@pytest.mark.parametrize(
    ("oid", "content", "value"),
    [
        (types.BOOL, b"\1" + b"\0" * 7, True),
        (types.INT4, b"\xff\xff\xff\xff\0\0\0\0", -1),
        (types.INT8, b"\1" + b"\0" * 7, 1),
        (types.FLOAT8, b"\0\0\0\0\0\0\xf8\x3f", 1.5),
        (types.DATE, b"\0" * 8, 10957),
        (types.TEXT, varlena("c3a927"), "é'"),
        (types.TEXT, b"\x07ab", "ab"),
        (705, b"ab\0", "ab"),
        (types.BYTEA, varlena("00ff"), b"\0\xff"),
        (types.NUMERIC, varlena("80800100 8813".replace(" ", "")), Decimal("1.5")),
        (types.NUMERIC, varlena("00a10100".replace(" ", "")), Decimal("-1.00")),
        (types.NUMERIC, varlena("0081"), Decimal("0.00")),
        (1186, bytes(8) + (3).to_bytes(4, "little") + (1).to_bytes(4, "little"), Interval(0, 3, 1)),
        (
            1007,
            varlena("01000000 00000000 17000000 02000000 01000000 01000000 02000000"),
            [1, 2],
        ),
        (1009, varlena("00000000 00000000 19000000"), []),
    ],
)
def test_constants_are_read_from_the_servers_memory(oid: int, content: bytes, value: Any) -> None:
    """A datum's bytes give the value, a numeric with its display scale."""
    found = from_datum(oid, Datum(len(content), content))
    assert found == value
    assert str(found) == str(value)


def test_an_array_with_nulls_is_read() -> None:
    """The null bitmap says which elements have no bytes."""
    content = varlena(
        "01000000 20000000 17000000 03000000 01000000 05000000 00000000 07000000 09000000"
    )
    assert from_datum(1007, Datum(len(content), content)) == [7, None, 9]


@pytest.mark.parametrize(
    ("oid", "content", "value"),
    [
        (types.INT2, b"\xff\xfe", -2),
        (types.NUMERIC, bytes.fromhex("00020000400000020001" + "1388"), Decimal("-1.50")),
        (types.NUMERIC, bytes.fromhex("0000000000000003"), Decimal("0.000")),
        (2950, bytes(16), "00000000-0000-0000-0000-000000000000"),
        (1007, bytes.fromhex("00000001000000010000001700000002000000010000000400000005ffffffff"),
         [5, None]),
    ],
)  # fmt: skip
def test_parameters_are_read_from_binary(oid: int, content: bytes, value: Any) -> None:
    """Network byte order, as send functions write it."""
    assert str(from_binary(oid, content)) == str(value)


@pytest.mark.parametrize(
    ("oid", "content"),
    [
        (types.DATE, (2**31 - 1).to_bytes(4, "little") + bytes(4)),
        (types.NUMERIC, varlena("00c0")),
        (600, bytes(16)),
    ],
)
def test_constants_that_the_lake_cannot_hold_are_refused(oid: int, content: bytes) -> None:
    """Infinity, NaN, and types without a value here."""
    with pytest.raises(FeatureNotSupportedError):
        from_datum(oid, Datum(len(content), content))


def grouping(text: str) -> Any:
    return grouping_sets(parse_nodes(f"{{QUERY :groupDistinct false :groupingSets ({text})}}"))


def test_grouping_sets_are_written_out() -> None:
    """ROLLUP, CUBE, and the product of two clauses."""
    one = "{GROUPINGSET :kind 1 :content (i 1)}"
    two = "{GROUPINGSET :kind 1 :content (i 2)}"
    rollup = f"{{GROUPINGSET :kind 2 :content ({one} {two})}}"
    cube = f"{{GROUPINGSET :kind 3 :content ({one} {two})}}"
    assert grouping(rollup) == [(1, 2), (1,), ()]
    assert grouping(cube) == [(1, 2), (1,), (2,), ()]
    assert grouping(f"{two} {rollup}") == [(2, 1), (2, 1), (2,)]
    assert grouping_sets(Node("QUERY", {})) == []


def test_let_names_long_values_once() -> None:
    """A short value is repeated, a long one becomes a field of a lambda's variable."""
    assert let(["a"], lambda v: f"{v[0]} + {v[0]}") == "a + a"
    long = "some_function(r1.`column`, 12345)"
    assert let([long], lambda v: f"{v[0]} + {v[0]}").count(long) == 1
