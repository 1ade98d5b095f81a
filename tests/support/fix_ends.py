# SPDX-License-Identifier: Apache-2.0
"""Fixtures with the two ends of a subscription in every topology.

ends      publisher and subscriber; a test that asks for it runs in all four topologies, or in
          those that ``topologies`` of tests.support.topology names
seats     takes seats one by one, for scenarios with more than two ends

A database is a new one; the session's nodes are shared, so what a scenario made there is dropped
at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.topology import TOPOLOGIES, End, Ends

Seats = Callable[[str], End]
"""By name: ``lake`` and ``other lake``, else that of a server."""

_NODES = {"lake": "node", "other lake": "other_node"}


@pytest.fixture
def seats(servers: Servers, request: pytest.FixtureRequest) -> Iterator[Seats]:
    """Take a seat; all are left as they were found."""
    taken: list[End] = []

    def take(name: str) -> End:
        if name in _NODES:
            taken.append(End(request.getfixturevalue(_NODES[name])))
        else:
            server = servers(NEWEST, name)
            taken.append(End(Database(server, server.create_database())))
        return taken[-1]

    yield take
    for end in taken:
        end.drop_subscriptions()
    for end in taken:
        end.clear()
        if isinstance(end.at, Database):
            drop_database(end.at.server, end.at.name)


@pytest.fixture(params=TOPOLOGIES)
def ends(seats: Seats, request: pytest.FixtureRequest) -> Ends:
    """A publisher and a subscriber."""
    source, target = request.param.split("_to_")
    publisher = seats("lake" if source == "lake" else "publisher")
    return Ends(
        publisher,
        seats(
            "subscriber" if target == "postgres" else "other lake" if source == "lake" else "lake"
        ),
    )
