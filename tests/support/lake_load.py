# SPDX-License-Identifier: Apache-2.0
"""Random transactions of SQL on tables of the lake; each may fail without harm.

``ll_log`` has no key: what is applied twice is there twice.  The two others are changed together.
"""

from __future__ import annotations

import random

TABLES = """
CREATE TABLE ll_a (id int PRIMARY KEY, n int, v text);
CREATE TABLE ll_b (id int, k text, n int, PRIMARY KEY (id, k));
CREATE TABLE ll_log (n int, v text)"""
QUERIES = ("SELECT * FROM ll_a", "SELECT * FROM ll_b", "SELECT * FROM ll_log")
KEYS = 400


class LakeLoad:
    """Makes transactions from a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._number = 0

    def transaction(self) -> str:
        """One transaction, with BEGIN and COMMIT or ROLLBACK."""
        self._number += 1
        parts = [self._statement() for _ in range(self._chance.randint(1, 3))]
        if self._chance.random() < 0.2:
            at = self._chance.randint(0, len(parts))
            parts.insert(at, f"SAVEPOINT s; {self._statement()}; ROLLBACK TO SAVEPOINT s")
        parts.append(f"INSERT INTO ll_log VALUES ({self._number}, '{len(parts)}')")
        end = "ROLLBACK" if self._chance.random() < 0.1 else "COMMIT"
        return f"BEGIN; {'; '.join(parts)}; {end};"

    def _statement(self) -> str:
        first, step = self._chance.randrange(KEYS), self._chance.randint(2, 9)
        new = KEYS * self._number + first
        kinds = {
            f"INSERT INTO ll_a SELECT g, g % {step}, repeat('x', g % 50) FROM"
            f" generate_series({new}, {new + step * 5}) g": 6,
            f"UPDATE ll_a SET n = n + 1, v = NULL WHERE id % {step} = {first % step}": 4,
            f"UPDATE ll_a SET id = -{new} - id WHERE id > 0 AND id % 29 = {first % 29}": 1,
            f"DELETE FROM ll_a WHERE id % 13 = {first % 13}": 2,
            f"INSERT INTO ll_b SELECT g, 'k' || g % {step}, {first} FROM"
            f" generate_series({new}, {new + step}) g": 4,
            f"UPDATE ll_b SET k = k || '.', n = {step} WHERE id % 7 = {first % 7}": 2,
            f"DELETE FROM ll_b WHERE n % 5 = {first % 5}": 1,
            "TRUNCATE ll_b; INSERT INTO ll_b VALUES (1, 'after', 0)": 1,
        }
        return self._chance.choices(list(kinds), list(kinds.values()))[0]
