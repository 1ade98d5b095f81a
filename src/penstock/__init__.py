# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's logical replication for the lakehouse, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.reader import Lake

__version__ = "0.1.0"
__all__ = ["connect"]


def connect(
    home: str | Path | None = None,
    spark: SparkSession | None = None,
    user: str | None = None,
    password: str | None = None,
) -> Lake:
    """The lake of the node that runs on a home; see ``penstock.reader``."""
    from penstock.reader import connect as connect_to_lake  # Spark is loaded only for this

    return connect_to_lake(home, spark, user, password)
