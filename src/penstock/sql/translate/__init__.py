# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's analysed queries as Spark SQL; ``query.translate`` is the entry."""
