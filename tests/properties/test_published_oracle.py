# SPDX-License-Identifier: Apache-2.0
"""What we publish of changes is what PostgreSQL sends for the same statements, change by change.

Tables with each replica identity, plain and partitioned, whose rows are moved into filters, out of
them and inside and outside of them, with values in TOAST and without.  One database of each server
version; what was written is read through many sets of publications.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product

import pytest
from pyspark.sql import SparkSession

from penstock.errors import FeatureNotSupportedError, PenstockError
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.publishing import PublishingOracle

IDENTITIES = ("default", "index", "full")
PLAIN = tuple(f"plain_{identity}" for identity in IDENTITIES)
ROOTS = tuple(f"root_{identity}" for identity in IDENTITIES)
TABLES = PLAIN + ROOTS

PASSES = "(a > 10 AND k LIKE 'x%')"
"""On the identity, one column of which may be in TOAST."""

COLUMNS = "id int NOT NULL, a int NOT NULL, k text NOT NULL, t text, n numeric(9,2)"


def tables() -> Iterator[str]:
    """Each table in its publications' schema; a root's second partition has another order."""
    for identity in IDENTITIES:
        yield f"CREATE TABLE plain_{identity} ({COLUMNS})"
        yield f"CREATE TABLE root_{identity} ({COLUMNS}) PARTITION BY RANGE (id)"
        yield (
            f"CREATE TABLE low_{identity} PARTITION OF root_{identity} FOR VALUES FROM (0) TO (50)"
        )
        yield (
            f"CREATE TABLE high_{identity} (gone int, n numeric(9,2), t text, a int NOT NULL,"
            " id int NOT NULL, k text NOT NULL)"
        )
        yield f"ALTER TABLE high_{identity} DROP COLUMN gone"
        yield (
            f"ALTER TABLE root_{identity} ATTACH PARTITION high_{identity}"
            " FOR VALUES FROM (50) TO (100)"
        )
        for name in (f"{kind}_{identity}" for kind in ("plain", "low", "high")):
            yield f"ALTER TABLE {name} ALTER k SET STORAGE EXTERNAL, ALTER t SET STORAGE EXTERNAL"
        for name in (f"{kind}_{identity}" for kind in ("plain", "root", "low", "high")):
            yield from _identify(name, identity)


def _identify(name: str, identity: str) -> Iterator[str]:
    if identity == "full":
        yield f"ALTER TABLE {name} REPLICA IDENTITY FULL"
    elif identity == "index":
        yield f"CREATE UNIQUE INDEX {name}_index ON {name} (id, a, k) INCLUDE (n)"
        yield f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {name}_index"
    elif not name.startswith("root"):
        yield f"ALTER TABLE {name} ADD PRIMARY KEY (k, a, id)"


def statements(name: str) -> Iterator[str]:
    """Rows small and with TOAST, in the key (k), outside it (t); then all four cases of each."""
    small, big = "'x'", "'x' || repeat('0123456789abcdef', 140)"
    for at, (k, t) in enumerate(product((small, big), ("'t'", f"{big} || 't'", "NULL"))):
        for place, a in enumerate((5, 15, 25, 8)):
            yield f"INSERT INTO {name} VALUES ({10 + 6 * place + at}, {a}, {k}, {t}, {at}.5)"
    rows = "id BETWEEN 10 AND 33"
    yield f"UPDATE {name} SET n = n + 1 WHERE {rows}"  # identity as it was
    yield f"UPDATE {name} SET a = a + 5 WHERE {rows} AND a IN (5, 15)"  # out-out, in-in
    yield f"UPDATE {name} SET a = 30 - a WHERE {rows} AND a IN (25, 8)"  # in-out, out-in
    yield f"UPDATE {name} SET k = 'y' || k WHERE {rows} AND id % 4 = 0"  # out by the key's text
    yield f"UPDATE {name} SET k = substr(k, 2), t = 'u' || t WHERE k LIKE 'y%'"
    yield f"UPDATE {name} SET t = NULL, n = NULL WHERE {rows} AND id % 5 = 0"
    yield f"DELETE FROM {name} WHERE {rows} AND id % 3 = 0"
    yield f"TRUNCATE {name}"
    yield "BEGIN"
    yield f"INSERT INTO {name} VALUES (60, 50, 'x', '{name}', 7)"
    yield "SAVEPOINT s"
    yield f"UPDATE {name} SET a = 3"
    yield "ROLLBACK TO s"
    yield f"UPDATE {name} SET n = 8, k = k || a"
    yield "COMMIT"


def moves(identity: str) -> Iterator[str]:
    """Rows that change their partition, and what happens to partitions alone."""
    root = f"root_{identity}"
    yield f"INSERT INTO {root} SELECT g, g, 'x', 't', g FROM generate_series(5, 95, 10) g"
    yield f"UPDATE {root} SET id = 100 - id, a = a - 10"
    yield f"TRUNCATE low_{identity}"
    yield f"DELETE FROM high_{identity}"
    yield f"TRUNCATE {root}, plain_{identity}"


def publications() -> Iterator[str]:
    """Their names say what they are; all of them together allow every statement."""
    root = "publish_via_partition_root"
    every = ", ".join(f"{name} WHERE {PASSES}" for name in TABLES)
    yield f"CREATE PUBLICATION filtered FOR TABLE {every} WITH ({root})"
    other = ", ".join(f"{name} WHERE (id % 2 = 0 AND a < 20)" for name in TABLES)
    yield f"CREATE PUBLICATION filtered_too FOR TABLE {other} WITH ({root})"
    by_value = ", ".join(f"{name} WHERE (t IS NULL OR n < 3)" for name in TABLES)
    yield f"CREATE PUBLICATION inserted FOR TABLE {by_value} WITH ({root}, publish = 'insert')"
    yield f"CREATE PUBLICATION updated FOR TABLE {every} WITH ({root}, publish = 'update')"
    yield f"CREATE PUBLICATION deleted FOR TABLE {', '.join(TABLES)} WITH (publish = 'delete')"
    yield f"CREATE PUBLICATION truncated FOR ALL TABLES WITH ({root}, publish = 'truncate')"
    keyed = [name for name in TABLES if not name.endswith("full")]
    listed = ", ".join(f"{name} (k, a, id)" for name in keyed)
    yield f"CREATE PUBLICATION listed FOR TABLE {listed} WITH ({root})"
    both = ", ".join(f"{name} (k, id, a) WHERE {PASSES}" for name in keyed)
    yield f"CREATE PUBLICATION listed_filtered FOR TABLE {both} WITH ({root})"
    some = ", ".join(f"{name} (n, id) WHERE (t IS NOT NULL)" for name in TABLES)
    yield f"CREATE PUBLICATION listed_inserts FOR TABLE {some} WITH ({root}, publish = 'insert')"
    leaves = ", ".join(f"low_{identity} WHERE (a % 2 = 1)" for identity in IDENTITIES)
    yield f"CREATE PUBLICATION leaves FOR TABLE {leaves} WITH (publish = 'insert, delete')"
    yield f"CREATE PUBLICATION roots FOR TABLE {', '.join(ROOTS)} WITH (publish = 'update')"
    yield "CREATE PUBLICATION in_schema FOR TABLES IN SCHEMA public WITH (publish = 'insert')"


ODD = """"new" int PRIMARY KEY, old int, "OP" int, op text, "a.b`c'd""e\\" text, unchanged text"""
"""Columns with the names of a change's own, and with all that must be quoted."""


