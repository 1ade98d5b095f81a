# SPDX-License-Identifier: Apache-2.0
"""schema_changes = add: a column that the publisher added is added to the lake's table, too.

In:   the work of one relation, what is known of it (workers/published.py), an open commit.
Out:  the missing columns in the control database's table and in the Delta table, in that commit.

A column that the stream names and the lake lacks was not always added on the publisher:

    on the publisher                          here
    ----------------------------------------  ------------------------------------------------
    ADD COLUMN                                added, with the value that its DEFAULT gave to the
                                              rows that existed (pg_attribute.attmissingval):
                                              those rows are not sent again
    ADD COLUMN with a default that differs    not added: the values of existing rows are not sent
    by row, or a rewrite of the table since
    RENAME COLUMN                             not added: its values are in another column here
    a column list that names it only now      not added: the values of existing rows are not sent
    the table dropped and made again          not added: the same

What is not added stops apply with PostgreSQL's error, as everything does with
schema_changes = error; ALTER TABLE here mends it.  A column was added if its attnum is above all
that the table had when its columns were compared last, and the publications are the same as then.
A type that is not PostgreSQL's own becomes text, and so does one whose values the subscription
holds as text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from penstock.change.relation import LakeTable
from penstock.client.standing import PublisherColumn, Standing, columns_now, standings
from penstock.control.catalog import Subscription
from penstock.control.commits import Commit
from penstock.names import quote_pg, quote_pg_literal, quote_pg_qualified
from penstock.sync.work import TableWork
from penstock.workers.published import Known, PublishedTables, keep

log = logging.getLogger(__name__)


def follow_columns(
    published: PublishedTables,
    subscription: Subscription,
    commit: Commit,
    table: LakeTable,
    work: TableWork,
    known: Known | None,
) -> dict[str, str]:
    """Add the columns that were added on the publisher, and take note of all that it sends.

    ``known`` is None for a table of which nothing is known; then nothing is added, nor is it with
    schema_changes = error.  Returns what is not null in the rows that existed when a column was
    added, in its type's output form: rows of the same work that were sent before have that, too.
    """
    added: dict[str, str] = {}
    sent = {column.name for file in work.files for column in file.relation.columns}
    oids = {file.relation.oid for file in work.files}
    if known is None or (sent <= known.columns and oids == {known.standing.oid}):
        return added
    as_text = subscription.mapping.text_types
    with published.connect() as publisher:
        now = standings(publisher, subscription.publications, [work.name]).get(work.name)
        columns = {} if now is None else columns_now(publisher, now.oid, as_text)
    if now is None:  # it has another name by now
        return added
    before, natts = known.standing, now.natts
    if oids == {before.oid} and now.oid == before.oid:
        natts = max(before.natts, _seen(columns, sent, now.natts))
        if subscription.schema_changes == "add" and now.publications == before.publications:
            missing = sent - {column.name for column in table.columns}
            for name in sorted(missing & columns.keys(), key=lambda name: columns[name].attnum):
                if _was_added(columns[name], before, now):
                    _add_column(commit, table, name, columns[name])
                    if (value := columns[name].missing) is not None:
                        added[name] = value
    after = replace(before, oid=now.oid, natts=natts, files=now.files)
    after_all = replace(known, standing=after, columns=frozenset(sent))
    keep(commit.conn, subscription.oid, table.relid, after_all)
    return added


def _was_added(column: PublisherColumn, before: Standing, now: Standing) -> bool:
    """Whether a column was added since, and what it holds in the rows that existed is known."""
    rewritten = any(now.files.get(oid, file) != file for oid, file in before.files.items())
    return column.attnum > before.natts and (column.missing is not None or not rewritten)


def _seen(columns: Mapping[str, PublisherColumn], sent: set[str], natts: int) -> int:
    """The highest attnum of these columns; all of them when one has another name by now."""
    if not sent <= columns.keys():
        return natts
    return max(columns[name].attnum for name in sent)


def _add_column(commit: Commit, table: LakeTable, name: str, column: PublisherColumn) -> None:
    target, kind, value = (
        quote_pg_qualified(table.schema, table.name),
        column.type_name,
        column.missing,
    )
    default = "" if value is None else f" DEFAULT {quote_pg_literal(value)}::{kind}"
    commit.conn.execute(
        f"ALTER TABLE {target} ADD COLUMN {quote_pg(name)} {kind}{default}".encode()
    )
    if default:
        commit.conn.execute(
            f"ALTER TABLE {target} ALTER COLUMN {quote_pg(name)} DROP DEFAULT".encode()
        )
    log.info('table "%s.%s" has the new column "%s"', table.schema, table.name, name)
