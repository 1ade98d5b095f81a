# SPDX-License-Identifier: Apache-2.0
"""The allow-list: which functions and operators of PostgreSQL have an exact translation.

An operator is the function that implements it (``int4pl`` for ``int + int``).  A function is
known by name when the name is all of its kind (``int4pl``), otherwise by name and argument types
(``length(text)``).  What is not here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.sql.translate.values import Expr, Session, refusal


@dataclass(frozen=True)
class Function:
    """A function of PostgreSQL as pg_proc names it; ``arguments`` are type names."""

    schema: str
    name: str
    arguments: tuple[str, ...]

    @property
    def signature(self) -> str:
        """``name(type,type)``."""
        return f"{self.name}({','.join(self.arguments)})"

    def __str__(self) -> str:
        prefix = "" if self.schema == "pg_catalog" else f"{self.schema}."
        return f"function {prefix}{self.name}({', '.join(self.arguments)})"


@dataclass(frozen=True)
class Call:
    """One use of a function: its translated arguments and the type of its result."""

    session: Session
    args: Sequence[Expr]
    result: int


Handler = Callable[[Call], Expr]

FUNCTIONS: dict[str, Handler] = {}
"""By name or by signature."""


def register(*names: str) -> Callable[[Handler], Handler]:
    """Translate the functions of these names or signatures with the decorated handler."""

    def add(handler: Handler) -> Handler:
        for name in names:
            FUNCTIONS[name] = handler
        return handler

    return add


def template(text: str, *names: str) -> None:
    """Translate these functions with a text; ``{0}`` is the first argument."""

    def handler(call: Call) -> Expr:
        return Expr(text.format(*(arg.sql for arg in call.args)), call.result)

    register(*names)(handler)


def find(function: Function) -> Handler:
    """The handler of a function; refusal when it is not in the list."""
    if function.schema == "pg_catalog":
        handler = FUNCTIONS.get(function.signature) or FUNCTIONS.get(function.name)
        if handler is not None:
            return handler
    raise refusal(str(function))


def constant_argument(call: Call, index: int, what: str) -> object:
    """The value of an argument that must be a constant and not NULL."""
    arg = call.args[index]
    if not arg.constant or arg.value is None:
        raise refusal(f"{what} that is not a constant")
    return arg.value
