# SPDX-License-Identifier: Apache-2.0
"""A publisher's database may have another encoding than the lake's UTF-8."""

from __future__ import annotations

from tests.support.fix_servers import Database, Servers
from tests.support.node import Node
from tests.support.subscribing import subscribed, wait_equal


def test_a_publisher_in_latin1(servers: Servers, node: Node) -> None:
    """Names and values beyond ASCII arrive by copy and by stream, in rows, keys and filters."""
    server = servers()
    server.psql(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    publisher = Database(server, "latin")
    publisher.psql(
        "CREATE TABLE enc (clé text PRIMARY KEY, v text, l text[]);"
        "ALTER TABLE enc REPLICA IDENTITY FULL;"
        "INSERT INTO enc VALUES ('é', 'ÿ£', ARRAY['ü', NULL]), ('a', 'plain', '{}'),"
        " ('hidden', 'nø', NULL);"
        "CREATE PUBLICATION enc FOR TABLE enc WHERE (v <> 'nø')"
    )
    with subscribed(node, publisher, "enc", "enc"):
        rows = "SELECT clé, v, l FROM enc"
        wait_equal(publisher, f"{rows} WHERE v <> 'nø'", node, rows)
        publisher.psql(
            "UPDATE enc SET v = 'ñ' WHERE clé = 'é'; UPDATE enc SET clé = 'à' WHERE clé = 'a';"
            "INSERT INTO enc VALUES ('ö', 'ß', ARRAY['\"ä,\"']), ('x', 'nø', NULL);"
            "DELETE FROM enc WHERE clé = 'hidden'"
        )
        wait_equal(publisher, f"{rows} WHERE v <> 'nø'", node, rows)
        assert node.psql("SELECT v FROM enc WHERE clé = 'ö'") == "ß"
