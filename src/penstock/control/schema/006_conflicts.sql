-- SPDX-License-Identifier: Apache-2.0
-- Conflicts: what a subscription does about them, how many there were, and a log of them.

ALTER TABLE penstock.subscription_option ADD COLUMN on_conflict text NOT NULL DEFAULT 'error'
    CHECK (on_conflict IN ('error', 'apply_remote', 'keep_local', 'last_update_wins'));

ALTER TABLE penstock.subscription_stats
    ADD COLUMN confl_update_origin_differs bigint NOT NULL DEFAULT 0,
    ADD COLUMN confl_delete_origin_differs bigint NOT NULL DEFAULT 0;

-- Written by the transaction of the batch that met the conflicts (of the error's record, when the
-- conflict is an error).  Rows show values, so only superusers read them.
CREATE TABLE penstock.conflict_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time timestamptz NOT NULL DEFAULT clock_timestamp(),
    subid oid NOT NULL,
    relid oid NOT NULL,
    relation text NOT NULL,
    conflict text NOT NULL,
    resolution text NOT NULL,
    changes bigint NOT NULL DEFAULT 1,
    remote_xid bigint,
    remote_lsn pg_lsn,
    remote_commit_time timestamptz,
    local_origin oid,
    local_commit_time timestamptz,
    key jsonb,
    local_row jsonb,
    remote_row jsonb
);
CREATE INDEX conflict_log_subscription ON penstock.conflict_log (subid, id);
COMMENT ON TABLE penstock.conflict_log IS
    'Conflicts of subscriptions, the last ones; values are in PostgreSQL''s text form';
COMMENT ON COLUMN penstock.conflict_log.relation IS 'Qualified name, as it was then';
COMMENT ON COLUMN penstock.conflict_log.resolution IS
    'error, apply_remote, keep_local, or skip: there was nothing to apply the change to';
COMMENT ON COLUMN penstock.conflict_log.changes IS
    'More than one: so many more conflicts of the batch, of which no row is logged each';
COMMENT ON COLUMN penstock.conflict_log.remote_lsn IS
    'Finish LSN of the remote transaction, as ALTER SUBSCRIPTION ... SKIP takes it';
COMMENT ON COLUMN penstock.conflict_log.local_origin IS
    'Subscription that last changed the local row; null: unknown, or there is no local row';

-- The view has the columns of the server's own (see 005); the two new ones are counted now.
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
CREATE OR REPLACE FUNCTION pg_catalog.pg_stat_reset_subscription_stats(oid) RETURNS void
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
SET LOCAL allow_system_table_mods = off;
ALTER EVENT TRIGGER penstock_ddl ENABLE ALWAYS;

CREATE OR REPLACE FUNCTION penstock.forget_subscription_stats() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM penstock.subscription_stats s USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND s.subid = d.objid;
    DELETE FROM penstock.conflict_log s USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND s.subid = d.objid;
END
$$;
