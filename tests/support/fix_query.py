# SPDX-License-Identifier: Apache-2.0
"""A database and a lake with the same tables, for the whole test session.

oracle           an Oracle over the tables, views and partitions of ``query_tables``
filter_oracle    a FilterOracle with the rows of ``filter_grammar.EDGE_ROWS``
"""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def oracle(
    servers: Servers, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    """PostgreSQL with collation C, as D9 wants it of the control database."""
    server = servers()
    with server.connect() as conn:
        conn.execute("CREATE DATABASE query_oracle TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
    with server.connect("query_oracle") as conn:
        made = Oracle(conn, spark, tmp_path_factory.mktemp("lake"))
        _fill(made, conn)
        yield made
    drop_database(server, "query_oracle")


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
    """PostgreSQL with collation C and the rows of ``edge_rows``; a test may give it others."""
    server = servers()
    with server.connect() as conn:
        conn.execute("CREATE DATABASE filters TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
    conninfo = server.conninfo("filters")
    with ControlConnection.connect(conninfo, autocommit=True) as session:
        made = FilterOracle(session, spark, tmp_path_factory.mktemp("filters"))
        made.fill(edge_rows())
        yield made
    drop_database(server, "filters")
