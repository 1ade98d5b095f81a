# SPDX-License-Identifier: Apache-2.0
"""What every test run shares: fixtures as plug-ins, a header with the servers, the order.

Quick tests come first, so that a simple mistake is known in seconds.  A test's marks follow from
its folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.support.binaries import installations, version_text
from tests.support.interrupt import (
    end_in_order_on_sigterm,
    end_workers_in_order_on_sigterm,
)

_PLUGINS = (
    "fix_servers",
    "fix_control",
    "fix_node",
    "fix_ends",
    "fix_spark",
    "fix_query",
    "fix_output",
)
pytest_plugins = [
    f"tests.support.{name}"
    for name in _PLUGINS
    if (Path(__file__).parent / "support" / f"{name}.py").exists()
]

_ORDER = ("unit", "faults", "chapter", "scenarios", "spark", "properties")
"""Test folders; each is also the name of a mark.  The quick one first, then those with the longest
files, so that several processes (``make test``) end at about the same time."""


# A busy machine may be slow at any moment; pytest's timeout is the only one that counts.  Nor is
# a failure explained: that traces each line, and takes longer than the timeout.
_PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("penstock", deadline=None, phases=_PHASES)
settings.load_profile("penstock")


def pytest_configure(config: pytest.Config) -> None:
    """Declare one mark for each folder; let fixtures clean up when the run is told to end."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        end_workers_in_order_on_sigterm()
    else:
        end_in_order_on_sigterm()
    for folder in _ORDER:
        config.addinivalue_line("markers", f"{folder}: a test of the folder tests/{folder}")


def pytest_report_header() -> list[str]:
    """Say which servers there are, and which are missing."""
    found = [f"{label} ({version_text(label)})" for label in installations()]
    return [f"PostgreSQL servers: {', '.join(found) or 'none'}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder and sort them, keeping the order inside a folder."""
    for item in items:
        item.add_marker(_folder(item))
    items.sort(key=lambda item: _ORDER.index(_folder(item)))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]
