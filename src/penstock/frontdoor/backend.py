# SPDX-License-Identifier: Apache-2.0
"""A session's own connection to the control database.

In:   the client's messages (passed on) and questions of our own (Exchange).
Out:  answers to the client, byte for byte, and those of our questions to who asked.

``pump`` reads everything that the control database sends and gives each message to whom it
belongs.  Notices, notifications and parameter changes go to the client whoever caused them.

A question of ours leaves the client's unnamed statement and portal alone: it uses a statement and
a portal of its own name, closed in the same go.  Where it runs:

    the session is ...                          a question ends with   and runs in
    ------------------                          --------------------   -----------
    between commands (synced)                   Sync                   a transaction of its own, or
                                                                       the client's block
    the same, but hold_open                     Flush                  what Sync will end: the
                                                                       statement that follows too
    in a pipeline                               Flush                  the pipeline's transaction

After an error PostgreSQL skips everything up to Sync (``skipping``).  When the error answered a
question of ours the client has not seen it: then it is ``unreported``, and whoever goes on must
report it, even when the one who asked has caught it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.frontdoor.actions import Row
from penstock.frontdoor.endings import Endings
from penstock.frontdoor.exchange import (
    ENDS_WITH_READY,
    LAST_MESSAGES,
    NOTHING,
    Exchange,
    Expected,
    PipelineFailedError,
    Step,
    StreamExchange,
)
from penstock.frontdoor.link import Link
from penstock.wire import requests, responses
from penstock.wire.encodings import encode
from penstock.wire.framing import SERVER_LIMITS, Framing, Message
from penstock.wire.responses import ServerError, TransactionStatus
from penstock.wire.startup import CancelKey

OWN_NAME = b"penstock"
"""Statement and portal of our own questions."""

_UNASKED = frozenset({responses.NOTICE, responses.NOTIFICATION, responses.PARAMETER_STATUS})
_ROW_KINDS = frozenset({responses.DATA_ROW, responses.COPY_DATA})

_BEGINNING_TAGS = frozenset({"BEGIN", "START TRANSACTION"})
_ENDING_TAGS = frozenset({"COMMIT", "ROLLBACK", "PREPARE TRANSACTION"})
_SETTING_TAGS = ("SET", "RESET", "COMMIT", "ROLLBACK", "PREPARE", "DISCARD")
_FORGETTING_TAGS = ("DEALLOCATE", "DISCARD")
_IN_BLOCK = b"\0C25001\0"
"""In the warning about a BEGIN in a block, which the client did not make when it is ours."""
_GOODBYES = (b"VFATAL\0", b"VPANIC\0")

Request = tuple[Step, bytes]


class BinaryRows(NamedTuple):
    """DataRow messages with values in binary, many in each block, and the number of rows."""

    blocks: list[bytes]
    rows: int


class ControlBackend:
    """The control connection of one client (implements actions.Backend)."""

    def __init__(self, link: Link, issue_key: Callable[[CancelKey], CancelKey]) -> None:
        """``issue_key`` makes the client's cancel key out of the real one."""
        self.link = link
        self.ready_status: TransactionStatus = "I"
        """That of the last ReadyForQuery."""
        self.parameters: dict[str, str] = {}
        self._reported: dict[str, str] | None = None
        self.endings = Endings()
        self.logged_in = asyncio.Event()

        self.hold_open = False
        self.synced = True
        self.skipping = False
        self.unreported: ServerError | None = None
        self.copying_in = False
        self.executed = False
        """A statement of the client has run since the last Sync."""
        self.asked = False
        """A question of ours has."""
        self.block_tags = 0
        """How many commands have begun or ended a transaction block."""
        self.block_begun = False
        """The client has begun a block since ``ready_status`` was told."""
        self.own_block = False
        """We have made a block of the client's implicit transaction (blocks.py)."""
        self.deferred = False
        """Rows that the transaction has written violate a constraint that may be deferred."""
        self.own_commands = False
        """The tags that come are those of commands of ours."""
        self.settings_stale = False
        """A command may have changed settings, of which PostgreSQL tells with ReadyForQuery."""
        self.block_ended = False
        """The last command ended a block, or went back in it: a Sync now ends nothing else."""
        self.forgotten = 0
        """How many commands may have removed prepared statements."""
        self.said_goodbye = False
        """The client has been told why the session ends."""
        self.ended = False

        self._issue_key = issue_key
        self._framing = Framing(SERVER_LIMITS)
        self._expected: deque[Expected] = deque()
        self._settled = asyncio.Event()

    @property
    def transaction_status(self) -> TransactionStatus:
        """As in actions.Backend, but T too when an open pipeline has work of the client in it."""
        return "T" if self.ready_status == "I" and self.executed else self.ready_status

    @property
    def client_encoding(self) -> str:
        """The session's client_encoding."""
        return self.parameters.get("client_encoding", "UTF8")

    @property
    def is_answered(self) -> bool:
        """Nothing is on its way."""
        return not self._expected

    @property
    def is_quiet(self) -> bool:
        """Nothing is on its way, and no pipeline is open."""
        return not self._expected and self.synced

    # towards the control database

    def send_startup(self, packet: bytes) -> None:
        """Pass the client's startup packet on."""
        self._expect(Expected(Step.LOGIN))
        self.link.write(packet)

    def pass_on(self, message: Message) -> None:
        """Pass on a message of the client that has no answer of its own (Flush, CopyData, ...)."""
        if message.kind in (requests.COPY_DONE, requests.COPY_FAIL):
            self.copying_in = False
            if self._expected:
                self._expect(Expected(Step.COPY_END))
        self.link.write(message.raw)

    def send(
        self,
        step: Step,
        raw: bytes,
        exchange: Exchange | None = None,
        *,
        last: bool = True,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Send one message; ``exchange`` None: its answer is the client's."""
        if self.ended:
            Expected(step, exchange).lose()
            return
        if step in ENDS_WITH_READY and not (self.skipping and step is Step.QUERY):
            self.synced = True
            self.executed = self.asked = False
            if step is Step.SYNC:
                self.skipping = False
                self.unreported = None
        elif step is not Step.QUERY:
            self.synced = False
        self.link.write(raw)
        expected = Expected(step, exchange, last, then)
        if self.skipping:
            expected.skip()
        else:
            self._expect(expected)

    def ask(
        self,
        wanted: Sequence[Request],
        pass_on: frozenset[int] = NOTHING,
        blocks: list[bytes] | None = None,
    ) -> Exchange:
        """Send messages of our own, and Flush unless the last one is Sync; does not wait."""
        exchange = Exchange(pass_on, blocks)
        for index, (step, raw) in enumerate(wanted):
            self.send(step, raw, exchange, last=index == len(wanted) - 1)
        if wanted[-1][0] not in ENDS_WITH_READY:
            self.link.write(requests.flush())
        return exchange

    async def query(self, sql: str, parameters: Sequence[str | None] = ()) -> list[Row]:
        """Run one statement of ours; see actions.Backend."""
        kept = (await self._run(sql, parameters)).kept
        rows = [message for message in kept if message.kind == responses.DATA_ROW]
        return [responses.parse_row(message, self.client_encoding) for message in rows]

    async def binary_rows(self, sql: str, parameters: Sequence[str | None] = ()) -> BinaryRows:
        """Run one statement of ours that returns rows; values in binary."""
        blocks: list[bytes] = []
        exchange = await self._run(sql, parameters, blocks)
        return BinaryRows(blocks, int(exchange.tag.rpartition(" ")[2]))

    async def command(self, sql: str, parameters: Sequence[str | None]) -> str:
        """Run one statement of ours; its command tag."""
        return (await self._run(sql, parameters)).tag

    async def copy_out(self, sql: str) -> list[Message]:
        """Run a COPY TO STDOUT as a statement of ours; all messages that answer it."""
        return (await self._run(sql, ())).kept

    async def _run(
        self, sql: str, parameters: Sequence[str | None], blocks: list[bytes] | None = None
    ) -> Exchange:
        encoding = self.client_encoding
        values = [None if value is None else encode(value, encoding) for value in parameters]
        bind = requests.bind(OWN_NAME, OWN_NAME, values, binary_results=blocks is not None)
        wanted = [
            # What failed in a block left both behind, and a ROLLBACK must pass all the same.
            (Step.CLOSE, requests.close(requests.PORTAL, OWN_NAME)),
            (Step.CLOSE, requests.close(requests.STATEMENT, OWN_NAME)),
            (Step.PARSE, requests.parse(OWN_NAME, encode(sql, encoding))),
            (Step.BIND, bind),
            (Step.EXECUTE, requests.execute(OWN_NAME)),
            (Step.CLOSE, requests.close(requests.PORTAL, OWN_NAME)),
            (Step.CLOSE, requests.close(requests.STATEMENT, OWN_NAME)),
        ]
        alone = self.synced and not self.hold_open
        sync = [(Step.SYNC, requests.sync())] if alone else []
        exchange = self.ask([*wanted, *sync], blocks=blocks)
        self.asked = not alone
        in_block = self.ready_status == "T"
        try:
            await exchange.wait()
        except ServerError as error:
            if alone and in_block:
                self.unreported = error  # the client's block has failed without its knowing
            raise
        return exchange

    async def settle(self) -> None:
        """Wait until everything that was sent is answered.

        ProtocolError when that cannot be, because a COPY waits for rows and something else came.
        """
        if self._expected and not self.synced:
            self.link.write(requests.flush())
        while self._expected:
            if self.copying_in:
                raise ProtocolError("unexpected message during COPY from stdin")
            self._settled.clear()
            await self._settled.wait()

    async def ask_settings(self, names: Sequence[str]) -> None:
        """Ask for settings that PostgreSQL tells of with ReadyForQuery; they hold until then."""
        shown = ", ".join(f"pg_catalog.current_setting('{name}')" for name in names)
        (values,) = await self.query(f"SELECT {shown}")
        self._reported = self._reported or self.parameters
        self.parameters = self.parameters | dict(zip(names, map(str, values), strict=True))
        self.settings_stale = False

    async def sync(self) -> None:
        """End an open pipeline, so that ``ready_status`` is known; the client is not told."""
        exchange = self.ask([(Step.SYNC, requests.sync())])
        await exchange.wait()

    async def fail_transaction(self) -> None:
        """Make the transaction fail, as PostgreSQL would have for an error of its own.

        In a pipeline everything is then skipped up to Sync.  No Sync is sent here.
        """
        broken = requests.parse(OWN_NAME, b"penstock_statement_failed")
        exchange = self.ask([(Step.PARSE, broken)])
        await exchange.done.wait()
        self.unreported = None

    # from the control database

    async def pump(self, client: Link) -> None:
        """Pass on what the control database sends, until it ends the connection."""
        try:
            while arrived := await self.link.receive():
                self._framing.feed(arrived)
                outgoing: list[bytes] = []
                while (message := self._framing.next()) is not None:
                    if message.kind == responses.BACKEND_KEY_DATA:
                        outgoing.append(self._replace_key(message))
                    elif self._take(message):
                        outgoing.append(message.raw)
                        if message.kind in _ROW_KINDS:
                            outgoing.append(self._framing.skim(message.kind))
                    elif message.kind == responses.DATA_ROW:
                        self._keep_rows()
                if outgoing:
                    client.write(b"".join(outgoing))
                    await client.drain()
                head = self._head()
                if head is not None and isinstance(head.exchange, StreamExchange):
                    await head.exchange.room()
        finally:
            self._end()

    def _take(self, message: Message) -> bool:
        """Give one message to whom it belongs; True when that is the client."""
        kind = message.kind
        if kind in _UNASKED:
            if kind == responses.PARAMETER_STATUS:
                name, value = responses.parse_parameter_status(message)
                reported = self.parameters if self._reported is None else self._reported
                reported[name] = value
            return not (kind == responses.NOTICE and self.own_block and _IN_BLOCK in message.raw)
        head = self._head()
        if kind == responses.ERROR:
            return self._take_error(message, head)
        if kind == responses.READY_FOR_QUERY:
            self._take_ready(message)
        if head is None:
            return True
        if kind in _ROW_KINDS:
            return head.exchange is None or head.exchange.take(message)
        if kind == responses.COMMAND_COMPLETE:
            self._take_tag(responses.parse_command_tag(message))
        elif kind == responses.COPY_IN:
            self._copy_in_started(head)
        if kind == responses.READY_FOR_QUERY and head.step not in ENDS_WITH_READY:
            return True  # a Sync that a failed COPY left over
        return self._finish(head, message)

    def _keep_rows(self) -> None:
        """Give the rows that have come with one that was kept to its exchange, unseen."""
        head = self._head()
        blocks = head.exchange.blocks if head is not None and head.exchange is not None else None
        if blocks is not None:
            blocks.append(self._framing.skim(responses.DATA_ROW))

    def _finish(self, head: Expected, message: Message) -> bool:
        to_client = head.exchange is None or head.exchange.take(message)
        if message.kind in LAST_MESSAGES[head.step]:
            self._expected.popleft()
            if head.then is not None:
                head.then()
            if head.exchange is not None and head.last:
                head.exchange.done.set()
            self._look_settled()
        return to_client

    def _take_tag(self, tag: str) -> None:
        self.copying_in = False
        if self.own_commands:
            return
        self.settings_stale = self.settings_stale or tag.startswith(_SETTING_TAGS)
        self.block_ended = tag in _ENDING_TAGS
        self.forgotten += tag.startswith(_FORGETTING_TAGS)
        self.endings.on_tag(tag)
        if tag in _BEGINNING_TAGS | _ENDING_TAGS:
            self.block_tags += 1
            self.own_block = False
            if tag != "ROLLBACK":  # it may be that to a savepoint
                self.block_begun = tag in _BEGINNING_TAGS

    def _take_ready(self, message: Message) -> None:
        self.ready_status = responses.parse_ready(message)
        self.block_begun = self.settings_stale = False
        if self._reported is not None:
            self.parameters, self._reported = self._reported, None
        self.endings.on_ready(self.ready_status)
        self.copying_in = False
        self.logged_in.set()

    def _take_error(self, message: Message, head: Expected | None) -> bool:
        self.endings.on_error()
        self.copying_in = False
        self.said_goodbye = any(severity in message.raw for severity in _GOODBYES)
        if head is None:
            return True
        exchange = head.exchange
        if exchange is not None:
            exchange.error = responses.parse_error(message, self.client_encoding)
        if head.step in ENDS_WITH_READY:
            return exchange is None
        self._skip_to_sync(exchange)
        if self.skipping and exchange is not None:
            self.unreported = exchange.error
        return exchange is None

    def _skip_to_sync(self, failed: Exchange | None) -> None:
        while self._expected and self._expected[0].step is not Step.SYNC:
            each = self._expected.popleft()
            if each.exchange is not failed:
                each.skip()
        self.skipping = not self._expected
        if failed is not None and (self.skipping or self._expected[0].exchange is not failed):
            failed.done.set()
        self._look_settled()

    def _copy_in_started(self, head: Expected) -> None:
        """COPY reads the client's messages from here on.

        In the extended protocol it ignores each Sync among the rows.
        """
        others = list(self._expected)[1:]
        rows_end = next(
            (place for place, each in enumerate(others) if each.step is Step.COPY_END), len(others)
        )
        self.copying_in = rows_end == len(others)
        self._settled.set()  # who waits must not go on doing so
        if head.step is not Step.EXECUTE:
            return
        kept = [each for each in others[:rows_end] if each.step is not Step.SYNC]
        self._expected = deque([head, *kept, *others[rows_end:]])
        if len(kept) < rows_end and self.copying_in:
            self.synced = False

    def _replace_key(self, message: Message) -> bytes:
        return responses.backend_key_data(self._issue_key(responses.parse_backend_key(message)))

    def _head(self) -> Expected | None:
        while self._expected and self._expected[0].step is Step.COPY_END:
            self._expected.popleft()
        return self._expected[0] if self._expected else None

    def _expect(self, expected: Expected) -> None:
        self._expected.append(expected)

    def _look_settled(self) -> None:
        if self._head() is None:
            self._settled.set()

    def _end(self) -> None:
        self.ended = True
        while self._expected:
            self._expected.popleft().lose()
        self._settled.set()


def raise_unreported(backend: ControlBackend) -> None:
    """Raise what made the control database skip, even when the one who asked has caught it."""
    if backend.unreported is not None:
        raise backend.unreported
    if backend.skipping:
        raise PipelineFailedError("an earlier message of the pipeline failed")


def check_not_copying(backend: ControlBackend, message: Message) -> None:
    """ProtocolError for a message that must not come among the rows of a COPY."""
    if backend.copying_in and message.kind not in b"dcfHSX":
        raise ProtocolError(f"unexpected message type 0x{message.kind:02X} during COPY from stdin")
