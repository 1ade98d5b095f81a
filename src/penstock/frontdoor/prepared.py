# SPDX-License-Identifier: Apache-2.0
"""What the extended query protocol keeps of prepared statements and bound portals."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.frontdoor.actions import Action, LakeResult, Relay, RunOnLake
from penstock.frontdoor.exchange import Exchange
from penstock.wire.framing import Message


@dataclass
class Prepared:
    """One prepared statement; ``sql`` is empty for a text without a statement.

    ``routed_at`` says when its action was found, ``used`` whether it was bound since;
    ``described`` has the types of a lake statement's parameters.  ``forgotten`` is that of the
    backend when the name was last known to be this statement's, None until PostgreSQL took it.
    """

    name: bytes
    sql: str
    oids: tuple[int, ...]
    action: Action
    routed_at: tuple[int, int]
    used: bool = False
    described: Exchange | None = None
    forgotten: int | None = None


@dataclass
class LakePortal:
    """A bound lake statement.

    ``types`` has its parameters' types, ``described`` its columns; ``at`` is the next row to send.
    """

    query: RunOnLake
    bind: Message
    types: Exchange
    described: Exchange
    cycle: int
    result: LakeResult | None = None
    at: int = 0


@dataclass
class HookPortal:
    """A bound statement with something to do around its execution."""

    relay: Relay
    sql: str
    cycle: int
    before_has_run: bool = False
