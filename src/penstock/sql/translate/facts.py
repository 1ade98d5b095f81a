# SPDX-License-Identifier: Apache-2.0
"""What a translation must know from the control database's catalog, and which of it a query needs.

The trees name relations, functions and operators by OID.  ``needs`` collects the OIDs, the caller
looks them up in the client's own session, and gives them back as ``Facts``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.change.relation import LakeColumn
from penstock.errors import InvisibleError
from penstock.names import quote_pg_qualified
from penstock.sql.nodes import Node, walk
from penstock.sql.translate.registry import Function

FIRST_OWN_OID = 16384
"""FirstNormalObjectId: everything below came with PostgreSQL."""

LABEL_BYTES = 4
"""An enum's value is the OID of its row in pg_enum."""

SESSION_FUNCTIONS = {
    "now()": "now()",
    "transaction_timestamp()": "transaction_timestamp()",
    "statement_timestamp()": "statement_timestamp()",
    "current_database()": "current_database()",
    "current_schema()": "current_schema()",
    "version()": "version()",
    "pg_backend_pid()": "pg_backend_pid()",
}
"""Functions with one value for a whole query; the session itself is asked for it."""

SESSION_KEYWORDS = {
    0: "current_date",
    3: "current_timestamp",
    7: "localtimestamp",
    9: "current_role",
    10: "current_user",
    11: "user",
    12: "session_user",
    13: "current_catalog",
    14: "current_schema",
}
"""SQLValueFunctionOp, without the forms that have a precision."""


@dataclass(frozen=True)
class RelationFacts:
    """A relation that a query names.

    ``kind`` is pg_class.relkind.  ``view`` is a view's tree, None otherwise.  ``leaves`` are the
    OIDs of the tables that hold the rows: of itself, or of a partitioned table's leaves.
    ``in_lake`` is true when ``penstock.table_version`` knows it.
    """

    relid: int
    schema: str
    name: str
    kind: str
    columns: tuple[LakeColumn, ...]
    leaves: tuple[int, ...] = ()
    view: Any = None
    inherited: bool = False
    in_lake: bool = True

    def column(self, attnum: int) -> LakeColumn:
        """The column with this number."""
        for column in self.columns:
            if column.attnum == attnum:
                return column
        raise InvisibleError(
            f"column {attnum} of relation {quote_pg_qualified(self.schema, self.name)}"
        )


class Operator(NamedTuple):
    """An operator of PostgreSQL: its symbol, and the name of the function that implements it."""

    symbol: str
    function: str


@dataclass(frozen=True)
class Facts:
    """Catalog entries by OID, and the session's own values by their SQL text."""

    relations: dict[int, RelationFacts] = field(default_factory=dict)
    functions: dict[int, Function] = field(default_factory=dict)
    operators: dict[int, Operator] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    labels: dict[tuple[int, int], str] = field(default_factory=dict)
    """Of enums, by type and by the OID that a constant of it is."""

    def relation(self, relid: int) -> RelationFacts:
        """The relation with this OID; InvisibleError for one that is too new."""
        if relid not in self.relations:
            raise InvisibleError("a relation")
        return self.relations[relid]


@dataclass(frozen=True)
class Needs:
    """OIDs that some trees name; ``labels`` are constants that may be an enum's."""

    relations: frozenset[int]
    functions: frozenset[int]
    operators: frozenset[int]
    keywords: frozenset[str]
    labels: frozenset[tuple[int, int]] = frozenset()


_FUNCTION_FIELDS = ("funcid", "opfuncid", "aggfnoid", "winfnoid")


def needs(trees: Iterable[Any]) -> Needs:
    """Everything that the trees name."""
    relations, functions, operators, keywords = set(), set(), set(), set()
    labels: set[tuple[int, int]] = set()
    for node in walk(list(trees)):
        if node.tag == "RANGETBLENTRY" and node["rtekind"] == 0:
            relations.add(node["relid"])
        elif node.tag == "SORTGROUPCLAUSE" and node["sortop"]:
            operators.add(node["sortop"])
        elif node.tag == "ROWCOMPAREEXPR":
            operators.update(node["opnos"])
        elif node.tag == "SQLVALUEFUNCTION" and node["op"] in SESSION_KEYWORDS:
            keywords.add(SESSION_KEYWORDS[node["op"]])
        elif node.tag == "CONST":
            labels.update(filter(None, [label_of(node)]))
        if node.get("opno"):
            operators.add(node["opno"])
        for name in _FUNCTION_FIELDS:
            oid = node.get(name)
            if oid:
                functions.add(oid)
    return Needs(
        frozenset(relations),
        frozenset(functions),
        frozenset(operators),
        frozenset(keywords),
        frozenset(labels),
    )


def label_of(constant: Node) -> tuple[int, int] | None:
    """Type and OID of what may be a label of an enum: a value of four bytes of a type of users."""
    if constant["constisnull"] or constant["consttype"] < FIRST_OWN_OID:
        return None
    if not constant["constbyval"] or constant["constlen"] != LABEL_BYTES:
        return None
    return constant["consttype"], int.from_bytes(
        constant["constvalue"].content[:LABEL_BYTES], "little"
    )
