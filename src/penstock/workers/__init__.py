# SPDX-License-Identifier: Apache-2.0
"""Long-running loops of the node: launcher, receiver, apply, table sync, ledger."""
