# SPDX-License-Identifier: Apache-2.0
"""A subscription that its errors disable; SKIP, and an origin that is advanced by hand.

After PostgreSQL's 029_on_error; what a node says about an error is in test_on_error.py.
"""

from __future__ import annotations

from tests.support.topology import End, Ends
from tests.support.waits import wait_until

KEY = 'duplicate key value violates unique constraint "err_pkey"'
EXISTS = 'conflict detected on relation "public.err": conflict=insert_exists'


def disabled(end: End) -> None:
    """Wait until the subscription has been disabled."""
    enabled = "SELECT subenabled FROM pg_subscription WHERE subname = 'err'"
    wait_until(lambda: end.psql(enabled) == "f", 60, "it to be disabled")


def test_disabled_mended_skipped_and_advanced(ends: Ends) -> None:
    """An error of the copy and one of the stream disable it; ENABLE goes on where it stopped.

    The transaction that SKIP names is left out as a whole, that behind which the origin is put,
    too, and nothing else is.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(
        "CREATE TABLE err (i int, t text); ALTER TABLE err REPLICA IDENTITY FULL;"
        "CREATE TABLE err_other (i int PRIMARY KEY); INSERT INTO err VALUES (1, 'a'), (1, 'b');"
        "CREATE PUBLICATION err FOR TABLE err, err_other"
    )
    subscriber.psql(
        "CREATE TABLE err (i int PRIMARY KEY, t text); CREATE TABLE err_other (i int PRIMARY KEY)"
    )
    subscriber.subscribe(publisher, "err", "err", "disable_on_error = true")
    subscriber.wait_error("err", KEY)
    disabled(subscriber)
    assert subscriber.rows("err") == []
    publisher.psql("DELETE FROM err WHERE t = 'b'")
    subscriber.psql("ALTER SUBSCRIPTION err ENABLE")
    subscriber.wait_in_sync("err")
    assert subscriber.rows("err") == ["1|a"]

    publisher.psql(
        "INSERT INTO err VALUES (2, 'before')",
        "BEGIN; INSERT INTO err_other VALUES (1); INSERT INTO err VALUES (3, 'with'), (1, 'bad');"
        "COMMIT",
        "INSERT INTO err VALUES (4, 'after')",
    )
    finished = subscriber.wait_error("err", EXISTS, lake=KEY)
    disabled(subscriber)
    assert subscriber.rows("err") == ["1|a", "2|before"]
    assert subscriber.rows("err_other") == []
    subscriber.psql(
        f"ALTER SUBSCRIPTION err SKIP (lsn = '{finished}')", "ALTER SUBSCRIPTION err ENABLE"
    )
    ends.caught_up("err")
    assert subscriber.rows("err") == ["1|a", "2|before", "4|after"]
    assert subscriber.rows("err_other") == []
    skip = "SELECT subskiplsn FROM pg_subscription WHERE subname = 'err'"
    assert subscriber.psql(skip) == "0/0"

    publisher.psql("INSERT INTO err VALUES (4, 'bad, too')", "INSERT INTO err VALUES (5, 'last')")
    finished = subscriber.wait_error("err", EXISTS, lake=KEY)
    disabled(subscriber)
    wait_until(
        lambda: (
            publisher.psql("SELECT active FROM pg_replication_slots WHERE slot_name = 'err'") == "f"
        ),
        60,
        "the worker to leave the slot and its origin",
    )
    subscriber.psql(
        f"SELECT pg_replication_origin_advance('pg_' || oid, '{finished}'::pg_lsn + 1)"
        " FROM pg_subscription WHERE subname = 'err'",
        "ALTER SUBSCRIPTION err ENABLE",
    )
    ends.caught_up("err")
    assert subscriber.rows("err") == ["1|a", "2|before", "4|after", "5|last"]
    counts = (
        "SELECT apply_error_count, sync_error_count FROM pg_stat_subscription_stats"
        " WHERE subname = 'err'"
    )
    assert subscriber.psql(counts) == "2|1"


def test_skipping_what_is_streamed_and_what_is_prepared(ends: Ends) -> None:
    """SKIP leaves out a transaction that came in progress, and one that came prepared, as a whole.

    What is committed behind each is applied.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both("CREATE TABLE err (i int PRIMARY KEY); CREATE TABLE err_other (i int PRIMARY KEY)")
    publisher.psql("CREATE PUBLICATION err FOR TABLE err, err_other")
    early = f"{publisher.conninfo} options=-clogical_decoding_work_mem=64kB"
    subscriber.psql(
        f"CREATE SUBSCRIPTION err CONNECTION '{early}' PUBLICATION err"
        " WITH (streaming = on, two_phase = true, disable_on_error = true)"
    )
    subscriber.wait_in_sync("err")
    subscriber.psql("INSERT INTO err VALUES (1), (2), (3)")
    many = "INSERT INTO err_other SELECT generate_series({0}, {0} + 3000)"
    bad = (
        f"BEGIN; {many.format(10_000)}; INSERT INTO err VALUES (1); COMMIT",
        f"BEGIN; {many.format(20_000)}; SAVEPOINT s; INSERT INTO err VALUES (2);"
        "PREPARE TRANSACTION 'err_long'; COMMIT PREPARED 'err_long'",
        "BEGIN; INSERT INTO err_other VALUES (30000); INSERT INTO err VALUES (3);"
        "PREPARE TRANSACTION 'err_short'; COMMIT PREPARED 'err_short'",
    )
    for number, transaction in enumerate(bad):
        publisher.psql(transaction, f"INSERT INTO err_other VALUES ({number})")
        finished = subscriber.wait_error("err", EXISTS, lake=KEY)
        disabled(subscriber)
        subscriber.psql(f"ALTER SUBSCRIPTION err SKIP (lsn = '{finished}')")
        subscriber.psql("ALTER SUBSCRIPTION err ENABLE")
        ends.caught_up("err")
        expected = [str(each) for each in range(number + 1)]
        assert subscriber.rows("err_other") == expected
    assert subscriber.rows("err") == ["1", "2", "3"]
    prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    assert subscriber.psql(prepared) == "0"
    if not publisher.is_lake:  # whose commits are short records
        streamed = "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = 'err'"
        wait_until(lambda: int(publisher.psql(streamed)) >= 2, 60, "two to have been streamed")
