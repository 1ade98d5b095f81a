# SPDX-License-Identifier: Apache-2.0
"""Delta's checksum file of a version: with it, Spark knows a table's definition without a job.

In:   a version of a table in a local folder, and its data files.
Out:  ``_delta_log/<version>.crc``, there whole or not at all; nothing depends on it.

Delta looks for a version's protocol and metadata there first, and otherwise computes them by a
Spark job over the log: 90 ms for each table that has a new version, 10 ms with the file.  Spark
writes one with each commit of its own; we write one when a query first reads a version.

Source: Delta's protocol, section "Version Checksum File".
"""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path

from penstock.lake.durable import log_entry
from penstock.lake.log import Contents

_UNTOLD = frozenset({"inCommitTimestamp", "domainMetadata", "rowTracking", "catalogManaged"})
"""Features of tables whose checksum has more in it."""

log = logging.getLogger(__name__)


def has_checksum(location: str, version: int) -> bool:
    """Whether the file is there, of whomever."""
    return _path(location, version).exists()


def write_checksum(location: str, version: int, found: Contents) -> None:
    """Write the file, unless it is there, or the table is one that we would not describe whole."""
    path = _path(location, version)
    features = found.protocol.get("writerFeatures") or ()
    if path.exists() or not _UNTOLD.isdisjoint(features):
        return
    checksum = {
        "tableSizeBytes": sum(file.add["size"] for file in found.files.values()),
        "numFiles": len(found.files),
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": found.metadata,
        "protocol": found.protocol,
    }
    try:
        _place(path, json.dumps(checksum))
    except OSError as error:  # a full disk: the query goes on, and takes longer
        log.warning("no checksum file for version %s of %s: %s", version, location, error)


def remove_checksums(location: str, before: int) -> None:
    """Remove those of the versions before one, whose entries are gone: deltalake leaves them."""
    for path in (Path(location) / "_delta_log").glob("[0-9]" * 20 + ".crc"):
        if int(path.stem) < before:
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's of Spark's
            path.unlink(missing_ok=True)


def _path(location: str, version: int) -> Path:
    return log_entry(location, version).with_suffix(".crc")


def _place(path: Path, text: str) -> None:
    draft = path.with_name(f".{uuid.uuid4()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
