# SPDX-License-Identifier: Apache-2.0
"""Every command of PostgreSQL 18's SQL reference, and what the front door does with it.

The names are those of psql's ``\\h``.  The table is an allow-list: a command that is not here is
refused, and so is one whose reason is given.  The one unforgivable error is an empty answer for
data that exists, so whatever could read or fill the empty relations behind the node's back is not
relayed.  ``tests/unit/test_sql_commands.py`` compares the names with psql's.
"""

from __future__ import annotations

from enum import StrEnum


class Treatment(StrEnum):
    """What becomes of a command.

    RELAY         the control database runs it, and it touches no rows of lake tables
    DDL           the control database runs it, then the lake is reconciled in the same transaction
    QUERY         planned first; run on the lake when the plan reads a lake table
    DML           planned first; refused when it writes anything but a temporary table
    CHECKED       contains or names a query; refused when that reads a lake table
    SETTING       relayed unless it changes a setting that the node relies on
    SUBSCRIPTION  our own options are taken out, then relayed
    REFUSED       0A000, with the reason
    """

    RELAY = "relay"
    DDL = "ddl"
    QUERY = "query"
    DML = "dml"
    CHECKED = "checked"
    SETTING = "setting"
    SUBSCRIPTION = "subscription"
    REFUSED = "refused"


def _all(treatment: Treatment, *names: str) -> dict[str, Treatment]:
    return dict.fromkeys(names, treatment)


TREATMENTS: dict[str, Treatment] = {
    **_all(Treatment.QUERY, "SELECT", "TABLE", "VALUES", "WITH"),
    **_all(Treatment.DML, "DELETE", "INSERT", "MERGE", "TRUNCATE", "UPDATE"),
    **_all(
        Treatment.CHECKED,
        "COPY",
        "CREATE TABLE AS",
        "DECLARE",
        "EXECUTE",
        "EXPLAIN",
        "PREPARE",
        "SELECT INTO",
    ),
    **_all(
        Treatment.SUBSCRIPTION, "ALTER SUBSCRIPTION", "CREATE SUBSCRIPTION", "DROP SUBSCRIPTION"
    ),
    **_all(
        Treatment.SETTING,
        "ALTER DATABASE",
        "ALTER ROLE",
        "ALTER SYSTEM",
        "ALTER USER",
        "SET",
    ),
    # Transactions, cursors, session, maintenance, roles and rights.
    **_all(
        Treatment.RELAY,
        "ABORT",
        "ALTER DEFAULT PRIVILEGES",
        "ALTER GROUP",
        "ALTER LARGE OBJECT",
        "ANALYZE",
        "BEGIN",
        "CHECKPOINT",
        "CLOSE",
        "CLUSTER",
        "COMMENT",
        "COMMIT",
        "COMMIT PREPARED",
        "CREATE GROUP",
        "CREATE ROLE",
        "CREATE USER",
        "DEALLOCATE",
        "DISCARD",
        "DROP GROUP",
        "DROP ROLE",
        "DROP USER",
        "END",
        "FETCH",
        "GRANT",
        "LISTEN",
        "LOCK",
        "MOVE",
        "NOTIFY",
        "PREPARE TRANSACTION",
        "REINDEX",
        "RELEASE SAVEPOINT",
        "RESET",
        "REVOKE",
        "ROLLBACK",
        "ROLLBACK PREPARED",
        "ROLLBACK TO SAVEPOINT",
        "SAVEPOINT",
        "SECURITY LABEL",
        "SET CONSTRAINTS",
        "SET ROLE",
        "SET SESSION AUTHORIZATION",
        "SET TRANSACTION",
        "SHOW",
        "START TRANSACTION",
        "UNLISTEN",
        "VACUUM",
    ),
    # Definitions.  What is dropped may take columns and tables with it.
    **_all(
        Treatment.DDL,
        "ALTER COLLATION",
        "ALTER DOMAIN",
        "ALTER EXTENSION",
        "ALTER INDEX",
        "ALTER MATERIALIZED VIEW",
        "ALTER POLICY",
        "ALTER PUBLICATION",
        "ALTER SCHEMA",
        "ALTER SEQUENCE",
        "ALTER STATISTICS",
        "ALTER TABLE",
        "ALTER TEXT SEARCH CONFIGURATION",
        "ALTER TEXT SEARCH DICTIONARY",
        "ALTER TYPE",
        "ALTER VIEW",
        "CREATE COLLATION",
        "CREATE DOMAIN",
        "CREATE EXTENSION",
        "CREATE INDEX",
        "CREATE POLICY",
        "CREATE PUBLICATION",
        "CREATE SCHEMA",
        "CREATE SEQUENCE",
        "CREATE STATISTICS",
        "CREATE TABLE",
        "CREATE TEXT SEARCH CONFIGURATION",
        "CREATE TEXT SEARCH DICTIONARY",
        "CREATE TYPE",
        "CREATE VIEW",
        "DROP ACCESS METHOD",
        "DROP AGGREGATE",
        "DROP CAST",
        "DROP COLLATION",
        "DROP CONVERSION",
        "DROP DOMAIN",
        "DROP EXTENSION",
        "DROP FOREIGN DATA WRAPPER",
        "DROP FOREIGN TABLE",
        "DROP FUNCTION",
        "DROP INDEX",
        "DROP LANGUAGE",
        "DROP MATERIALIZED VIEW",
        "DROP OPERATOR",
        "DROP OPERATOR CLASS",
        "DROP OPERATOR FAMILY",
        "DROP OWNED",
        "DROP POLICY",
        "DROP PROCEDURE",
        "DROP PUBLICATION",
        "DROP ROUTINE",
        "DROP RULE",
        "DROP SCHEMA",
        "DROP SEQUENCE",
        "DROP SERVER",
        "DROP STATISTICS",
        "DROP TABLE",
        "DROP TEXT SEARCH CONFIGURATION",
        "DROP TEXT SEARCH DICTIONARY",
        "DROP TEXT SEARCH PARSER",
        "DROP TEXT SEARCH TEMPLATE",
        "DROP TRANSFORM",
        "DROP TRIGGER",
        "DROP TYPE",
        "DROP USER MAPPING",
        "DROP VIEW",
        "REASSIGN OWNED",
    ),
}

