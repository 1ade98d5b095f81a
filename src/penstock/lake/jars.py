# SPDX-License-Identifier: Apache-2.0
"""Delta's jars for Spark: from the folder that a setting names, else fetched once and kept.

Fetching is done by Spark's own resolver in a child process (it honours the user's Maven and proxy
settings), with what Spark brings already left out: Delta's jars ask for an older Hadoop, Parquet
and Jackson, 75 of 87 MB.  Later starts pass the cached files to Spark and resolve nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.lake.cache import cache_folder, new_folder
from penstock.lake.jvm import java_home

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Spark 4.2 with Scala 2.13; a newer wheel of delta-spark exists before its jar does."""

_SPARK_BRINGS = "com.*:*,commons-*:*,io.airlift:*,javax.*:*,org.*:*"


def delta_jars(settings: Settings) -> list[Path]:
    """The jars that a Spark session needs for Delta, fetched if this machine has none yet.

    ConfigurationError when the folder of setting ``jars`` has no Delta in it, or when fetching
    fails.
    """
    if settings.jars is not None:
        return _checked(settings.jars)
    folder = cache_folder() / "jars" / DELTA_PACKAGE.replace(":", "_")
    if not folder.is_dir():
        _fetch(folder)
    return _checked(folder)


def _checked(folder: Path) -> list[Path]:
    jars = sorted(folder.glob("*.jar"))
    names = " ".join(jar.name for jar in jars)
    if "delta-spark" not in names or "delta-storage" not in names:
        raise ConfigurationError(
            f'folder "{folder}" has no Delta jars',
            detail="A delta-spark and a delta-storage jar must be in it.",
            hint=f"Put the jars of {DELTA_PACKAGE} there, or leave the setting jars out.",
        )
    return jars


def _fetch(folder: Path) -> None:
    print("penstock: fetching Delta's jars (once)", file=sys.stderr, flush=True)
    with new_folder(folder) as fresh:
        ivy = fresh / "ivy"
        nothing = fresh / "nothing.py"
        nothing.touch()
        command = [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", "local[1]", "--packages", DELTA_PACKAGE),
            *("--exclude-packages", _SPARK_BRINGS),
            *("--conf", f"spark.jars.ivy={ivy}", str(nothing)),
        ]
        environment = os.environ | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        jars = list((ivy / "jars").glob("*.jar"))
        if run.returncode != 0 or not jars:
            raise ConfigurationError(
                f"could not fetch {DELTA_PACKAGE}",
                detail="\n".join((run.stdout + run.stderr).splitlines()[-15:]),
                hint="On a machine without a network, let the setting jars name a folder that"
                " holds these jars.",
            )
        for jar in jars:
            jar.rename(fresh / jar.name)
        shutil.rmtree(ivy)
        nothing.unlink()
