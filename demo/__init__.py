# SPDX-License-Identifier: Apache-2.0
"""The demo: the main job on real input, from nothing to running."""
