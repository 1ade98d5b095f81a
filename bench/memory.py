# SPDX-License-Identifier: Apache-2.0
"""How much memory a node's processes take, sampled while something runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType

import psutil

PACE = 0.2  # seconds between two samples
MB = 1024 * 1024


@dataclass
class Peak:
    """Highest sums over processes at one time, in MB; Python: the node and Spark's workers.

    ``python_rss`` counts pages that forked workers share once for each of them, so it is never
    too low; ``python_uss`` is what would be free if they ended.
    """

    python_rss: float = 0.0
    python_uss: float = 0.0
    java_rss: float = 0.0


class MemorySampler:
    """Samples a process and all its descendants until the end of ``with``."""

    def __init__(self, pid: int) -> None:
        self.peak = Peak()
        self._root = psutil.Process(pid)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory sampler", daemon=True)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(PACE):
            self._sample()

    def _sample(self) -> None:
        rss = uss = java = 0.0
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                name = process.name()
                if name.startswith("python") or name == "penstock":
                    memory = process.memory_full_info()
                    rss += memory.rss / MB
                    uss += memory.uss / MB
                elif name == "java":
                    java += process.memory_info().rss / MB
            except psutil.NoSuchProcess:
                continue  # a worker that has ended since it was listed
        peak = self.peak
        peak.python_rss = max(peak.python_rss, rss)
        peak.python_uss = max(peak.python_uss, uss)
        peak.java_rss = max(peak.java_rss, java)
