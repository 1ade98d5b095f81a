# SPDX-License-Identifier: Apache-2.0
"""Fixtures with the embedded control database alone, without a node.

control_home   a home with a control database that does not run: a template to copy
control        the session's, shared: give every object a name of its own
own_control    a new one, to stop, to kill or to count rows in
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control import Control, make_home, open_control
from tests.support.folders import open_folder


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
