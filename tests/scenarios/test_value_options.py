# SPDX-License-Identifier: Apache-2.0
"""Values that the lake's types have no room for: the named error, and the options that mend it."""

from __future__ import annotations

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.subscribing import SYNC_TIMEOUT, subscribed, wait_equal, wait_ready
from tests.support.waits import wait_until

ERROR = "SELECT message, hint, context FROM penstock.subscription_error"


def test_options_make_room(publisher_db: Database, node: Node) -> None:
    """With numeric_as, datetime_as and array_as = text everything arrives as the publisher has it.

    By copy and by stream, in tables that the subscription makes and in columns that come later.
    """
    publisher_db.psql(
        "CREATE TABLE vo_text (id numeric PRIMARY KEY, n numeric(60,2), d date, tz timestamptz,"
        " a int[], an numeric[], i int);"
        "CREATE PUBLICATION vo_text FOR TABLE vo_text;"
        "INSERT INTO vo_text VALUES ('NaN', 'NaN', '-infinity', 'infinity', '{{1,2},{3,4}}',"
        " '{Infinity}', 1), (1e30, 1e50, '0044-03-15 BC', '294276-01-01 00:00+00', '{}', NULL, 2)"
    )
    rows = "SELECT * FROM vo_text"
    options = "numeric_as = text, datetime_as = text, array_as = text"
    with subscribed(node, publisher_db, "vo_text", "vo_text", options):
        types = (
            "SELECT string_agg(format_type(atttypid, atttypmod), ' ' ORDER BY attnum)"
            " FROM pg_attribute WHERE attrelid = 'vo_text'::regclass AND attnum > 0"
        )
        assert node.psql(types) == "text text text text text text integer"
        wait_equal(publisher_db, rows, node)
        publisher_db.psql(
            "ALTER TABLE vo_text ADD more numeric DEFAULT 'NaN';"
            "INSERT INTO vo_text VALUES (3.50, -1, 'infinity', '0001-01-01 00:00+00 BC',"
            " '[0:1]={5,6}', '{{NaN}}', 3, 1e40);"
            "UPDATE vo_text SET n = '-0.10', i = 4 WHERE id = 'NaN'; DELETE FROM vo_text"
            " WHERE id = 1e30"
        )
        wait_equal(publisher_db, rows, node)
        assert node.psql(types).endswith("integer text")


def test_a_numeric_with_too_many_digits(publisher_db: Database, node: Node) -> None:
    """The table is refused with the option that makes room, and nothing is created."""
    publisher_db.psql(
        "CREATE TABLE vo_wide (id int PRIMARY KEY, n numeric(60,2));"
        "CREATE PUBLICATION vo_wide FOR TABLE vo_wide"
    )
    create = f"CREATE SUBSCRIPTION vo_wide CONNECTION '{publisher_db.conninfo}' PUBLICATION vo_wide"
    for before in ("", "BEGIN; CREATE SCHEMA vo_wide;"):
        with pytest.raises(PsqlError, match="numeric_as = text") as caught:
            node.psql(f"{before}{create} WITH (slot_name = NONE, enabled = false)")
        assert 'column "n" of table "public.vo_wide"' in str(caught.value)
    assert node.psql("SELECT to_regclass('vo_wide') IS NULL") == "t"


def test_an_error_of_the_control_database_is_shown(publisher_db: Database, node: Node) -> None:
    """What it says when a table cannot be made is what the client gets."""
    publisher_db.psql("CREATE TABLE vo_named (id int); CREATE PUBLICATION vo_named FOR ALL TABLES")
    node.psql("CREATE TYPE vo_named AS ENUM ('a')")
    with pytest.raises(PsqlError, match='type "vo_named" already exists'):
        node.psql(
            f"CREATE SUBSCRIPTION vo_named CONNECTION '{publisher_db.conninfo}'"
            " PUBLICATION vo_named"
        )
    node.psql("DROP TYPE vo_named")


def test_a_value_in_the_stream_disables_on_error(publisher_db: Database, node: Node) -> None:
    """It is an error of apply, as it would be PostgreSQL's: counted, and a reason to disable."""
    publisher_db.psql(
        "CREATE TABLE vo_off (id int PRIMARY KEY, n numeric);"
        "CREATE PUBLICATION vo_off FOR TABLE vo_off"
    )
    enabled = "SELECT subenabled FROM pg_subscription WHERE subname = 'vo_off'"
    counted = "SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 'vo_off'"
    with subscribed(node, publisher_db, "vo_off", "vo_off", "disable_on_error = true"):
        publisher_db.psql("INSERT INTO vo_off VALUES (1, 'NaN')")
        wait_until(lambda: node.psql(enabled) == "f", SYNC_TIMEOUT, "the subscription to end")
        assert node.psql(counted) == "1"