_BEHIND = (
    "It would see the tables of the lake without their rows, which are not in the control database."
)
_CODE = "The lake's queries run on Spark, which cannot run code that PostgreSQL runs."
_FOREIGN = "Foreign data would not be part of the lake, and could read it without its rows."
_ONE = "A node is one database; its files are the node's own."
_NODE = "The node relies on its own event triggers."

REASONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "ALTER FUNCTION",
            "ALTER PROCEDURE",
            "ALTER ROUTINE",
            "ALTER RULE",
            "ALTER TRIGGER",
            "CALL",
            "CREATE FUNCTION",
            "CREATE MATERIALIZED VIEW",
            "CREATE PROCEDURE",
            "CREATE RULE",
            "CREATE TRIGGER",
            "DO",
            "REFRESH MATERIALIZED VIEW",
        ),
        _BEHIND,
    ),
    **dict.fromkeys(
        (
            "ALTER AGGREGATE",
            "ALTER CONVERSION",
            "ALTER LANGUAGE",
            "ALTER OPERATOR",
            "ALTER OPERATOR CLASS",
            "ALTER OPERATOR FAMILY",
            "ALTER TEXT SEARCH PARSER",
            "ALTER TEXT SEARCH TEMPLATE",
            "CREATE ACCESS METHOD",
            "CREATE AGGREGATE",
            "CREATE CAST",
            "CREATE CONVERSION",
            "CREATE LANGUAGE",
            "CREATE OPERATOR",
            "CREATE OPERATOR CLASS",
            "CREATE OPERATOR FAMILY",
            "CREATE TEXT SEARCH PARSER",
            "CREATE TEXT SEARCH TEMPLATE",
            "CREATE TRANSFORM",
            "LOAD",
        ),
        _CODE,
    ),
    **dict.fromkeys(
        (
            "ALTER FOREIGN DATA WRAPPER",
            "ALTER FOREIGN TABLE",
            "ALTER SERVER",
            "ALTER USER MAPPING",
            "CREATE FOREIGN DATA WRAPPER",
            "CREATE FOREIGN TABLE",
            "CREATE SERVER",
            "CREATE USER MAPPING",
            "IMPORT FOREIGN SCHEMA",
        ),
        _FOREIGN,
    ),
    **dict.fromkeys(
        (
            "ALTER TABLESPACE",
            "CREATE DATABASE",
            "CREATE TABLESPACE",
            "DROP DATABASE",
            "DROP TABLESPACE",
        ),
        _ONE,
    ),
    **dict.fromkeys(("ALTER EVENT TRIGGER", "CREATE EVENT TRIGGER", "DROP EVENT TRIGGER"), _NODE),
}
"""Refused commands, with the sentence that becomes the error's DETAIL."""

TREATMENTS.update(dict.fromkeys(REASONS, Treatment.REFUSED))

HINTS: dict[str, str] = {
    "CREATE TABLE AS": "Create the table first, then insert into it.",
    "SELECT INTO": "Create the table first, then insert into it.",
    "CREATE MATERIALIZED VIEW": "Use a view.",
}

EXTENSIONS = frozenset(
    {
        "btree_gin",
        "btree_gist",
        "citext",
        "cube",
        "fuzzystrmatch",
        "hstore",
        "intarray",
        "isn",
        "ltree",
        "pg_trgm",
        "pgcrypto",
        "plpgsql",
        "seg",
        "unaccent",
        "uuid-ossp",
    }
)
"""Extensions of types and plain functions, none of which runs SQL of its own."""
