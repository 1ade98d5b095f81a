# SPDX-License-Identifier: Apache-2.0
"""What no statement may do, whichever command it is: some functions and some settings.

Functions that run SQL text or read tables by name would see lake tables without their rows: a plan
does not show what they read.  They are found among the tokens, as a call ``f(`` or, as PostgreSQL
also allows for one argument, as a field ``(x).f``; and in a plan, which shows what a view hides.
An identifier with Unicode escapes could hide such a name, so it is refused.

Settings that the node relies on may only have the values that it relies on.  Only superusers may
change most of them in PostgreSQL, so this stops mistakes, not attackers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.sql.tokens import Kind, Token

_XML = [
    f"{source}_to_{result}"
    for source in ("query", "table", "schema", "database", "cursor")
    for result in ("xml", "xmlschema", "xml_and_xmlschema")
]
_SLOTS = [
    f"pg_logical_slot_{verb}_{form}changes" for verb in ("get", "peek") for form in ("", "binary_")
]
_BEHIND = (
    "It would see the tables of the lake without their rows, which are not in the control database."
)

FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(_XML, _BEHIND),
    **dict.fromkeys(("ts_stat", "ts_rewrite", "currtid2"), _BEHIND),
    **dict.fromkeys(
        _SLOTS,
        "It would see the node's commit records in place of the changes."
        " Use a replication connection.",
    ),
    # Of extensions that an external control database may have.
    **dict.fromkeys(("connectby", "crosstab", "crosstabn", "xpath_table"), _BEHIND),
    **dict.fromkeys(("dblink", "dblink_exec", "dblink_open", "dblink_send_query"), _BEHIND),
}
"""Functions that are refused, with the reason."""

ARGUMENT_CHECKED = frozenset({"set_config", "pg_logical_emit_message"})
"""Functions that are refused for some arguments only."""

GUARDED_NAMES = frozenset(FUNCTIONS) | ARGUMENT_CHECKED
"""A statement without any of these words calls none of the functions above."""

MESSAGE_PREFIX = "penstock"

CLIENT_FUNCTIONS = frozenset({"explain_publication", "facts_at"})
"""Functions of the schema penstock that clients may call, as far as PostgreSQL lets them.

facts_at is asked by penstock.reader, as a superuser.
"""

# With quote_all_identifiers EXPLAIN quotes the name.
_PLAN_CALL = re.compile(rf"\b({'|'.join(sorted(FUNCTIONS))})\"?\(")
_SETTING_QUERY = "select set_config ( name , ? , false ) from pg_settings where name = ?"
_PLAN_SET_CONFIG = re.compile(r"\bset_config\"?\(")
_BEFORE_TABLE = ("table", "into", "view", "references", "copy")

_READ_WITH = ("client_encoding", "standard_conforming_strings")
"""Settings by which the node reads texts; it hears of a SET, but not of a function's call."""

_ON = frozenset({"on", "true", "yes", "1", "t", "y", "tr", "tru", "ye"})
_OFF = frozenset({"off", "false", "no", "0", "f", "n", "of", "fa", "fal", "fals"})
_NONE: frozenset[str] = frozenset()

SETTINGS: dict[str, frozenset[str]] = {
    "allow_system_table_mods": _OFF,
    "event_triggers": _ON,
    "fsync": _ON,
    "full_page_writes": _ON,
    "local_preload_libraries": _NONE,
    "max_logical_replication_workers": frozenset({"0"}),
    "session_preload_libraries": _NONE,
    "session_replication_role": frozenset({"origin", "local"}),
    "shared_preload_libraries": _NONE,
    "synchronous_commit": _ON | {"local", "remote_write", "remote_apply"},
    "wal_level": frozenset({"logical"}),
}
"""Settings that the node relies on, with the values that they may get."""


def check_names(tokens: Iterable[Token]) -> None:
    """Refuse identifiers with Unicode escapes (0A000): their names are not visible."""
    for token in tokens:
        if token.kind is Kind.UNICODE:
            raise FeatureNotSupportedError(
                "identifiers with Unicode escapes are not supported",
                detail=f"The name {token.text} cannot be checked before it is used.",
                hint='Write the name in "double quotes" without U&.',
            )


