# SPDX-License-Identifier: Apache-2.0
"""The results of a run, as JSON for machines and Markdown for people."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil

from bench import goals
from bench.decode import DecodeRate
from bench.latency import Latency
from bench.memory import Peak
from bench.relay import RelayCost
from bench.sizes import BatchCost

RESULTS = Path(__file__).parent / "results"


@dataclass
class Drained:
    """Seconds that each side needed for one workload, of each run; ``goal`` as the workload's."""

    workload: str
    changes: int
    goal: float | None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, seconds: float) -> None:
        """Take note of a run."""
        self.seconds.setdefault(side, []).append(seconds)


@dataclass
class Results:
    """Everything that one run found out; parts that were not asked for stay empty."""

    rows: int
    copy_seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    copy_floor: float | None = None
    drained: dict[str, Drained] = field(default_factory=dict)
    decode: DecodeRate | None = None
    latencies: list[Latency] = field(default_factory=list)
    batches: list[BatchCost] = field(default_factory=list)
    memory: dict[str, Peak] = field(default_factory=dict)
    relay: list[RelayCost] = field(default_factory=list)
    machine: str = field(
        default_factory=lambda: (
            f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GB,"
            f" {platform.system()}, Python {platform.python_version()}"
        )
    )
    commit: str = field(default_factory=lambda: _commit())
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def write(self) -> Path:
        """Write both files; the path of the Markdown."""
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "latest.json").write_text(json.dumps(asdict(self), indent=1) + "\n")
        markdown = RESULTS / "latest.md"
        markdown.write_text(self.markdown())
        return markdown

    def heading(self, title: str) -> list[str]:
        """A title, and when and where it was run."""
        return [f"# {title}", f"{self.time}, commit {self.commit}, {self.machine}", ""]

    def markdown(self) -> str:
        """The tables."""
        parts = self.heading("Bench")
        parts += self._copy() + self._stream() + self._decode() + self._latency()
        parts += self._batches() + self._memory() + self._relay()
        return "\n".join(parts) + "\n"

    def _copy(self) -> list[str]:
        lines = [
            f"## Initial copy of {self.rows:,} rows",
            "Median of the runs, CREATE SUBSCRIPTION to state r.",
            "",
            "| | runs | seconds | rows read/s | times native | goal |",
            "|---|---|---|---|---|---|",
        ]
        for name, sides in self.copy_seconds.items():
            native = median(sides["native"])
            for side, runs in sides.items():
                middle = median(runs)
                rate = f"{self.rows / middle:,.0f}"
                ratio = native / middle
                goal = "" if side == "native" else goals.at_least(goals.COPY[name], ratio)
                lines.append(
                    f"| {name}, {side} | {len(runs)} | {middle:.2f} | {rate} | {ratio:.2f}"
                    f" | {goal} |"
                )
        if self.copy_floor is not None:
            lines.append(f"| COPY TO /dev/null | 1 | {self.copy_floor:.2f} | | | |")
        return [*lines, ""]

    def _stream(self) -> list[str]:
        if not self.drained:
            return []
        names = list(next(iter(self.drained.values())).seconds)
        lines = [
            "## Stream",
            "Seconds to drain a workload that waits in the slot, ENABLE to replayed: medians, and"
            " the range of the ratio over the runs.",
            "",
            f"| workload | {' | '.join(names)} | penstock rows/s | times native | goal |",
            f"|---|{'---|' * (len(names) + 3)}",
        ]
        for each in self.drained.values():
            middle = {name: median(each.seconds[name]) for name in names}
            cells = " | ".join(f"{middle[name]:.1f}" for name in names)
            rate = f"{each.changes / middle['penstock']:,.0f}"
            pairs = zip(each.seconds["native"], each.seconds["penstock"], strict=True)
            ratios = [native / ours for native, ours in pairs]
            ratio = middle["native"] / middle["penstock"]
            lines.append(
                f"| {each.workload} | {cells} | {rate}"
                f" | {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                f" | {goals.at_least(each.goal, ratio)} |"
            )
        return [*lines, ""]

    def _latency(self) -> list[str]:
        lines = [
            "## Commit to visible",
            "Seconds under a load of single-row transactions at a steady pace.",
            "",
            "| load | side | transactions/s | p50 | p99 | goals |",
            "|---|---|---|---|---|---|",
        ]
        for each in self.latencies:
            p50, p99 = goals.LATENCY[each.workload]
            asked = f"{goals.at_most(p50, each.p50)}; {goals.at_most(p99, each.p99)}"
            lines.append(
                f"| {each.workload} | {each.side} | {each.rate:.0f} | {each.p50:.3f}"
                f" | {each.p99:.3f} | {'' if each.side == 'native' else asked} |"
            )
        return [*lines, ""] if self.latencies else []

    def _decode(self) -> list[str]:
        if self.decode is None:
            return []
        rate, each = self.decode.rows / self.decode.seconds, self.decode.size / self.decode.rows
        return [
            f"Decoding alone, one thread: {rate:,.0f} rows/s of {each:.0f} bytes each.",
            "",
        ]

    def _batches(self) -> list[str]:
        lines = [
            "## The same batch on tables of two sizes",
            "Median seconds from the publisher's commit until it knows that the batch is applied:"
            " one transaction that updates keys all over the table.",
            "",
            "| side | keys | rows of the table | seconds | the first one |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {b.side} | {b.keys:,} | {b.rows:,} | {b.seconds:.2f} | {b.first:.2f} |"
            for b in self.batches
        ]
        ours = {each.rows: each.seconds for each in self.batches if each.side == "penstock"}
        if ours:
            growth = ours[max(ours)] / ours[min(ours)]
            asked = goals.at_most(goals.GROWTH, growth)
            lines += ["", f"penstock's grows by a factor of {growth:.2f} (goal: below {asked})."]
        return [*lines, ""] if self.batches else []

    def _memory(self) -> list[str]:
        if not self.memory:
            return []
        lines = [
            "## Memory",
            "Highest sum over a node's processes, MB; the limit for Python is 1,536.",
            "",
            "| while | Python RSS | Python USS | JVM RSS |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {p.python_rss:,.0f} | {p.python_uss:,.0f} | {p.java_rss:,.0f} |"
            for name, p in self.memory.items()
        ]
        return [*lines, ""]

    def _relay(self) -> list[str]:
        if not self.relay:
            return []
        lines = [
            "## A relayed catalog query",
            "Median milliseconds; the limit for the difference is 1 ms.",
            "",
            "| protocol | through the node | control database | difference |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {r.protocol} | {r.through:.2f} | {r.direct:.2f} | {r.through - r.direct:.2f} |"
            for r in self.relay
        ]
        return [*lines, ""]


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
