# SPDX-License-Identifier: Apache-2.0
"""The lowest layer: errors, LSNs, names, settings, failpoints."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock import errors
from penstock.config import Settings, load_settings
from penstock.errors import InvalidTextError, PenstockError, SlotError
from penstock.failpoints import Failpoint
from penstock.lsn import MAX_LSN, format_lsn, parse_lsn
from penstock.names import quote_pg, quote_pg_literal, quote_spark, quote_spark_literal


def test_errors_survive_a_process_border() -> None:
    """Spark's Python workers send their errors pickled; every field arrives."""
    error = SlotError("gone", detail="d", hint="h", where="w", sqlstate="42704")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is SlotError
    assert str(copy) == "gone\nDETAIL:  d\nHINT:  h\nCONTEXT:  w"
    assert copy.sqlstate == "42704"


def test_every_error_has_a_sqlstate_and_an_own_meaning() -> None:
    """Five characters as PostgreSQL has them, a docstring, one common root."""
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, PenstockError)
            assert len(error.sqlstate) == 5
            assert error.sqlstate.isalnum()
            assert error.__doc__


@given(st.integers(0, MAX_LSN))
def test_an_lsn_survives_its_text(lsn: int) -> None:
    """Every 64-bit position has a text form that reads back as itself."""
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize("text", ["", "0", "/", "0/", "/0", "g/0", "0/0/0", "-1/0", "0/123456789"])
def test_what_is_no_lsn_is_refused(text: str) -> None:
    """With PostgreSQL's words and SQLSTATE."""
    with pytest.raises(InvalidTextError, match="invalid input syntax for type pg_lsn") as refused:
        parse_lsn(text)
    assert refused.value.sqlstate == "22P02"


@pytest.mark.parametrize(
    ("quoted", "expected"),
    [
        (quote_pg('a"b'), '"a""b"'),
        (quote_pg_literal("it's"), "'it''s'"),
        (quote_pg_literal("a\\b"), " E'a\\\\b'"),
        (quote_spark("a`b"), "`a``b`"),
        (quote_spark_literal("it's \\"), "'it\\'s \\\\'"),
    ],
)
def test_quoting(quoted: str, expected: str) -> None:
    """The quote character is doubled or escaped; a zero byte is refused below."""
    assert quoted == expected


def test_a_zero_byte_is_no_name() -> None:
    """PostgreSQL's SQLSTATE for a character that its encoding cannot hold."""
    with pytest.raises(PenstockError) as refused:
        quote_pg("a\0b")
    assert refused.value.sqlstate == "22021"


def test_flags_win_over_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three places of a setting, and the order among them."""
    (tmp_path / "penstock.toml").write_text(
        'listen = "127.0.0.1:1"\nlog_level = "warning"\ndatabase = "from_file"\n'
        '[spark]\n"spark.master" = "local[1]"\n'
    )
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "error")
    monkeypatch.setenv("PENSTOCK_LISTEN", "127.0.0.1:2")
    settings = load_settings(home=tmp_path, listen="127.0.0.1:3")
    assert settings.listen_address == ("127.0.0.1", 3)
    assert settings.log_level == "error"
    assert settings.database == "from_file"
    assert settings.spark == {"spark.master": "local[1]"}


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    """A misspelt name and a value of the wrong form are both named."""
    (tmp_path / "penstock.toml").write_text('listn = "127.0.0.1:1"\n')
    with pytest.raises(ValidationError, match="listn"):
        load_settings(home=tmp_path)
    with pytest.raises(ValidationError, match="must be HOST:PORT"):
        Settings(listen="5533")


@pytest.mark.parametrize("count", [1, 3])
def test_an_armed_failpoint_kills_at_its_count(count: int) -> None:
    """The process dies by SIGKILL when the point is reached for the n-th time, not before."""
    code = (
        "from penstock.failpoints import Failpoint, reach\n"
        "for turn in range(1, 6):\n"
        "    print(turn, flush=True)\n"
        "    reach(Failpoint.APPLY_BEFORE_COMMIT)\n"
        "    reach(Failpoint.DDL_RELAYED)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PENSTOCK_FAILPOINT": f"apply_before_commit:{count}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == [str(turn) for turn in range(1, count + 1)]


def test_a_misspelt_failpoint_is_an_error() -> None:
    """A test that arms a point that does not exist must not pass for want of a kill."""
    done = subprocess.run(
        [sys.executable, "-c", "import penstock.failpoints"],
        env={**os.environ, "PENSTOCK_FAILPOINT": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'nonsense' is not a valid Failpoint" in done.stderr


def test_every_failpoint_is_reached_somewhere() -> None:
    """A failpoint that no code reaches would make its test pass for nothing."""
    source = Path(errors.__file__).parent
    text = "\n".join(path.read_text() for path in source.rglob("*.py"))
    unreached = [point.name for point in Failpoint if f"reach(Failpoint.{point.name})" not in text]
    assert unreached == []
