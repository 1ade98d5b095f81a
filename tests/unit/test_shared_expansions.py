# SPDX-License-Identifier: Apache-2.0
"""A commit that several subscribers are sent alike is expanded once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.frontdoor.replication.shared import SharedExpansions
from penstock.pgoutput.describe import Messages
from penstock.publish.expand import Piece


def piece(size: int, letter: bytes = b"I") -> Piece:
    """One message of a size."""
    content = np.frombuffer(letter * size, np.uint8)
    return Piece((), Messages(content, np.array([0, size], np.int64)))


class Commits:
    """Counts how often a commit is expanded."""

    def __init__(self, *pieces: Piece) -> None:
        self.expanded = 0
        self._pieces = pieces

    def __call__(self) -> Iterator[Piece]:
        self.expanded += 1
        yield from self._pieces


def test_small_commits_are_kept_and_large_ones_are_not() -> None:
    """The second stream gets what the first one has made; a large commit each makes itself."""
    shared = SharedExpansions(one_commit=10_000)
    small, large, nothing = Commits(piece(10)), Commits(piece(9_000), piece(9_000)), Commits()
    for key, commits, times in (("s", small, 1), ("l", large, 3), ("n", nothing, 1)):
        made = [list(shared.pieces(key, commits)) for _ in range(3)]
        assert commits.expanded == times
        sizes = [[len(each.messages.content) for each in pieces] for pieces in made]
        assert sizes[0] == sizes[1] == sizes[2] == [len(p.messages.content) for p in commits()]


def test_the_oldest_go_first() -> None:
    """No more is kept than the limit, and what was asked for last stays."""
    shared = SharedExpansions(kept=30_000)
    commits = Commits(piece(5_000))
    for key in (1, 2, 3, 4, 1, 5, 1, 2):
        assert len(list(shared.pieces(key, commits))) == 1
    assert commits.expanded == 6  # 2 again: it had gone


def test_who_comes_meanwhile_waits_and_an_error_is_not_kept() -> None:
    """Two threads ask for one commit: one expands it.  What failed is tried again."""
    shared = SharedExpansions()
    began, may_end = threading.Event(), threading.Event()
    expanded: list[int] = []
    got: list[int] = []

    def slow() -> Iterator[Piece]:
        expanded.append(1)
        began.set()
        assert may_end.wait(10)
        yield piece(10)

    def ask() -> None:
        got.append(len(list(shared.pieces("key", slow))))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    assert began.wait(10)
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert (got, expanded) == ([1, 1], [1])

    def fail(size: int) -> Piece:
        raise PenstockError("division by zero", sqlstate="22012", detail=f"{size}")

    def failing() -> Iterator[Piece]:
        return map(fail, [1])

    for _ in range(2):
        with pytest.raises(PenstockError, match="division by zero"):
            list(shared.pieces("other", failing))
