# SPDX-License-Identifier: Apache-2.0
"""Definitions that change on the publisher while it streams, beside PostgreSQL's own subscriber.

Each change is followed, or stops both subscribers with the same error; after the ALTER TABLE that
mends it nothing is lost.
"""

from __future__ import annotations

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT, subscribed, wait_equal, wait_ready
from tests.support.triple import Triple, tripled
from tests.support.waits import wait_until

MISSING = 'logical replication target relation "public.{}" is missing replicated column: "{}"'


def test_columns(control_pair: tuple[Database, Database], node: Node) -> None:
    """Added, renamed, dropped and altered columns, with schema_changes = add."""
    tables = (
        "CREATE TABLE sc_mark (n int PRIMARY KEY);"
        "CREATE TABLE sc_col (id int PRIMARY KEY, v text, n int);"
    )
    control_pair[0].psql(
        f"{tables} CREATE PUBLICATION sc FOR TABLE sc_mark, sc_col;"
        "INSERT INTO sc_col VALUES (1, 'one', 1), (2, 'two', 2)"
    )
    with tripled(control_pair, node, "sc", tables) as both:
        _renamed(both)
        _added(both)
        _dropped(both)
        _altered(both)


def _renamed(both: Triple) -> None:
    """A renamed column is no addition: its values are in another column here."""
    both.fails(
        MISSING.format("sc_col", "w"),
        "ALTER TABLE sc_col RENAME COLUMN v TO w; INSERT INTO sc_col VALUES (3, 'three', 3);"
        "UPDATE sc_col SET w = 'uno' WHERE id = 1",
    )
    both.mended("ALTER TABLE sc_col RENAME COLUMN v TO w")
    both.caught_up()


def _added(both: Triple) -> None:
    """An added column is followed with what existing rows got; not when that differs by row.

    Also in rows that were sent before it in the same transaction, so in one batch with it.
    """
    both.publisher.psql(
        "INSERT INTO sc_col VALUES (6, 'six', 6); UPDATE sc_col SET w = 'drei' WHERE id = 3;"
        "ALTER TABLE sc_col ADD COLUMN c int DEFAULT 7; INSERT INTO sc_col VALUES (4, 'four', 4);"
        "UPDATE sc_col SET c = 8 WHERE id = 2"
    )
    both.native.psql(
        "ALTER SUBSCRIPTION sc DISABLE; ALTER TABLE sc_col ADD COLUMN c int DEFAULT 7;"
        "ALTER SUBSCRIPTION sc ENABLE"
    )
    both.same("SELECT id, w, n, c FROM sc_col")
    both.native.psql("ALTER TABLE sc_col ALTER COLUMN c DROP DEFAULT")
    both.fails(
        MISSING.format("sc_col", "s"),
        "ALTER TABLE sc_col ADD COLUMN s serial; INSERT INTO sc_col VALUES (5, 'five', 5);",
    )
    both.mended("ALTER TABLE sc_col ADD COLUMN s int")
    both.same("SELECT id, w, n, c, s FROM sc_col")


def _dropped(both: Triple) -> None:
    """A dropped column stays here; one that is added in its place is followed."""
    both.publisher.psql(
        "ALTER TABLE sc_col DROP COLUMN s; INSERT INTO sc_col VALUES (7, 'seven', 7, 7);"
        "UPDATE sc_col SET w = 'III' WHERE id = 3; ALTER TABLE sc_col DROP COLUMN c,"
        " ADD COLUMN u date DEFAULT '2026-01-01'; INSERT INTO sc_col VALUES (8, 'eight', 8, NULL);"
        "DELETE FROM sc_col WHERE id = 2"
    )
    both.native.psql(
        "ALTER SUBSCRIPTION sc DISABLE; ALTER TABLE sc_col ADD COLUMN u date DEFAULT '2026-01-01';"
        "ALTER SUBSCRIPTION sc ENABLE"
    )
    both.same("SELECT id, w, n, s, c, u FROM sc_col")


