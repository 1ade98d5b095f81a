# SPDX-License-Identifier: Apache-2.0
"""Received changes, durable, cut at commits."""
