# SPDX-License-Identifier: Apache-2.0
"""What a subscription may do to a table: the checks of PostgreSQL's apply and table sync.

    run_as_owner   acts as                   and first
    ------------   -------                   ---------
    false          the table's owner         the subscription's owner must be able to SET ROLE to it
    true           the subscription's owner

    a change       needs on the table that holds the row
    --------       -------------------------------------
    INSERT, copy   INSERT
    UPDATE         SELECT, UPDATE
    DELETE         SELECT, DELETE
    TRUNCATE       TRUNCATE

and row-level security must not apply to the role, for any of them.  Of a partitioned table the
owner is the root's; privileges are looked at where rows are: a copy's on the root, a change's on
the leaves (PostgreSQL: on the leaf of its row).

Source: SwitchToUntrustedUser in usercontext.c, TargetPrivilegesCheck and FindReplTupleInLocalRel
in worker.c, LogicalRepSyncTableStart in tablesync.c, check_enable_rls in rls.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psycopg.rows import class_row

from penstock.control.catalog import Subscription, not_a_lake_table
from penstock.control.connect import ControlConnection
from penstock.errors import FeatureNotSupportedError, InsufficientPrivilegeError, PenstockError

NEEDED = {
    "I": ("INSERT",),
    "U": ("SELECT", "UPDATE"),
    "D": ("SELECT", "DELETE"),
    "T": ("TRUNCATE",),
}
"""The privileges that a change needs, by its op."""

_FACTS = """
SELECT u.rolname AS subscriber, o.rolname AS owner, a.rolname AS actor,
       pg_has_role(u.oid, o.oid, 'SET') AS may_switch,
       t.relname AS name,
       array(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p
             WHERE has_table_privilege(a.oid, t.oid, p)) AS privileges,
       t.relrowsecurity AND NOT (
           a.rolsuper OR a.rolbypassrls
           OR (pg_has_role(a.oid, t.relowner, 'USAGE') AND NOT t.relforcerowsecurity)
       ) AS row_security
FROM pg_class r
JOIN pg_roles u ON u.oid = %(subscriber)s::oid
JOIN pg_roles o ON o.oid = r.relowner
JOIN pg_roles a ON a.oid = CASE WHEN %(run_as_owner)s THEN u.oid ELSE o.oid END
JOIN pg_class t ON t.oid = ANY(%(tables)s::oid[])
WHERE r.oid = %(root)s::oid
ORDER BY t.oid"""


@dataclass(frozen=True)
class _Facts:
    """What the catalog says of the role that acts, and of one table."""

    subscriber: str
    owner: str
    actor: str
    may_switch: bool
    name: str
    privileges: list[str]
    row_security: bool

    def denied(self, needed: Iterable[str]) -> PenstockError | None:
        if not self.may_switch and self.actor == self.owner:
            return InsufficientPrivilegeError(
                f'role "{self.subscriber}" cannot SET ROLE to "{self.owner}"',
                hint=f'GRANT "{self.owner}" TO "{self.subscriber}", or set run_as_owner = true for'
                " the subscription.",
            )
        if not set(self.privileges).issuperset(needed):
            return InsufficientPrivilegeError(f"permission denied for table {self.name}")
        if self.row_security:
            return FeatureNotSupportedError(
                f'user "{self.actor}" cannot replicate into relation with row-level security'
                f' enabled: "{self.name}"'
            )
        return None


def denied_changes(
    conn: ControlConnection, subscription: Subscription, root: int, tables: Iterable[int]
) -> Mapping[str, PenstockError]:
    """The ops that the subscription may not do, each with PostgreSQL's error.

    ``root`` is the relation that changes are published for, ``tables`` those that hold its rows.
    """
    known = _facts(conn, subscription, root, tables)
    denied = {}
    for op, needed in NEEDED.items():
        errors = [error for each in known if (error := each.denied(needed)) is not None]
        if errors:
            denied[op] = errors[0]
    return denied


def check_copy(conn: ControlConnection, subscription: Subscription, relid: int) -> None:
    """Raise PostgreSQL's error when the subscription may not copy into a table.

    InsufficientPrivilegeError (42501); FeatureNotSupportedError (0A000) for row-level security.
    """
    for each in _facts(conn, subscription, relid, [relid]):
        error = each.denied(NEEDED["I"])
        if error is not None:
            raise error


def acting_role(conn: ControlConnection, subscription: Subscription, relid: int) -> str:
    """The role that apply and copy act as for a relation."""
    row = conn.execute(
        "SELECT pg_get_userbyid(CASE WHEN %s THEN %s::oid ELSE relowner END)"
        " FROM pg_class WHERE oid = %s::oid",
        [subscription.run_as_owner, subscription.owner, relid],
    ).fetchone()
    if row is None:
        raise not_a_lake_table(relid)
    return str(row[0])


def _facts(
    conn: ControlConnection, subscription: Subscription, root: int, tables: Iterable[int]
) -> list[_Facts]:
    values = {
        "subscriber": subscription.owner,
        "run_as_owner": subscription.run_as_owner,
        "root": root,
        "tables": list(tables),
    }
    with conn.cursor(row_factory=class_row(_Facts)) as cursor:
        return cursor.execute(_FACTS, values).fetchall()
