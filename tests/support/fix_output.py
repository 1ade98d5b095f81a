# SPDX-License-Identifier: Apache-2.0
"""A test that fails shows what the nodes printed while it ran."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.node import LAUNCHED

_SHOWN = 200_000
"""Bytes of each node's output, the last ones."""

_sizes = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what was printed before the test."""
    item.stash[_sizes] = {
        node.home.as_posix(): node.output.stat().st_size
        for node in LAUNCHED
        if node.output.exists()
    }


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add a section for each node that printed something since."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # sent in by pluggy
    if not report.failed:
        return
    before = item.stash.get(_sizes, {})
    for node in LAUNCHED:
        if not node.output.exists():
            continue
        with node.output.open("rb") as output:
            size = output.seek(0, 2)
            output.seek(max(before.get(node.home.as_posix(), 0), size - _SHOWN))
            printed = output.read().decode(errors="replace")
        if printed:
            report.sections.append((f"Printed by the node of {node.home.parent.name}", printed))
