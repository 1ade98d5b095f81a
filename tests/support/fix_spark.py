# SPDX-License-Identifier: Apache-2.0
"""One Spark session for the whole test session, built as a node builds it, but small.

spark          the session; do not change its settings
spark_worker   a session of the test's own on it (settings and views of its own)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.config import Settings
from penstock.lake.session import build_session, worker_session

SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    # Short queries on few rows: the quick compiler alone halves the time of hundreds of them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with Delta, as ``build_session`` makes it."""
    home = tmp_path_factory.mktemp("spark-home")
    session = build_session(Settings(home=home, spark=SMALL))
    yield session
    session.stop()


@pytest.fixture
def spark_worker(spark: SparkSession) -> SparkSession:
    """A session of the test's own."""
    return worker_session(spark)
