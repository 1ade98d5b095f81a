# SPDX-License-Identifier: Apache-2.0
"""Rules about the source itself that no linter knows; CONTRIBUTING.md has them in words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 600  # lines; a file that grows towards it is split by role long before
TEST_LIMIT = 800
SPDX = "# SPDX-License-Identifier: Apache-2.0"
VAGUE = ("utils", "util", "helpers", "common", "misc", "manager")


def python_files(*folders: str) -> Iterator[Path]:
    """Every Python file below the folders."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_files_stay_short() -> None:
    """No source file above 600 lines, no test file above 800."""
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in python_files("src", "tests", "demo", "bench")
        if (lines := len(path.read_text().splitlines()))
        > (TEST_LIMIT if "tests" in path.relative_to(ROOT).parts else LIMIT)
    }
    assert too_long == {}


def test_every_file_says_its_licence_and_its_purpose() -> None:
    """An SPDX line first, then a docstring; empty package files need neither."""
    lacking = [
        str(path.relative_to(ROOT))
        for path in python_files("src", "tests", "demo", "bench")
        if (text := path.read_text())
        and not (text.startswith(SPDX) and ast.get_docstring(ast.parse(text)))
    ]
    assert lacking == []


def test_every_test_says_what_must_hold() -> None:
    """Each test function has a docstring."""
    silent = [
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in python_files("tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_only_waits_sleeps() -> None:
    """Tests wait on conditions; only tests/support/waits.py sleeps, and PostgreSQL when told to."""
    sleeping = [
        str(path.relative_to(ROOT))
        for path in python_files("tests")
        if path.name != "waits.py" and re.search(r"(?<!pg_)\bsleep\(", path.read_text())
    ]
    assert sleeping == []


@pytest.mark.parametrize("word", VAGUE)
def test_no_module_has_a_vague_name(word: str) -> None:
    """A module is named by what it is about."""
    assert [path for path in python_files("src", "tests") if word == path.stem] == []
