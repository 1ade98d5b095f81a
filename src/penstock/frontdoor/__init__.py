# SPDX-License-Identifier: Apache-2.0
"""The front door: the server sockets, and what a statement becomes."""
