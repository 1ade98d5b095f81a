# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's client encodings as Python codecs.

A statement can only be split and routed when its text is read as the control database reads it.
"""

from __future__ import annotations

import codecs

from penstock.errors import FeatureNotSupportedError, PenstockError

_CODECS = {
    "BIG5": "big5",
    "EUC_CN": "gb2312",
    "EUC_JIS_2004": "euc_jis_2004",
    "EUC_JP": "euc_jp",
    "EUC_KR": "euc_kr",
    "GB18030": "gb18030",
    "GBK": "gbk",
    "ISO_8859_5": "iso8859-5",
    "ISO_8859_6": "iso8859-6",
    "ISO_8859_7": "iso8859-7",
    "ISO_8859_8": "iso8859-8",
    "JOHAB": "johab",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
    "LATIN1": "iso8859-1",
    "LATIN2": "iso8859-2",
    "LATIN3": "iso8859-3",
    "LATIN4": "iso8859-4",
    "LATIN5": "iso8859-9",
    "LATIN6": "iso8859-10",
    "LATIN7": "iso8859-13",
    "LATIN8": "iso8859-14",
    "LATIN9": "iso8859-15",
    "LATIN10": "iso8859-16",
    "SHIFT_JIS_2004": "shift_jis_2004",
    "SJIS": "cp932",
    "SQL_ASCII": "utf-8",  # the control database is UTF8, and takes it as that
    "UHC": "cp949",
    "UTF8": "utf-8",
    "WIN866": "cp866",
    "WIN874": "cp874",
    **{f"WIN{number}": f"cp{number}" for number in range(1250, 1259)},
}


def codec_for(client_encoding: str) -> codecs.CodecInfo:
    """Python's codec for a value of client_encoding; 0A000 for one that Python does not have."""
    name = _CODECS.get(client_encoding)
    if name is None:
        raise FeatureNotSupportedError(
            f'client encoding "{client_encoding}" is not supported',
            hint="SET client_encoding TO 'UTF8'.",
        )
    return codecs.lookup(name)


def decode(raw: bytes, client_encoding: str) -> str:
    """Text that a client sent; 22021 for bytes that are not in its encoding."""
    try:
        return codec_for(client_encoding).decode(raw, "strict")[0]
    except UnicodeDecodeError as error:
        shown = " ".join(f"0x{byte:02x}" for byte in raw[error.start : error.start + 4])
        raise PenstockError(
            f'invalid byte sequence for encoding "{client_encoding}": {shown}', sqlstate="22021"
        ) from error


def encode(text: str, client_encoding: str) -> bytes:
    """Text as the client's session sends it; 22P05 for a character that its encoding lacks."""
    try:
        return codec_for(client_encoding).encode(text, "strict")[0]
    except UnicodeEncodeError as error:
        character = text[error.start]
        raise PenstockError(
            f'character U+{ord(character):04X} has no equivalent in encoding "{client_encoding}"',
            sqlstate="22P05",
        ) from error
