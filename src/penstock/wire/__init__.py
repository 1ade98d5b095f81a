# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's protocol 3: framing and states, sans-I/O."""
