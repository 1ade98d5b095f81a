# SPDX-License-Identifier: Apache-2.0
"""A batch for a table with a key: its net effect under a policy, and the conflicts that it met.

Under ``error``, the default, conflicts are the exception: nothing is looked up for them until one
is met.  Then the batch is judged (conflicts.py) to say which changes they are.
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from penstock.apply.batch import TableBatch
from penstock.apply.conflicts import Judged, Policy
from penstock.apply.describe import Reader, conflicts_of, violation
from penstock.apply.index import KeyIndex, Mappings
from penstock.apply.keyed import KeyedSource, KnownKeys, keyed_source
from penstock.apply.look_up import look_up_keys
from penstock.apply.net import OP_INSERT
from penstock.apply.resolve import Setting, judged, resolved_source
from penstock.change.relation import LakeTable
from penstock.control.conflict_log import Conflicts, LoggedConflict
from penstock.errors import UniqueViolationError


class KeyExistsError(UniqueViolationError):
    """A key exists already; ``conflict`` describes it, ``table`` is where."""

    def __init__(
        self, error: UniqueViolationError, table: LakeTable, conflict: LoggedConflict
    ) -> None:
        super().__init__(error.message, detail=error.detail)
        self.position = error.position
        self.table = table
        self.conflict = conflict


class Keyed:
    """One batch for one table with a key."""

    def __init__(
        self,
        batch: TableBatch,
        target: LakeTable,
        mappings: Mappings,
        index: KeyIndex,
        policy: Policy,
    ) -> None:
        self._tables = [target, *batch.siblings]
        filled = next(iter(mappings.values())).defaults.keys() - {
            column.name for relation in mappings for column in relation.columns
        }
        if batch.computed is not None:
            filled |= set(batch.computed.column_names)
        gaps = {
            c.name
            for c in target.columns
            if c.not_null and not c.generated and c.name not in filled
        }
        self._empty = all(table.version is None for table in self._tables)
        self._setting = Setting(target, batch, policy, self._empty, frozenset(gaps))
        self._index = index
        self._mappings = mappings
        look_up = None if self._empty else self._look_up
        self._reader = Reader(batch, target, mappings, index, look_up)

    def source(self) -> KeyedSource:
        """What the batch does to the table.

        UniqueViolationError under ``error``, UnresolvedConflictError under last_update_wins.
        """
        setting = self._setting
        if setting.policy is Policy.ERROR:
            try:
                return keyed_source(
                    setting.batch,
                    setting.target,
                    self._mappings,
                    self._index,
                    self._look_up,
                    self._empty,
                )
            except UniqueViolationError as error:
                raise self.violated(error) from None
        return resolved_source(self._index, self._mappings, *self._judged, setting)

    def violated(self, error: UniqueViolationError) -> KeyExistsError:
        """The error with the conflict that it is."""
        assert error.position is not None
        change = error.position - self._index.first
        inserted = self._index.op[change] == OP_INSERT
        kind = "insert_exists" if inserted else "update_exists"
        conflict = violation(self._reader, change, kind)
        return KeyExistsError(error, self._setting.target, conflict)

    def conflicts(self, missing: tuple[int, int]) -> Conflicts:
        """What was met; ``missing`` are updates and deletes whose row was, counted otherwise."""
        if self._setting.policy is Policy.ERROR and not any(missing):
            return Conflicts()
        return conflicts_of(self._judged[0], self._reader)

    @cached_property
    def _judged(self) -> tuple[Judged, KnownKeys]:
        return judged(self._index, self._look_up, self._setting)

    def _look_up(self, keys: pa.Table, columns: list[str]) -> pa.Table:
        return look_up_keys(self._tables, keys, columns)
