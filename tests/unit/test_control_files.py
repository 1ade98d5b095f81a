# SPDX-License-Identifier: Apache-2.0
"""The control database's files: schema steps, secrets, addresses."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.control.address import ControlAddress
from penstock.control.guard import Guard, node_secret, write_private
from penstock.control.migrate import Migration, migrations


def test_schema_steps_have_different_numbers() -> None:
    """The order of the steps is that of their numbers, and no number is used twice."""
    numbers = [step.number for step in migrations()]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


@pytest.mark.parametrize("step", migrations(), ids=lambda step: step.name)
def test_privileged_functions_fix_their_search_path(step: Migration) -> None:
    """No function with the owner's rights looks names up where a client may create objects."""
    for definition in re.findall(r"CREATE FUNCTION(.*?)\nAS \$\$", step.text, re.DOTALL):
        if "SECURITY DEFINER" in definition:
            assert "SET search_path = pg_catalog, pg_temp" in definition


def test_a_secret_is_made_once_and_private(tmp_path: Path) -> None:
    """A home keeps its secret: 256 bits, readable by its owner only."""
    secret = node_secret(tmp_path / "secret")
    assert re.fullmatch("[0-9a-f]{64}", secret)
    assert node_secret(tmp_path / "secret") == secret
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_private_file_replaces_a_leftover_draft(tmp_path: Path) -> None:
    """A crash between writing and renaming does not get in the way of the next attempt."""
    (tmp_path / "secret.new").write_text("half")
    write_private(tmp_path / "secret", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_secrets_stay_out_of_reprs() -> None:
    """Neither the password nor the node's secret shows where objects are printed."""
    address = ControlAddress("/run", 5432, "lake", "penstock", "canary-1")
    guard = Guard("canary-2")
    shown = repr([address, guard, guard.lock_tables([1]), guard.emit_commit({"a": 1})])
    assert "canary" not in shown


def test_secret_is_never_in_a_statement() -> None:
    """A guarded call carries the secret as its first parameter only."""
    guard = Guard("canary")
    for call in (
        guard.lock_tables([1, 2]),
        guard.set_table_version(1, None),
        guard.set_table_columns(1),
        guard.emit_commit({"v": 1}),
    ):
        assert "canary" not in call.sql
        assert call.parameters[0] == "canary"


@pytest.mark.parametrize("password", ["simple", "with space", "quo'te", "back\\slash", ""])
def test_conninfo_keeps_any_password(password: str) -> None:
    """libpq reads back what the address holds, and an override wins."""
    address = ControlAddress("/a b/run", 5432, "lake", "penstock", password, (("sslmode", "off"),))
    read = conninfo_to_dict(address.conninfo(application_name="x y"))
    assert read["host"] == "/a b/run"
    assert read["password"] == password
    assert read["application_name"] == "x y"
    assert read["sslmode"] == "off"
    assert address.socket_path == "/a b/run/.s.PGSQL.5432"


def test_tcp_address_has_no_socket() -> None:
    """An external control database by TCP has no socket path."""
    assert ControlAddress("db.example", 5432, "lake", "penstock", "x").socket_path is None
