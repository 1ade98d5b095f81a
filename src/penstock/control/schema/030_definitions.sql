-- SPDX-License-Identifier: Apache-2.0
-- What the lake must follow after a statement that changed definitions (frontdoor/definitions/reconcile.py).

-- Tables with a Delta table that the current transaction's statements have touched, with their
-- columns now and as the Delta table has them.  "fill" is what ADD COLUMN ... DEFAULT gave to the
-- rows that existed, as PostgreSQL itself recorded it (pg_attribute.attmissingval).  The settings
-- make it the text form that the stream has, whatever the session's own settings are.
-- "rewrite" are the reasons for which PostgreSQL would have rewritten rows, or'ed.
CREATE FUNCTION penstock.altered_tables() RETURNS TABLE (
        relid oid, schema_name text, table_name text, rewrite integer, columns jsonb,
        recorded jsonb)
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    SET datestyle = 'ISO'
    SET intervalstyle = 'postgres'
    SET timezone = 'UTC'
    SET extra_float_digits = 3
    SET bytea_output = 'hex'
AS $$
    SELECT c.oid, c.relnamespace::regnamespace::name::text, c.relname::text, e.rewrite,
        (SELECT jsonb_agg(jsonb_build_object(
                'attnum', a.attnum, 'name', a.attname, 'type_oid', a.atttypid::bigint,
                'typmod', a.atttypmod, 'not_null', a.attnotnull,
                'by_row', a.atthasdef OR a.attidentity <> '',
                'fill', (a.attmissingval::text::text[])[1]) ORDER BY a.attnum)
         FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
        (SELECT jsonb_agg(jsonb_build_object(
                'attnum', t.attnum, 'name', t.name, 'type_oid', t.type_oid::bigint,
                'typmod', t.typmod) ORDER BY t.attnum)
         FROM penstock.table_column t WHERE t.relid = c.oid)
    FROM (SELECT e.relid, coalesce(bit_or(e.objsubid) FILTER (WHERE object_type = 'rewrite'), 0)
                 AS rewrite
          FROM penstock.ddl_event e
          WHERE e.xid = pg_current_xact_id_if_assigned() AND e.relid IS NOT NULL AND NOT e.dropped
          GROUP BY e.relid) e
    JOIN penstock.table_version v ON v.relid = e.relid AND v.version IS NOT NULL
    JOIN pg_class c ON c.oid = e.relid
    ORDER BY c.oid
$$;

-- A type change with USING computes new values from the rows, which are not in this server.  The
-- word is looked for in the statement's text, so a comment with it is refused, too.
CREATE FUNCTION penstock.refuse_using() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_event_trigger_table_rewrite_reason() & 4 <> 0 AND current_query() ~* '\musing\M'
       AND EXISTS (SELECT FROM penstock.table_version
                   WHERE relid = pg_event_trigger_table_rewrite_oid() AND version IS NOT NULL) THEN
        PERFORM penstock.refuse(
            'ALTER COLUMN ... TYPE ... USING is not supported by the lake',
            format('Table %s has rows in the lake, which this server cannot compute.',
                   pg_event_trigger_table_rewrite_oid()::regclass),
            'Add a column of the new type instead.');
    END IF;
END
$$;
CREATE EVENT TRIGGER penstock_using ON table_rewrite EXECUTE FUNCTION penstock.refuse_using();
ALTER EVENT TRIGGER penstock_using ENABLE ALWAYS;

REVOKE ALL ON FUNCTION penstock.refuse_using FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock.altered_tables TO PUBLIC;

-- What the current transaction promised about rows that are not in this server, on tables with a
-- Delta table: the lake's rows must be looked at.  A catalog row is new when its xmin is not older
-- than this transaction's xid (age() counts from there); one that another transaction wrote in the
-- meantime is among them, which costs a look and nothing else.
CREATE FUNCTION penstock.new_promises() RETURNS TABLE (
        relid oid, kind text, name text, columns text[])
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH touched AS (
        SELECT DISTINCT e.relid FROM penstock.ddl_event e
        JOIN penstock.table_version v ON v.relid = e.relid AND v.version IS NOT NULL
        WHERE e.xid = pg_current_xact_id_if_assigned() AND NOT e.dropped)
    SELECT a.attrelid, 'not null', a.attname::text, ARRAY[a.attname::text]
        FROM pg_attribute a JOIN touched t ON t.relid = a.attrelid
        WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull AND age(a.xmin) <= 0
    UNION ALL
    SELECT i.indrelid,
           CASE WHEN i.indpred IS NOT NULL OR i.indexprs IS NOT NULL THEN 'partly unique'
                WHEN (to_jsonb(i)->>'indnullsnotdistinct')::boolean THEN 'unique with nulls'
                ELSE 'unique' END,
           c.relname::text,
           ARRAY(SELECT a.attname::text FROM unnest(i.indkey::smallint[]) WITH ORDINALITY k (n, place)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n
                 WHERE k.place <= i.indnkeyatts ORDER BY k.place)
        FROM pg_index i JOIN touched t ON t.relid = i.indrelid
        JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indisunique AND age(i.xmin) <= 0
    UNION ALL
    SELECT c.conrelid, 'check', c.conname::text, '{}'
        FROM pg_constraint c JOIN touched t ON t.relid = c.conrelid
        WHERE c.contype = 'c' AND c.convalidated AND age(c.xmin) <= 0
    UNION ALL
    SELECT h.inhrelid, 'partition', h.inhparent::regclass::text, '{}'
        FROM pg_inherits h JOIN touched t ON t.relid = h.inhrelid
        WHERE age(h.xmin) <= 0 AND NOT h.inhdetachpending
$$;
GRANT EXECUTE ON FUNCTION penstock.new_promises TO PUBLIC;