def _altered(both: Triple) -> None:
    """A wider type goes on until a value does not fit."""
    both.publisher.psql(
        "ALTER TABLE sc_col ALTER COLUMN n TYPE bigint; INSERT INTO sc_col VALUES (9, 'nine', 9)"
    )
    both.same("SELECT id, w, n FROM sc_col")
    both.fails(
        'value "3000000000" is out of range for type integer',
        "INSERT INTO sc_col VALUES (10, 'ten', 10), (11, 'eleven', 3000000000);"
        "UPDATE sc_col SET n = 5000000000 WHERE id = 9",
    )
    both.mended("ALTER TABLE sc_col ALTER COLUMN n TYPE bigint")
    both.same("SELECT id, w, n FROM sc_col")
    both.fails(
        'invalid input syntax for type bigint: "many"',
        "ALTER TABLE sc_col ALTER COLUMN n TYPE text; INSERT INTO sc_col VALUES (12, 'x', '12');"
        "INSERT INTO sc_col VALUES (13, 'y', 'many')",
    )
    both.mended(
        "DROP TABLE sc_col; CREATE TABLE sc_col (u date, n text, w text, id bigint PRIMARY KEY)"
    )
    both.on_both("ALTER SUBSCRIPTION sc REFRESH PUBLICATION")
    both.ready()
    both.publisher.psql("UPDATE sc_col SET n = n || '!', w = NULL WHERE id IN (3, 13)")
    both.same("SELECT * FROM sc_col")


def test_tables(control_pair: tuple[Database, Database], node: Node) -> None:
    """Tables that are renamed, made again, and taken out of and into publications."""
    tables = (
        "CREATE TABLE st_mark (n int PRIMARY KEY); CREATE TABLE st_a (id int PRIMARY KEY, v text);"
        "CREATE TABLE st_b (id int PRIMARY KEY, v text);"
    )
    control_pair[0].psql(
        f"{tables} CREATE PUBLICATION st FOR TABLE st_mark, st_a, st_b;"
        "INSERT INTO st_a VALUES (1, 'one'), (2, 'two'); INSERT INTO st_b VALUES (1, 'b')"
    )
    with tripled(control_pair, node, "st", tables) as both:
        _table_renamed(both)
        _table_made_again(both)
        _table_out_and_in(both)
        _operations_out_and_in(both)
        _other_filter(both)


def _table_renamed(both: Triple) -> None:
    """Without a table of the new name both stop; with it they go on, and nothing is lost."""
    both.fails(
        'logical replication target relation "public.st_new" does not exist',
        "ALTER TABLE st_a RENAME TO st_new; INSERT INTO st_new VALUES (3, 'three')",
    )
    both.mended("ALTER TABLE st_a RENAME TO st_new")
    both.caught_up()
    both.fails(
        'logical replication target relation "public.st_a" does not exist',
        "ALTER TABLE st_new RENAME TO st_a; UPDATE st_a SET v = 'x' WHERE id = 1",
    )
    both.mended("ALTER TABLE st_new RENAME TO st_a")
    both.same("SELECT * FROM st_a")


def _skip(both: Triple) -> None:
    """Leave out the transaction that both have stopped at."""
    lsn = both.node.psql("SELECT lsn FROM penstock.subscription_error WHERE lsn IS NOT NULL")
    both.mended(f"ALTER SUBSCRIPTION {both.name} SKIP (lsn = '{lsn}')")


def _table_made_again(both: Triple) -> None:
    """A table that was dropped and made again has lost its rows without a word."""
    both.publisher.psql(
        "DROP TABLE st_a; CREATE TABLE st_a (id int PRIMARY KEY, v text);"
        "ALTER PUBLICATION st ADD TABLE st_a; INSERT INTO st_a VALUES (10, 'ten')"
    )
    both.same("SELECT * FROM st_a")
    _exists(both, "st_a", "INSERT INTO st_a VALUES (11, 'no'), (2, 'again')")
    both.same("SELECT * FROM st_a")


def _exists(both: Triple, table: str, change: str) -> None:
    """A change that brings a key which is there: both stop, and skip it."""
    both.fails(
        f'duplicate key value violates unique constraint "{table}_pkey"',
        change,
        native=f'conflict detected on relation "public.{table}": conflict=insert_exists',
    )
    _skip(both)


