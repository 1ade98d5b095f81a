# SPDX-License-Identifier: Apache-2.0
"""What every worker of a node shares."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config import Settings
from penstock.control.address import ControlAddress
from penstock.lake.session import Spark


@dataclass(frozen=True)
class WorkerContext:
    """The node as its workers see it.

    ``publisher_user`` is the role that a connection string without a user means: the OS user of
    the control database's server, since that server opens the first connection to a publisher;
    None where that is not known.
    """

    settings: Settings
    control: ControlAddress
    spark: Spark
    publisher_user: str | None
