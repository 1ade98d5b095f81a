# SPDX-License-Identifier: Apache-2.0
"""When the rows of other programs' files came, from logs as Spark and deltalake write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.lake.births import born

Entry = dict[str, Any]


def add(path: str, data_change: bool = True) -> Entry:
    """An action that puts a file in."""
    return {"add": {"path": path, "dataChange": data_change}}


def remove(path: str) -> Entry:
    """An action that takes a file out."""
    return {"remove": {"path": path, "dataChange": True}}


def write(folder: Path, *commits: tuple[str, Entry, list[Entry]], first: int = 0) -> str:
    """A log of these commits (operation, metrics, actions), at 1 s, 2 s and so on."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    for number, (operation, metrics, actions) in enumerate(commits):
        info = {"timestamp": 1000 * (number + 1), "operation": operation}
        lines = [{"commitInfo": info | {"operationMetrics": metrics}}, *actions]
        text = "\n".join(json.dumps(line) for line in lines)
        (log / f"{first + number:020d}.json").write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    ("operation", "metrics", "actions", "known"),
    [
        ("STREAMING UPDATE", {}, [], True),
        ("WRITE", {"numFiles": "1"}, [remove("old")], True),
        ("UPDATE", {"numCopiedRows": "0"}, [remove("old")], True),
        ("UPDATE", {"numCopiedRows": "3"}, [remove("old")], False),
        ("MERGE", {"numTargetRowsCopied": "0"}, [remove("old")], True),
        ("MERGE", {"num_target_rows_copied": 2}, [remove("old")], False),
        ("MERGE", {}, [remove("old"), add("old")], True),
        ("DELETE", {}, [remove("old")], False),
    ],
)
def test_only_commits_of_changed_rows_tell_a_time(
    tmp_path: Path, operation: str, metrics: Entry, actions: list[Entry], known: bool
) -> None:
    """A commit that may have carried rows along says nothing of them."""
    location = write(
        tmp_path,
        ("WRITE", {}, [add("old")]),
        (operation, metrics, [*actions, add("new")]),
        ("DELETE", {}, [remove("new"), add("new")]),  # a deletion vector: the file is older
    )
    expected = {"new": 2_000_000} if known else {}
    assert born(location, 2, ["new"]) == expected


def test_rewrites_restores_and_short_logs(tmp_path: Path) -> None:
    """OPTIMIZE hides the time, RESTORE does not, and a log that begins later has none to tell."""
    location = write(
        tmp_path / "restored",
        ("WRITE", {}, [add("a"), add("b")]),
        ("TRUNCATE", {}, [remove("a"), remove("b")]),
        ("RESTORE", {}, [add("a"), add("b")]),
        ("OPTIMIZE", {}, [remove("b"), add("c", data_change=False)]),
    )
    assert born(location, 3, ["a", "c"]) == {"a": 1_000_000}
    short = write(tmp_path / "short", ("WRITE", {}, [add("later")]), first=7)
    assert born(short, 7, ["later", "earlier"]) == {"later": 1_000_000}
