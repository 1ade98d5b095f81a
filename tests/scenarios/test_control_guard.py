# SPDX-License-Identifier: Apache-2.0
"""Guarded functions: the node moves versions in a client's session, a client cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from penstock.control.connect import ControlConnection, connect
from penstock.control.guard import HIDE_PARAMETERS, NODE_AND_XID, Call, Guard
from tests.support.control import Control, one, relid


@pytest.fixture
def client(control: Control) -> Iterator[ControlConnection]:
    """A session of a role without any privileges, and a table in ``public``."""
    with control.connect() as conn:
        conn.execute("CREATE ROLE client LOGIN PASSWORD 'pw'")
        conn.execute("CREATE TABLE public.guarded (id int PRIMARY KEY, note text)")
    with connect(replace(control.address, user="client", password="pw")) as made:
        yield made
    with control.connect() as conn:
        conn.execute("DROP TABLE public.guarded")
        conn.execute("DROP ROLE client")


def run(conn: ControlConnection, call: Call) -> list[tuple[str | None, ...]]:
    """Run a call as the front door does: placeholders $1, every parameter as text."""
    result = conn.pgconn.exec_params(
        call.sql.encode(), [None if p is None else p.encode() for p in call.parameters]
    )
    if result.status not in (psycopg.pq.ExecStatus.TUPLES_OK, psycopg.pq.ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(result)
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]


def calls(guard: Guard, table: int) -> list[Call]:
    return [
        guard.lock_tables([table]),
        guard.set_table_version(table, 5, "pg_1"),
        guard.set_table_columns(table),
        guard.emit_commit({"v": 1, "xid": "1", "tables": []}),
    ]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("secret", ["", "wrong", "0" * 64])
def test_wrong_secret_is_refused(
    control: Control, client: ControlConnection, number: int, secret: str
) -> None:
    """42501, and nothing has changed."""
    with control.connect() as conn:
        call = calls(Guard(secret), relid(conn, "public.guarded"))[number]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(client, call)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(client, replace(call, parameters=(None, *call.parameters[1:])))
        state = (
            "SELECT version FROM penstock.table_version WHERE relid = 'public.guarded'::regclass"
        )
        assert one(conn, state) is None


def test_node_works_in_a_clients_transaction(control: Control, client: ControlConnection) -> None:
    """With the secret, a role without privileges locks, moves, records; ROLLBACK undoes it."""
    with control.connect() as conn:
        table = relid(conn, "public.guarded")
        location = one(conn, "SELECT location FROM penstock.table_version WHERE relid = %s", table)
        with client.transaction(force_rollback=True):
            run(client, HIDE_PARAMETERS)
            [(node, xid)] = run(client, NODE_AND_XID)
            assert (node, xid) == (
                str(one(conn, "SELECT id FROM penstock.node")),
                one(client, "SELECT pg_current_xact_id()::text"),
            )
            locked, *rest = (run(client, call) for call in calls(control.guard, table))
            assert locked == [(str(table), location, None, None)]
            assert rest == [[("",)]] * 3
            moved = "SELECT version, sole_writer FROM penstock.table_version WHERE relid = %s"
            assert one(client, moved, table) == (5, "pg_1")
            columns = "SELECT count(*) FROM penstock.table_column WHERE relid = %s"
            assert one(client, columns, table) == 2
        assert one(conn, moved, table) == (None, None)


def test_version_of_a_stranger_is_an_error(control: Control, client: ControlConnection) -> None:
    """42P01 for a relation that is not a table of the lake."""
    with pytest.raises(psycopg.errors.UndefinedTable, match="OID 1259"):
        run(client, control.guard.set_table_version(1259, 1))


def test_client_cannot_make_the_server_show_the_secret(
    control: Control, client: ControlConnection
) -> None:
    """Settings that every client may change would show parameters; the node takes them back."""
    seen: list[str] = []
    client.add_notice_handler(
        lambda notice: seen.append(f"{notice.message_primary} {notice.message_detail}")
    )
    secret = control.guard.secret
    client.execute("SET log_parameter_max_length_on_error = -1")
    client.execute("SET debug_print_plan = on")
    client.execute("SET client_min_messages = log")
    failing = control.guard.set_table_version(1259, 1)
    with pytest.raises(psycopg.errors.UndefinedTable) as caught, client.transaction():
        run(client, failing)
    assert secret in str(caught.value.diag.context), "the danger is no longer there"
    seen.clear()
    with pytest.raises(psycopg.errors.UndefinedTable) as caught, client.transaction():
        run(client, HIDE_PARAMETERS)
        seen.clear()
        run(client, failing)
    assert secret not in str(caught.value.diag.context)
    spelled = " ".join(str(byte) for byte in secret.encode()[:16])
    assert not [text for text in seen if secret in text or spelled in text]
    assert one(client, "SHOW log_parameter_max_length_on_error") == "-1"


def test_functions_do_not_trust_the_clients_search_path(
    control: Control, client: ControlConnection
) -> None:
    """A client's own objects in front of pg_catalog change nothing."""
    client.execute("SET search_path = pg_temp, pg_catalog")
    client.execute("CREATE TEMP TABLE guard (secret_hash bytea)")
    client.execute("INSERT INTO guard VALUES (sha256('x'))")
    client.execute("CREATE TEMP TABLE table_version (relid oid, version bigint)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(client, Guard("x").set_table_version(1, 1))
