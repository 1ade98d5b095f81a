# SPDX-License-Identifier: Apache-2.0
"""Fixtures with real nodes.

node         the session's node, shared: give every table and subscription a name of its own
other_node   a second one for the session, to subscribe to the first
new_node     make nodes of one's own, to kill or to start with a failpoint
fault_node   the session's node for faults, with short timeouts: a test starts it if it does not
             run, may kill it, and leaves it as it is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.folders import open_folder
from tests.support.node import Node

NewNode = Callable[..., Node]


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The shared node, started when first asked for."""
    with open_folder("pst-node-") as folder:
        shared = Node(folder / "home")
        try:
            yield shared.start()
        finally:
            shared.close()


@pytest.fixture(scope="session")
def other_node() -> Iterator[Node]:
    """Another shared node, started when first asked for."""
    with open_folder("pst-other-") as folder:
        shared = Node(folder / "home")
        try:
            yield shared.start()
        finally:
            shared.close()


@pytest.fixture(scope="session")
def fault_node() -> Iterator[Node]:
    """Not started; its timeouts are seconds, so that what is lost is soon found out.

    Its statements may need few rows.
    """
    seconds = {"STATUS_INTERVAL": "1", "TIMEOUT": "4"}
    env = {f"PENSTOCK_WAL_RECEIVER_{name}": value for name, value in seconds.items()}
    env["PENSTOCK_WAL_RETRIEVE_RETRY_INTERVAL"] = "1"
    env["PENSTOCK_STATEMENT_ROWS"] = "20000"
    with open_folder("pst-fault-") as folder:
        shared = Node(folder / "home", env=env)
        try:
            yield shared
        finally:
            shared.close()


@pytest.fixture
def new_node() -> Iterator[NewNode]:
    """Make a Node (not started) with a new home; its options are those of ``Node``."""
    with ExitStack() as stack:

        def make(**options: object) -> Node:
            folder = stack.enter_context(open_folder("pst-node-"))
            made = Node(folder / "home", **options)  # type: ignore[arg-type]  # passed through
            stack.callback(made.close)
            return made

        yield make
