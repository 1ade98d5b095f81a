# SPDX-License-Identifier: Apache-2.0
"""pg_stat_subscription_stats: errors and conflicts of a subscription are counted, and reset."""

from __future__ import annotations

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT, subscribed
from tests.support.waits import wait_until

COLUMNS = (
    "subid,subname,apply_error_count,sync_error_count,confl_insert_exists,"
    "confl_update_origin_differs,confl_update_exists,confl_update_missing,"
    "confl_delete_origin_differs,confl_delete_missing,confl_multiple_unique_conflicts,stats_reset"
)
MISSING = (
    "SELECT confl_update_missing, confl_delete_missing, apply_error_count, stats_reset IS NULL"
    " FROM pg_stat_subscription_stats WHERE subname = 'stats_s'"
)


def test_missing_rows_and_errors_are_counted(publisher_db: Database, node: Node) -> None:
    """Each change that found no row counts, also of one key in one batch; a reset sets to zero.

    Rows are missing here after they were deleted while deletes were not followed.
    """
    publisher_db.psql(
        "CREATE TABLE stats_t (id int PRIMARY KEY, v int);"
        "CREATE TABLE stats_whole (a int); ALTER TABLE stats_whole REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION stats_p FOR TABLE stats_t, stats_whole"
    )
    with subscribed(node, publisher_db, "stats_s", "stats_p"):
        shown = node.psql(
            "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute"
            " WHERE attrelid = 'pg_stat_subscription_stats'::regclass AND attnum > 0"
        )
        assert shown == COLUMNS
        assert node.psql(MISSING) == "0|0|0|t"
        node.psql("ALTER SUBSCRIPTION stats_s DISABLE")
        publisher_db.psql(
            "ALTER PUBLICATION stats_p SET (publish = 'update, delete');"
            "INSERT INTO stats_t SELECT g, g FROM generate_series(1, 10) g;"
            "INSERT INTO stats_whole VALUES (1), (2);"
        )
        publisher_db.psql(
            "UPDATE stats_t SET v = 0 WHERE id <= 3; UPDATE stats_t SET v = 1 WHERE id = 1;"
            "DELETE FROM stats_t WHERE id = 1; UPDATE stats_t SET id = 50 WHERE id = 4;"
            "DELETE FROM stats_t WHERE id BETWEEN 7 AND 8;"
            "UPDATE stats_whole SET a = 3 WHERE a = 1; DELETE FROM stats_whole WHERE a = 2"
        )
        publisher_db.psql("ALTER PUBLICATION stats_p SET (publish = 'insert, update, delete')")
        publisher_db.psql("INSERT INTO stats_t VALUES (100, 100)")
        node.psql("ALTER SUBSCRIPTION stats_s ENABLE")
        wait_until(
            lambda: node.psql("SELECT count(*) FROM stats_t") == "1", SYNC_TIMEOUT, "the insert"
        )
        assert node.psql(MISSING) == "6|4|0|t"
        log = (node.home / "log" / "penstock.log").read_text()
        for conflict in ("update_missing", "delete_missing"):
            assert f'conflict detected on relation "public.stats_t": conflict={conflict}' in log
        subid = node.psql("SELECT oid FROM pg_subscription WHERE subname = 'stats_s'")
        node.psql(f"SELECT pg_stat_reset_subscription_stats({subid})")
        assert node.psql(MISSING) == "0|0|0|f"
        publisher_db.psql("DELETE FROM stats_t WHERE id = 9")
        wait_until(lambda: node.psql(MISSING) == "0|1|0|f", SYNC_TIMEOUT, "the delete")
    assert node.psql(f"SELECT count(*) FROM penstock.subscription_stats WHERE subid = {subid}") == (
        "0"
    )
