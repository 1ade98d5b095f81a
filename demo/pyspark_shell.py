# SPDX-License-Identifier: Apache-2.0
"""A plain PySpark session on one Delta table of the lake: ``python -m demo.pyspark_shell FOLDER``.

Nothing of the node is involved: the tables are ordinary Delta tables.
"""

from __future__ import annotations

import code
import sys
from pathlib import Path

from penstock.config import Settings
from penstock.lake.session import Spark


def main(folder: str) -> None:
    """Show the table, then give a prompt with ``spark`` and ``table``."""
    home = Path(folder).resolve().parents[1]
    spark = Spark(Settings(home=home, spark={"spark.master": "local[2]"})).session()
    table = spark.read.format("delta").load(folder)
    table.printSchema()
    table.show(5)
    code.interact(
        banner="spark is the session, table the DataFrame; Ctrl-D ends.",
        local={"spark": spark, "table": table},
    )


if __name__ == "__main__":
    main(sys.argv[1])
