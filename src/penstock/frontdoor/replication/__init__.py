# SPDX-License-Identifier: Apache-2.0
"""A subscriber's connection: commands, copies and the stream."""
