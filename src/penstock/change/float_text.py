# SPDX-License-Identifier: Apache-2.0
"""Floats as float4out and float8out print them with extra_float_digits 1 or more.

In:   a numpy array of float32 or float64.
Out:  rows of bytes of a fixed width, and how much of each is used.

The digits are the shortest that no other float has; an exponent is written where C's ``%g`` with
6 or 15 digits would.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.compiled import compiled

FLOAT_WIDTH = 32

_EXACT_LIMIT = {8: 2.0**53, 4: 2.0**24}


def float_texts(values: Any) -> tuple[Any, Any]:
    """The text of each value: uint8 [n, FLOAT_WIDTH], and int64 [n], the bytes that are used."""
    width = values.dtype.itemsize
    finite = np.isfinite(values)
    texts = pc.cast(pa.array(np.where(finite, values, values.dtype.type(0))), pa.string())
    _, offsets, content = texts.buffers()
    wide = np.empty((len(values), FLOAT_WIDTH), np.uint8)
    used = np.zeros(len(values), np.int64)
    if len(values):
        places = np.frombuffer(offsets, np.int32)[: len(values) + 1]
        digits = np.frombuffer(content, np.uint8)
        _shape(places, digits, 15 if width == 8 else 6, wide, used)
    for mask, word in (
        (np.isnan(values), b"NaN"),
        (np.isposinf(values), b"Infinity"),
        (np.isneginf(values), b"-Infinity"),
    ):
        wide[mask, : len(word)] = np.frombuffer(word, np.uint8)
        used[mask] = len(word)
    _correct_ties(values, finite, width, wide, used)
    return wide, used


def _correct_ties(values: Any, finite: Any, width: int, wide: Any, used: Any) -> None:
    """Take back shortest digits that lie exactly half-way to the next float.

    PostgreSQL's Ryu accepts only digits strictly between the two half-way points, other printers
    also the points themselves (1e23).  A point has few enough digits to be chosen only for
    integers that a float cannot all hold, so only those few values are looked at one by one.
    """
    suspects = np.nonzero(finite & (np.abs(values) >= _EXACT_LIMIT[width]))[0]
    for value in np.unique(values[suspects]):
        text = _strictly_shortest(value)
        if text is not None:
            rows = suspects[values[suspects] == value]
            wide[rows, : len(text)] = np.frombuffer(text, np.uint8)
            used[rows] = len(text)


def _strictly_shortest(value: Any) -> bytes | None:
    """PostgreSQL's text of a large float when the usual shortest digits are a tie, else None."""
    size = abs(value)
    exact, sign = int(size), "-" if value < 0 else ""
    below = np.nextafter(size, type(value)(0))
    with np.errstate(over="ignore"):  # the largest float: its step up is as its step down
        above = np.nextafter(size, type(value)(np.inf))
    step_down = exact - int(below)
    step_up = int(above) - exact if np.isfinite(above) else step_down
    low, high = exact * 2 - step_down, exact * 2 + step_up  # twice the half-way points
    shortest = _as_integer(np.format_float_scientific(size, unique=True))
    if low < shortest * 2 < high:
        return None
    for digits in range(1, 18):
        power = 10 ** max(len(str(exact)) - digits, 0)
        down = exact // power * power
        fits = [n for n in (down, down + power) if low < n * 2 < high]
        if fits:
            best = min(fits, key=lambda n: abs(n - exact))
            return _scientific(sign, best)
    return None


def _as_integer(text: str) -> int:
    mantissa, _, exponent = text.partition("e")
    before, _, after = mantissa.partition(".")
    after = after.rstrip("0")
    power: int = 10 ** (int(exponent) - len(after))
    return int(before + after) * power


def _scientific(sign: str, number: int) -> bytes:
    text = str(number)
    digits = text.rstrip("0")
    point = "." if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{point}{digits[1:]}e+{len(text) - 1:02d}".encode()


@compiled
def _shape(offsets: Any, data: Any, fixed_digits: int, wide: Any, used: Any) -> None:
    """Finite floats, given as any decimal text with shortest digits, in PostgreSQL's form."""
    digits = np.zeros(40, dtype=np.uint8)
    for row in range(len(used)):
        out = wide[row]
        at, count, point, exponent = 0, 0, -1, 0
        i, stop = offsets[row], offsets[row + 1]
        if data[i] == 45:
            out[0] = 45
            at, i = 1, i + 1
        while i < stop and data[i] != 101:
            if data[i] == 46:
                point = count
            elif count > 0 or data[i] != 48:
                digits[count] = data[i]
                count += 1
            elif point >= 0:
                exponent -= 1  # a zero between the point and the first digit
            i += 1
        scale = count if point < 0 else point
        if i < stop:
            negative = data[i + 1] == 45
            i += 1 if data[i + 1] == 45 or data[i + 1] == 43 else 0
            written = 0
            for j in range(i + 1, stop):
                written = written * 10 + data[j] - 48
            exponent += -written if negative else written
        while count > 1 and digits[count - 1] == 48:
            count -= 1
        first = scale + exponent - 1  # decimal exponent of the first digit
        if count == 0:
            out[at] = 48
            at += 1
        elif -4 <= first < fixed_digits:
            if first < 0:
                out[at], out[at + 1] = 48, 46
                at += 2
                for _ in range(-1 - first):
                    out[at] = 48
                    at += 1
            for j in range(count):
                if j > 0 and j == first + 1:
                    out[at] = 46
                    at += 1
                out[at] = digits[j]
                at += 1
            for _ in range(first + 1 - count):
                out[at] = 48
                at += 1
        else:
            out[at] = digits[0]
            at += 1
            if count > 1:
                out[at] = 46
                at += 1
                for j in range(1, count):
                    out[at] = digits[j]
                    at += 1
            out[at] = 101
            out[at + 1] = 45 if first < 0 else 43
            size = abs(first)
            at += 2
            if size >= 100:
                out[at] = 48 + size // 100
                at += 1
            out[at], out[at + 1] = 48 + size // 10 % 10, 48 + size % 10
            at += 2
        used[row] = at
