-- SPDX-License-Identifier: Apache-2.0
-- What the node keeps about the lake.  The rows of the lake itself are in Delta tables.
--
-- A table here is permanent unless it says otherwise, so a publication FOR ALL TABLES names it in
-- pg_publication_tables, and the walsender decodes its changes: the front door leaves the schema
-- out of both.  Because of such publications every table that is updated has a primary key.
-- Naming one of these tables, or this schema, in a publication is refused (004_event_triggers.sql).

GRANT USAGE ON SCHEMA penstock TO PUBLIC;

CREATE TABLE penstock.node (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id uuid NOT NULL DEFAULT gen_random_uuid()
);
COMMENT ON TABLE penstock.node IS 'The identity that this node writes into every Delta commit';
INSERT INTO penstock.node DEFAULT VALUES;

-- No privileges for anyone: whoever reads the hash still does not know the secret, but why show it.
CREATE TABLE penstock.guard (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    secret_hash bytea NOT NULL
);
COMMENT ON TABLE penstock.guard IS 'SHA-256 of the secret that the guarded functions ask for';

CREATE TABLE penstock.table_version (
    relid oid PRIMARY KEY,
    location text NOT NULL,
    version bigint CHECK (version >= 0),
    sole_writer text
);
CREATE UNIQUE INDEX table_version_location ON penstock.table_version (location)
    WHERE location <> '';
COMMENT ON TABLE penstock.table_version IS 'Committed Delta version of each table of the lake';
COMMENT ON COLUMN penstock.table_version.location IS
    'Folder of the Delta table, relative to the lake; empty for a partitioned table';
COMMENT ON COLUMN penstock.table_version.version IS
    'Null while no Delta table exists: the table is empty';
COMMENT ON COLUMN penstock.table_version.sole_writer IS
    'Replication origin that alone has written the table since it was empty';

CREATE TABLE penstock.table_column (
    relid oid,
    attnum smallint,
    name text NOT NULL,
    type_oid oid NOT NULL,
    typmod integer NOT NULL,
    PRIMARY KEY (relid, attnum)
);
COMMENT ON TABLE penstock.table_column IS 'Columns as the Delta table has them, once there is one';

CREATE TABLE penstock.dropped_table (
    location text PRIMARY KEY,
    xid xid8 NOT NULL
);
COMMENT ON TABLE penstock.dropped_table IS 'Folders to remove, once the dropping transaction is over';

CREATE TABLE penstock.ddl_event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    time timestamptz NOT NULL DEFAULT clock_timestamp(),
    tag text NOT NULL,
    dropped boolean NOT NULL DEFAULT false,
    object_type text,
    classid oid,
    objid oid,
    objsubid integer,
    schema_name text,
    identity text,
    relid oid
);
CREATE INDEX ddl_event_xid ON penstock.ddl_event (xid);
COMMENT ON TABLE penstock.ddl_event IS 'Every definition that changed, in order';
COMMENT ON COLUMN penstock.ddl_event.relid IS
    'The table or view that the object belongs to, when it belongs to one';

CREATE TABLE penstock.commit (
    lsn pg_lsn PRIMARY KEY,
    end_lsn pg_lsn NOT NULL,
    xid xid8 NOT NULL,
    time timestamptz NOT NULL,
    purpose text,
    origin text,
    tables jsonb NOT NULL,
    ddl jsonb NOT NULL
);
COMMENT ON TABLE penstock.commit IS 'The ledger: each commit of the lake, by the LSN of its commit';

-- A subscription's position, moved by the transaction that moves its tables.  The replication
-- origin follows after that commit: PostgreSQL moves an origin when a transaction with a position
-- aborts, too (RecordTransactionAbort), so the origin alone could run ahead of the data.
CREATE TABLE penstock.origin_position (
    origin text PRIMARY KEY,
    lsn pg_lsn NOT NULL,
    time timestamptz NOT NULL
);
COMMENT ON TABLE penstock.origin_position IS
    'End of the last remote transaction that is in the lake, for each replication origin';

CREATE TABLE penstock.subscription_option (
    subid oid PRIMARY KEY,
    create_tables boolean NOT NULL DEFAULT true,
    schema_changes text NOT NULL DEFAULT 'add' CHECK (schema_changes IN ('add', 'error')),
    on_conflict text NOT NULL DEFAULT 'error'
        CHECK (on_conflict IN ('error', 'apply_remote', 'keep_local', 'last_update_wins')),
    numeric_as text NOT NULL DEFAULT 'decimal' CHECK (numeric_as IN ('decimal', 'text')),
    datetime_as text NOT NULL DEFAULT 'timestamp' CHECK (datetime_as IN ('timestamp', 'text')),
    array_as text NOT NULL DEFAULT 'list' CHECK (array_as IN ('list', 'text')),
    infinity_as text NOT NULL DEFAULT 'error' CHECK (infinity_as IN ('error', 'clamp'))
);
COMMENT ON TABLE penstock.subscription_option IS 'Options of subscriptions that PostgreSQL has not';

