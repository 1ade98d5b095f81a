# SPDX-License-Identifier: Apache-2.0
"""Commits that several subscribers are sent alike are expanded once.

In:   a commit, for a stream of some publications, encoding and time zone.
Out:  its pieces: those that another stream of the same has expanded, or newly expanded ones.

A commit of up to ONE_COMMIT bytes is kept for the others, the latest KEPT bytes of them.  Whoever
comes while it is expanded waits.  A larger commit goes to its stream piece by piece, as fast as its
subscriber takes them, so it is expanded by each; then nobody waits for a slow one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain

from penstock.publish.expand import Piece

ONE_COMMIT = 8 * 1024 * 1024
KEPT = 64 * 1024 * 1024
OBJECTS = 1024
"""Bytes that a commit and a piece cost beside what is in them."""

Pieces = tuple[Piece, ...]


class SharedExpansions:
    """Those of a node; for any thread.  ``kept`` is the limit in bytes."""

    def __init__(self, one_commit: int = ONE_COMMIT, kept: int = KEPT) -> None:
        self._one_commit = one_commit
        self._kept = kept
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, Pieces] = OrderedDict()
        self._bytes = 0
        self._under_way: dict[Hashable, threading.Lock] = {}

    def pieces(self, key: Hashable, expand: Callable[[], Iterator[Piece]]) -> Iterable[Piece]:
        """The pieces of the commit ``key``; ``expand`` makes them.  Raises what it raises."""
        with self._lock:
            turn = self._under_way.setdefault(key, threading.Lock())
        try:
            with turn:
                found = self._get(key)
                return self._expand(key, expand()) if found is None else found
        finally:
            with self._lock:
                self._under_way.pop(key, None)

    def _expand(self, key: Hashable, pieces: Iterator[Piece]) -> Iterable[Piece]:
        first, complete = self._first(pieces)
        if not complete:
            return chain(first, pieces)
        self._keep(key, first)
        return first

    def _first(self, pieces: Iterator[Piece]) -> tuple[Pieces, bool]:
        """What fits into the limit, and whether that is all."""
        first, size = [], 0
        for piece in pieces:
            first.append(piece)
            size += _size(piece)
            if size > self._one_commit:
                return tuple(first), False
        return tuple(first), True

    def _get(self, key: Hashable) -> Pieces | None:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def _keep(self, key: Hashable, pieces: Pieces) -> None:
        with self._lock:
            self._found[key] = pieces
            self._bytes += _cost(pieces)
            while self._bytes > self._kept:
                _, gone = self._found.popitem(last=False)
                self._bytes -= _cost(gone)


def _size(piece: Piece) -> int:
    return OBJECTS + int(piece.messages.content.nbytes + piece.messages.offsets.nbytes)


def _cost(pieces: Pieces) -> int:
    return OBJECTS + sum(map(_size, pieces))
