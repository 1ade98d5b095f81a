# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's logical replication for the lakehouse, on Spark."""

__version__ = "0.1.0"
