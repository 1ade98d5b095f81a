# SPDX-License-Identifier: Apache-2.0
"""The tests' archives of Java classes, 180 MB each, do not pile up."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.class_archive import UNUSED, remove_unused


def test_archives_without_a_use_are_removed(tmp_path: Path) -> None:
    """Those of a Spark that is gone, and those not used for long; nothing else in the folder."""
    spark = tmp_path / "spark.py"
    spark.touch()
    made_from = {"here": spark, "gone": tmp_path / "clone" / "spark.py", "unused": spark}
    for name, source in made_from.items():
        (tmp_path / f"classes-{name}.jsa").write_bytes(b"classes")
        (tmp_path / f"classes-{name}.lock").write_text(str(source))
    long_ago = time.time() - UNUSED - 60
    os.utime(tmp_path / "classes-unused.jsa", (long_ago, long_ago))
    for _ in range(2):
        remove_unused(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"classes-here.jsa", "classes-here.lock", "spark.py"}