def _table_out_and_in(both: Triple) -> None:
    """What happens to a table while it is not published is lost; REFRESH copies nothing twice."""
    both.publisher.psql(
        "ALTER PUBLICATION st DROP TABLE st_b; DELETE FROM st_b; INSERT INTO st_b VALUES (5, 'n');"
    )
    both.publisher.psql("ALTER PUBLICATION st ADD TABLE st_b")
    both.same("SELECT * FROM st_b")
    _exists(both, "st_b", "INSERT INTO st_b VALUES (1, 'came back')")
    both.publisher.psql("ALTER PUBLICATION st DROP TABLE st_b")
    both.on_both("ALTER SUBSCRIPTION st REFRESH PUBLICATION")
    both.publisher.psql("ALTER PUBLICATION st ADD TABLE st_b; INSERT INTO st_b VALUES (6, 'lost')")
    both.same("SELECT * FROM st_b")
    both.on_both("ALTER SUBSCRIPTION st REFRESH PUBLICATION WITH (copy_data = false)")
    both.ready()
    both.publisher.psql("INSERT INTO st_b VALUES (7, 'seven')")
    both.same("SELECT * FROM st_b")


def _operations_out_and_in(both: Triple) -> None:
    """Operations that were not published for a while, in the middle of the stream."""
    both.publisher.psql("INSERT INTO st_a VALUES (20, 'twenty'), (21, 'twenty-one')")
    both.same("SELECT * FROM st_a")
    both.publisher.psql("ALTER PUBLICATION st SET (publish = 'insert')")
    both.publisher.psql("DELETE FROM st_a WHERE id = 20; UPDATE st_a SET v = 'x' WHERE id = 21")
    both.publisher.psql("ALTER PUBLICATION st SET (publish = 'insert, update, delete, truncate')")
    _exists(both, "st_a", "INSERT INTO st_a VALUES (20, 'again')")
    both.publisher.psql("UPDATE st_a SET v = v || '!'; INSERT INTO st_a VALUES (22, 'new')")
    both.same("SELECT * FROM st_a")


def _other_filter(both: Triple) -> None:
    """Rows that a new filter leaves out stay here, and are deleted without a word."""
    both.publisher.psql("ALTER PUBLICATION st SET TABLE st_mark, st_a WHERE (id < 21)")
    both.publisher.psql("DELETE FROM st_a WHERE id = 21; UPDATE st_a SET id = 30 WHERE id = 10")
    both.publisher.psql("ALTER PUBLICATION st SET TABLE st_mark, st_a")
    both.same("SELECT * FROM st_a")
    _exists(both, "st_a", "INSERT INTO st_a VALUES (21, 'again')")
    both.publisher.psql("ALTER PUBLICATION st SET TABLE st_mark, st_a (id)")
    both.publisher.psql("INSERT INTO st_a VALUES (31, 'unseen'); UPDATE st_a SET v = 'u'")
    both.publisher.psql("ALTER PUBLICATION st SET TABLE st_mark, st_a")
    both.publisher.psql("UPDATE st_a SET v = 'seen' WHERE id = 31")
    both.same("SELECT * FROM st_a")


def test_tables_of_a_schema_and_of_all(control_pair: tuple[Database, Database], node: Node) -> None:
    """What FOR TABLES IN SCHEMA and FOR ALL TABLES bring and lose is seen by REFRESH alone."""
    publisher = control_pair[0]
    mark = "CREATE TABLE sf_mark (n int PRIMARY KEY);"
    inside = "CREATE SCHEMA sf; CREATE TABLE sf.a (id int PRIMARY KEY, v text);"
    late = "CREATE TABLE sf.late (id int PRIMARY KEY, v text);"
    publisher.psql(
        f"{mark} {inside} CREATE PUBLICATION sf FOR TABLES IN SCHEMA sf, TABLE sf_mark;"
        "INSERT INTO sf.a VALUES (1, 'copied')"
    )
    with tripled(control_pair, node, "sf", mark + inside) as both:
        publisher.psql(f"{late} INSERT INTO sf.late VALUES (1, 'unknown'); DROP TABLE sf.a")
        both.native.psql(late)
        both.node.psql(late)
        both.same("SELECT * FROM sf.late", "SELECT * FROM sf.a")
        both.on_both("ALTER SUBSCRIPTION sf REFRESH PUBLICATION")
        both.ready()
        publisher.psql("UPDATE sf.late SET v = 'known'; INSERT INTO sf.late VALUES (2, 'two')")
        both.same("SELECT * FROM sf.late")
        publisher.psql("CREATE TABLE public.sf_more (id int PRIMARY KEY); DROP PUBLICATION sf")
        publisher.psql("CREATE PUBLICATION sf FOR ALL TABLES; INSERT INTO sf_more VALUES (1)")
        both.native.psql("CREATE TABLE sf_more (id int PRIMARY KEY)")
        both.on_both("ALTER SUBSCRIPTION sf REFRESH PUBLICATION")
        both.ready()
        publisher.psql("INSERT INTO sf_more VALUES (2); ALTER TABLE sf.late SET SCHEMA public")
        both.same("SELECT * FROM sf_more")
        both.fails(
            'logical replication target relation "public.late" does not exist',
            "INSERT INTO late VALUES (3, 'moved')",
        )
        both.mended("ALTER TABLE sf.late SET SCHEMA public")
        both.same("SELECT * FROM late")
        subscribed = (
            "SELECT r.srrelid::regclass FROM pg_subscription_rel r"
            " JOIN pg_subscription s ON s.oid = r.srsubid WHERE s.subname = 'sf'"
        )
        both.same(subscribed)


