# SPDX-License-Identifier: Apache-2.0
"""The control database: server, schema, commits, catalog reads."""
