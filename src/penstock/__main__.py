# SPDX-License-Identifier: Apache-2.0
"""``python -m penstock`` is the command ``penstock``."""

from penstock.cli.main import run

run()
