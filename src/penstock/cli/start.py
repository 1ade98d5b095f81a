# SPDX-License-Identifier: Apache-2.0
"""``penstock start``: the home, its lock and the log, then the node itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock import __version__
from penstock.config import Settings
from penstock.errors import ConfigurationError, PenstockError
from penstock.home import HomeLock, prepare_home
from penstock.logs import LEVELS, setup_logging

logger = logging.getLogger(__name__)


def parse_spark(given: Sequence[str] | None) -> dict[str, str] | None:
    """``NAME=VALUE`` texts as Spark settings; ConfigurationError for anything else."""
    if not given:
        return None
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise ConfigurationError(
                f'invalid value for option --spark: "{text}"',
                hint="Give a Spark setting with its full name, as in spark.master=local[4].",
            )
        settings[name] = value
    return settings


def start(settings: Settings) -> None:
    """Run the node until it is told to stop.

    ObjectInUseError when another one has the home, other PenstockErrors when it cannot start.
    """
    prepare_home(settings.home)
    with HomeLock.take(settings.home) as lock:
        setup_logging(settings.log_path, settings.log_level)
        logger.info('Penstock %s starts on home "%s"', __version__, settings.home)
        # Spark and numba take two seconds to import; no other command needs them.
        from penstock.app import run_node

        try:
            run_node(settings, lock)
        except PenstockError as error:
            verbose = LEVELS[settings.log_level.lower()] == logging.DEBUG
            logger.error("the node ends: %s", error, exc_info=verbose)
            raise
