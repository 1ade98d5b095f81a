# SPDX-License-Identifier: Apache-2.0
"""Publishing: changes to the changes that a subscriber is sent."""