def test_additions_that_are_not_followed(
    control_pair: tuple[Database, Database], node: Node
) -> None:
    """With schema_changes = error, and afterwards; a column list that grows is no addition."""
    tables = "CREATE TABLE sn_mark (n int PRIMARY KEY); CREATE TABLE sn (id int PRIMARY KEY);"
    control_pair[0].psql(
        f"{tables} ALTER TABLE sn ADD COLUMN hidden int;"
        "INSERT INTO sn VALUES (1, 1); CREATE PUBLICATION sn FOR TABLE sn_mark, sn (id)"
    )
    with tripled(control_pair, node, "sn", tables) as both:
        both.fails(
            MISSING.format("sn", "hidden"),
            "ALTER PUBLICATION sn SET TABLE sn_mark, sn; INSERT INTO sn VALUES (2, 2)",
        )
        both.mended("ALTER TABLE sn ADD COLUMN hidden int")
        both.same("SELECT * FROM sn")
        both.node.psql("ALTER SUBSCRIPTION sn SET (schema_changes = error)")
        both.fails(
            MISSING.format("sn", "a"),
            "ALTER TABLE sn ADD COLUMN a text DEFAULT 'x'; INSERT INTO sn VALUES (3, 3, 'y')",
        )
        both.mended("ALTER TABLE sn ADD COLUMN a text DEFAULT 'x'")
        both.same("SELECT * FROM sn")
        both.node.psql("ALTER SUBSCRIPTION sn SET (schema_changes = add)")
        both.fails(
            MISSING.format("sn", "b"),
            "ALTER TABLE sn RENAME COLUMN a TO b; INSERT INTO sn VALUES (4, 4, 'z')",
        )
        both.mended("ALTER TABLE sn RENAME COLUMN a TO b")
        both.same("SELECT * FROM sn")


def test_publications_of_a_subscription(
    control_pair: tuple[Database, Database], node: Node
) -> None:
    """ADD, SET and DROP PUBLICATION, with and without a copy: what is copied and followed."""
    publisher = control_pair[0]
    tables = "CREATE TABLE sp_mark (n int PRIMARY KEY);" + "".join(
        f"CREATE TABLE sp_{name} (id int PRIMARY KEY, v text);" for name in "abc"
    )
    publisher.psql(
        f"{tables} CREATE PUBLICATION sp FOR TABLE sp_mark;"
        + "".join(
            f"CREATE PUBLICATION sp_{name} FOR TABLE sp_{name};"
            f"INSERT INTO sp_{name} VALUES (1, 'before');"
            for name in "abc"
        )
    )
    queries = [f"SELECT * FROM sp_{name}" for name in "abc"]
    write = "".join(f"INSERT INTO sp_{name} VALUES ({{0}}, 'new');" for name in "abc")
    commands = (
        "ADD PUBLICATION sp_a",
        "ADD PUBLICATION sp_b WITH (copy_data = false)",
        "DROP PUBLICATION sp_a",
        "SET PUBLICATION sp, sp_b, sp_c WITH (refresh = false)",
        "REFRESH PUBLICATION",
        "SET PUBLICATION sp, sp_a WITH (copy_data = false)",
    )
    with tripled(control_pair, node, "sp", tables) as both:
        for number, command in enumerate(commands):
            both.on_both(f"ALTER SUBSCRIPTION sp {command}")
            both.ready()
            publisher.psql(write.format(number + 10))
            both.caught_up()
        both.same(*queries)


