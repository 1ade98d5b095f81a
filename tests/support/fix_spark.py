# SPDX-License-Identifier: Apache-2.0
"""One Spark session for the whole test session, built as a node builds it, but small.

own_spark      starts it when first asked for
spark          the session; do not change its settings
spark_worker   a session of the test's own on it (settings and views of its own)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.config import Settings
from penstock.lake.session import Spark
from tests.support.class_archive import java_options

SMALL = {"spark.master": "local[2]", "spark.driver.memory": "2g"}


@pytest.fixture(scope="session")
def own_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """Spark with Delta, as a node has it."""
    settings = {**SMALL, "spark.driver.extraJavaOptions": java_options()}
    made = Spark(Settings(home=tmp_path_factory.mktemp("spark-home"), spark=settings))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def spark(own_spark: Spark) -> SparkSession:
    """Its session."""
    return own_spark.session()


@pytest.fixture
def spark_worker(spark: SparkSession) -> SparkSession:
    """A session of the test's own."""
    return spark.newSession()
