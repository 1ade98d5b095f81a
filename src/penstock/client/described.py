# SPDX-License-Identifier: Apache-2.0
"""Which definition of each relation holds, when transactions are given on later than they arrive.

In:   Relation messages, numbered as they arrive.
Out:  those that must be repeated behind a transaction with an older definition.
"""

from __future__ import annotations

from collections.abc import Mapping

Described = tuple[int, bytes]
"""A Relation message and its number."""


class DescribedRelations:
    """Which definition of each relation the decoder has, and when it was received.

    A publisher counts a relation as described when it has described it outside of streams, or when
    the streamed transaction commits in which it did, unless the definition has changed since
    (cleanup_rel_sync_cache in pgoutput.c).
    """

    def __init__(self) -> None:
        self._known: dict[int, Described] = {}
        self._received = 0

    def number(self) -> int:
        """A number for a definition that has just arrived."""
        self._received += 1
        return self._received

    def learn(self, message: bytes) -> None:
        """Note a Relation message that came outside of streams."""
        self._known[relation_oid(message)] = (self.number(), message)

    def all(self) -> list[bytes]:
        """The Relation messages that describe what is known."""
        return [message for _, message in self._known.values()]

    def known(self, oids: set[int]) -> list[bytes]:
        """The Relation messages of some relations, as far as they are known."""
        return [self._known[oid][1] for oid in oids if oid in self._known]

    def merge(self, streamed: Mapping[tuple[int, int], Described]) -> list[bytes]:
        """A streamed transaction commits: the Relation messages that must be repeated after it.

        ``streamed``: what it has described, by subtransaction and relation.
        """
        newest: dict[int, Described] = {}
        for (_, oid), described in streamed.items():
            newest[oid] = max(described, newest.get(oid, described))
        repeated = []
        for oid, described in newest.items():
            known = self._known.setdefault(oid, described)
            if known[0] <= described[0]:
                self._known[oid] = described
            elif known[1] != described[1]:
                repeated.append(known[1])
        return repeated


def relation_oid(message: bytes) -> int:
    """The relation that a Relation message is about."""
    return int.from_bytes(message[1:5])
