# SPDX-License-Identifier: Apache-2.0
"""Which of the session's settings values of the lake can be written under.

Values are written in PostgreSQL's default styles only; those that the lake keeps as text have the
text of the default settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.frontdoor.actions import Backend
from penstock.frontdoor.reading.catalog import STYLED, CatalogReader

_PLAIN_STYLES = {
    "IntervalStyle": ("postgres",),
    "DateStyle": ("ISO, MDY", "ISO, DMY", "ISO, YMD"),
    "TimeZone": ("UTC", "Etc/UTC", "GMT"),
    "bytea_output": ("hex",),
}
"""Settings under which every type's text is as the lake has it; the first is for the hint."""

_ENCODINGS = frozenset({"UTF8", "SQL_ASCII"})

Settings = Mapping[str, str]


async def check_styles(
    backend: Backend, catalog: CatalogReader, type_oids: Collection[int], settings: Settings
) -> None:
    """0A000 for a setting under which values of these types would have another text."""
    refuse_encoding(settings)
    refuse_styles(type_oids, settings)
    await check_kept_texts(backend, catalog, type_oids, settings)


async def check_kept_texts(
    backend: Backend, catalog: CatalogReader, type_oids: Collection[int], settings: Settings
) -> None:
    """0A000 for a setting that texts which the lake keeps do not follow."""
    wrong = [name for name, values in _PLAIN_STYLES.items() if settings[name] not in values]
    if wrong and await catalog.styled_types(backend, set(type_oids)):
        raise FeatureNotSupportedError(
            f'{wrong[0]} "{settings[wrong[0]]}" is not supported for this query\'s result types',
            hint=f"SET {wrong[0]} = '{_PLAIN_STYLES[wrong[0]][0]}'.",
        )


def other_styles(settings: Settings) -> frozenset[int]:
    """Types whose text in a query would be another than that of the default settings."""
    found: set[int] = set()
    if not settings["DateStyle"].startswith("ISO"):
        found |= {types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ}
    if settings["bytea_output"] != "hex":
        found.add(types.BYTEA)
    if any(settings[name] not in plain for name, plain in _PLAIN_STYLES.items()):
        found |= STYLED
    return frozenset(found)


def refuse_encoding(settings: Settings) -> None:
    """0A000 for a client encoding that rows are not written in."""
    if settings["client_encoding"] not in _ENCODINGS:
        raise _refusal("client_encoding", settings, "UTF8")


def refuse_styles(type_oids: Collection[int], settings: Settings) -> None:
    """0A000 for a setting under which dates, times, floats or bytea have another text."""
    oids = {types.ARRAY_ELEMENTS.get(oid, oid) for oid in type_oids}
    times = {types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ}
    floats = {types.FLOAT4, types.FLOAT8}
    if oids & times and not settings["DateStyle"].startswith("ISO"):
        raise _refusal("DateStyle", settings, "ISO")
    if types.BYTEA in oids and settings["bytea_output"] != "hex":
        raise _refusal("bytea_output", settings, "hex")
    if oids & floats and int(settings["extra_float_digits"]) <= 0:
        raise _refusal("extra_float_digits", settings, "1")


def _refusal(name: str, settings: Settings, value: str) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f'{name} "{settings[name]}" is not supported for results from lake tables',
        hint=f"SET {name} = '{value}'.",
    )
