# SPDX-License-Identifier: Apache-2.0
"""Where a session could be asked for, and must not be: unit tests have no JVM."""

from __future__ import annotations

from pyspark.sql import SparkSession


def no_spark() -> SparkSession:
    """A GetSession that fails the test."""
    raise AssertionError("this needs no Spark")
