# SPDX-License-Identifier: Apache-2.0
"""Spark's classes, parsed once for all JVMs of the tests (Java's class-data sharing).

Some thirty JVMs are started in a run, and a third of what each does up to its first answer is to
read the same classes.  The archive lies in the cache folder, 180 MB; the first who needs it makes
it, and who needs it meanwhile goes without.  A Java that cannot make one leaves an empty file.

An archive serves one installation of Spark, so each clone with its own has one.  Who makes one
removes those whose Spark is gone, and those that nobody has used for UNUSED seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pyspark

from penstock.config import Settings
from penstock.lake.cache import cache_folder
from penstock.lake.jars import DELTA_PACKAGE
from penstock.lake.jvm import java_home
from penstock.lake.query import warm
from penstock.lake.session import Spark

SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A test's JVM lives for minutes: the optimizing compiler and the parallel collector would cost
more than they bring.  Start and first query take 11 s of CPU instead of 15 s."""

UNUSED = 7 * 24 * 3600

PATIENCE = 240  # seconds to make it on a busy machine; 20 on an idle one


def java_options() -> str:
    """The JVM options of a test's Spark; with the archive they save another 4 s of CPU."""
    archive = _path()
    if not archive.exists():
        _make(archive)
    known = archive.exists() and archive.stat().st_size > 0
    if known:
        os.utime(archive)
    return f"{SMALL} -XX:SharedArchiveFile={archive}" if known else SMALL


@cache
def _path() -> Path:
    """Java uses an archive only with the classes, at the places, that it was made from."""
    java = (java_home() / "bin" / "java").resolve()
    spark = f"{pyspark.__file__} {pyspark.__version__} {DELTA_PACKAGE}"
    made_from = f"{java} {java.stat().st_mtime} {spark}"
    return cache_folder() / f"classes-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if archive.exists():
            return
        lock.truncate(0)
        lock.write(pyspark.__file__)
        lock.flush()
        remove_unused(archive.parent)
        made = archive.with_suffix(".new")
        made.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", __name__, made], check=True, timeout=PATIENCE)
        made.touch()
        made.replace(archive)


def remove_unused(folder: Path) -> None:
    """Remove archives that are of no use any more; the file beside one names its Spark."""
    for archive in folder.glob("classes-*.jsa"):
        note = archive.with_suffix(".lock")
        with contextlib.suppress(FileNotFoundError):  # another run removes it, too
            made_from = note.read_text()
            gone = made_from and not Path(made_from).exists()
            if gone or time.time() - archive.stat().st_mtime > UNUSED:
                archive.unlink()
                note.unlink()


def main(archive: str) -> None:
    """Start Spark, ask it something, and let its JVM write the classes down when it ends."""
    options = f"{SMALL} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory(prefix="pst-classes-") as home:
        settings = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": options}
        spark = Spark(Settings(home=Path(home), spark=settings))
        warm(spark.session(), Path(home) / "warm")
        gateway = spark.session().sparkContext._gateway
        assert gateway is not None  # Spark runs
        spark.stop()
        gateway.proc.stdin.close()  # the JVM's sign that the driver has ended
        gateway.proc.wait(PATIENCE)


if __name__ == "__main__":
    main(sys.argv[1])