def check_functions(tokens: Sequence[Token]) -> None:
    """Refuse calls that a plan does not show (0A000, 42501)."""
    check_names(tokens)
    for index, token in enumerate(tokens):
        name = token.name
        if name is None or name not in GUARDED_NAMES:
            continue
        called = _next_is(tokens, index + 1, "(")
        if name in FUNCTIONS and _is_call(tokens, index):
            _refuse_function(name)
        if name in ARGUMENT_CHECKED and called:
            arguments = _arguments(tokens, index + 1)
            if name == "set_config":
                _check_set_config(arguments, _only_setting(tokens))
            else:
                _check_message(arguments)


def check_node_functions(tokens: Sequence[Token], functions: Mapping[str, int]) -> None:
    """Refuse calls of the node's own functions (42501), whoever the client is.

    ``functions`` are their names in the schema penstock, with the fewest arguments that one of the
    name takes.  No client can make functions of its own, so another schema in front of a name is a
    table's; and only with one argument a call can be written as a field.
    """
    for index, token in enumerate(tokens):
        name = token.name
        if name is None or name not in functions or not _is_call(tokens, index):
            continue
        schema = tokens[index - 2].name if index > 1 and tokens[index - 1].text == "." else None
        is_field = not _next_is(tokens, index + 1, "(")
        if functions[name] <= 1 if is_field else schema in (None, "penstock"):
            raise PenstockError(
                f"permission denied for function {name}",
                detail="It is one of the node's own functions.",
                sqlstate="42501",
            )


def check_plan(plan: str, set_config_is_written: bool) -> None:
    """Refuse a plan, in EXPLAIN's words, that calls what ``check_functions`` refuses.

    A call of set_config that the statement itself contains has been checked already; one that
    comes from a view (pg_settings has a rule) is refused.
    """
    call = _PLAN_CALL.search(plan)
    if call is not None:
        _refuse_function(call.group(1))
    if not set_config_is_written and _PLAN_SET_CONFIG.search(plan):
        raise FeatureNotSupportedError(
            "settings can be changed by SET and set_config only",
            detail="A view in this statement calls set_config.",
        )


def check_setting(name: str, value: str | None) -> None:
    """Refuse a value that the node cannot live with; None for one that is not known (0A000)."""
    allowed = SETTINGS.get(name.lower())
    if allowed is None or (value is not None and value.strip().lower() in allowed):
        return
    raise FeatureNotSupportedError(
        f'parameter "{name.lower()}" cannot be changed',
        detail="The node relies on this setting of the control database.",
    )


def check_startup(parameters: Mapping[str, str]) -> None:
    """Refuse settings in a startup packet, also in its ``options`` (0A000)."""
    for name, value in parameters.items():
        if name == "options":
            for option, setting in _OPTION.findall(value):
                check_setting(option.replace("-", "_"), setting.replace("\\", ""))
        else:
            check_setting(name, value)


# -c name=value, -cname=value and --name=value; a backslash quotes the next character.
_OPTION = re.compile(r"(?:^|\s)-(?:c\s*|-)([^\s=]+)=((?:\\.|[^\s\\])*)", re.DOTALL)


def check_set(tokens: Sequence[Token]) -> None:
    """Check the tokens behind SET: ``name { TO | = } value``, TIME ZONE and the like."""
    if len(tokens) < 2 or tokens[0].name is None:
        return
    is_assignment = tokens[1].word == "to" or tokens[1].text == "="
    if is_assignment and len(tokens) > 2:
        default = tokens[2].word == "default"
        if not default:
            check_setting(tokens[0].name, _literal(tokens[2:]))
    elif not is_assignment:
        check_setting(tokens[0].name, None)  # SET name FROM CURRENT


def check_embedded_set(tokens: Sequence[Token]) -> None:
    """Check each ``SET name ...`` in ALTER SYSTEM, ALTER ROLE and ALTER DATABASE."""
    for index, token in enumerate(tokens):
        if token.word == "set":
            check_set(tokens[index + 1 :])


