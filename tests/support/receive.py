# SPDX-License-Identifier: Apache-2.0
"""A receiver as a process of its own, to be killed: ``python -m tests.support.receive``.

Arguments: the staging folder, the connection string, the slot, the publication.  It receives until
something ends it; the segments that it leaves are the test's to read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event

from penstock.client.receiver import Receiver, StreamOptions
from penstock.staging.log import StagingLog


def main(folder: str, conninfo: str, slot: str, publication: str) -> None:
    """Receive; raises what ends the stream."""
    log = StagingLog(Path(folder))
    options = StreamOptions("sub", conninfo, slot, (publication,))
    receiver = Receiver(options, log, lambda: log.end_lsn)
    receiver.start()
    while True:
        receiver.check()
        Event().wait(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
