# SPDX-License-Identifier: Apache-2.0
"""Fixtures with the embedded control database alone, without a node.

control_home   a home with a control database that does not run: a template to copy
control        the session's, shared: give every object a name of its own
own_control    a new one, to stop, to kill or to count rows in
any_control    a new database with the schema, on PostgreSQL 16 and on 18, an external one's place
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.control.address import ControlAddress
from penstock.control.connect import connect
from penstock.control.migrate import migrate
from tests.support.control import Control, make_home, open_control
from tests.support.fix_servers import Servers, drop_database
from tests.support.folders import open_folder
from tests.support.servers import SUPERUSER


@pytest.fixture(scope="session")
def control_home() -> Iterator[Path]:
    """The template; do not start it."""
    with open_folder("pst-control-") as folder:
        make_home(folder / "home")
        yield folder / "home"


@pytest.fixture(scope="session")
def control(control_home: Path) -> Iterator[Control]:
    """The shared control database, started when first asked for."""
    with open_control(control_home) as shared:
        yield shared


@pytest.fixture
def own_control(control_home: Path) -> Iterator[Control]:
    """A control database of the test's own."""
    with open_control(control_home) as made:
        yield made


@pytest.fixture(params=["16", "18"])
def any_control(request: pytest.FixtureRequest, servers: Servers) -> Iterator[ControlAddress]:
    """The oldest version that a control database may have, and the newest."""
    server = servers(request.param, "control")
    name = server.create_database()
    address = ControlAddress("127.0.0.1", server.port, name, SUPERUSER, "")
    with connect(address) as conn:
        migrate(conn)
    yield address
    drop_database(server, name)