def odd() -> Iterator[str]:
    """Two tables of their own: one with odd names, one whose filter can fail."""
    yield f"CREATE TABLE odd ({ODD})"
    yield 'ALTER TABLE odd ALTER "a.b`c\'d""e\\" SET STORAGE EXTERNAL'
    yield (
        'CREATE PUBLICATION odd FOR TABLE odd ("new", "OP", "a.b`c\'d""e\\", unchanged)'
        ' WHERE ("new" > 1)'
    )
    yield "CREATE TABLE divided (id int PRIMARY KEY)"
    yield "CREATE PUBLICATION divided FOR TABLE divided WHERE (10 / id > 1)"


def odd_statements() -> Iterator[str]:
    """An UPDATE into the filter of ``odd`` with TOAST; one that the filter of ``divided`` fails on.

    The latter's old row passes: what is left of the OR must be computed nevertheless.
    """
    yield "INSERT INTO odd VALUES (1, 2, 3, '4', repeat('x', 3000), 'u'), (5, 6, 7, '8', '', 'u')"
    yield 'UPDATE odd SET "new" = 3, op = 6, unchanged = NULL WHERE "new" = 1'
    yield 'DELETE FROM odd WHERE "new" = 5'
    yield "INSERT INTO divided VALUES (1)"
    yield "UPDATE divided SET id = 0"