-- Unlogged: it tells what workers do now, and after a crash there are none.
CREATE UNLOGGED TABLE penstock.subscription_worker (
    subid oid NOT NULL,
    worker_type text NOT NULL,
    pid integer,
    leader_pid integer,
    relid oid,
    received_lsn pg_lsn,
    last_msg_send_time timestamptz,
    last_msg_receipt_time timestamptz,
    latest_end_lsn pg_lsn,
    latest_end_time timestamptz,
    rows_copied bigint,
    rows_total bigint,
    pending_since timestamptz,
    UNIQUE NULLS NOT DISTINCT (subid, worker_type, relid)
);
COMMENT ON TABLE penstock.subscription_worker IS
    'What pg_stat_subscription shows, and what penstock status shows beyond it';
COMMENT ON COLUMN penstock.subscription_worker.rows_total IS 'The publisher''s estimate';
COMMENT ON COLUMN penstock.subscription_worker.pending_since IS
    'Commit time of the oldest transaction that is received and not visible; null: none';

-- Written by the transaction that makes a copy visible, and kept.
CREATE TABLE penstock.subscription_table (
    subid oid,
    relid oid,
    rows_copied bigint NOT NULL,
    copy_seconds float8 NOT NULL,
    PRIMARY KEY (subid, relid)
);
COMMENT ON TABLE penstock.subscription_table IS 'What the initial copy of a table copied';

-- Messages may quote values of rows, so only superusers read them.
CREATE TABLE penstock.subscription_error (
    subid oid,
    relid oid DEFAULT 0,
    time timestamptz NOT NULL DEFAULT clock_timestamp(),
    sqlstate text NOT NULL,
    message text NOT NULL,
    detail text,
    hint text,
    context text,
    lsn pg_lsn,
    PRIMARY KEY (subid, relid)
);
COMMENT ON TABLE penstock.subscription_error IS
    'Last error of a subscription (relid 0) or of the copy of one of its tables';

-- Errors and conflicts are counted here (005_pg_stat_subscription_stats.sql).
CREATE TABLE penstock.subscription_stats (
    subid oid PRIMARY KEY,
    apply_error_count bigint NOT NULL DEFAULT 0,
    sync_error_count bigint NOT NULL DEFAULT 0,
    confl_insert_exists bigint NOT NULL DEFAULT 0,
    confl_update_exists bigint NOT NULL DEFAULT 0,
    confl_update_missing bigint NOT NULL DEFAULT 0,
    confl_delete_missing bigint NOT NULL DEFAULT 0,
    confl_update_origin_differs bigint NOT NULL DEFAULT 0,
    confl_delete_origin_differs bigint NOT NULL DEFAULT 0,
    stats_reset timestamptz
);
COMMENT ON TABLE penstock.subscription_stats IS
    'What pg_stat_subscription_stats shows; no row: nothing happened yet';

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

-- What a publisher's catalogs said of a subscribed table: two conclusions are drawn from it.
--
-- While ``publications`` and ``definition`` stay what they were, nothing has happened to the table's
-- rows that was not sent: a key that is inserted is new (workers/published.py).  A column with an
-- attnum above ``natts`` was added since, and was not renamed or published anew.
CREATE TABLE penstock.subscription_published (
    subid oid,
    relid oid,
    remote_oid oid NOT NULL,
    publications text NOT NULL,
    definition text NOT NULL,
    complete boolean NOT NULL,
    since pg_lsn NOT NULL,
    natts smallint NOT NULL,
    columns text[] NOT NULL,
    files jsonb NOT NULL,
    PRIMARY KEY (subid, relid)
);
COMMENT ON TABLE penstock.subscription_published IS
    'What the publisher''s catalogs said of a subscribed table';
COMMENT ON COLUMN penstock.subscription_published.publications IS
    'Versions (OID and xmin) of the catalog rows by which the table is published';
COMMENT ON COLUMN penstock.subscription_published.definition IS
    'Version (OID and xmin) of the table''s row in pg_class';
COMMENT ON COLUMN penstock.subscription_published.complete IS
    'Whether all that happens to the table''s rows is sent';
COMMENT ON COLUMN penstock.subscription_published.since IS
    'The publisher''s LSN from which on this is known';
COMMENT ON COLUMN penstock.subscription_published.natts IS
    'Columns of the publisher''s table up to this attnum were there when columns were compared';
COMMENT ON COLUMN penstock.subscription_published.columns IS
    'The published columns that were seen until then';
COMMENT ON COLUMN penstock.subscription_published.files IS
    'pg_class.relfilenode by OID then, of each relation with rows: another one tells of a rewrite';

GRANT SELECT ON penstock.node, penstock.table_version, penstock.table_column,
    penstock.dropped_table, penstock.ddl_event, penstock.commit, penstock.subscription_option,
    penstock.subscription_table, penstock.origin_position, penstock.schema_version TO PUBLIC;
