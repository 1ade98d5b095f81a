-- SPDX-License-Identifier: Apache-2.0
-- What a client's own session does when one of its statements writes the lake (frontdoor/writing/writer.py).

CREATE FUNCTION penstock.index_columns(index_oid oid) RETURNS json
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT json_agg(a.attname ORDER BY pos.ordinality)
    FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY pos (attnum, ordinality)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = pos.attnum
    WHERE i.indexrelid = index_oid AND pos.ordinality <= i.indnkeyatts;
END;

-- Whether the lake keeps what a unique index promises: over columns, all rows, at once, by an
-- equality that is that of the values' texts.
CREATE FUNCTION penstock.index_is_kept(index_oid oid) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AND NOT i.indisexclusion
        AND NOT EXISTS (
            SELECT FROM unnest(i.indkey::smallint[], i.indcollation::oid[])
                WITH ORDINALITY pos (attnum, collation_oid, place)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = pos.attnum
            JOIN pg_type t ON t.oid = a.atttypid
            LEFT JOIN pg_collation o ON o.oid = pos.collation_oid
            WHERE pos.place <= i.indnkeyatts AND NOT (
                coalesce(o.collisdeterministic, true)
                AND (t.typtype = 'e'
                    OR t.oid IN (1700, 1114, 1184)  -- numeric, timestamp, timestamptz
                    OR t.oid = 1042 AND a.atttypmod > 4  -- character(n): all are as long
                    OR CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END IN (
                        16, 17, 18, 19, 20, 21, 23, 25, 26, 1043, 1082, 1083, 2950, 829, 774,
                        869, 650, 1560, 1562, 3220))))
    FROM pg_index i WHERE i.indexrelid = index_oid;
END;

-- At most one CHECK constraint of a relation, or of a domain in its columns, whose result is not that
-- of the row alone: rows that were good may fail it when they are put in again, and it would have
-- the rights of the schema's owner, who puts them in.
CREATE FUNCTION penstock.changing_check(relation oid) RETURNS SETOF name
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE inside (type_oid) AS (
        SELECT atttypid FROM pg_attribute
        WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
        UNION
        SELECT part.type_oid FROM inside JOIN pg_type t ON t.oid = inside.type_oid
        CROSS JOIN LATERAL (
            VALUES (t.typelem), (t.typbasetype)
            UNION ALL
            SELECT rngsubtype FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
            UNION ALL
            SELECT atttypid FROM pg_attribute
            WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped) part (type_oid)
        WHERE part.type_oid <> 0)
    SELECT conname FROM pg_constraint
    WHERE contype = 'c'
        AND (conrelid = relation OR contypid IN (SELECT type_oid FROM inside))
        AND (conbin::text ~ '\{SQLVALUEFUNCTION ' OR EXISTS (
            SELECT FROM regexp_matches(conbin::text, ':(?:op)?funcid ([0-9]+)', 'g') call (oids)
            JOIN pg_proc p ON p.oid = call.oids[1]::oid
            WHERE p.provolatile <> 'i'))
    ORDER BY conname LIMIT 1;
END;

