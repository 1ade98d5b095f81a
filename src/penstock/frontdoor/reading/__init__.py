# SPDX-License-Identifier: Apache-2.0
"""Queries on lake tables."""
