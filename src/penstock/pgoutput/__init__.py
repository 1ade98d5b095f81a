# SPDX-License-Identifier: Apache-2.0
"""pgoutput bytes <-> Arrow."""