CREATE FUNCTION penstock.written_table(v penstock.table_version) RETURNS json
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT json_build_object(
        'relid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname,
        'identity', c.relreplident, 'location', v.location, 'version', v.version,
        'sole_writer', v.sole_writer,
        'columns', (
            SELECT json_agg(json_build_array(
                attnum, attname, atttypid::bigint, atttypmod, attnotnull) ORDER BY attnum)
            FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
        'types', (
            SELECT json_agg(format_type(atttypid, atttypmod) ORDER BY attnum)
            FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
        'generated', (
            SELECT json_agg(attname) FROM pg_attribute
            WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated <> ''),
        'key', (
            SELECT json_build_array(k.relname, penstock.index_columns(i.indexrelid))
            FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid
            WHERE i.indrelid = c.oid AND (i.indisreplident OR i.indisprimary)
            ORDER BY i.indisreplident DESC LIMIT 1),
        'uniques', (
            SELECT json_agg(json_build_array(
                k.relname, penstock.index_columns(i.indexrelid), NOT i.indnullsnotdistinct)
                ORDER BY i.indexrelid)
            FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid
            WHERE i.indrelid = c.oid AND i.indisunique),
        'obstacle', coalesce(
            (SELECT format('foreign key constraint "%s"', conname) FROM pg_constraint
             WHERE conrelid = c.oid AND contype = 'f' LIMIT 1),
            (SELECT format('trigger "%s"', tgname) FROM pg_trigger
             WHERE tgrelid = c.oid AND NOT tgisinternal LIMIT 1),
            (SELECT format('unique index "%s"', k.relname)
             FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid
             WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion)
                 AND NOT penstock.index_is_kept(i.indexrelid) LIMIT 1)),
        'changes_obstacle', (
            SELECT format('foreign key constraint "%s" that refers to it', conname)
            FROM pg_constraint WHERE confrelid = c.oid AND contype = 'f' LIMIT 1),
        'loading_obstacle', coalesce(
            (SELECT format('constraint "%s" that is not valid', conname) FROM pg_constraint
             WHERE conrelid = c.oid AND NOT convalidated LIMIT 1),
            (SELECT format('check constraint "%s" with a function that is not immutable', conname)
             FROM penstock.changing_check(c.oid) conname)))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = v.relid;
END;

-- Lock the relations that a statement writes, then the rows of their leaves in table_version, in the
-- order of control/commits.py; of each leaf which of the relations it is a part of, and its table:
--
--   relid, schema, name, identity, location, version, sole_writer
--   columns           [attnum, name, type, typmod, not null]; types as SQL; generated: names
--   key               columns of the replica identity's index, else of the primary key; its name
--   uniques           [index, [column], nulls are distinct] of each unique index
--   obstacle          what the lake cannot keep when rows are inserted, or null
--   changes_obstacle  what it cannot keep when rows are changed, or null
--   loading_obstacle  why its rows cannot be put into the relation, or null
--
-- An equality of two values in an index must be that of their texts in the lake: so of -0 and 0, of 1
-- day and 24 hours nothing is said here, and such keys are an obstacle.
CREATE FUNCTION penstock.lock_for_write(secret text, relids oid[]) RETURNS json
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    written oid;
    leaves oid[];
BEGIN
    PERFORM penstock.check_secret(secret);
    FOR written IN SELECT unnest(relids) ORDER BY 1 LOOP
        EXECUTE format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', written::regclass);
    END LOOP;
    leaves := ARRAY(
        SELECT DISTINCT coalesce(t.relid::oid, r.oid) FROM unnest(relids) r (oid)
        LEFT JOIN LATERAL pg_partition_tree(r.oid::regclass) t ON true
        WHERE coalesce(t.isleaf, true));
    PERFORM FROM penstock.table_version v
        WHERE v.relid = ANY (leaves) ORDER BY v.relid FOR UPDATE;
    RETURN (SELECT json_agg(json_build_object(
                'table', penstock.written_table(v),
                'part_of', ARRAY(
                    SELECT r.oid::bigint FROM unnest(relids) r (oid)
                    WHERE r.oid = v.relid OR r.oid IN (
                        SELECT a.relid FROM pg_partition_ancestors(v.relid) a)))
                ORDER BY v.relid)
            FROM penstock.table_version v WHERE v.relid = ANY (leaves));
END
$$;

-- Open a cursor on the rows that the session's statement has put into its empty relation, with the
-- rights of the schema's owner: who may insert need not be allowed to read.
CREATE FUNCTION penstock.open_written_rows(secret text, query text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    written refcursor := 'penstock_written';
BEGIN
    PERFORM penstock.check_secret(secret);
    OPEN written NO SCROLL FOR EXECUTE query;
END
$$;

-- Put the lake's rows into a relation: ``statement`` is an INSERT ... RETURNING of a bigint, $1 are
-- array literals of texts as the lake has them.  What it gives is in the order of the rows.
CREATE FUNCTION penstock.load_rows(secret text, statement text, columns text[])
    RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET DateStyle = 'ISO, MDY' SET TimeZone = 'UTC' SET IntervalStyle = 'postgres'
    SET array_nulls = on
AS $$
BEGIN
    PERFORM penstock.check_secret(secret);
    RETURN QUERY EXECUTE statement USING columns;
END
$$;

-- Make the xid of the transaction durable, though it has not committed; false where the server
-- cannot (before 17), and another session has to write and commit something.
CREATE FUNCTION penstock.make_xid_durable(secret text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.check_secret(secret);
    IF current_setting('server_version_num')::int < 170000 THEN
        RETURN false;
    END IF;
    EXECUTE $call$SELECT pg_logical_emit_message(false, 'penstock.xid', '{}', flush => true)$call$;
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION penstock.written_table, penstock.index_columns, penstock.index_is_kept,
    penstock.changing_check FROM PUBLIC;