def test_infinity_is_clamped(publisher_db: Database, node: Node) -> None:
    """infinity_as = clamp makes it the first or last moment of the lake; nothing else changes."""
    publisher_db.psql(
        "CREATE TABLE vo_inf (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz,"
        " a date[]);"
        "CREATE PUBLICATION vo_inf FOR TABLE vo_inf;"
        "INSERT INTO vo_inf VALUES (1, 'infinity', 'infinity', 'infinity', '{-infinity,NULL}')"
    )
    clamped = (
        "SELECT id, CASE d WHEN 'infinity' THEN '9999-12-31' WHEN '-infinity' THEN '0001-01-01'"
        " ELSE d END, CASE ts WHEN 'infinity' THEN '9999-12-31 23:59:59.999999'"
        " WHEN '-infinity' THEN '0001-01-01' ELSE ts END, CASE tz WHEN 'infinity'"
        " THEN '9999-12-31 23:59:59.999999+00' WHEN '-infinity' THEN '0001-01-01 00:00+00'"
        " ELSE tz END, array_replace(a, '-infinity', '0001-01-01') FROM vo_inf"
    )
    rows = "SELECT id, d, ts, tz, a FROM vo_inf"
    with subscribed(node, publisher_db, "vo_inf", "vo_inf", "infinity_as = clamp"):
        change = (
            "INSERT INTO vo_inf SELECT g, '-infinity', '-infinity', '-infinity', NULL"
            " FROM generate_series({0}, {0} + 1) g;"
            "INSERT INTO vo_inf VALUES ({0} + 2, '2000-01-01', 'infinity', now(), '{{-infinity}}')"
        )
        publisher_db.psql(change.format(2))
        wait_equal(publisher_db, clamped, node, rows)
        node.psql("ALTER SUBSCRIPTION vo_inf SET (binary = true)")
        publisher_db.psql(change.format(12))
        wait_equal(publisher_db, clamped, node, rows)


def test_the_error_names_the_option_and_the_option_mends_it(
    publisher_db: Database, node: Node
) -> None:
    """Table, column, value and LSN are told, at the copy and in the stream.

    Once numeric_as is set, the table that is dropped and copied again has the value as text.
    """
    publisher_db.psql(
        "CREATE TABLE vo_fix (id int PRIMARY KEY, n numeric);"
        "CREATE PUBLICATION vo_fix FOR TABLE vo_fix; INSERT INTO vo_fix VALUES (1, 1.5)"
    )
    with subscribed(node, publisher_db, "vo_fix", "vo_fix"):
        publisher_db.psql("INSERT INTO vo_fix VALUES (2, 'NaN')")
        wait_until(lambda: "NaN" in node.psql(ERROR), SYNC_TIMEOUT, "the error")
        told = node.psql(ERROR)
        for part in ('"NaN"', '"n"', '"public.vo_fix"', "numeric_as = text", "commit LSN"):
            assert part in told
        node.psql("ALTER SUBSCRIPTION vo_fix SET (numeric_as = text)")
        lsn = "SELECT lsn FROM penstock.subscription_error WHERE lsn IS NOT NULL"
        finished = wait_until(lambda: node.psql(lsn), SYNC_TIMEOUT, "the error of apply")
        node.psql(f"ALTER SUBSCRIPTION vo_fix SKIP (lsn = '{finished}')")
        publisher_db.psql("INSERT INTO vo_fix VALUES (4, 2.5)")
        wait_equal(publisher_db, "SELECT id FROM vo_fix WHERE id <> 2", node)
        node.psql("DROP TABLE vo_fix; ALTER SUBSCRIPTION vo_fix REFRESH PUBLICATION")
        wait_ready(node, "vo_fix")
        publisher_db.psql("INSERT INTO vo_fix VALUES (3, 1e40)")
        wait_equal(publisher_db, "SELECT * FROM vo_fix", node)
        assert node.psql(ERROR) == ""
    publisher_db.psql("CREATE TABLE vo_copy (id int PRIMARY KEY, d date);")
    publisher_db.psql("INSERT INTO vo_copy VALUES (1, '0044-03-15 BC')")
    publisher_db.psql("CREATE PUBLICATION vo_copy FOR TABLE vo_copy")
    node.psql(
        f"CREATE SUBSCRIPTION vo_copy CONNECTION '{publisher_db.conninfo}' PUBLICATION vo_copy"
    )
    wait_until(lambda: "BC" in node.psql(ERROR), SYNC_TIMEOUT, "the error of the copy")
    told = node.psql(ERROR)
    for part in ("0044-03-15 BC", '"d"', '"public.vo_copy"', "datetime_as = text", "snapshot at"):
        assert part in told
    node.psql(
        "ALTER SUBSCRIPTION vo_copy SET (datetime_as = text);"
        "ALTER TABLE vo_copy DROP COLUMN d, ADD COLUMN d text"
    )
    wait_ready(node, "vo_copy")
    publisher_db.psql("INSERT INTO vo_copy VALUES (2, 'infinity')")
    wait_equal(publisher_db, "SELECT id, d FROM vo_copy", node)
    node.psql("DROP SUBSCRIPTION vo_copy; DROP TABLE vo_copy")
