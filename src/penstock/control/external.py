# SPDX-License-Identifier: Apache-2.0
"""Is this PostgreSQL server, given by ``--control``, fit to be the control database?

    property                            must be
    --------                            -------
    server version                      16 or later
    role                                superuser
    recovery                            not a standby
    encoding, collation                 UTF8; C, POSIX or of the builtin provider (code point order)
    wal_level                           logical
    max_logical_replication_workers     0: otherwise the server's own workers would apply
                                        subscriptions into the empty relations
    max_replication_slots, max_wal_senders, max_active_replication_origins (since 18)
                                        at least 10
    fsync, full_page_writes             on
    synchronous_commit                  anything but off: staged changes are removed after COMMIT
    event_triggers (since 17)           on
    TimeZone                            UTC

Nothing is changed.  One error names everything that is wrong, with the value found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from penstock.control.address import ControlAddress
from penstock.control.connect import CONNECT_TIMEOUT_S, ControlConnection, connection_error
from penstock.errors import ConfigurationError

MIN_VERSION = 160000
"""Server version number; 16 is the first with pg_subscription.subpasswordrequired and suborigin."""

MIN_SLOTS = 10
"""The ledger's slot, and some subscribers; the same for walsenders and origins."""


@dataclass(frozen=True)
class Requirement:
    """A setting, the test that its value must pass, and the value to set."""

    name: str
    fits: Callable[[str], bool]
    needed: str


def _at_least(number: int) -> Callable[[str], bool]:
    return lambda value: int(value) >= number


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


REQUIREMENTS = (
    Requirement("wal_level", _one_of("logical"), "logical"),
    Requirement("max_logical_replication_workers", _one_of("0"), "0"),
    Requirement("max_replication_slots", _at_least(MIN_SLOTS), str(MIN_SLOTS)),
    Requirement("max_wal_senders", _at_least(MIN_SLOTS), str(MIN_SLOTS)),
    Requirement("max_active_replication_origins", _at_least(MIN_SLOTS), str(MIN_SLOTS)),
    Requirement("fsync", _one_of("on"), "on"),
    Requirement("full_page_writes", _one_of("on"), "on"),
    Requirement("synchronous_commit", lambda value: value != "off", "on"),
    Requirement("event_triggers", _one_of("on"), "on"),
    Requirement("TimeZone", _one_of("UTC", "Etc/UTC"), "UTC"),
)
"""A setting that the server's version does not have is not asked for."""


def check_external(conninfo: str) -> ControlAddress:
    """Connect, check, and say how the node reaches this database.

    ConfigurationError lists what is wrong; ConnectionLostError when it cannot be reached.
    """
    try:
        conn = ControlConnection.connect(
            conninfo,
            autocommit=True,
            application_name="penstock check",
            connect_timeout=CONNECT_TIMEOUT_S,
        )
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(
            "the connection string of the control database cannot be read", detail=f"{error}."
        ) from error
    except psycopg.OperationalError as error:
        raise connection_error(error) from error
    with conn:
        _check_version(conn)
        problems, remedies = _check_settings(conn)
        for problem, remedy in _check_database(conn):
            problems.append(problem)
            remedies.append(remedy)
        if problems:
            raise ConfigurationError(
                "the control database does not have the settings that Penstock needs",
                detail="\n".join(problems),
                hint="\n".join(remedies),
            )
        return _address(conn)


def _check_version(conn: ControlConnection) -> None:
    if conn.info.server_version < MIN_VERSION:
        version = conn.execute("SHOW server_version").fetchone()
        raise ConfigurationError(
            "the control database's server is too old",
            detail=f"It is PostgreSQL {version[0] if version else '?'}; 16 or later is needed.",
        )


def _check_settings(conn: ControlConnection) -> tuple[list[str], list[str]]:
    """Problems, and the statements that mend them."""
    rows = conn.execute("SELECT lower(name), setting, context FROM pg_settings").fetchall()
    found = {name: (setting, context) for name, setting, context in rows}
    problems, remedies, restart = [], [], False
    for requirement in REQUIREMENTS:
        setting, context = found.get(requirement.name.lower(), (None, None))
        if setting is None or requirement.fits(setting):
            continue
        problems.append(
            f'"{requirement.name}" is "{setting}"; needed is "{requirement.needed}"'
            f"{' or more' if requirement.needed.isdecimal() and requirement.needed != '0' else ''}."
        )
        remedies.append(f"ALTER SYSTEM SET {requirement.name} = '{requirement.needed}';")
        restart = restart or context == "postmaster"
    if problems:
        remedies.append("Then restart the server." if restart else "SELECT pg_reload_conf();")
    return problems, remedies


def _check_database(conn: ControlConnection) -> list[tuple[str, str]]:
    """Pairs of problem and remedy for what is not a setting."""
    row = conn.execute(
        "SELECT current_setting('is_superuser') = 'on', pg_is_in_recovery(), datname,"
        " pg_encoding_to_char(encoding), datcollate, datlocprovider::text, current_user"
        " FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    superuser, standby, name, encoding, collation, provider, user = row
    problems = []
    if not superuser:
        problems.append((f'Role "{user}" is not a superuser.', f'ALTER ROLE "{user}" SUPERUSER;'))
    if standby:
        problems.append(("The server is a standby.", "Give the address of its primary."))
    remedy = "CREATE DATABASE lake TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';"
    if encoding != "UTF8":
        problems.append((f'Database "{name}" has encoding {encoding}; needed is UTF8.', remedy))
    # Builtin locales (17) compare by code point, as C does.
    if provider != "b" and (provider != "c" or collation not in ("C", "POSIX")):
        problems.append((f'Database "{name}" has collation "{collation}"; needed is C.', remedy))
    return problems


def _address(conn: ControlConnection) -> ControlAddress:
    info = conn.info
    ours = {"host", "hostaddr", "port", "dbname", "user", "password", "options"}
    session = {"application_name", "client_encoding", "connect_timeout"}
    options = tuple(
        (name, value)
        for name, value in sorted(info.get_parameters().items())
        if name not in ours | session
    )
    return ControlAddress(info.host, info.port, info.dbname, info.user, info.password, options)