def _stopped(node: Node, name: str, message: str) -> None:
    """Wait until a subscription has stopped with this message."""
    error = (
        "SELECT message FROM penstock.subscription_error e"
        f" JOIN pg_subscription s ON s.oid = e.subid WHERE s.subname = '{name}'"
    )
    wait_until(lambda: node.psql(error) == message, SYNC_TIMEOUT, message)


@pytest.mark.parametrize("publisher", ["15", "16"], indirect=True)
def test_older_publishers(publisher_db: Database, node: Node) -> None:
    """What was out of a publication for a while, and a renamed column, are noticed there, too."""
    publisher_db.psql(
        "CREATE TABLE so (id int PRIMARY KEY, v text); CREATE PUBLICATION so FOR TABLE so;"
        "INSERT INTO so VALUES (1, 'one')"
    )
    mend = "ALTER SUBSCRIPTION so DISABLE; {}; ALTER SUBSCRIPTION so ENABLE"
    with subscribed(node, publisher_db, "so", "so"):
        publisher_db.psql("INSERT INTO so VALUES (2, 'two')")
        wait_equal(publisher_db, "SELECT * FROM so", node)
        for statement in (
            "ALTER PUBLICATION so SET (publish = 'insert')",
            "DELETE FROM so WHERE id = 1",
            "ALTER PUBLICATION so SET (publish = 'insert, update, delete, truncate')",
            "INSERT INTO so VALUES (1, 'again')",
        ):
            publisher_db.psql(statement)
        _stopped(node, "so", 'duplicate key value violates unique constraint "so_pkey"')
        lsn = node.psql("SELECT lsn FROM penstock.subscription_error WHERE lsn IS NOT NULL")
        node.psql(mend.format(f"ALTER SUBSCRIPTION so SKIP (lsn = '{lsn}')"))
        publisher_db.psql("UPDATE so SET v = 'here' WHERE id = 1")
        wait_equal(publisher_db, "SELECT * FROM so", node)
        publisher_db.psql("ALTER TABLE so RENAME COLUMN v TO w; UPDATE so SET w = 'x' WHERE id = 2")
        _stopped(node, "so", MISSING.format("so", "w"))
        node.psql(mend.format("ALTER TABLE so RENAME COLUMN v TO w"))
        wait_equal(publisher_db, "SELECT * FROM so", node)


def test_a_row_that_enters_the_filter_without_all_values(
    publisher_db: Database, node: Node
) -> None:
    """PostgreSQL's subscriber would write NULL for the value that was not sent; here it stops.

    What the hint says mends it.
    """
    publisher_db.psql(
        "CREATE TABLE sr (id int, region text, big text, PRIMARY KEY (id, region));"
        "ALTER TABLE sr ALTER COLUMN big SET STORAGE EXTERNAL;"
        "INSERT INTO sr SELECT g, 'out', repeat(g::text, 3000) FROM generate_series(1, 4) g;"
        "UPDATE sr SET region = 'in' WHERE id = 1;"
        "CREATE PUBLICATION sr FOR TABLE sr WHERE (region = 'in')"
    )
    query = "SELECT * FROM sr WHERE region = 'in'"
    with subscribed(node, publisher_db, "sr", "sr"):
        publisher_db.psql("UPDATE sr SET id = 10 WHERE id = 1")
        publisher_db.psql("UPDATE sr SET region = 'in', big = 'short' WHERE id = 2")
        wait_equal(publisher_db, query, node)
        publisher_db.psql("UPDATE sr SET region = 'in' WHERE id = 3")
        _stopped(
            node, "sr", 'the publisher did not send column "big" of a row inserted into "public.sr"'
        )
        publisher_db.psql("ALTER TABLE sr REPLICA IDENTITY FULL")
        node.psql("DROP TABLE sr")
        node.psql("ALTER SUBSCRIPTION sr REFRESH PUBLICATION")
        wait_ready(node, "sr")
        publisher_db.psql("UPDATE sr SET region = 'in' WHERE id = 4")
        wait_equal(publisher_db, query, node)
