# SPDX-License-Identifier: Apache-2.0
"""Values that the control database computes for many rows: types, chunks, whose rights count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.apply.values import from_text
from penstock.change.relation import LakeColumn, LakeTable
from penstock.control.address import ControlAddress
from penstock.control.connect import ControlConnection, connect
from penstock.errors import ComputedValueError
from penstock.workers.defaults import column_defaults, compute_defaults
from penstock.workers.generated import generated_columns
from penstock.workers.row_values import CHUNK_ROWS, Expression, RowValues, assigned

TYPES = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "7"],
    "bigint": ["9223372036854775807", "0"],
    "real": ["1.1", "-0", "NaN", "Infinity"],
    "double precision": ["0.1", "1e300", "-Infinity"],
    "numeric(12,3)": ["-1.005", "999999999.999"],
    "text": ["", 'a "b" \\ {c},', "\u00e9\u20ac\t\n"],
    "character varying(5)": ["abc  ", ""],
    "character(5)": ["ab", ""],
    "bytea": ["\\x00ff5c22", "\\x"],
    "date": ["0001-01-01", "9999-12-31"],
    "timestamp with time zone": ["2024-02-29 12:34:56.789+02"],
    "timestamp without time zone": ["1969-12-31 23:59:59.999999"],
    "interval": ["1 mon -2 days 03:04:05.6"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "jsonb": ['{"a": [1, "b"]}'],
    "bit(3)": ["101"],
    "inet": ["10.0.0.1/8"],
    "text[]": ['{a,NULL,"b,c","\\"\\\\"}', "{}"],
    "numeric(5,1)[]": ["{1.5,-2}"],
    "mood": ["sad", 'so "so"'],
    "code": ["c1"],
    "pair": ["(1,a)", "(,)"],
    "mood[]": ["{sad,NULL}"],
}
"""Types with values of theirs; each has a null, too."""

_COLUMNS = """
SELECT attnum, attname, CASE WHEN typtype = 'd' THEN typbasetype ELSE atttypid END::int8, atttypmod,
    attnotnull, attgenerated <> '' FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"""


@pytest.fixture
def admin(any_control: ControlAddress) -> Iterator[ControlConnection]:
    """The superuser, who may define what the lake refuses."""
    with connect(any_control) as conn:
        conn.execute("ALTER EVENT TRIGGER penstock_ddl DISABLE")
        yield conn


@pytest.fixture
def values(any_control: ControlAddress) -> Iterator[RowValues]:
    with closing(RowValues(any_control)) as made:
        yield made


def table(conn: ControlConnection, name: str) -> LakeTable:
    """A relation of schema public as a lake table."""
    (relid,) = conn.execute("SELECT %s::regclass::oid::int8", [f"public.{name}"]).fetchall()[0]
    rows = conn.execute(_COLUMNS.encode(), [f"public.{name}"]).fetchall()
    columns = tuple(LakeColumn(*row) for row in rows)
    return LakeTable(relid, "public", name, "r", "d", columns, (), "", None, None)


def only(conn: psycopg.Connection[Any], query: str) -> Any:
    """The only value of the only row."""
    ((value,),) = conn.execute(query.encode()).fetchall()
    return value


def test_every_type_comes_back_as_it_went(admin: ControlConnection, values: RowValues) -> None:
    """A generated column that repeats another has its values, of each type, nulls among them."""
    admin.execute("SET search_path = public")
    admin.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'so \"so\"'); CREATE TYPE pair AS (a int, b text)"
    )
    admin.execute("CREATE DOMAIN code AS text CHECK (VALUE LIKE 'c%')")
    columns = ", ".join(
        f"c{n} {kind}, g{n} {kind} GENERATED ALWAYS AS (c{n}) STORED"
        for n, kind in enumerate(TYPES)
    )
    admin.execute(
        f"CREATE TABLE every ({columns}, r oid GENERATED ALWAYS AS (tableoid) STORED)".encode()
    )
    texts = {
        kind: admin.execute(
            f"SELECT array_agg(format('%%s', v::{kind})) FROM unnest(%s::text[]) v".encode(), [some]
        ).fetchall()[0][0]
        for kind, some in TYPES.items()
    }
    admin.execute("SET search_path = pg_catalog")
    target = table(admin, "every")
    generated = generated_columns(admin, values, target, "postgres")
    assert generated is not None
    most = max(map(len, TYPES.values())) + 1
    given = {}
    for column in target.columns:
        side, number = column.name[0], column.name[1:]
        some = texts[list(TYPES)[int(number)]] if side == "c" else []
        strings = pa.array([*some, *[None] * (most - len(some))], pa.string())
        given[column.name] = from_text(strings, column)
    rows = generated.compute(pa.table(given))
    for n, kind in enumerate(TYPES):
        before, after = (str(rows.column(f"{side}{n}").to_pylist()) for side in "cg")
        assert after == before, kind
        assert rows.column(f"g{n}").type == rows.column(f"c{n}").type
    assert rows.column("r").to_pylist() == [target.relid] * most


def test_many_rows_are_many_statements(admin: ControlConnection, values: RowValues) -> None:
    """A sequence counts on through all chunks, in order; no rows cost nothing."""
    admin.execute(
        "CREATE TABLE public.many (n bigserial, a text, g int GENERATED ALWAYS AS"
        " (length(a)) STORED, id int)"
    )
    many = table(admin, "many")
    defaults = column_defaults(admin, values, many, ["id"], "postgres")
    assert defaults.varying == {"n"}
    count = 2 * CHUNK_ROWS + 5
    found = compute_defaults(values, defaults, {"n"}, count)
    assert found["n"].to_pylist() == list(range(1, count + 1))
    assert len(compute_defaults(values, defaults, {"n"}, 0)["n"]) == 0
    generated = generated_columns(admin, values, many, "postgres")
    assert generated is not None
    assert generated.reads == {"a"}
    large = pa.array(["x" * 50_000] * 800 + ["y"])  # more than a statement takes
    nothing = pa.nulls(801, pa.int32())
    rows = generated.compute(pa.table({"n": nothing, "a": large, "g": nothing, "id": nothing}))
    assert rows.column("g").to_pylist() == [50_000] * 800 + [1]
    seven = Expression(many.columns[3], "7")  # of no column
    assert values.over([seven], many.relid, [], rows, "postgres")[0].to_pylist() == [7] * 801


def test_a_value_is_assigned_as_in_an_insert(admin: ControlConnection, values: RowValues) -> None:
    """What pg_get_expr leaves out is done: rounding, blanks, and the error of what is too long."""
    admin.execute(
        "CREATE TABLE public.assigned (i int DEFAULT 2.5, c char(5) DEFAULT 'a' || 'b',"
        " n numeric(5,1) DEFAULT 1.25, s text DEFAULT NULL, u name DEFAULT current_user,"
        " b bytea DEFAULT decode('ff', 'hex'), v varchar(3) DEFAULT left(random()::text, 5),"
        " id int)"
    )
    target = table(admin, "assigned")
    defaults = column_defaults(admin, values, target, ["id"], "postgres")
    assert defaults.constants == {"i": "3", "c": "ab   ", "n": "1.3", "u": "postgres", "b": "\\xff"}
    with pytest.raises(ComputedValueError, match=r"value too long for type character varying\(3\)"):
        compute_defaults(values, defaults, {"v"}, 2)
    assert assigned("x", target.columns[0], "integer") == "(x)::integer"


def test_a_users_function_has_the_roles_rights(admin: ControlConnection, values: RowValues) -> None:
    """It is that role, cannot be another, and leaves nothing behind but what sequences gave."""
    admin.execute(
        """
        CREATE ROLE values_app; GRANT CREATE ON SCHEMA public TO values_app;
        CREATE TABLE public.seen (who text); GRANT INSERT, SELECT ON public.seen TO values_app;
        CREATE SEQUENCE public.counter; GRANT USAGE ON SEQUENCE public.counter TO values_app;
        CREATE FUNCTION public.who() RETURNS text LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.seen VALUES (current_user);
            CREATE TEMP TABLE IF NOT EXISTS pg_class (oops int);
            SET search_path = public;
            RETURN current_user || public.nextval('public.counter') ;
        EXCEPTION WHEN undefined_function THEN
            RETURN current_user || nextval('public.counter');
        END $$;
        CREATE FUNCTION public.escape() RETURNS text LANGUAGE plpgsql AS $$
        BEGIN RESET ROLE; SET SESSION AUTHORIZATION DEFAULT; RETURN current_user; END $$;
        CREATE FUNCTION public.check_who(text) RETURNS boolean LANGUAGE sql IMMUTABLE
            AS $$ SELECT $1 <> current_user $$;
        CREATE DOMAIN public.name_of AS text CHECK (public.check_who(VALUE))"""
    )
    text = LakeColumn(1, "t", 25, -1, False)
    found = values.repeated([Expression(text, "public.who()")], 2, "values_app")
    assert found[0].to_pylist() == ["values_app1", "values_app2"]
    for escape in ("public.escape()", "set_config('role', session_user, false)"):
        with pytest.raises(ComputedValueError, match="cannot set parameter") as caught:
            values.repeated([Expression(text, escape)], 1, "values_app")
        assert caught.value.sqlstate == "42501"
    again = values.repeated([Expression(text, "current_setting('search_path')")], 1, "values_app")
    assert again[0].to_pylist() == ["pg_catalog"]
    assert only(admin, "SELECT count(*) FROM public.seen") == 0
    assert only(admin, "SELECT last_value FROM public.counter") == 2

    # What is the same for all rows is the role's, too.
    admin.execute("CREATE TABLE public.whose (id int, x name DEFAULT current_user)")
    defaults = column_defaults(admin, values, table(admin, "whose"), ["id"], "values_app")
    assert defaults.constants == {"x": "values_app"}

    # What a domain checks is a user's code, too: such a default is no constant.
    admin.execute(
        "CREATE TABLE public.of_domain (d public.name_of[] DEFAULT '{values_app}', id int)"
    )
    defaults = column_defaults(admin, values, table(admin, "of_domain"), ["id"], "values_app")
    assert defaults.varying == {"d"}
    with pytest.raises(ComputedValueError, match="violates check constraint"):
        compute_defaults(values, defaults, {"d"}, 1)


def test_a_table_without_such_columns_costs_one_query(
    any_control: ControlAddress, admin: ControlConnection, values: RowValues
) -> None:
    """Neither a session nor a statement more than the look at which defaults there are."""
    admin.execute("CREATE TABLE public.usual (id int, k text)")
    usual = table(admin, "usual")
    with connect(any_control) as conn:
        statements: list[str] = []
        conn.add_notice_handler(lambda notice: statements.append(notice.message_primary or ""))
        conn.execute("SET log_min_duration_statement = 0; SET client_min_messages = 'log'")
        conn.execute("SET log_duration = off")
        statements.clear()
        defaults = column_defaults(conn, values, usual, ["id"], "postgres")
        assert generated_columns(conn, values, usual, "postgres") is None
        assert sum("execute" in each.split("\n")[0] for each in statements) == 1, statements
    assert not defaults.varying
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock values'"
    assert only(admin, sessions) == 0
