# SPDX-License-Identifier: Apache-2.0
"""What the documentation lists is what there is."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.change.mapping import OPTIONS
from penstock.config import Settings
from penstock.failpoints import Failpoint
from penstock.sql.subscription import OWN_OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def first_column(document: str, head: str) -> list[str]:
    """The names between backticks in the first column of the table with this head."""
    text = (DOCS / document).read_text(encoding="utf-8")
    table = text[text.index(f"\n| {head} |") :].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[3:]]
    return [name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)]


def test_every_setting_is_documented() -> None:
    """docs/settings.md has each setting once, and no other."""
    assert sorted(first_column("settings.md", "setting")) == sorted(Settings.model_fields)


def test_every_option_of_subscriptions_is_documented() -> None:
    """docs/settings.md has each of our options, and those that make room for values again."""
    assert sorted(first_column("settings.md", "option")) == sorted(OWN_OPTIONS)
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    room = text[text.index("| PostgreSQL | lake | no room for | option |") :].split("\n\n")[0]
    assert set(re.findall(r"`([a-z]+_as)`", room)) == set(OPTIONS)


def test_every_failpoint_is_documented() -> None:
    """docs/architecture.md says of each what is true after the next start."""
    assert sorted(first_column("architecture.md", "failpoint")) == sorted(Failpoint)
