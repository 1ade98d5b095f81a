# SPDX-License-Identifier: Apache-2.0
"""No password reaches a log, in whatever form a connection string gives it."""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError, ConnectionLostError
from penstock.logs import mask_passwords, printable, setup_logging
from penstock.threads import beside
from tests.support.waits import wait_until

CANARY = "canary7f3a"


@pytest.mark.parametrize(
    "text",
    [
        f"host=h password={CANARY} user=u",
        f"host=h password = {CANARY}",
        f"host=h password={CANARY}&more user=u",
        f"host=h password='{CANARY} two' user=u",
        f"host=h password='a\\' {CANARY}' user=u",
        f"host=h sslpassword={CANARY}",
        f"CREATE SUBSCRIPTION s CONNECTION 'host=h password={CANARY}' PUBLICATION p",
        f"CREATE SUBSCRIPTION s CONNECTION 'host=h password=''a {CANARY}'' user=u' PUBLICATION p",
        f"postgresql://u:{CANARY}@h:5432/d",
        f"postgres://u:p%40{CANARY}@h",
        f"postgresql://h/d?user=u&password={CANARY}",
        f"CREATE ROLE r LOGIN PASSWORD '{CANARY}'",
        f"ALTER ROLE r password E'a\\'{CANARY}'",
        f"{{'host': 'h', 'password': '{CANARY} two'}}",
    ],
)
def test_every_form_of_a_password_is_masked(text: str) -> None:
    """The password is gone, and what stands around it is still there to read."""
    masked = mask_passwords(text)
    assert CANARY not in masked
    assert "********" in masked
    assert masked[:4] == text[:4]


def test_text_about_passwords_is_left_alone() -> None:
    """An error that speaks of passwords without showing one stays whole."""
    text = 'password authentication failed for user "u" on postgresql://u@h/d?sslmode=require'
    assert mask_passwords(text) == text


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """A node's log, set up as ``penstock start`` does; the test run's logging is put back after."""
    root, hook = logging.getLogger(), threading.excepthook
    before = list(root.handlers)
    root.handlers.clear()  # force=True would close pytest's own
    path = tmp_path / "log" / "penstock.log"
    setup_logging(path, "info")
    yield path
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.handlers.extend(before)
    threading.excepthook = hook
    logging.captureWarnings(False)


def test_the_log_masks_messages_arguments_and_tracebacks(log: Path) -> None:
    """The file holds the records, private to its owner, without the password."""
    logger = logging.getLogger("penstock.client")
    logger.info("connecting to %s", f"host=h password={CANARY}")
    try:
        raise ValueError(f"postgresql://u:{CANARY}@h")
    except ValueError:
        logger.exception("lost")
    logger.debug("not at this level")
    text = log.read_text()
    assert "connecting to host=h password=********" in text
    assert "ValueError: postgresql://u:********@h" in text
    assert CANARY not in text
    assert "not at this level" not in text
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_thread_that_ends_with_an_error_is_logged(log: Path) -> None:
    """No thread of the node ends unseen."""

    def fail() -> None:
        raise ValueError(f"password={CANARY}")

    thread = threading.Thread(target=fail, name="apply s")
    thread.start()
    thread.join()
    text = log.read_text()
    assert "CRITICAL  penstock: thread apply s ended with an error" in text
    assert CANARY not in text


def test_a_defect_in_work_beside_is_logged(log: Path) -> None:
    """Nobody may ask for the result; an expected error is told to who asks, and to nobody else."""

    def fail(error: Exception) -> None:
        raise error

    expected = beside(partial(fail, ConnectionLostError("the line is cut")), "copy 1")
    defect = beside(partial(fail, KeyError("no such column")), "copy 2")
    with pytest.raises(KeyError, match="no such column"):
        defect.result()
    assert isinstance(expected.exception(), ConnectionLostError)
    said = "CRITICAL  penstock: thread copy 2 ended with an error"
    wait_until(lambda: said in log.read_text(), 10, "the log")
    assert "copy 1" not in log.read_text()


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    """The error names the parameter and what it can be."""
    with pytest.raises(ConfigurationError, match=r'parameter "log_level": "loud"') as refused:
        setup_logging(tmp_path / "log", "loud")
    assert "debug, info, warning, error" in str(refused.value)


def test_any_text_is_printable() -> None:
    """What would move a terminal's cursor, or begin a line, is escaped; letters are not."""
    assert printable("a\r\nb\x1b[2J\x85\u2029\té 漢") == "a\\r\\nb\\x1b[2J\\x85\\u2029\té 漢"
    assert printable("a\nb", newline="\n\t") == "a\n\tb"
