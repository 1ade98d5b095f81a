# SPDX-License-Identifier: Apache-2.0
"""Changes -> merge plans on Spark."""
