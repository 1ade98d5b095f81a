# SPDX-License-Identifier: Apache-2.0
"""A filter is compiled from what PostgreSQL's catalog has: the predicate, its columns, its cost."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from time import perf_counter

import pytest

from penstock.change.relation import LakeColumn
from penstock.errors import FeatureNotSupportedError
from penstock.publish.filter import PublishedWhere, compile_filter
from penstock.sql.arrow_filter import decide_any
from penstock.sql.translate.facts import Facts, Operator
from penstock.sql.translate.registry import Function

COLUMNS = tuple(
    LakeColumn(number, name, type_oid, typmod, False)
    for number, (name, type_oid, typmod) in enumerate(
        [("id", 20, -1), ("customer", 25, -1), ("amount", 1700, 655366), ("placed", 1114, -1),
         ("status", 1043, 14)], 1,
    )
)  # fmt: skip
FACTS = Facts(
    functions={
        67: Function("pg_catalog", "texteq", ("text", "text")),
        850: Function("pg_catalog", "textlike", ("text", "text")),
        870: Function("pg_catalog", "lower", ("text",)),
        1720: Function("pg_catalog", "numeric_gt", ("numeric", "numeric")),
        2056: Function("pg_catalog", "timestamp_ge", ("timestamp", "timestamp")),
    },
    operators={
        98: Operator("=", "texteq"),
        1209: Operator("~~", "textlike"),
        1756: Operator(">", "numeric_gt"),
        2065: Operator(">=", "timestamp_ge"),
    },
)

# (amount > 1000.50 AND customer LIKE 'A%') OR (placed >= '2024-01-01'
# AND lower(status) = ANY (array['open', 'held']) AND id IS NOT NULL), as PostgreSQL 18 keeps it.
TREE = """{BOOLEXPR :boolop or :args ({BOOLEXPR :boolop and :args ({OPEXPR :opno 1756 :opfuncid
1720 :opresulttype 16 :opretset false :opcollid 0 :inputcollid 0 :args ({VAR :varno 1
:varattno 3 :vartype 1700 :vartypmod 655366 :varcollid 0 :varnullingrels (b)
:varlevelsup 0 :varreturningtype 0 :varnosyn 1 :varattnosyn 3 :location -1} {CONST
:consttype 1700 :consttypmod -1 :constcollid 0 :constlen -1 :constbyval false
:constisnull false :location -1 :constvalue 10 [ 40 0 0 0 0 -127 -24 3 -120 19 ]})
:location -1} {OPEXPR :opno 1209 :opfuncid 850 :opresulttype 16 :opretset false
:opcollid 0 :inputcollid 100 :args ({VAR :varno 1 :varattno 2 :vartype 25 :vartypmod -1
:varcollid 100 :varnullingrels (b) :varlevelsup 0 :varreturningtype 0 :varnosyn 1
:varattnosyn 2 :location -1} {CONST :consttype 25 :consttypmod -1 :constcollid 100
:constlen -1 :constbyval false :constisnull false :location -1 :constvalue 6 [ 24 0 0 0
65 37 ]}) :location -1}) :location -1} {BOOLEXPR :boolop and :args ({OPEXPR :opno 2065
:opfuncid 2056 :opresulttype 16 :opretset false :opcollid 0 :inputcollid 0 :args ({VAR
:varno 1 :varattno 4 :vartype 1114 :vartypmod -1 :varcollid 0 :varnullingrels (b)
:varlevelsup 0 :varreturningtype 0 :varnosyn 1 :varattnosyn 4 :location -1} {CONST
:consttype 1114 :consttypmod -1 :constcollid 0 :constlen 8 :constbyval true :constisnull
false :location -1 :constvalue 8 [ 0 64 -23 -44 -43 -80 2 0 ]}) :location -1}
{SCALARARRAYOPEXPR :opno 98 :opfuncid 67 :hashfuncid 0 :negfuncid 0 :useOr true
:inputcollid 100 :args ({FUNCEXPR :funcid 870 :funcresulttype 25 :funcretset false
:funcvariadic false :funcformat 0 :funccollid 100 :inputcollid 100 :args ({RELABELTYPE
:arg {VAR :varno 1 :varattno 5 :vartype 1043 :vartypmod 14 :varcollid 100
:varnullingrels (b) :varlevelsup 0 :varreturningtype 0 :varnosyn 1 :varattnosyn 5
:location -1} :resulttype 25 :resulttypmod -1 :resultcollid 100 :relabelformat 2
:location -1}) :location -1} {ARRAYEXPR :array_typeid 1009 :array_collid 100
:element_typeid 25 :elements ({CONST :consttype 25 :consttypmod -1 :constcollid 100
:constlen -1 :constbyval false :constisnull false :location -1 :constvalue 8 [ 32 0 0 0
111 112 101 110 ]} {CONST :consttype 25 :consttypmod -1 :constcollid 100 :constlen -1
:constbyval false :constisnull false :location -1 :constvalue 8 [ 32 0 0 0 104 101 108
100 ]}) :multidims false :list_start -1 :list_end -1 :location -1}) :location -1}
{NULLTEST :arg {VAR :varno 1 :varattno 1 :vartype 20 :vartypmod -1 :varcollid 0
:varnullingrels (b) :varlevelsup 0 :varreturningtype 0 :varnosyn 1 :varattnosyn 1
:location -1} :nulltesttype 1 :argisrow false :location -1}) :location -1}) :location
-1}"""


def where(tree: str = TREE) -> PublishedWhere:
    return PublishedWhere("orders_pub", "public", "orders", COLUMNS, tree)


def test_a_filter_is_a_predicate_over_either_row() -> None:
    """Names are qualified by the struct; constants and operators are PostgreSQL's."""
    made = compile_filter(where(), FACTS)
    assert made.new == (
        "(((new.`amount` > CAST('1000.50' AS DECIMAL(6,2))) AND (new.`customer` LIKE 'A%')) OR"
        " ((new.`placed` >= CAST(timestamp_micros(CAST(1704067200000000L AS BIGINT)) AS"
        " TIMESTAMP_NTZ)) AND (translate(new.`status`, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ',"
        " 'abcdefghijklmnopqrstuvwxyz') IN ('open', 'held')) AND (new.`id` IS NOT NULL)))"
    )
    assert made.old == made.new.replace("new.", "old.")
    assert made.columns == {column.name for column in COLUMNS}


def test_compiling_takes_less_than_five_milliseconds() -> None:
    """For Spark and for Arrow, which decides this one, too; nothing is remembered in between."""
    took = []
    for _ in range(50):
        begin = perf_counter()
        published = where()
        compile_filter(published, FACTS)
        assert decide_any([(published.nodes, published.kinds)], FACTS) is not None
        took.append(perf_counter() - begin)
    assert median(took) < 0.005


def test_a_refusal_names_table_publication_expression_and_reason() -> None:
    """The error that CREATE PUBLICATION ends with."""
    functions = {**FACTS.functions, 850: Function("pg_catalog", "initcap", ("text", "text"))}
    with pytest.raises(FeatureNotSupportedError) as refused:
        compile_filter(where(), replace(FACTS, functions=functions))
    error = refused.value
    assert error.sqlstate == "0A000"
    assert error.message == (
        'the WHERE clause of table "public"."orders" in publication "orders_pub" is not supported'
        " by the lake"
    )
    assert error.detail == (
        "(customer ~~ 'A%') has no exact form in Spark: function initcap(text, text)."
    )
    assert error.hint is not None and "docs/filters.md" in error.hint