def deep() -> Iterator[str]:
    """Partitions of partitions, published at each level in another way."""
    yield "CREATE SCHEMA apart"
    yield "CREATE TABLE deep (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)"
    yield (
        "CREATE TABLE apart.middle PARTITION OF deep FOR VALUES FROM (0) TO (50)"
        " PARTITION BY RANGE (id)"
    )
    yield "CREATE TABLE deep_leaf PARTITION OF apart.middle FOR VALUES FROM (0) TO (50)"
    root = "publish_via_partition_root"
    yield f"CREATE PUBLICATION top FOR TABLE deep WHERE (id < 5) WITH ({root}, publish = 'update')"
    yield (
        "CREATE PUBLICATION middle FOR TABLE apart.middle (a, id) WHERE (id > 2)"
        f" WITH ({root}, publish = 'insert, update')"
    )
    yield (
        f"CREATE PUBLICATION middle_schema FOR TABLES IN SCHEMA apart"
        f" WITH ({root}, publish = 'update, truncate')"
    )
    yield (
        "CREATE PUBLICATION bottom FOR TABLE deep_leaf (id) WHERE (id = 3)"
        " WITH (publish = 'delete')"
    )


def deep_statements() -> Iterator[str]:
    """Rows of the leaf, and a TRUNCATE of each level."""
    for name in ("deep", "apart.middle", "deep_leaf"):
        yield f"INSERT INTO {name} SELECT g, g FROM generate_series(1, 8) g"
        yield f"UPDATE {name} SET id = (id * 11) % 47 WHERE id IN (2, 4, 6, 8)"
        yield f"DELETE FROM {name} WHERE a < 6"
        yield f"TRUNCATE {name}"


def generated() -> Iterator[str]:
    """Of a generated column, what PostgreSQL 18 publishes where asked to."""
    yield "CREATE TABLE made (id int PRIMARY KEY, b int GENERATED ALWAYS AS (id * 2) STORED, c int)"
    yield "CREATE PUBLICATION no_stored FOR TABLE made"
    yield "CREATE PUBLICATION stored FOR TABLE made WITH (publish_generated_columns = stored)"
    yield "CREATE PUBLICATION stored_listed FOR TABLE made (b, id) WHERE (id > 1)"


SETS = (
    ["filtered"],
    ["filtered", "filtered_too"],
    ["inserted"],
    ["updated"],
    ["inserted", "updated"],
    ["filtered", "deleted"],
    ["filtered", "in_schema"],
    ["filtered", "truncated"],
    ["truncated", "inserted"],
    ["listed"],
    ["listed", "listed_filtered"],
    ["listed_inserts"],
    ["leaves"],
    ["leaves", "roots"],
    ["leaves", "filtered"],
    ["roots", "updated"],
    ["raw_changes"],
    ["raw_changes", "filtered"],
    ["odd"],
    ["top"],
    ["middle"],
    ["bottom", "middle"],
    ["middle", "top"],
    ["bottom", "top", "middle"],
    ["middle_schema"],
    ["middle_schema", "bottom"],
)


