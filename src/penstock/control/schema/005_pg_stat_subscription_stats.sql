-- SPDX-License-Identifier: Apache-2.0
-- PostgreSQL counts errors and conflicts in shared memory; ours are counted in a table.
-- The view has the columns of the server's own, whatever its version (18 added confl_*); what the
-- table does not count is 0.

-- A function outside of the schema penstock would be refused, and the rest is not the lake's.
ALTER EVENT TRIGGER penstock_ddl DISABLE;
SET LOCAL allow_system_table_mods = on;
DO $$
DECLARE
    columns text;
BEGIN
    SELECT string_agg(
            CASE WHEN v.attname = 'subid' THEN 'su.oid AS subid'
                 WHEN v.attname = 'subname' THEN 'su.subname'
                 WHEN v.attname = 'stats_reset' THEN 'st.stats_reset'
                 WHEN t.attname IS NULL THEN format('0::bigint AS %I', v.attname)
                 ELSE format('coalesce(st.%1$I, 0) AS %1$I', v.attname) END,
            ', ' ORDER BY v.attnum)
        INTO columns
        FROM pg_catalog.pg_attribute v
        LEFT JOIN pg_catalog.pg_attribute t
            ON t.attrelid = 'penstock.subscription_stats'::regclass AND t.attname = v.attname
        WHERE v.attrelid = 'pg_catalog.pg_stat_subscription_stats'::regclass AND v.attnum > 0;
    EXECUTE 'CREATE OR REPLACE VIEW pg_catalog.pg_stat_subscription_stats AS SELECT ' || columns
        || ' FROM pg_catalog.pg_subscription su'
        || ' LEFT JOIN penstock.subscription_stats st ON st.subid = su.oid';
END
$$;

-- A function of the server itself cannot be replaced, since it is called by its OID.
ALTER FUNCTION pg_catalog.pg_stat_reset_subscription_stats(oid)
    RENAME TO pg_stat_reset_native_subscription_stats;
CREATE FUNCTION pg_catalog.pg_stat_reset_subscription_stats(oid) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO penstock.subscription_stats (subid, stats_reset)
        SELECT oid, clock_timestamp() FROM pg_catalog.pg_subscription
        WHERE $1 IS NULL OR oid = $1
    ON CONFLICT (subid) DO UPDATE SET
        apply_error_count = 0, sync_error_count = 0, confl_insert_exists = 0,
        confl_update_exists = 0, confl_update_missing = 0, confl_delete_missing = 0,
        confl_update_origin_differs = 0, confl_delete_origin_differs = 0,
        stats_reset = excluded.stats_reset
$$;
REVOKE ALL ON FUNCTION pg_catalog.pg_stat_reset_subscription_stats FROM PUBLIC;
SET LOCAL allow_system_table_mods = off;
ALTER EVENT TRIGGER penstock_ddl ENABLE ALWAYS;
