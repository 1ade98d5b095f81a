# SPDX-License-Identifier: Apache-2.0
"""Deletion vectors: which rows of a data file are gone, in the form that Delta's readers know.

A vector is a 64-bit roaring bitmap of row positions.  Those of one commit share a file:

    byte 1                      the format's version
    then for each vector        size (4 bytes, big-endian), data, CRC-32 of data (big-endian)
    data                        a magic number (4 bytes, little-endian), the portable bitmap

Source: Delta's protocol, sections "Deletion Vectors" and "Deletion Vector Format".
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from penstock.errors import TableStateError
from penstock.lake.durable import decode_z85, deletion_vector_path, encode_z85

_MAGIC = struct.pack("<I", 1681511377)

Rows = NDArray[np.uint64]
"""Positions of rows in a data file, ascending."""


def read_vector(location: str, descriptor: Mapping[str, Any] | None) -> Rows:
    """The rows of a data file that are gone; TableStateError when the vector is damaged."""
    return np.frombuffer(read_bitmap(location, descriptor).to_array(), np.uint64)


def read_bitmap(location: str, descriptor: Mapping[str, Any] | None) -> BitMap64:
    """``read_vector``, as it is kept: a file with millions of rows that are gone has 8 kB for each
    65,536 of its rows at most."""
    if descriptor is None:
        return BitMap64()
    kind, text = descriptor["storageType"], descriptor["pathOrInlineDv"]
    if kind == "i":
        data = decode_z85(text)[: descriptor["sizeInBytes"]]
    else:
        path = Path(location) / deletion_vector_path(text) if kind == "u" else _absolute(text)
        data = _read(path, descriptor.get("offset") or 0, descriptor["sizeInBytes"])
    if data[:4] != _MAGIC:
        raise TableStateError(f"a deletion vector of the table in {location} is damaged")
    gone = BitMap64.deserialize(data[4:])
    if len(gone) != descriptor["cardinality"]:
        raise TableStateError(f"a deletion vector of the table in {location} is damaged")
    return gone


def write_vectors(location: str, gone: Mapping[str, BitMap64]) -> dict[str, dict[str, Any]]:
    """Write the vectors of data files into one file, durable on return; their descriptors."""
    name = uuid.uuid4()
    content = bytearray(b"\x01")
    descriptors: dict[str, dict[str, Any]] = {}
    for path, rows in gone.items():
        data = _MAGIC + rows.serialize()
        descriptors[path] = {
            "storageType": "u",
            "pathOrInlineDv": encode_z85(name.bytes),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }
        content += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    with (Path(location) / f"deletion_vector_{name}.bin").open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return descriptors


def inline_vector(gone: BitMap64) -> dict[str, Any]:
    """The descriptor of a vector that is in no file; what it costs lies in runs of rows."""
    gone.run_optimize()
    data = _MAGIC + gone.serialize()
    return {
        "storageType": "i",
        "pathOrInlineDv": encode_z85(data + bytes(-len(data) % 4)),
        "sizeInBytes": len(data),
        "cardinality": len(gone),
    }


def _absolute(uri: str) -> Path:
    return Path(uri.removeprefix("file:"))


def _read(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        framed = file.read(size + 8)
    data, checksum = framed[4 : size + 4], framed[size + 4 :]
    if (
        struct.pack(">I", len(data)) != framed[:4]
        or struct.pack(">I", zlib.crc32(data)) != checksum
    ):
        raise TableStateError(f"the deletion vector in {path} is damaged")
    return data
