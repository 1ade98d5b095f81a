# SPDX-License-Identifier: Apache-2.0
"""Messages made of changes are those that they were read from: values of all types, to the byte.

A PostgreSQL writes rows of every type at its edges and at random; what its pgoutput sends is
decoded to changes, and these are encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from penstock.change.mapping import TYPED, ValueMapping
from penstock.control.connect import ControlConnection
from penstock.control.functions import read_type_names
from penstock.pgoutput.decode import Decoder
from penstock.pgoutput.describe import description
from penstock.pgoutput.encode import Encoding, encode_changes
from penstock.pgoutput.messages import parse_relation
from penstock.wire.rows_binary import has_binary_form
from tests.support.binaries import NEWEST
from tests.support.edge_values import (
    COLUMNS,
    OTHER_COLUMNS,
    TEXT_COLUMNS,
    TYPES,
    EdgeColumn,
    create_table,
    insert,
    rows,
)
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.pgoutput_bytes import framed, split

ROWS, SEED = 60, 20261122
SLOT = "encode_oracle"
ZONE = "America/St_Johns"
"""With minutes, and before 1884 with seconds in its offset."""

LEFT_OUT = {"numeric", "pair", "pair[]"}
"""A bare numeric has no display scale in the lake; moments inside of a composite are its text's."""

TABLES = {
    "vals": [each for each in (*COLUMNS, *OTHER_COLUMNS) if each.sql not in LEFT_OUT],
    "texts": TEXT_COLUMNS,
}
AS_TEXT = ValueMapping(numeric_as="text", datetime_as="text", array_as="text")


@pytest.fixture(scope="module")
def written(servers: Servers) -> Iterator[ControlConnection]:
    """A connection to a database whose slot has inserts, updates and deletes of all types."""
    server = servers(NEWEST)
    database = Database(server, server.create_database())
    database.psql(TYPES)
    with ControlConnection.connect(database.conninfo, autocommit=True) as conn:
        for name, columns in TABLES.items():
            conn.execute(create_table(name, columns).encode())
            conn.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL".encode())
            conn.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}".encode())
        some = f"vals ({', '.join(['id', *binary_columns(conn)])})"
        conn.execute(
            f"CREATE PUBLICATION with_binary FOR TABLE {some} WITH (publish = insert)".encode()
        )
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        for name, columns in TABLES.items():
            fill(conn, name, columns)
        conn.execute("SET extra_float_digits = 3")
        yield conn
    drop_database(server, database.name)


def binary_columns(conn: ControlConnection) -> list[str]:
    """The columns whose binary form is written here."""
    found = conn.execute(
        "SELECT attname, atttypid::int8 FROM pg_attribute"
        " WHERE attrelid = 'vals'::regclass AND attnum > 1 AND NOT attisdropped"
    ).fetchall()
    return [name for name, oid in found if has_binary_form(oid)]


def fill(conn: ControlConnection, name: str, columns: Sequence[EdgeColumn]) -> None:
    """Insert rows, then change each and delete some."""
    with conn.transaction(), conn.cursor() as cursor:
        cursor.executemany(insert(name, columns).encode(), rows(columns, ROWS, SEED))
    conn.execute(f"UPDATE {name} SET changed = 1".encode())
    conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0".encode())


def sent(
    conn: ControlConnection, publication: str, zone: str = "UTC", *, binary: bool = False
) -> list[bytes]:
    """What pgoutput sends, without Begin and Commit."""
    conn.execute(f"SET TimeZone = '{zone}'".encode())
    found = conn.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', %s, 'binary', %s)",
        [SLOT, publication, str(binary).lower()],
    ).fetchall()
    return [data for (data,) in found]


def rows_of(messages: Sequence[bytes]) -> list[bytes]:
    return [each for each in messages if each[:1] in (b"I", b"U", b"D")]


def again(messages: Sequence[bytes], encoding: Encoding, mapping: ValueMapping) -> list[bytes]:
    """The messages of rows, decoded and encoded."""
    ((relation, table),) = Decoder(mapping=mapping).feed(*framed(messages)).tables
    return split(encode_changes(table, relation, encoding))


@pytest.mark.parametrize(
    ("name", "mapping", "zone"), [("vals", TYPED, ZONE), ("texts", AS_TEXT, "UTC")]
)
def test_texts_are_postgresqls(
    written: ControlConnection, name: str, mapping: ValueMapping, zone: str
) -> None:
    """Inserts, updates with old rows, deletes; moments in a zone with odd offsets."""
    expected = sent(written, name, zone)
    found = again(sent(written, name), Encoding(timezone=zone), mapping)
    assert len(found) > 2 * ROWS
    assert found == rows_of(expected)


def test_binary_values_are_postgresqls(written: ControlConnection) -> None:
    """Of the types whose binary form is written here."""
    expected = sent(written, "with_binary", binary=True)
    found = again(expected, Encoding(binary=True), TYPED)
    assert len(found) == ROWS
    assert found == rows_of(expected)


def test_descriptions_are_postgresqls(written: ControlConnection) -> None:
    """Types that users made, domains by what is below them, and the relation."""
    expected = [each for each in sent(written, "vals") if each[:1] in (b"R", b"Y")]
    assert len(expected) > 5
    relation = parse_relation(expected[-1])
    names = read_type_names(written, {column.type_oid for column in relation.columns})
    assert split([description([relation], names)]) == expected
