# SPDX-License-Identifier: Apache-2.0
"""What the bench must reach: ratios to native in the same run, and seconds."""

from __future__ import annotations

COPY = {"all rows": 1.5, "a filter that keeps 1 %": 1.5}
"""Times native, by the copy's name."""

LATENCY = {"inserts": (1.5, 5.0), "updates of random keys": (3.0, 6.0)}
"""Seconds from commit to visible, p50 and p99, by the load's name."""

GROWTH = 2.0
"""The same batch on the large table costs less than so many times what it does on the small one."""


def at_least(goal: float | None, reached: float) -> str:
    """A table's cell: the goal, and whether it was missed.  Compared as they are shown."""
    if goal is None:
        return ""
    return f"{goal:g}" if round(reached, 2) >= goal else f"{goal:g}, missed"


def at_most(goal: float, reached: float) -> str:
    """The same for a figure that must not be higher."""
    return f"{goal:g}" if reached <= goal else f"{goal:g}, missed"
