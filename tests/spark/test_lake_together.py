# SPDX-License-Identifier: Apache-2.0
"""Tables of one definition that are read as one: the rows are those of each of them."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.lake.scan import LISTED_FILES, scan
from penstock.lake.together import alike, scan_together

PROPERTIES = "'delta.enableDeletionVectors' = 'true'"
MAPPED = f"{PROPERTIES}, 'delta.columnMapping.mode' = 'name'"


def make(spark: SparkSession, location: Path, *statements: str, also: str = PROPERTIES) -> int:
    """A table after some statements; its head."""
    table = f"delta.`{location}`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, note STRING) USING delta TBLPROPERTIES ({also})")
    for statement in statements:
        spark.sql(statement.format(t=table))
    entries = (location / "_delta_log").glob("[0-9]*.json")
    return max(int(path.stem) for path in entries)


def rows(spark: SparkSession, tables: list[tuple[str, int]]) -> list[str]:
    """All rows, each table read by itself."""
    return sorted(str(row) for each in tables for row in scan(spark, *each).collect())


def test_the_rows_of_a_group(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Some with vectors, some without rows, in folders whose names need quoting in a URI."""
    insert = "INSERT INTO {{t}} SELECT id + {0}, 'n' || id FROM range(100)"
    plans: dict[str, tuple[str, ...]] = {
        "a": (insert.format(0), insert.format(1000)),
        "b c%20d": (insert.format(2000), "DELETE FROM {t} WHERE id % 7 = 0"),
        "ž#?": (insert.format(3000), "DELETE FROM {t} WHERE id < 3090"),
        "e": (),
        "f": (insert.format(4000), "DELETE FROM {t}"),
    }
    tables = [
        (str(tmp_path / name), make(spark_worker, tmp_path / name, *plan))
        for name, plan in plans.items()
    ]
    (group,) = alike(tables)
    assert [each.location for each in group] == [location for location, _ in tables]
    found = scan_together(spark_worker, group)
    expected = rows(spark_worker, tables)
    assert len(expected) == 200 + 86 + 10
    assert sorted(map(str, found.collect())) == expected
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert plan.count("FileScan") == 1
    # Vectors of a group whose first table has none.
    last = scan_together(spark_worker, group[::-1]).where("id BETWEEN 2000 AND 2020")
    assert sorted(row["id"] for row in last.collect()) == [
        number for number in range(2000, 2021) if number % 7
    ]


def test_what_is_not_alike_stays_alone(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Another type, other names in the files, many files."""
    one = "INSERT INTO {t} VALUES (1, 'a')"
    plain, same = tmp_path / "plain", tmp_path / "same"
    other, mapped, many = tmp_path / "other", tmp_path / "mapped", tmp_path / "many"
    tables = [(str(each), make(spark_worker, each, one)) for each in (plain, same)]
    add = "ALTER TABLE {t} ADD COLUMNS (more DATE)"
    tables.append((str(other), make(spark_worker, other, one, add)))
    rename = "ALTER TABLE {t} RENAME COLUMN note TO text"
    tables.append((str(mapped), make(spark_worker, mapped, one, rename, also=MAPPED)))
    make(spark_worker, many, one)
    spread = spark_worker.range(0, 200, 1, LISTED_FILES).selectExpr("id", "'m' AS note")
    spread.write.format("delta").mode("append").save(str(many))
    tables.append((str(many), 2))
    groups = alike(tables)
    found = [[Path(each.location).name for each in group] for group in groups]
    assert found == [["plain", "same"], ["other"], ["mapped"], ["many"]]
    counts = [scan_together(spark_worker, group).count() for group in groups]
    assert counts == [2, 1, 1, 201]