@pytest.fixture(scope="module", params=["15", "16", "18"])
def oracle(
    request: pytest.FixtureRequest,
    servers: Servers,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PublishingOracle]:
    """A server's database in which all statements have run."""
    server = servers(request.param)
    database = Database(server, server.create_database())
    made = PublishingOracle(database, spark, tmp_path_factory.mktemp("published"))
    made.run(chain(tables(), publications(), odd(), deep()))
    if request.param == "18":
        made.run(generated())
    made.start()
    for name in TABLES:
        made.run(statements(name))
    for identity in IDENTITIES:
        made.run(moves(identity))
    made.run(chain(odd_statements(), deep_statements()))
    if request.param == "18":
        made.run(["INSERT INTO made VALUES (1, DEFAULT, 5), (2, DEFAULT, 6)"])
        made.run(["DELETE FROM made"])
    made.written()
    yield made
    made.conn.close()
    drop_database(server, database.name)


def test_published_changes_are_those_that_postgresql_sends(oracle: PublishingOracle) -> None:
    """Operation, relation, old and new row, unchanged columns, order, bytes: all the same."""
    sets = SETS[::4] if oracle.version == "16" else SETS  # 16 is between the two others
    wrong = [each for each in map(oracle.differences, sets) if each]
    assert not wrong, "\n\n".join(wrong)


def test_relations_are_described_as_postgresql_does(oracle: PublishingOracle) -> None:
    """A partition that is published as an ancestor is described, too, in PostgreSQL's way."""
    for publications in (["filtered", "deleted"], ["listed"], ["bottom", "middle"], ["odd"]):
        ours, theirs = oracle.descriptions(publications)
        assert ours == theirs, publications


def test_the_statements_reach_every_case(oracle: PublishingOracle) -> None:
    """Each operation is sent, also as which an UPDATE can come out, with TOAST and without."""
    found = oracle.expected(["updated"])
    for name in TABLES:
        ops = {each.op for each in found if each.relation.name == name}
        assert ops == {"I", "U", "D"}, f"of updates of {name}"
    assert any(each.op == "I" and "t" in each.unchanged for each in found)
    assert any(each.op == "U" and "k" in each.unchanged for each in found)
    assert {each.op for each in oracle.expected(["filtered", "truncated"])} == set("IUDT")


def test_different_column_lists_are_postgresqls_error(oracle: PublishingOracle) -> None:
    """Message and SQLSTATE; a set of publications with one list and none, too."""
    for publications in (["listed", "listed_inserts"], ["filtered", "listed"]):
        sqlstate, message = oracle.failure(publications)
        with pytest.raises(FeatureNotSupportedError) as error:
            oracle.plans(publications)
        assert (error.value.sqlstate, error.value.message) == (sqlstate, message)


@pytest.mark.parametrize("oracle", ["18"], indirect=True)
def test_generated_columns_are_published_where_asked_for(oracle: PublishingOracle) -> None:
    """By the parameter, or by a column list; different parameters are PostgreSQL's error."""
    wrong = [oracle.differences([each]) for each in ("no_stored", "stored", "stored_listed")]
    assert not any(wrong), "\n\n".join(wrong)
    assert [len(each.relation.columns) for each in oracle.found(["stored"])] == [3] * 4
    sqlstate, message = oracle.failure(["stored", "no_stored"])
    with pytest.raises(FeatureNotSupportedError) as error:
        oracle.plans(["stored", "no_stored"])
    assert (error.value.sqlstate, error.value.message) == (sqlstate, message)


def test_a_row_that_a_filter_fails_on_ends_the_stream(oracle: PublishingOracle) -> None:
    """With PostgreSQL's SQLSTATE, although the old row passed the filter."""
    sqlstate, message = oracle.failure(["divided"])
    with pytest.raises(PenstockError) as error:
        oracle.found(["divided"])
    assert (error.value.sqlstate, error.value.message) == (sqlstate, message)
    assert sqlstate == "22012"


@pytest.mark.parametrize("oracle", ["18"], indirect=True)
def test_changes_from_files_are_published_alike(oracle: PublishingOracle) -> None:
    """Spark's compiled code over files decides as its interpreted code over a few rows does."""
    assert not oracle.differences(["updated"], files=True)
