# SPDX-License-Identifier: Apache-2.0
"""Statements that write lake tables."""
