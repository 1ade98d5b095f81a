# SPDX-License-Identifier: Apache-2.0
"""Binary values of user-defined types: the publisher is asked what they are, when they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import FeatureNotSupportedError
from penstock.staging.log import StagingLog
from tests.support.fix_servers import Database
from tests.support.streaming import Replay, Stream
from tests.support.waits import wait_until


@pytest.fixture
def stream(publisher_db: Database, tmp_path: Path) -> Stream:
    """A slot over every table."""
    publisher_db.psql(
        "CREATE TYPE pair AS (a int, b text);"
        "CREATE TABLE pairs (id int PRIMARY KEY, p pair);"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    return Stream(publisher_db, tmp_path / "staging")


def test_types_that_are_made_while_streaming(stream: Stream) -> None:
    """A table with new types, also nested ones, is read as if they had always been there."""
    log = StagingLog(stream.folder)
    with stream.receiver(log, binary=True) as receiver:
        stream.database.psql(
            "CREATE TYPE hue AS ENUM ('red', 'dark blue');"
            "CREATE DOMAIN hues AS hue[]; CREATE TYPE shade AS (h hues, u uuid, n numeric);"
            "CREATE TABLE shades (id int PRIMARY KEY, s shade[]);"
            "INSERT INTO shades VALUES (1, ARRAY[ROW('{red,dark blue}',"
            " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 1.50), NULL]::shade[]), (2, NULL)"
        )
        stream.await_staged(log, receiver)
    text = stream.database.psql("SELECT s FROM shades WHERE id = 1")
    rows = Replay().apply(log.segments()).rows("shades")
    assert rows == [{"id": 1, "s": text}, {"id": 2, "s": None}]


def test_a_composite_type_that_is_altered(stream: Stream) -> None:
    """Other fields than the type had are refused; the next connection asks anew."""
    log = StagingLog(stream.folder)
    with stream.receiver(log, binary=True) as receiver:
        stream.database.psql("INSERT INTO pairs VALUES (1, ROW(1, 'x'))")
        stream.await_staged(log, receiver)
        stream.database.psql(
            "ALTER TYPE pair ADD ATTRIBUTE c date; INSERT INTO pairs VALUES (2, ROW(2, '', now()))"
        )
        wait_until(lambda: receiver.state == "failed", 20, "the refusal")
        with pytest.raises(FeatureNotSupportedError, match="other fields") as caught:
            receiver.check()
        assert "binary = false" in str(caught.value)
    with stream.receiver(log, binary=True) as receiver:
        stream.await_staged(log, receiver)
    expected = stream.database.psql("SELECT p FROM pairs WHERE id = 2")
    rows = Replay().apply(log.segments()).rows("pairs")
    assert [row["p"] for row in rows] == ["(1,x)", expected]
