# SPDX-License-Identifier: Apache-2.0
"""A publisher's database may have another encoding than the lake's UTF-8."""

from __future__ import annotations

import pytest

from tests.support.fix_servers import Database, Servers
from tests.support.node import Node
from tests.support.subscribing import subscribed, wait_equal


@pytest.mark.parametrize("options", ["binary = false", "binary = true, streaming = on"])
def test_a_publisher_in_latin1(options: str, servers: Servers, node: Node) -> None:
    """Names and values beyond ASCII arrive by copy and by stream, in rows, keys and filters."""
    server = servers()
    name = f"latin_{len(options)}"
    server.psql(
        f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    publisher = Database(server, name)
    publisher.psql(
        f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB';"
        "CREATE TYPE façon AS ENUM ('doucement', 'très ''vite''');"
        "CREATE TABLE enc (clé text PRIMARY KEY, v text, l text[], j jsonb, f façon[],"
        " big text DEFAULT 'é');"
        "ALTER TABLE enc REPLICA IDENTITY FULL;"
        "INSERT INTO enc VALUES ('é', 'ÿ£', ARRAY['ü', NULL], '[\"ß\"]',"
        " ARRAY['très ''vite''', NULL]::façon[]);"
        "INSERT INTO enc VALUES ('a', 'plain', '{}'),"
        " ('hidden', 'nø', NULL);"
        "CREATE PUBLICATION enc FOR TABLE enc WHERE (v <> 'nø')"
    )
    with subscribed(node, publisher, "enc", "enc", options):
        rows = "SELECT clé, v, l, j, f, big FROM enc"
        wait_equal(publisher, f"{rows} WHERE v <> 'nø'", node, rows)
        publisher.psql(
            "UPDATE enc SET v = 'ñ' WHERE clé = 'é'; UPDATE enc SET clé = 'à' WHERE clé = 'a';"
            "INSERT INTO enc VALUES ('ö', 'ß', ARRAY['\"ä,\"'], '[\"¿\"]', '{doucement}',"
            " repeat('éà', 70000)); INSERT INTO enc VALUES ('x', 'nø', NULL);"
            "DELETE FROM enc WHERE clé = 'hidden'"
        )
        wait_equal(publisher, f"{rows} WHERE v <> 'nø'", node, rows)
        assert node.psql("SELECT v FROM enc WHERE clé = 'ö'") == "ß"
