# SPDX-License-Identifier: Apache-2.0
"""A Spark program of its own, to be killed: it writes into a table, says so, and does not commit.

python -m tests.support.lake_program HOME TABLE JAVA_OPTIONS
"""

from __future__ import annotations

import sys
from pathlib import Path

import penstock
from penstock.config import Settings
from penstock.lake.session import Spark


def main(home: Path, table: str, java_options: str) -> None:
    """Append three rows, print ``written``, and wait for the end of standard input."""
    wanted = {"spark.master": "local[1]", "spark.driver.extraJavaOptions": java_options}
    spark = Spark(Settings(home=home, spark=wanted)).session()
    with penstock.connect(home, spark) as lake, lake.transaction() as tx:
        tx.append(table, spark.range(3))
        print("written", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
