-- SPDX-License-Identifier: Apache-2.0
-- PostgreSQL fills pg_stat_subscription from its own workers' memory; ours write a table.
-- The columns are those of the server's own view, whatever its version (17 added worker_type).

SET LOCAL allow_system_table_mods = on;
DO $$
DECLARE
    columns text;
BEGIN
    SELECT string_agg(
            CASE attname WHEN 'subid' THEN 'su.oid AS subid' WHEN 'subname' THEN 'su.subname'
                         ELSE 'w.' || quote_ident(attname) END, ', ' ORDER BY attnum)
        INTO columns FROM pg_catalog.pg_attribute
        WHERE attrelid = 'pg_catalog.pg_stat_subscription'::regclass AND attnum > 0;
    EXECUTE 'CREATE OR REPLACE VIEW pg_catalog.pg_stat_subscription AS SELECT ' || columns
        || ' FROM pg_catalog.pg_subscription su'
        || ' LEFT JOIN penstock.subscription_worker w ON w.subid = su.oid';
END
$$;
SET LOCAL allow_system_table_mods = off;
