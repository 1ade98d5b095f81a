# SPDX-License-Identifier: Apache-2.0
"""Tables that differ at the two ends: columns more, in another order, of other types, generated.

After PostgreSQL's 008_diff_schema and the parts of 011_generated that need no triggers.
"""

from __future__ import annotations

import pytest

from tests.support.psql import PsqlError
from tests.support.topology import Ends, topologies

PUBLISHED = """
CREATE TABLE dif (id int PRIMARY KEY, v varchar(10), n numeric(6,2), t text, k smallint);
INSERT INTO dif VALUES (1, 'one', 1.5, '2026-01-01', 7), (2, 'two', -2.25, '2026-02-02', 8);
CREATE TABLE dif_full (a int, b text);
ALTER TABLE dif_full REPLICA IDENTITY FULL;
INSERT INTO dif_full VALUES (1, 'x'), (1, 'x'), (2, NULL);
CREATE PUBLICATION dif FOR TABLE dif, dif_full
"""
SUBSCRIBED = """
CREATE TABLE dif (
    t date, extra text DEFAULT 'none' NOT NULL, id bigint PRIMARY KEY, k text, v text,
    n numeric(12,4), at date DEFAULT '2026-12-31');
CREATE TABLE dif_full (c int, b text, a bigint);
ALTER TABLE dif_full REPLICA IDENTITY FULL
"""
ALL = "SELECT id, v, n, k, t, extra, at FROM dif"


def test_columns_are_matched_by_name(ends: Ends) -> None:
    """Values come through their text into wider or other types; the rest has its default.

    Columns that only the subscriber has keep what is in them, whatever the publisher changes.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(PUBLISHED)
    subscriber.psql(SUBSCRIBED)
    ends.subscribe("dif", "dif")
    assert subscriber.rows(ALL) == [
        "1|one|1.5000|7|2026-01-01|none|2026-12-31",
        "2|two|-2.2500|8|2026-02-02|none|2026-12-31",
    ]
    subscriber.psql("UPDATE dif SET extra = 'mine', at = '2000-01-01' WHERE id = 1")
    ends.sent(
        "dif",
        "UPDATE dif SET v = 'ONE', id = 11 WHERE id = 1; UPDATE dif SET n = NULL WHERE id = 2;"
        "INSERT INTO dif VALUES (3, NULL, 0, NULL, 9)",
    )
    assert subscriber.rows(ALL) == [
        "11|ONE|1.5000|7|2026-01-01|mine|2000-01-01",
        "2|two|\\N|8|2026-02-02|none|2026-12-31",
        "3|\\N|0.0000|9|\\N|none|2026-12-31",
    ]

    # The whole row is looked for, in the columns that are sent.
    ends.sent(
        "dif", "UPDATE dif_full SET b = 'y' WHERE b IS NULL; INSERT INTO dif_full VALUES (3, 'z')"
    )
    assert subscriber.rows("dif_full") == [r"\N|x|1", r"\N|x|1", r"\N|y|2", r"\N|z|3"]


def test_generated_columns(ends: Ends) -> None:
    """What is generated at the publisher is not sent; the subscriber computes its own.

    An ordinary column there stays empty, an identity counts.
    """
    ends.publisher.psql(
        "CREATE TABLE dif_gen (id int PRIMARY KEY, b int GENERATED ALWAYS AS (id * 2) STORED);"
        "CREATE TABLE dif_plain (id int PRIMARY KEY, b int GENERATED ALWAYS AS (id * 2) STORED);"
        "INSERT INTO dif_gen VALUES (1), (2); INSERT INTO dif_plain VALUES (1);"
        "CREATE PUBLICATION dif FOR TABLE dif_gen, dif_plain"
    )
    ends.subscriber.psql(
        "CREATE TABLE dif_gen (b int GENERATED ALWAYS AS (id * 22) STORED, id int PRIMARY KEY);"
        "CREATE TABLE dif_plain (b int, id int PRIMARY KEY, c int GENERATED ALWAYS AS IDENTITY)"
    )
    ends.subscribe("dif", "dif")
    ends.sent(
        "dif",
        "INSERT INTO dif_gen VALUES (3); UPDATE dif_gen SET id = 4 WHERE id = 1;"
        "INSERT INTO dif_plain VALUES (5)",
    )
    assert ends.subscriber.rows("dif_gen") == ["44|2", "66|3", "88|4"]
    assert ends.subscriber.rows("dif_plain") == [r"\N|1|1", r"\N|5|2"]


@topologies("postgres_to_postgres", "postgres_to_lake", "lake_to_postgres")
def test_a_column_that_the_subscriber_lacks(ends: Ends) -> None:
    """It stops the stream with its name.

    Once the subscriber has the column, everything since arrives.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both("CREATE TABLE dif_less (id int PRIMARY KEY)")
    publisher.psql("CREATE PUBLICATION dif FOR TABLE dif_less")
    ours = "schema_changes = error" if subscriber.is_lake else ""
    ends.subscribe("dif", "dif", ours)
    publisher.psql(
        "ALTER TABLE dif_less ADD COLUMN v text, ADD COLUMN w text",
        "INSERT INTO dif_less VALUES (1, 'v', 'w')",
    )
    missing = 'logical replication target relation "public.dif_less" is missing replicated columns:'
    subscriber.wait_error("dif", f'{missing} "v", "w"')
    subscriber.mend("dif", "ALTER TABLE dif_less ADD w text, ADD v text, ADD x text")
    ends.sent("dif", "INSERT INTO dif_less VALUES (2, 'V', NULL)")
    assert subscriber.rows("dif_less") == ["1|w|v|\\N", "2|\\N|V|\\N"]


def test_a_value_that_the_other_type_cannot_have(ends: Ends) -> None:
    """It stops the stream at its transaction, whose LSN is told; without it the rest arrives."""
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(
        "CREATE TABLE dif_wide (id int PRIMARY KEY, v int)",
        "CREATE PUBLICATION dif FOR TABLE dif_wide",
    )
    subscriber.psql("CREATE TABLE dif_wide (id int PRIMARY KEY, v smallint)")
    ends.subscribe("dif", "dif")
    publisher.psql("INSERT INTO dif_wide VALUES (1, 1)", "INSERT INTO dif_wide VALUES (2, 70000)")
    finished = subscriber.wait_error("dif", 'value "70000" is out of range for type smallint')
    assert subscriber.rows("dif_wide") == ["1|1"]
    subscriber.mend("dif", f"ALTER SUBSCRIPTION dif SKIP (lsn = '{finished}')")
    ends.sent("dif", "UPDATE dif_wide SET v = 3 WHERE id = 2", "INSERT INTO dif_wide VALUES (4, 4)")
    assert subscriber.rows("dif_wide") == ["1|1", "4|4"]


@topologies("postgres_to_postgres", "lake_to_postgres")
def test_a_generated_key_is_refused(ends: Ends) -> None:
    """A replica identity with a generated column is not sent: UPDATE says what is missing."""
    publisher = ends.publisher
    publisher.psql(
        "CREATE TABLE dif_id (a int NOT NULL, g int GENERATED ALWAYS AS (a) STORED NOT NULL)",
        "CREATE UNIQUE INDEX dif_id_g ON dif_id (g)",
        "ALTER TABLE dif_id REPLICA IDENTITY USING INDEX dif_id_g",
        "CREATE PUBLICATION dif FOR TABLE dif_id",
    )
    with pytest.raises(PsqlError, match="must not contain unpublished generated columns"):
        publisher.psql("UPDATE dif_id SET a = 2")
