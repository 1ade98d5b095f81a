# SPDX-License-Identifier: Apache-2.0
"""Protocols over time: table states, the copy plan, the hand-over."""
