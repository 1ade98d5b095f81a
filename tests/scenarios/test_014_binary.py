# SPDX-License-Identifier: Apache-2.0
"""The option ``binary``: the same rows, by copy and by stream, and what to do where it cannot."""

from __future__ import annotations

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.subscribing import SYNC_TIMEOUT, subscribed, wait_equal
from tests.support.waits import wait_until

ERROR = "SELECT message, hint FROM penstock.subscription_error"


def test_rows_are_the_same_in_binary(publisher_db: Database, node: Node) -> None:
    """Inserts, updates with keys and whole rows, deletes; domains, enums, TOAST, wider targets."""
    publisher_db.psql(
        "CREATE TYPE bin_mood AS ENUM ('sad', 'happy'); CREATE DOMAIN bin_small AS int;"
        "CREATE DOMAIN bin_key AS uuid;"
        "CREATE TABLE bin_t (id int PRIMARY KEY, d bin_small, m bin_mood, n numeric(12,3),"
        " u bin_key, at timestamptz, a int[], r int4range, raw bytea, big text);"
        "CREATE TABLE bin_full (id int, x float8); ALTER TABLE bin_full REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION bin FOR TABLE bin_t, bin_full;"
        "INSERT INTO bin_t VALUES (1, 1, 'sad', 1.50, gen_random_uuid(), now(), '{1,NULL}',"
        " '[1,3)', '\\x00ff', repeat('big', 10000));"
        "INSERT INTO bin_t (id) VALUES (2);"
        "INSERT INTO bin_full VALUES (1, 1.5), (1, 1.5), (2, 'NaN')"
    )
    node.psql("CREATE TABLE bin_full (x float8, id bigint)")
    with subscribed(node, publisher_db, "bin", "bin", "binary = true"):
        assert node.psql("SELECT subbinary FROM pg_subscription WHERE subname = 'bin'") == "t"
        publisher_db.psql(
            "INSERT INTO bin_t SELECT g, g, 'happy', g / 8.0, gen_random_uuid(), now(),"
            " ARRAY[g], int4range(g, NULL), decode(md5(g::text), 'hex'), 't' || g"
            " FROM generate_series(3, 200) g;"
            "UPDATE bin_t SET d = -d, m = 'sad' WHERE id IN (1, 5); UPDATE bin_t SET id = 1000"
            " WHERE id = 7; DELETE FROM bin_t WHERE id = 8;"
            "UPDATE bin_full SET x = 2 WHERE id = 2; DELETE FROM bin_full WHERE ctid = '(0,1)'"
        )
        wait_equal(publisher_db, "SELECT * FROM bin_t", node)
        wait_equal(publisher_db, "SELECT id, x FROM bin_full", node)
    node.psql("DROP TABLE IF EXISTS bin_t, bin_full")


def test_a_type_whose_binary_form_is_not_known(publisher_db: Database, node: Node) -> None:
    """It stops the subscription with what to do; done so, nothing is lost.

    The binary form of money does not say how the publisher's locale writes it.
    """
    publisher_db.psql(
        "CREATE TABLE bin_money (id int PRIMARY KEY, price money);"
        "CREATE PUBLICATION bin_money FOR TABLE bin_money;"
        "INSERT INTO bin_money VALUES (1, 1.5)"
    )
    with subscribed(node, publisher_db, "bin_money", "bin_money", "binary = true"):
        publisher_db.psql("INSERT INTO bin_money VALUES (2, 1234.5)")
        wait_until(lambda: "binary form" in node.psql(ERROR), SYNC_TIMEOUT, "the error")
        assert "binary = false" in node.psql(ERROR)
        node.psql("ALTER SUBSCRIPTION bin_money SET (binary = false)")
        wait_equal(publisher_db, "SELECT * FROM bin_money", node)
        assert node.psql("SELECT price FROM bin_money WHERE id = 2") == "$1,234.50"


def test_a_wrong_value_of_the_option(publisher_db: Database, node: Node) -> None:
    """PostgreSQL's error, and nothing is created."""
    publisher_db.psql("CREATE TABLE bin_w (id int); CREATE PUBLICATION bin_w FOR TABLE bin_w")
    with pytest.raises(PsqlError, match="binary requires a Boolean value"):
        node.psql(
            f"CREATE SUBSCRIPTION bin_w CONNECTION '{publisher_db.conninfo}' PUBLICATION bin_w"
            " WITH (binary = perhaps)"
        )
    assert node.psql("SELECT to_regclass('bin_w') IS NULL") == "t"
