# SPDX-License-Identifier: Apache-2.0
"""A database and a lake with the same tables, for the whole test session.

oracle           an Oracle over the tables, views and partitions of ``query_tables``
filter_oracle    a FilterOracle with the rows of ``filter_grammar.EDGE_ROWS``
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.control.connect import ControlConnection
from tests.support.filter_grammar import edge_rows
from tests.support.filter_oracle import FilterOracle
from tests.support.fix_servers import Servers, drop_database
from tests.support.query_oracle import Oracle
from tests.support.query_tables import LEAVES, PARTITIONS, TABLES, VIEWS
from tests.support.servers import PostgresServer


@contextmanager
def _database(server: PostgresServer, name: str) -> Iterator[None]:
    """A new database with collation C, as the control database has it."""
    with server.connect() as conn:
        command = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'"
        conn.execute(command.encode())
    yield
    drop_database(server, name)


@pytest.fixture(scope="session")
def oracle(
    servers: Servers, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    """PostgreSQL with the rows of ``query_tables``, and a lake with the same."""
    server = servers()
    with _database(server, "query_oracle"), server.connect("query_oracle") as conn:
        made = Oracle(conn, spark, tmp_path_factory.mktemp("lake"))
        _fill(made, conn)
        yield made


def _fill(oracle: Oracle, conn: psycopg.Connection[Any]) -> None:
    oracle.prepare()
    for name, sql in TABLES.items():
        conn.execute(sql.encode())
        oracle.load(name)
    conn.execute(VIEWS.encode())
    conn.execute(PARTITIONS.encode())
    for leaf in LEAVES:
        oracle.load(leaf)
    conn.execute("INSERT INTO penstock.table_version VALUES ('parted'::regclass, '', NULL)")
    conn.execute("CREATE TABLE plain (x int)")
    conn.execute("CREATE FUNCTION own(int) RETURNS int LANGUAGE sql AS 'SELECT $1'")


@pytest.fixture(scope="session")
def filter_oracle(
    servers: Servers, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FilterOracle]:
    """PostgreSQL with the rows of ``edge_rows``; a test may give it others."""
    server = servers()
    with (
        _database(server, "filters"),
        ControlConnection.connect(server.conninfo("filters"), autocommit=True) as session,
    ):
        made = FilterOracle(session, spark, tmp_path_factory.mktemp("filters"))
        made.fill(edge_rows())
        yield made
