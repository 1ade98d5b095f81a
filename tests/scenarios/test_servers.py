# SPDX-License-Identifier: Apache-2.0
"""The servers that the other tests stand on do what the tests need of them."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.compare import difference
from tests.support.fix_servers import Database
from tests.support.servers import PASSWORD, PASSWORD_ROLE, PostgresServer
from tests.support.waits import wait_until


@pytest.mark.parametrize("publisher", ["15", "16", "18.4", "18"], indirect=True)
def test_every_version_decodes_logically(publisher: PostgresServer) -> None:
    """Each installed version runs with wal_level = logical, a UTF8 database and time zone UTC."""
    asked = "SHOW wal_level; SHOW server_encoding; SHOW timezone; SHOW server_version"
    level, encoding, zone, version = publisher.psql(asked).splitlines()
    assert (level, encoding, zone) == ("logical", "UTF8", "UTC")
    assert version.startswith(publisher.version.split(".")[0])


def test_the_password_role_needs_its_password(publisher: PostgresServer) -> None:
    """PASSWORD_ROLE gets in with its password and not without, everybody else is trusted."""
    conninfo = publisher.conninfo(user=PASSWORD_ROLE)
    psycopg.connect(conninfo, password=PASSWORD).close()
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(conninfo, password="wrong")


def test_a_killed_server_comes_back(publisher: PostgresServer, publisher_db: Database) -> None:
    """kill is a crash: what was committed is there after the next start, on the same port."""
    publisher_db.psql("CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)")
    publisher.kill()
    publisher.start()
    assert publisher_db.psql("SELECT id FROM kept") == "1"


def test_difference_counts_equal_rows(publisher_db: Database) -> None:
    """A row that occurs twice on one side and once on the other is a difference."""
    psql = publisher_db.psql
    twice = "SELECT * FROM (VALUES (1, NULL), (1, NULL), (2, E'a\\nb')) t (a, b)"
    once = "SELECT DISTINCT * FROM (VALUES (1, NULL), (2, E'a\\nb')) t (a, b)"
    assert not difference(psql, twice, psql, twice)
    found = difference(psql, twice, psql, once)
    assert (found.missing.total(), found.unexpected.total()) == (1, 0)


def test_postgres_to_postgres_replicates(control_pair: tuple[Database, Database]) -> None:
    """The control of every scenario works: native replication between two of our servers."""
    source, target = control_pair
    for side in control_pair:
        side.psql("CREATE TABLE t (id int PRIMARY KEY)")
    source.psql("CREATE PUBLICATION p FOR TABLE t; INSERT INTO t VALUES (1)")
    target.psql(f"CREATE SUBSCRIPTION s_{target.name} CONNECTION '{source.conninfo}' PUBLICATION p")
    source.psql("INSERT INTO t VALUES (2)")
    wait_until(
        lambda: not difference(source.psql, "TABLE t", target.psql, "TABLE t"), 60, "both rows"
    )
