# SPDX-License-Identifier: Apache-2.0
"""The launcher's own work: staging folders of subscriptions that do not exist any more."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.workers.launcher import remove_staging


def test_a_folder_that_cannot_be_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported, once, and does not keep the others: those of subscriptions stay."""
    staging = Settings(home=tmp_path).staging_path
    staging.mkdir()
    for name in ("1", "2", "3", "notes"):
        (staging / name).mkdir()
        (staging / name / "1.parquet").write_bytes(b"x")
    (staging / "0").write_bytes(b"a file is no folder, so removing it as one fails")
    (staging / "4").write_bytes(b"another")
    reported: set[Path] = set()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            remove_staging(staging, {2}, reported)
    assert {each.name for each in staging.iterdir()} == {"0", "2", "4", "notes"}
    assert len(caplog.messages) == 2
    assert str(staging / "0") in " ".join(caplog.messages)
