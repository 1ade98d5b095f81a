# SPDX-License-Identifier: Apache-2.0
"""Statements: splitting, classifying, PostgreSQL -> Spark SQL."""
