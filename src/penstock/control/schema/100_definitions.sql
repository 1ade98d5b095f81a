-- SPDX-License-Identifier: Apache-2.0
-- Publications and tables as they were at each commit.
--
-- A walsender publishes a commit by the catalogs of that commit, however late it reads it.  So each
-- statement that changes a publication or a table of the lake puts what they are now into its
-- transaction's WAL, and the ledger keeps it with the LSN of the commit (control/ledger.py): it is
-- in order with the commits of the lake, and there as soon as the WAL is, which is before other
-- sessions see the transaction when that waits for a synchronous standby.
--
-- One row is one catalog row and what belongs to it alone, so that transactions side by side never
-- record the same thing: a relation names its schema and its parent by their OIDs.  And a relation is
-- recorded only by a transaction that holds a lock on it that keeps others from changing it: what it
-- recorded without one could be old when it commits, and would come after the newer.

CREATE TABLE penstock.definition (
    kind text,
    objid oid,
    lsn pg_lsn,
    relid oid,
    facts jsonb,
    PRIMARY KEY (kind, objid, lsn)
);
CREATE INDEX definition_relid ON penstock.definition (relid) WHERE relid IS NOT NULL;
COMMENT ON TABLE penstock.definition IS
    'What publications and tables were from the commit with this LSN on';
COMMENT ON COLUMN penstock.definition.kind IS
    'As event triggers call it: publication, publication relation, publication namespace, schema, table';
COMMENT ON COLUMN penstock.definition.relid IS 'The table of a publication relation';
COMMENT ON COLUMN penstock.definition.facts IS 'Null: it was dropped';

CREATE TABLE penstock.definition_horizon (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    lsn pg_lsn NOT NULL
);
COMMENT ON TABLE penstock.definition_horizon IS 'The LSN from which on definitions are known';

-- What the current transaction sees of an object; null when it does not exist.
-- There is no pubgencols before 18, and no prexcept (FOR ALL TABLES EXCEPT) before 19.
CREATE FUNCTION penstock.facts_of(kind text, objid oid) RETURNS jsonb
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE kind
        WHEN 'publication' THEN (
            SELECT jsonb_build_object(
                'name', pubname, 'all_tables', puballtables, 'via_root', pubviaroot,
                'publish', ARRAY[pubinsert, pubupdate, pubdelete, pubtruncate],
                'generated', coalesce(to_jsonb(p)->>'pubgencols', 'n'))
            FROM pg_publication p WHERE oid = objid)
        WHEN 'publication relation' THEN (
            SELECT jsonb_build_object(
                'publication', prpubid::int8, 'relid', prrelid::int8, 'where', prqual::text,
                'columns', prattrs::int2[],
                'excepted', coalesce((to_jsonb(r)->>'prexcept')::boolean, false))
            FROM pg_publication_rel r WHERE oid = objid)
        WHEN 'publication namespace' THEN (
            SELECT jsonb_build_object('publication', pnpubid::int8, 'namespace', pnnspid::int8)
            FROM pg_publication_namespace WHERE oid = objid)
        WHEN 'schema' THEN (
            SELECT jsonb_build_object('name', nspname) FROM pg_namespace WHERE oid = objid)
        WHEN 'table' THEN (
            SELECT jsonb_build_object(
                'namespace', c.relnamespace::int8, 'name', c.relname, 'kind', c.relkind,
                'identity', c.relreplident, 'location', v.location,
                'parent', (SELECT inhparent::int8 FROM pg_inherits
                           WHERE inhrelid = c.oid AND c.relispartition AND NOT inhdetachpending),
                'key', (
                    SELECT penstock.index_columns(indexrelid) FROM pg_index
                    WHERE indrelid = c.oid AND (indisreplident OR indisprimary)
                    ORDER BY indisreplident DESC LIMIT 1),
                'columns', (
                    SELECT jsonb_agg(jsonb_build_array(
                        a.attnum, a.attname, a.atttypid::int8, a.atttypmod, a.attnotnull,
                        c.relreplident = 'f' OR coalesce(
                            a.attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1]), false),
                        a.attgenerated) ORDER BY a.attnum)
                    FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
            FROM pg_class c JOIN penstock.table_version v ON v.relid = c.oid
            LEFT JOIN pg_index i ON i.indexrelid = pg_get_replica_identity_index(c.oid)
            WHERE c.oid = objid)
    END
$$;

-- What an object was for the commit with an LSN; null when it did not exist.
CREATE FUNCTION penstock.facts_at(kind text, objid oid, at pg_lsn) RETURNS jsonb
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.facts FROM penstock.definition d
    WHERE d.kind = $1 AND d.objid = $2 AND d.lsn <= $3 ORDER BY d.lsn DESC LIMIT 1
$$;

-- Every object that definitions are kept of.
CREATE FUNCTION penstock.defined_objects() RETURNS TABLE (kind text, objid oid)
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'publication', oid FROM pg_publication UNION ALL
    SELECT 'publication relation', oid FROM pg_publication_rel UNION ALL
    SELECT 'publication namespace', oid FROM pg_publication_namespace UNION ALL
    SELECT 'schema', oid FROM pg_namespace UNION ALL
    SELECT 'table', relid FROM penstock.table_version
$$;

