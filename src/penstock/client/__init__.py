# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL as our publisher: connection, start-up contract, receiver, copy reader."""
