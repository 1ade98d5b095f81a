# SPDX-License-Identifier: Apache-2.0
"""Partitioned tables as targets: rows go where PostgreSQL's own subscriber routes them."""

from __future__ import annotations

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.triple import tripled
from tests.support.waits import wait_until

FLAT = """
CREATE TABLE pa_mark (n int PRIMARY KEY);
CREATE TABLE pa_range (id int, at date, big text, PRIMARY KEY (id, at));
CREATE TABLE pa_list (kind text, v int, note text);
CREATE TABLE pa_deep (id int, region text NOT NULL, v int, PRIMARY KEY (id, region));
ALTER TABLE pa_range ALTER COLUMN big SET STORAGE EXTERNAL;
ALTER TABLE pa_list REPLICA IDENTITY FULL;
CREATE TABLE pa_some (id int PRIMARY KEY);
CREATE PUBLICATION pa FOR TABLE pa_mark, pa_range, pa_list, pa_deep, pa_some;
INSERT INTO pa_range
    SELECT g, date '2026-01-01' + g, repeat('x', 3000) FROM generate_series(0, 99) g;
INSERT INTO pa_list VALUES ('a', 1), ('b', 2), (NULL, 3), (NULL, NULL), ('z', 4), ('a', 1);
INSERT INTO pa_deep
    SELECT g, (ARRAY['de', 'at', 'fr'])[1 + (g + 60) % 3], g FROM generate_series(-50, 50) g;
"""
PARTITIONED = """
CREATE TABLE pa_mark (n int PRIMARY KEY);
CREATE TABLE pa_range (id int, at date, big text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at, id);
CREATE TABLE pa_range_1 PARTITION OF pa_range
    FOR VALUES FROM (MINVALUE, MINVALUE) TO ('2026-02-01', 20);
CREATE TABLE pa_range_2 PARTITION OF pa_range
    FOR VALUES FROM ('2026-02-01', 20) TO ('2026-03-01', MAXVALUE);
CREATE TABLE pa_range_3 PARTITION OF pa_range DEFAULT;
CREATE TABLE pa_list (note text, v int, kind text) PARTITION BY LIST (kind);
CREATE TABLE pa_list_a PARTITION OF pa_list FOR VALUES IN ('a', NULL);
CREATE TABLE pa_list_b PARTITION OF pa_list FOR VALUES IN ('b', 'c');
CREATE TABLE pa_list_rest PARTITION OF pa_list DEFAULT;
CREATE TABLE pa_deep (id int, region text NOT NULL, v int, PRIMARY KEY (id, region))
    PARTITION BY LIST (region);
CREATE TABLE pa_deep_de PARTITION OF pa_deep FOR VALUES IN ('de', 'at') PARTITION BY RANGE (id);
CREATE TABLE pa_deep_de_low PARTITION OF pa_deep_de FOR VALUES FROM (MINVALUE) TO (0);
CREATE TABLE pa_deep_de_high PARTITION OF pa_deep_de FOR VALUES FROM (0) TO (MAXVALUE);
CREATE TABLE pa_deep_rest PARTITION OF pa_deep DEFAULT;
CREATE TABLE pa_some (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE pa_some_1 PARTITION OF pa_some FOR VALUES FROM (0) TO (100);
"""
HASHED_FLAT = """
CREATE TABLE ph_mark (n int PRIMARY KEY);
CREATE TABLE pa_hash (id int, "t x" text, v int, PRIMARY KEY (id, "t x"));
CREATE TABLE pa_mixed (n numeric(10,2), at timestamptz, note text);
ALTER TABLE pa_mixed REPLICA IDENTITY FULL;
CREATE TABLE pa_hole (id int PRIMARY KEY);
CREATE PUBLICATION ph FOR TABLE ph_mark, pa_hash, pa_mixed, pa_hole;
INSERT INTO pa_hash SELECT g, E'tä\\x\t' || g, g FROM generate_series(1, 500) g;
INSERT INTO pa_mixed SELECT g / 4.0, timestamptz '2026-01-01 00:00+00' + g * interval '1 day', 'x'
    FROM generate_series(1, 300) g;
"""
HASHED = """
CREATE TABLE ph_mark (n int PRIMARY KEY);
CREATE TABLE pa_hash (id bigint, "t x" text, v int, PRIMARY KEY (id, "t x"))
    PARTITION BY HASH (id, "t x");
CREATE TABLE pa_hash_0 PARTITION OF pa_hash FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE pa_hash_1 PARTITION OF pa_hash FOR VALUES WITH (MODULUS 4, REMAINDER 1);
CREATE TABLE pa_hash_2 (v int, "t x" text NOT NULL, id bigint NOT NULL);
ALTER TABLE pa_hash ATTACH PARTITION pa_hash_2 FOR VALUES WITH (MODULUS 4, REMAINDER 3);
CREATE TABLE pa_mixed (n numeric(10,2), at timestamptz, note text) PARTITION BY RANGE (at);
CREATE TABLE pa_mixed_new PARTITION OF pa_mixed FOR VALUES FROM ('2026-03-01 00:00+00')
    TO (MAXVALUE) PARTITION BY HASH (n);
CREATE TABLE pa_mixed_0 PARTITION OF pa_mixed_new FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE pa_mixed_1 PARTITION OF pa_mixed_new FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE pa_mixed_rest PARTITION OF pa_mixed DEFAULT;
CREATE TABLE pa_hole (id int PRIMARY KEY) PARTITION BY HASH (id);
CREATE TABLE pa_hole_0 PARTITION OF pa_hole FOR VALUES WITH (MODULUS 2, REMAINDER 0);
"""
LEAVES = (
    *("pa_range_1", "pa_range_2", "pa_range_3", "pa_list_a", "pa_list_b", "pa_list_rest"),
    *("pa_deep_de_low", "pa_deep_de_high", "pa_deep_rest"),
)
CHANGES = (
    # Moves between leaves with a value that is out of line and not sent, and one that stays.
    "UPDATE pa_range SET at = '2026-02-01' WHERE id BETWEEN 15 AND 25;"
    "UPDATE pa_range SET at = at + 200 WHERE id % 10 = 0; UPDATE pa_range SET big = 'y'"
    " WHERE id = 50; DELETE FROM pa_range WHERE id = 60; INSERT INTO pa_range VALUES"
    " (-5, '2020-01-01', NULL), (20, '2026-02-02', 'edge'), (19, '2026-02-01', 'edge')"
    " ON CONFLICT DO NOTHING",
    # Without a key: NULL is a value of the list, rows that are equal move one by one.
    "UPDATE pa_list SET kind = 'b' WHERE ctid = (SELECT min(ctid) FROM pa_list WHERE kind = 'a');"
    "UPDATE pa_list SET kind = NULL WHERE kind = 'z'; UPDATE pa_list SET note = 'n' WHERE v = 3;"
    "UPDATE pa_list SET kind = 'other' WHERE kind IS NULL AND v IS NULL;"
    "INSERT INTO pa_list VALUES (NULL, NULL, 'new'), ('c', 9, NULL), ('', 0, NULL)",
    # Two levels; a chain of moves that ends where it began.
    "UPDATE pa_deep SET id = -id WHERE id BETWEEN 1 AND 9 AND NOT EXISTS (SELECT FROM pa_deep d"
    " WHERE d.id = -pa_deep.id AND d.region = pa_deep.region);"
    "UPDATE pa_deep SET region = 'fr' WHERE region = 'de' AND id > 30;"
    "UPDATE pa_deep SET region = 'at' WHERE region = 'fr' AND id > 40;"
    "UPDATE pa_deep SET region = 'xx' WHERE id = 50;"
    "UPDATE pa_deep SET region = 'at' WHERE id = 50",
    "TRUNCATE pa_list; INSERT INTO pa_list VALUES ('b', 1), (NULL, 2)",
)


