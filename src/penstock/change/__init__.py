# SPDX-License-Identifier: Apache-2.0
"""What a change is: relations, types, the change schema."""
