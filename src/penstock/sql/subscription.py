# SPDX-License-Identifier: Apache-2.0
"""CREATE, ALTER and DROP SUBSCRIPTION, as far as the front door must understand them.

In:   the parsed command.
Out:  what it does to which subscription, its options, and the text for PostgreSQL: our own
      options are taken out and replaced by blanks, so that positions in errors stay right.

    our options              where                                  values
    -----------              -----                                  ------
    create_tables            CREATE ... WITH, ALTER ... SET         Boolean, default true
    schema_changes           CREATE ... WITH, ALTER ... SET         add (default), error
    on_conflict              CREATE ... WITH, ALTER ... SET         error (default), apply_remote,
                                                                    keep_local, last_update_wins
    numeric_as and others    CREATE ... WITH, ALTER ... SET         see penstock.change.mapping

Whatever has another form than the manual's is left to PostgreSQL, which raises its own error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.change import mapping
from penstock.errors import FeatureNotSupportedError, InvalidParameterError, SqlSyntaxError
from penstock.sql.commands import Command, closing
from penstock.sql.commands_guards import string_value
from penstock.sql.tokens import Kind, Token


class Change(StrEnum):
    """What a command does to a subscription."""

    CREATE = "create"
    DROP = "drop"
    CONNECTION = "connection"
    SET_PUBLICATION = "set publication"
    ADD_PUBLICATION = "add publication"
    DROP_PUBLICATION = "drop publication"
    REFRESH = "refresh"
    ENABLE = "enable"
    DISABLE = "disable"
    SET = "set"
    SKIP = "skip"
    OTHER = "other"  # OWNER TO, RENAME TO, and what PostgreSQL does not understand


PUBLICATION_CHANGES = {
    Change.SET_PUBLICATION,
    Change.ADD_PUBLICATION,
    Change.DROP_PUBLICATION,
    Change.REFRESH,
}

OWN_OPTIONS = ("create_tables", "schema_changes", "on_conflict", *mapping.OPTIONS)

_WORDS = {
    "schema_changes": ("add", "error"),
    "on_conflict": ("error", "apply_remote", "keep_local", "last_update_wins"),
    **mapping.OPTIONS,
}
"""Our options whose value is one of some words."""

_NOT_HONOURED = {
    "retain_dead_tuples": True,
}
"""Options that the workers do not honour yet, with the value that is refused."""

_WATCHED = {*_NOT_HONOURED, *OWN_OPTIONS}
"""Options whose value must be known here."""


@dataclass(frozen=True)
class Option:
    """One of the options in parentheses; ``value`` is None when only the name is given."""

    name: str
    value: str | None
    start: int
    end: int


@dataclass(frozen=True)
class SubscriptionCommand:
    """A command about a subscription.

    ``conninfo`` is the literal as it stands in the text: PostgreSQL knows its value.
    ``own`` are those of our options that it gives; ``create_tables`` is a Boolean.
    ``sql`` is the text without our options; None when ALTER ... SET had no other ones.
    """

    change: Change
    name: str
    sql: str | None = field(repr=False)
    conninfo: str | None = field(default=None, repr=False)
    publications: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    own: Mapping[str, bool | str] = field(default_factory=dict)

    @property
    def mapping(self) -> dict[str, str]:
        """Those of the options of penstock.change.mapping that it gives."""
        return {name: str(self.own[name]) for name in mapping.OPTIONS if name in self.own}

    def boolean(self, name: str, default: bool) -> bool:
        """A Boolean option as PostgreSQL reads it, the default where it is not given or wrong."""
        for option in self.options:
            if option.name == name:
                value = _boolean(option.value)
                return default if value is None else value
        return default

    def has(self, name: str) -> bool:
        """Whether an option is given."""
        return any(option.name == name for option in self.options)


def parse_subscription(command: Command) -> SubscriptionCommand:
    """Understand a command of treatment SUBSCRIPTION.

    42601 for our own options in a wrong form, 22023 for a wrong value, 0A000 for options that the
    workers do not honour yet.
    """
    tokens = command.rest
    if command.name == "DROP SUBSCRIPTION":
        if [token.word for token in tokens[:2]] == ["if", "exists"]:
            tokens = tokens[2:]
        return SubscriptionCommand(Change.DROP, _name(tokens), command.sql)
    name = _name(tokens)
    change, place = (
        (Change.CREATE, 1) if command.name == "CREATE SUBSCRIPTION" else _alteration(tokens)
    )
    opening = next((i for i in range(place, len(tokens)) if tokens[i].text == "("), len(tokens))
    end = closing(tokens, opening)
    options = _options(tokens[opening + 1 : end])
    _refuse_not_honoured(options)
    own = [option for option in options if option.name in OWN_OPTIONS]
    takes_own = change in (Change.CREATE, Change.SET) and end < len(tokens)
    sql: str | None = command.sql
    if own and takes_own:
        if len(own) < len(options):
            sql = _without(command.sql, options, own)
        else:
            sql = _blank(command.sql, tokens[opening - 1].start, tokens[end].end)
            sql = None if change is Change.SET else sql
    head = tokens[place:opening]
    return SubscriptionCommand(
        change,
        name,
        sql,
        _conninfo(command.sql, head),
        _publications(head),
        tuple(option for option in options if option.name not in OWN_OPTIONS),
        _own_values(own if takes_own else []),
    )


def _name(tokens: Sequence[Token]) -> str:
    return (tokens[0].name or "") if tokens else ""


def _alteration(tokens: Sequence[Token]) -> tuple[Change, int]:
    """What ALTER SUBSCRIPTION does, and where what follows starts."""
    first, second = (token.word for token in [*tokens, *_NOTHING][1:3])
    if second == "publication" and first in ("set", "add", "drop", "refresh"):
        refreshes = first == "refresh"
        return (Change.REFRESH if refreshes else Change(f"{first} publication")), 2
    if first in ("enable", "disable", "connection", "set", "skip"):
        return Change(first), 1
    return Change.OTHER, 1


_NOTHING = (Token(Kind.OTHER, "", 0),) * 3


def _conninfo(sql: str, tokens: Sequence[Token]) -> str | None:
    """The literal behind CONNECTION, with a UESCAPE perhaps."""
    for index, token in enumerate(tokens):
        if token.word == "connection":
            literal = []
            for following in tokens[index + 1 :]:
                if following.kind is not Kind.STRING and following.word != "uescape":
                    break
                literal.append(following)
            return sql[literal[0].start : literal[-1].end] if literal else None
    return None


def _publications(tokens: Sequence[Token]) -> tuple[str, ...]:
    for index, token in enumerate(tokens):
        if token.word == "publication":
            names = []
            for following in tokens[index + 1 :]:
                if following.text == ",":
                    continue
                if following.name is None or following.word == "with":
                    break
                names.append(following.name)
            return tuple(names)
    return ()


def _options(tokens: Sequence[Token]) -> list[Option]:
    options = []
    start = 0
    for place in [index for index, token in enumerate(tokens) if token.text == ","] + [len(tokens)]:
        part = tokens[start:place]
        start = place + 1
        if part and part[0].name is not None:
            has_value = len(part) > 2 and part[1].text == "="
            value = _value(part[0].name, part[2:]) if has_value else None
            options.append(Option(part[0].name, value, part[0].start, part[-1].end))
    return options


def _value(name: str, tokens: Sequence[Token]) -> str:
    """A number in decimal, a word or quoted name as PostgreSQL folds it, a string's value."""
    first = tokens[0]
    if first.kind is Kind.STRING:
        text = string_value(first)
        if text is None and name in _WATCHED:
            raise SqlSyntaxError(f"{name} must be a word or a plain string")
        return first.text if text is None else text
    if len(tokens) == 1 and first.name is not None:
        return first.name
    text = "".join(token.text for token in tokens)
    try:
        return str(int(text.replace("_", ""), 0 if "x" in text.lower() else 10))
    except ValueError:
        return text


def _boolean(value: str | None) -> bool | None:
    """defGetBoolean: no value is true; None for what PostgreSQL refuses."""
    if value is None or value.lower() in ("1", "true", "on"):
        return True
    return False if value.lower() in ("0", "false", "off") else None


def _own_values(own: Sequence[Option]) -> dict[str, bool | str]:
    values: dict[str, bool | str] = {}
    if len({option.name for option in own}) < len(own):
        raise SqlSyntaxError("conflicting or redundant options")
    for option in own:
        if option.name == "create_tables":
            create_tables = _boolean(option.value)
            if create_tables is None:
                raise SqlSyntaxError("create_tables requires a Boolean value")
            values[option.name] = create_tables
        else:
            word = (option.value or "").lower()
            valid = _WORDS[option.name]
            if word not in valid:
                first = ", ".join(f'"{each}"' for each in valid[:-1])
                raise InvalidParameterError(
                    f'unrecognized value for subscription parameter "{option.name}":'
                    f' "{option.value or ""}"',
                    hint=f'Valid values are {first} and "{valid[-1]}".',
                )
            values[option.name] = word
    return values


def _refuse_not_honoured(options: Sequence[Option]) -> None:
    for option in options:
        refused = _NOT_HONOURED.get(option.name)
        if refused is not None and _boolean(option.value) is refused:
            shown = "true" if option.value is None else option.value
            raise FeatureNotSupportedError(
                f"subscription option {option.name} = {shown} is not supported yet",
                detail="The node's workers would not follow it.",
            )


def _without(sql: str, options: Sequence[Option], removed: Sequence[Option]) -> str:
    """The text with some options blanked out, each with one comma beside it."""
    for index, option in enumerate(options):
        if option in removed:
            later_stays = any(each not in removed for each in options[index + 1 :])
            if later_stays:
                start, end = option.start, options[index + 1].start
            else:
                start, end = options[index - 1].end, option.end
            sql = _blank(sql, start, end)
    return sql


def _blank(sql: str, start: int, end: int) -> str:
    return sql[:start] + " " * (end - start) + sql[end:]
