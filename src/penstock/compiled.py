# SPDX-License-Identifier: Apache-2.0
"""The one way in which loops over bytes are compiled: numba, without the GIL, cached on disk.

numba keeps its cache next to the module, or in the user's cache folder when that cannot be
written, or where NUMBA_CACHE_DIR says.  Where none of them can be written there is no cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Positions = NDArray[np.int32]
"""Positions and lengths in a buffer; a buffer of messages is therefore below 2 GiB."""


def compiled(function: F) -> F:
    """Compile a function at its first call; it then runs without the GIL."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no cache folder can be written
        return cast(F, numba.njit(nogil=True)(function))
