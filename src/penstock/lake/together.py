# SPDX-License-Identifier: Apache-2.0
"""Several Delta tables of one definition as one DataFrame: the leaves of a partitioned table.

In:   tables in local folders, each at a version.
Out:  groups of those that are alike; the rows of a group, read as one table's.

Spark needs 10 ms to know a table and 40 ms to plan, start and end its part of a union, however
little is in it.  A file in a Delta log may have an absolute path, as in a shallow clone: so the
first table of a group is read as if the others' files were its own.  Vectors go the same way.
A table of many files stays alone, as Delta then leaves files out by their statistics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from penstock.lake.checksum import write_checksum
from penstock.lake.durable import deletion_vector_path
from penstock.lake.log import Contents, DataFile, contents
from penstock.lake.scan import LISTED_FILES, scan, scan_files


@dataclass(frozen=True)
class Version:
    """A table at a version, and what that has."""

    location: str
    number: int
    found: Contents


def alike(tables: Sequence[tuple[str, int]]) -> list[list[Version]]:
    """Tables, by location and version, whose files can be read as those of one."""
    groups: dict[str, list[Version]] = {}
    for location, number in tables:
        found = contents(location, number)
        groups.setdefault(_definition(location, found), []).append(Version(location, number, found))
    return list(groups.values())


def scan_together(session: SparkSession, group: Sequence[Version]) -> DataFrame:
    """The rows of a group that ``alike`` has made."""
    first = group[0]
    if len(first.found.files) > LISTED_FILES:
        return scan(session, first.location, first.number)
    write_checksum(first.location, first.number, first.found)
    return scan_files(session, first.location, first.number, _files(group))


def _definition(location: str, found: Contents) -> str:
    if len(found.files) > LISTED_FILES:
        return location
    # Features are a set, which each writer has in an order of its own.
    protocol = {n: sorted(v) if isinstance(v, list) else v for n, v in found.protocol.items()}
    same = (found.metadata.get(n) for n in ("schemaString", "partitionColumns", "configuration"))
    return json.dumps([protocol, *same], sort_keys=True)


def _files(group: Sequence[Version]) -> Iterator[DataFile]:
    for each in group:
        folder = Path(each.location).resolve().as_uri()
        for file in each.found.files.values():
            yield DataFile(_absolute(folder, file.add))


def _absolute(folder: str, add: Mapping[str, Any]) -> Mapping[str, Any]:
    """An action with absolute paths; in a log they are relative, and are URIs."""
    path, vector = add["path"], add.get("deletionVector")
    made = dict(add) if urlsplit(path).scheme else {**add, "path": f"{folder}/{path}"}
    if vector and vector["storageType"] == "u":
        file = quote(deletion_vector_path(vector["pathOrInlineDv"]))
        made["deletionVector"] = {
            **vector,
            "storageType": "p",
            "pathOrInlineDv": f"{folder}/{file}",
        }
    return made