def _check_set_config(arguments: Sequence[Sequence[Token]], only: str | None) -> None:
    """``only``: the setting that the column ``name`` is, if the statement says so."""
    name = _constant(arguments[0]) if arguments else None
    if name is None and arguments and [token.text for token in arguments[0]] == ["name"]:
        name = only
    if name is None:
        raise FeatureNotSupportedError(
            "the name of a parameter in set_config must be a constant",
            detail="Some parameters cannot be changed, so the name must be known.",
        )
    if name.lower() in _READ_WITH:
        raise FeatureNotSupportedError(
            f'parameter "{name.lower()}" cannot be changed by set_config', hint="Use SET."
        )
    check_setting(name, _constant(arguments[1]) if len(arguments) > 1 else None)


def _only_setting(tokens: Sequence[Token]) -> str | None:
    """The setting of the one query that may name it by a column: pg_dump's (pg_dump.c).

    ``SELECT set_config(name, '...', false) FROM pg_settings WHERE name = '...'`` sets what an
    older server may not know.
    """
    words = ["?" if token.kind is Kind.STRING else token.text.lower() for token in tokens]
    return string_value(tokens[-1]) if " ".join(words) == _SETTING_QUERY else None


def _check_message(arguments: Sequence[Sequence[Token]]) -> None:
    prefix = _constant(arguments[1]) if len(arguments) > 1 else None
    if prefix is None or prefix == MESSAGE_PREFIX:
        raise PenstockError(
            f'messages with prefix "{MESSAGE_PREFIX}" cannot be written',
            detail="These are the lake's commit records; the prefix must be another constant.",
            sqlstate="42501",
        )


def _refuse_function(name: str) -> None:
    raise FeatureNotSupportedError(f"function {name} is not supported", detail=FUNCTIONS[name])


def _is_call(tokens: Sequence[Token], index: int) -> bool:
    """Whether a name may be that of a called function: ``f(`` or ``(x).f``.

    Behind ``CREATE TABLE``, ``INSERT INTO`` and the like it is a relation with its columns.
    """
    if not _next_is(tokens, index + 1, "("):
        return index > 0 and tokens[index - 1].text == "."
    first = index
    while first > 1 and tokens[first - 1].text == ".":
        first -= 2
    before = [token.word for token in tokens[max(0, first - 3) : first]]
    names_table = before[-1:] and before[-1] in _BEFORE_TABLE
    return not (names_table or before == ["if", "not", "exists"])


def _next_is(tokens: Sequence[Token], index: int, symbol: str) -> bool:
    return index < len(tokens) and tokens[index].text == symbol


def _arguments(tokens: Sequence[Token], opening: int) -> list[list[Token]]:
    """The arguments of the call whose parenthesis is at ``opening``."""
    arguments: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[opening:]:
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
            if depth == 0:
                break
        if token.text == "," and depth == 1:
            arguments.append([])
        elif not (token.text == "(" and depth == 1):
            arguments[-1].append(token)
    return arguments


def _constant(tokens: Sequence[Token]) -> str | None:
    """The value of a string constant, perhaps cast to text; None for any other expression."""
    cast = [token.text for token in tokens[1:]]
    return string_value(tokens[0]) if tokens and cast in ([], ["::", "text"]) else None


def _literal(tokens: Sequence[Token]) -> str | None:
    """The value of a setting that is one constant or word; None for anything else."""
    if len(tokens) != 1:
        return None
    token = tokens[0]
    if token.kind in (Kind.WORD, Kind.QUOTED):
        return token.name
    return token.text if token.kind is Kind.NUMBER else string_value(token)


def string_value(token: Token) -> str | None:
    """The value of a plain '...' constant; None for one with escapes or continuation lines."""
    if token.kind is not Kind.STRING or token.text[0] != "'":
        return None
    plain = not any(character in token.text for character in "\\\n\r")
    return token.text[1:-1].replace("''", "'") if plain else None
