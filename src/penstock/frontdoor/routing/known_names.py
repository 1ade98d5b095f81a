# SPDX-License-Identifier: Apache-2.0
"""Names of all user relations: a statement without any of them cannot read a lake table.

That makes catalog queries cheap: they are relayed without planning them first.  Invariants:

* A name is here before any statement can use it: names are loaded at start, and the front door
  adds those of each definition before the session that made it goes on, so before it commits.
* Names are never taken away, so the set may hold too many: such a statement is only planned first.
* Schemas do not matter, nor does search_path: equal names are enough.
* What a transaction has named that was prepared before the node's start is not known until it is
  committed.  While there is one (``knows_all`` is false), any name may be that of a lake table.
* Temporary tables are not here (they hold no lake data), temporary views are (they may read it).

``may_name_any`` looks at raw words, without lexing: words in strings and comments count too.  For a
name with characters other than letters, digits and _, its longest word stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from penstock.errors import PenstockError
from penstock.frontdoor.actions import Backend
from penstock.sql.commands_guards import CLIENT_FUNCTIONS
from penstock.sql.tokens import NAME_BYTES, fold

_WORD = re.compile(r"[A-Za-z0-9_\x80-\U0010ffff]+")
_UNICODE_NAME = '&"'
_LONG = NAME_BYTES - 3
"""A name of so many bytes may be longer in a statement's text: PostgreSQL cuts at a character."""

_USER_RELATIONS = """
SELECT c.relname, c.relkind FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'penstock')
  AND (c.relpersistence <> 't' OR c.relkind = 'v')"""

_NODE_FUNCTIONS = """
SELECT p.proname, min(p.pronargs - p.pronargdefaults) FROM pg_catalog.pg_proc p
WHERE p.pronamespace = 'penstock'::pg_catalog.regnamespace GROUP BY 1"""

_CHANGED_RELATIONS = """
SELECT c.relname, c.relkind FROM pg_catalog.pg_class c
WHERE c.oid IN (SELECT e.relid FROM penstock.ddl_event e
                WHERE e.xid = pg_catalog.pg_current_xact_id_if_assigned() AND NOT e.dropped)
   OR (c.relnamespace = pg_catalog.pg_my_temp_schema() AND c.relkind = 'v')"""

_PREPARED = """
SELECT x.gid FROM pg_catalog.pg_prepared_xacts x
WHERE x.database = pg_catalog.current_database()"""


class KnownNames:
    """The set; one for a node, used from its event loop only."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.views: set[str] = set()
        self.node_functions: dict[str, int] = {}
        """Functions of the schema penstock that clients do not call -> their fewest arguments."""
        self._words: set[str] = set()
        self._any_long = False
        self._prepared: set[str | None] = set()

    @property
    def knows_all(self) -> bool:
        """Whether a name that is not in the set is certainly not that of a user relation."""
        return not self._prepared

    def add(self, name: str, *, is_view: bool = False) -> None:
        """Add the name of a relation, as pg_class has it."""
        self.names.add(name)
        if is_view:
            self.views.add(name)
        words = _WORD.findall(fold(name))
        self._words.add(max(words, key=len, default=""))
        self._any_long = self._any_long or len(name.encode()) >= _LONG

    def may_name_any(self, sql: str, others: frozenset[str]) -> bool:
        """Whether a text may name a relation of the set, or contains one of the other words.

        True is the safe answer: it may be wrong, False never is.
        """
        if self._prepared or self._any_long or _UNICODE_NAME in sql:
            return True
        words = set(_WORD.findall(fold(sql)))
        if "" in self._words and '"' in sql:
            return True
        return not (self._words.isdisjoint(words) and others.isdisjoint(words))

    def load(self, conn: psycopg.Connection[Any]) -> None:
        """Take the names of all relations that there are; before the first client is let in."""
        self._prepared = {gid for (gid,) in conn.execute(_PREPARED)}  # first: one may be committed
        self._take(conn.execute(_USER_RELATIONS))
        functions = dict(conn.execute(_NODE_FUNCTIONS).fetchall())
        self.node_functions = {
            name: count for name, count in functions.items() if name not in CLIENT_FUNCTIONS
        }

    async def take_changes(self, backend: Backend) -> None:
        """Take the names that the current transaction's definitions brought."""
        self._take(await backend.query(_CHANGED_RELATIONS))

    async def prepared_ended(self, backend: Backend) -> None:
        """Take the names that came with transactions that were prepared before the start."""
        still = {gid for (gid,) in await backend.query(_PREPARED)}
        self._take(await backend.query(_USER_RELATIONS))
        self._prepared &= still

    def _take(self, rows: Iterable[Sequence[str | None]]) -> None:
        for name, kind in rows:
            if name is None:
                raise PenstockError("a relation of the control database has no name")
            self.add(name, is_view=kind == "v")
