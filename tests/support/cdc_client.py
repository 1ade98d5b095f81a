# SPDX-License-Identifier: Apache-2.0
"""pypgoutput, a CDC client from PyPI, as a process: ``python -m tests.support.cdc_client``.

Arguments: the slot, the publication, how many changes, and the connection's parameters as
NAME=VALUE.  It prints each change as a line of JSON, then ends.  It was written for pydantic 1,
which today's pydantic still has inside.
"""

from __future__ import annotations

import json
import sys

import pydantic.v1

sys.modules["pydantic"] = pydantic.v1

import pypgoutput  # noqa: E402


def main(slot: str, publication: str, count: str, *parameters: str) -> None:
    """Read, and print."""
    given = dict(each.split("=", 1) for each in parameters)
    reader = pypgoutput.LogicalReplicationReader(publication, slot, **given)
    for _ in range(int(count)):
        event = next(reader)
        table = f"{event.table_schema.schema_name}.{event.table_schema.table}"
        print("event", json.dumps([event.op, table, event.before, event.after], default=str))
    reader.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
