# SPDX-License-Identifier: Apache-2.0
"""COPY TO STDOUT of lake tables."""