def await_recorded_truncate(node: Node, root: str, leaves: int) -> None:
    """Wait until the ledger knows that a partitioned table was emptied, with so many leaves."""
    query = f"""
        SELECT count(DISTINCT t.moved->>'relid') = {leaves}
        FROM penstock.commit c, jsonb_array_elements(c.tables) t (moved)
        WHERE t.moved->'truncated' = jsonb_build_array('{root}'::regclass::oid::int8)"""
    wait_until(lambda: node.psql(query) == "t", 60, f"the TRUNCATE of {root} in the ledger")


def test_rows_are_routed(control_pair: tuple[Database, Database], node: Node) -> None:
    """RANGE of two columns, LIST with NULL, DEFAULT, two levels: each leaf has the same rows.

    What empties the whole table is recorded as such.
    """
    control_pair[0].psql(FLAT)
    queries = [f"SELECT * FROM {leaf}" for leaf in LEAVES]
    with tripled(control_pair, node, "pa", PARTITIONED) as both:
        for change in CHANGES:
            both.publisher.psql(f"BEGIN; {change}; COMMIT")
        both.same(*queries)
        await_recorded_truncate(node, "pa_list", sum("pa_list" in leaf for leaf in LEAVES))
        # A row that no partition takes stops both, an earlier transaction is there, and with a
        # partition for it both go on.
        both.publisher.psql("INSERT INTO pa_some VALUES (2)")
        both.fails(
            'no partition of relation "pa_some" found for row',
            "BEGIN; INSERT INTO pa_some VALUES (3); INSERT INTO pa_some VALUES (200); COMMIT",
        )
        both.mended("CREATE TABLE pa_some_2 PARTITION OF pa_some FOR VALUES FROM (100) TO (300)")
        both.publisher.psql("UPDATE pa_some SET id = id + 100 WHERE id = 3")
        both.same("SELECT * FROM pa_some_1", "SELECT * FROM pa_some_2")