-- The history begins here, or begins again after a gap: what is now was so from this LSN on.
CREATE FUNCTION penstock.begin_definitions(at pg_lsn) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM penstock.definition;
    INSERT INTO penstock.definition (kind, objid, lsn, relid, facts)
        SELECT o.kind, o.objid, at, (f.facts->>'relid')::oid, f.facts
        FROM penstock.defined_objects() o, penstock.facts_of(o.kind, o.objid) f (facts);
    DELETE FROM penstock.definition_horizon;
    INSERT INTO penstock.definition_horizon (lsn) VALUES (at);
$$;

CREATE FUNCTION penstock.emit_definitions(kinds text[], objids oid[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    definitions jsonb;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('kind', o.kind, 'objid', o.objid::int8,
                                        'facts', penstock.facts_of(o.kind, o.objid)))
        INTO definitions
        FROM (SELECT DISTINCT * FROM unnest(kinds, objids) o (kind, objid)) o;
    IF definitions IS NOT NULL THEN
        PERFORM pg_logical_emit_message(true, 'penstock', jsonb_build_object(
            'v', 1, 'xid', pg_current_xact_id()::text, 'definitions', definitions)::text);
    END IF;
END
$$;

-- Tables of the lake that this transaction has locked so that nobody else can change them.
CREATE FUNCTION penstock.locked_tables() RETURNS TABLE (relid oid)
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT v.relid FROM pg_locks l JOIN penstock.table_version v ON v.relid = l.relation
    WHERE l.pid = pg_backend_pid() AND l.granted AND l.locktype = 'relation'
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                       'AccessExclusiveLock')
$$;

-- ALTER TABLE names one relation and changes those below it, and a partition that it attaches or
-- detaches: all of them are locked.
CREATE FUNCTION penstock.record_commands() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kinds text[];
    objids oid[];
BEGIN
    WITH command AS (
        SELECT c.object_type, c.objid, c.command_tag,
            penstock.relation_of(c.classid, c.objid) AS relid
        FROM pg_event_trigger_ddl_commands() c
        WHERE c.command_tag NOT IN ('COMMENT', 'SECURITY LABEL')
            AND (c.schema_name IS NULL OR c.schema_name NOT IN ('pg_temp', 'penstock'))
            AND (c.object_type LIKE 'table%' OR c.object_type LIKE 'publication%'
                 OR c.object_type = 'schema')
    )
    SELECT array_agg(t.kind), array_agg(t.objid) INTO kinds, objids FROM (
        SELECT 'table' AS kind, l.relid AS objid FROM penstock.locked_tables() l
            WHERE l.relid IN (SELECT relid FROM command WHERE object_type LIKE 'table%')
                OR EXISTS (SELECT FROM command WHERE command_tag = 'ALTER TABLE')
        UNION ALL
        SELECT object_type, objid FROM command
            WHERE object_type LIKE 'publication%' OR object_type = 'schema'
        UNION ALL  -- what CREATE PUBLICATION has is not reported
        SELECT 'publication relation', r.oid FROM command c JOIN pg_publication_rel r
            ON c.command_tag = 'CREATE PUBLICATION' AND r.prpubid = c.objid
        UNION ALL
        SELECT 'publication namespace', s.oid FROM command c JOIN pg_publication_namespace s
            ON c.command_tag = 'CREATE PUBLICATION' AND s.pnpubid = c.objid) t;
    PERFORM penstock.emit_definitions(kinds, objids);
END
$$;

-- An index that was dropped by itself may have been a replica identity; of which table is known
-- no longer, but that one is locked.
CREATE FUNCTION penstock.record_drops() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kinds text[];
    objids oid[];
BEGIN
    WITH dropped AS (
        SELECT object_type, objid FROM pg_event_trigger_dropped_objects()
        WHERE NOT is_temporary AND schema_name IS DISTINCT FROM 'penstock')
    SELECT array_agg(t.kind), array_agg(t.objid) INTO kinds, objids FROM (
        SELECT replace(object_type, 'table column', 'table') AS kind, objid FROM dropped
            WHERE object_type IN ('table', 'table column', 'schema') OR object_type LIKE 'publication%'
        UNION ALL
        SELECT 'table', l.relid FROM penstock.locked_tables() l
            WHERE EXISTS (SELECT FROM dropped WHERE object_type = 'index')) t;
    PERFORM penstock.emit_definitions(kinds, objids);
END
$$;

-- After penstock_ddl, by the name: that one refuses, and registers new tables.
CREATE EVENT TRIGGER penstock_history ON ddl_command_end
    EXECUTE FUNCTION penstock.record_commands();
CREATE EVENT TRIGGER penstock_history_drop ON sql_drop EXECUTE FUNCTION penstock.record_drops();
ALTER EVENT TRIGGER penstock_history ENABLE ALWAYS;
ALTER EVENT TRIGGER penstock_history_drop ENABLE ALWAYS;
REVOKE ALL ON FUNCTION penstock.facts_of, penstock.facts_at, penstock.defined_objects,
    penstock.begin_definitions, penstock.emit_definitions, penstock.locked_tables,
    penstock.record_commands, penstock.record_drops FROM PUBLIC;

-- Of what was before this version, only what it is now is known.
SELECT penstock.begin_definitions('0/0');
