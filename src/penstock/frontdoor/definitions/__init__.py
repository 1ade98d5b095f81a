# SPDX-License-Identifier: Apache-2.0
"""DDL, publications and subscriptions: the lake follows what PostgreSQL has carried out."""