def test_a_truncate_is_recorded_as_the_partitioned_tables(node: Node) -> None:
    """Where a statement names that one; of a leaf that is emptied alone, nothing is said."""
    node.psql(
        "CREATE TABLE pa_all (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE pa_all_1 PARTITION OF pa_all FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE pa_all_2 PARTITION OF pa_all FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE pa_all_3 PARTITION OF pa_all FOR VALUES FROM (20) TO (30);"
        "INSERT INTO pa_all VALUES (1), (11), (21); TRUNCATE pa_all_1"
    )
    node.psql("DROP TABLE pa_all_1; TRUNCATE pa_all; INSERT INTO pa_all VALUES (12)")
    await_recorded_truncate(node, "pa_all", 2)
    assert node.psql("SELECT * FROM pa_all") == "12"


def test_hash_partitions(control_pair: tuple[Database, Database], node: Node) -> None:
    """Each row is in the partition that PostgreSQL's hash says, by copy and by stream.

    HASH of several columns and types, below RANGE; an update that moves a row; no partition for it.
    """
    control_pair[0].psql(HASHED_FLAT)
    leaves = [f"pa_hash_{n}" for n in range(3)] + ["pa_mixed_0", "pa_mixed_1", "pa_mixed_rest"]
    with tripled(control_pair, node, "ph", HASHED) as both:
        queries = [f"SELECT * FROM {leaf}" for leaf in leaves]
        both.same(*queries)
        both.publisher.psql(
            "BEGIN; UPDATE pa_hash SET id = id + 1000 WHERE id % 3 = 0; DELETE FROM pa_hash"
            " WHERE id % 7 = 0; UPDATE pa_hash SET v = v + 1; INSERT INTO pa_hash"
            " SELECT g, 'new ' || g, g FROM generate_series(2001, 2100) g; COMMIT;"
            "UPDATE pa_mixed SET at = '2025-05-05' WHERE n % 5 = 0; DELETE FROM pa_mixed"
            " WHERE n % 4 = 0; INSERT INTO pa_mixed VALUES (NULL, '2026-07-07', 'no n')"
        )
        both.same(*queries)
        both.fails(
            'no partition of relation "pa_hole" found for row',
            "INSERT INTO pa_hole SELECT generate_series(1, 20)",
        )
        hole = "CREATE TABLE pa_hole_1 PARTITION OF pa_hole FOR VALUES"
        both.mended(f"{hole} WITH (MODULUS 2, REMAINDER 1)")
        both.same("SELECT * FROM pa_hole_0", "SELECT * FROM pa_hole_1")
