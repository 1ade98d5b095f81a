# SPDX-License-Identifier: Apache-2.0
"""Measurements beside PostgreSQL's own replication, in the same run."""
