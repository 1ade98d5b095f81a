# SPDX-License-Identifier: Apache-2.0
"""Options of subscription commands: ours are taken out, what is not honoured is refused."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.sql.commands import parse
from penstock.sql.subscription import Change, SubscriptionCommand, parse_subscription

CREATE = "CREATE SUBSCRIPTION s CONNECTION 'host=h' PUBLICATION p"


def subscription(sql: str) -> SubscriptionCommand:
    return parse_subscription(parse(sql))


@pytest.mark.parametrize(
    ("given", "relayed"),
    [
        ("", ""),
        (" WITH (create_tables = false)", ""),
        (" WITH (create_tables)", ""),
        (" WITH (schema_changes = error, create_tables = off)", ""),
        (" WITH (create_tables = false, copy_data = off)", " WITH (copy_data = off)"),
        (" WITH (copy_data = off, create_tables = false)", " WITH (copy_data = off)"),
        (
            " WITH (enabled, create_tables = 'on', slot_name = x)",
            " WITH (enabled, slot_name = x)",
        ),
        (
            " WITH (create_tables, enabled, schema_changes = 'add', slot_name = x)",
            " WITH (enabled, slot_name = x)",
        ),
        (
            " WITH (enabled, create_tables, schema_changes = 'add')",
            " WITH (enabled)",
        ),
    ],
)
def test_own_options_are_taken_out(given: str, relayed: str) -> None:
    """PostgreSQL gets what is its own, at the places where it stood."""
    command = subscription(CREATE + given)
    assert command.sql is not None
    assert (
        " ".join(command.sql.split()).replace("( ", "(").replace(" )", ")").replace(" ,", ",")
        == CREATE + relayed
    )
    assert len(command.sql) == len(CREATE + given)
    kept = command.sql.find("slot_name")
    assert kept == (CREATE + given).find("slot_name")


def test_values_are_read_as_postgresql_reads_them() -> None:
    """Booleans as defGetBoolean takes them; names fold, strings do not."""
    for text, value in (
        ("", True),
        ("= true", True),
        ("= ON", True),
        ("= 1", True),
        ("= 'oN'", True),
        ("= off", False),
        ("= 0", False),
        ("= 'False'", False),
    ):
        assert subscription(f"{CREATE} WITH (create_tables {text})").own == {"create_tables": value}
    assert subscription(f"{CREATE} WITH (on_conflict = 'Keep_Local')").own == {
        "on_conflict": "keep_local"
    }
    command = subscription("ALTER SUBSCRIPTION s SET (on_conflict = last_update_wins)")
    assert (command.own, command.sql) == ({"on_conflict": "last_update_wins"}, None)
    command = subscription(f"{CREATE} WITH (Schema_Changes = ERROR, enabled = off)")
    assert command.own == {"schema_changes": "error"}
    assert command.boolean("enabled", True) is False
    assert command.boolean("copy_data", True) is True


def test_the_options_of_value_mapping() -> None:
    """They are kept for us and taken out of what PostgreSQL sees."""
    command = subscription(f"{CREATE} WITH (numeric_as = TEXT, binary = on, infinity_as = 'clamp')")
    assert command.mapping == {"numeric_as": "text", "infinity_as": "clamp"}
    assert command.sql is not None
    assert "_as" not in command.sql
    assert command.boolean("binary", False)
    command = subscription("ALTER SUBSCRIPTION s SET (array_as = list, datetime_as = text)")
    assert (command.sql, command.mapping) == (None, {"array_as": "list", "datetime_as": "text"})


@pytest.mark.parametrize(
    ("options", "sqlstate"),
    [
        ("create_tables = banana", "42601"),
        ("create_tables = 2", "42601"),
        ("create_tables, create_tables", "42601"),
        ("schema_changes = drop", "22023"),
        ("schema_changes", "22023"),
        ("on_conflict = newest", "22023"),
        ("on_conflict", "22023"),
        ("on_conflict = error, on_conflict = error", "42601"),
        ("numeric_as = float", "22023"),
        ("infinity_as", "22023"),
        ("array_as = list, array_as = list", "42601"),
        ("retain_dead_tuples = on", "0A000"),
        ("retain_dead_tuples = 01", "0A000"),
        ("retain_dead_tuples = +0x1", "0A000"),
        ("retain_dead_tuples = E'\\x6fn'", "42601"),
    ],
)
def test_wrong_or_unsupported_options_are_refused(options: str, sqlstate: str) -> None:
    """None is ignored: what the workers do not do yet says so."""
    for sql in (f"{CREATE} WITH ({options})", f"ALTER SUBSCRIPTION s SET ({options})"):
        with pytest.raises(PenstockError) as caught:
            subscription(sql)
        assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    "options",
    [
        "two_phase = false",
        "binary = off",
        "binary = on",
        "origin = any",
        "run_as_owner = true",
        "origin = none",
        "origin = E'n\\x6fne'",
        "streaming = parallel",
        "nonsense = 3",
        "two_phase = banana",
        "slot_name = NONE",
    ],
)
def test_other_options_are_postgresqls_affair(options: str) -> None:
    """It knows them, or says that it does not."""
    sql = f"{CREATE} WITH ({options})"
    assert subscription(sql).sql == sql


@pytest.mark.parametrize(
    ("sql", "change", "publications"),
    [
        (CREATE, Change.CREATE, ("p",)),
        ("ALTER SUBSCRIPTION s SET PUBLICATION p, \"Q\" WITH (refresh = false)",
         Change.SET_PUBLICATION, ("p", "Q")),
        ("ALTER SUBSCRIPTION s ADD PUBLICATION P", Change.ADD_PUBLICATION, ("p",)),
        ("ALTER SUBSCRIPTION s DROP PUBLICATION p", Change.DROP_PUBLICATION, ("p",)),
        ("ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)", Change.REFRESH, ()),
        ("ALTER SUBSCRIPTION s CONNECTION 'x'", Change.CONNECTION, ()),
        ("ALTER SUBSCRIPTION s ENABLE", Change.ENABLE, ()),
        ("ALTER SUBSCRIPTION s DISABLE", Change.DISABLE, ()),
        ("ALTER SUBSCRIPTION s SET (slot_name = x)", Change.SET, ()),
        ("ALTER SUBSCRIPTION s OWNER TO x", Change.OTHER, ()),
        ("ALTER SUBSCRIPTION s RENAME TO x", Change.OTHER, ()),
        ("ALTER SUBSCRIPTION", Change.OTHER, ()),
        ("DROP SUBSCRIPTION s", Change.DROP, ()),
        ("DROP SUBSCRIPTION IF EXISTS s CASCADE", Change.DROP, ()),
    ],
)  # fmt: skip
def test_a_command_is_told_by_its_words(
    sql: str, change: Change, publications: tuple[str, ...]
) -> None:
    """Each form in the manual is known, with the publications that it names."""
    command = subscription(sql)
    assert command.change is change
    assert command.publications == publications
    assert command.name == ("s" if " s" in sql else "")


def test_the_connection_string_stays_a_literal() -> None:
    """Its value is PostgreSQL's to tell, whatever the form; it is not in the repr."""
    for literal in ("'a=1'", "E'a\\x3d1'", "$$a=1$$", "U&'a!003d1' UESCAPE '!'", "'a'\n'=1'"):
        command = subscription(f"CREATE SUBSCRIPTION s CONNECTION {literal} PUBLICATION p, q")
        assert command.conninfo == literal
        assert command.publications == ("p", "q")
    assert "a=1" not in repr(subscription("ALTER SUBSCRIPTION s CONNECTION 'a=1'"))


def test_set_with_only_our_options_leaves_nothing() -> None:
    """There is no statement of PostgreSQL for it, so there is no text either."""
    command = subscription("ALTER SUBSCRIPTION s SET (create_tables = off)")
    assert command.sql is None
    assert command.own == {"create_tables": False}


def test_skip_is_relayed_as_it_stands() -> None:
    """PostgreSQL checks the LSN and keeps it."""
    for lsn in ("'0/14C0378'", "NONE"):
        command = subscription(f"ALTER SUBSCRIPTION s SKIP (lsn = {lsn})")
        assert (command.change, command.name) == (Change.SKIP, "s")
        assert command.sql == f"ALTER SUBSCRIPTION s SKIP (lsn = {lsn})"
