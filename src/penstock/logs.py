# SPDX-License-Identifier: Apache-2.0
"""Logging: to stderr and to a rotating file, in PostgreSQL's manner, never with a password.

Passwords are masked in the finished text of every record, so it does not matter whether one came
in the message, in an argument, in an exception or in a traceback.  Masked forms:

    password=secret   password='se cret'   password=''se cret''   (connection strings, also in SQL)
    postgresql://user:secret@host          ?password=secret       (URIs)
    PASSWORD 'secret'                                             (CREATE and ALTER ROLE)
    'password': 'secret'                                          (a printed mapping)

The penstock loggers have the level of the setting ``log_level``; all others are at WARNING.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from penstock.errors import ConfigurationError

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FILE_BYTES = 10 * 1024 * 1024
OLD_FILES = 5
MASK = "********"

_SECRETS = (
    # In a connection string inside an SQL literal, quotes are doubled: password=''a b''.
    re.compile(r"(password\s*=\s*'')(?:[^'\\]|\\.|'(?!'))+(?='')", re.IGNORECASE | re.DOTALL),
    re.compile(r"(password\s*=\s*')(?:[^'\\]|\\.)+(?=')", re.IGNORECASE | re.DOTALL),
    re.compile(r"(password\s*=\s*)(?!')(?:\\.|[^\s'\\])+", re.IGNORECASE),
    re.compile(r"(\bpassword\s+E?')(?:[^'\\]|\\.|'')+(?=')", re.IGNORECASE | re.DOTALL),
    re.compile(r"""(['"]password['"]\s*:\s*(['"]))(?:(?!\2)[^\\]|\\.)+(?=\2)""", re.IGNORECASE),
    re.compile(r"(postgres(?:ql)?://[^\s:/@]*:)[^\s@]+(?=@)", re.IGNORECASE),
)

# All but the tab; with the separators that str.splitlines knows.
_CONTROLS = re.compile("[\0-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def mask_passwords(text: str) -> str:
    """The same text with every password that it shows replaced by a mask."""
    for secret in _SECRETS:
        text = secret.sub(rf"\g<1>{MASK}", text)
    return text


def printable(text: str, newline: str = r"\n") -> str:
    """A text that stays in its line on any terminal: names may hold any character.

    Control characters and separators of lines become escapes, a line feed ``newline``.
    """
    return _CONTROLS.sub(lambda found: newline if found[0] == "\n" else ascii(found[0])[1:-1], text)


def setup_logging(path: Path, level: str) -> None:
    """Send all logging to stderr and to ``path``, and log what would end a thread unseen.

    Called once, by the process that runs the node.  ConfigurationError for an unknown level.
    """
    if level.lower() not in LEVELS:
        raise ConfigurationError(
            f'invalid value for parameter "log_level": "{level}"',
            hint=f"Available values: {', '.join(LEVELS)}.",
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    formatter = _MaskingFormatter()
    to_file = _PrivateFileHandler(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf8")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr), to_file]
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=handlers, force=True)
    logging.getLogger("penstock").setLevel(LEVELS[level.lower()])
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


class _MaskingFormatter(logging.Formatter):
    """``2026-01-31 09:00:00.000 UTC [pid] LEVEL  logger: message``, passwords masked."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%d %H:%M:%S"
    default_msec_format = "%s.%03d UTC"

    def __init__(self) -> None:
        super().__init__("%(asctime)s [%(process)d] %(levelname)s  %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The whole entry with its traceback; lines after the first start with a tab."""
        return printable(mask_passwords(super().format(record)), newline="\n\t")


class _PrivateFileHandler(RotatingFileHandler):
    """A rotating file that only its owner can read."""

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        opened = open(self.baseFilename, self.mode, encoding=self.encoding, opener=private)  # noqa: SIM115  # closed by the handler
        assert isinstance(opened, TextIOWrapper)
        return opened


def _log_thread_end(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    name = args.thread.name if args.thread is not None else "?"
    logging.getLogger("penstock").critical(
        "thread %s ended with an error",
        name,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )
