# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's node trees (``pg_node_tree``: prosqlbody, ev_action, prqual) as Python values.

    text                          value
    ----                          -----
    {VAR :varno 1 :varattno 2}    Node("VAR", {"varno": 1, "varattno": 2})
    ({A} {B})  (1 2)              list
    (i 1 2)  (o 1 2)  (b 3)       list of int (integer list, OID list, bitmapset)
    <>                            None
    "a b"  a\\ b                   str (a String node, a name)
    true  12  1.5                 True, 12, "1.5"
    4 [ 1 0 0 0 ]                 Datum(4, bytes)

This is what readfuncs.c reads.  Names of fields are the server's; a field that a version does not
have is absent, and ``Node.get`` gives None for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.errors import PenstockError

# pg_strtok (read.c): a backslash takes the next character as it is; quotes are no borders.
_TOKEN = re.compile(r"[ \n\t]*([(){}]|(?:\\.|[^ \n\t(){}\\])+)", re.DOTALL)
_INTEGER = re.compile(r"-?\d+\Z")
_NAMES = frozenset({"resname", "aliasname", "ctename", "colname", "name", "enrname"})
"""Fields with names, which may be ``true``."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class Datum(NamedTuple):
    """A constant's bytes, as they lie in the server's memory (little-endian machines)."""

    length: int
    content: bytes


@dataclass(frozen=True)
class Node:
    """One node: its tag and its fields."""

    tag: str
    fields: dict[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def get(self, field: str) -> Any:
        """The field's value, None when this version of PostgreSQL does not have the field."""
        return self.fields.get(field)

    def items(self, field: str) -> list[Any]:
        """A list field; the empty list when it is NIL."""
        return self.fields.get(field) or []


def parse_nodes(text: str) -> Any:
    """Read one node tree; PenstockError when the text is not one."""
    reader = _Reader(text)
    value = reader.value(reader.next())
    if reader.next(last=True) != "":
        raise PenstockError("unexpected text after a node tree")
    return value


def walk(value: Any) -> Iterator[Node]:
    """All nodes of a tree, outer ones first."""
    if isinstance(value, Node):
        yield value
        for field in value.fields.values():
            if isinstance(field, (Node, list)):
                yield from walk(field)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = [match.group(1) for match in _TOKEN.finditer(text)]
        self._at = 0

    def next(self, *, last: bool = False) -> str:
        if self._at >= len(self._tokens):
            if last:
                return ""
            raise PenstockError("a node tree ended too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def value(self, token: str) -> Any:
        if token == "{":
            return self._node()
        if token == "(":
            return self._list()
        return self._scalar(token)

    def _node(self) -> Node:
        tag, fields = self.next(), {}
        while (token := self.next()) != "}":
            if not token.startswith(":"):
                raise PenstockError(f"a field's name was expected in a node tree, not {token!r}")
            name, value = token[1:], self._field()
            is_word = isinstance(value, bool) and name in _NAMES
            fields[name] = str(value).lower() if is_word else value
        return Node(tag, fields)

    def _field(self) -> Any:
        token = self.next()
        if self._peek() == "[" and _INTEGER.match(token):
            return self._datum(int(token))
        return self.value(token)

    def _datum(self, length: int) -> Datum:
        self.next()
        content = bytearray()
        while (token := self.next()) != "]":
            content.append(int(token) & 255)
        return Datum(length, bytes(content))

    def _list(self) -> list[Any]:
        items = []
        if self._peek() in ("i", "o", "b", "x"):
            self.next()
        while (token := self.next()) != ")":
            items.append(self.value(token))
        return items

    def _scalar(self, token: str) -> Any:
        if token == "<>":
            return None
        if len(token) > 1 and token[0] == token[-1] == '"':
            return _ESCAPE.sub(r"\1", token[1:-1])
        if token in ("true", "false"):
            return token == "true"
        if _INTEGER.match(token):
            return int(token)
        return _ESCAPE.sub(r"\1", token)
