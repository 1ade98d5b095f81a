-- SPDX-License-Identifier: Apache-2.0
-- The foreign keys that a statement must keep (frontdoor/writing/foreign_keys.py).  PostgreSQL's own
-- triggers would look into relations that are empty, so they do not fire while a statement writes
-- the lake, and the node looks into the lake.

CREATE FUNCTION penstock.leaves_of(relation oid) RETURNS SETOF oid
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT relation WHERE NOT EXISTS (SELECT FROM pg_partition_tree(relation::regclass))
    UNION ALL SELECT relid::oid FROM pg_partition_tree(relation::regclass) WHERE isleaf;
END;

CREATE FUNCTION penstock.column_names(relation oid, numbers smallint[]) RETURNS json
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT json_agg(a.attname ORDER BY n.place)
    FROM unnest(numbers) WITH ORDINALITY n (attnum, place)
    JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = n.attnum;
END;

-- The constraints by which a table with rows of its own refers to others.  Partitions of a table that
-- refers have constraints of their own; so have partitions of one that is referred to, which say the
-- same of a part and are left out.
CREATE FUNCTION penstock.references_of(leaf oid) RETURNS SETOF oid
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.oid FROM pg_constraint c LEFT JOIN pg_constraint p ON p.oid = c.conparentid
    WHERE c.contype = 'f' AND c.conrelid = leaf AND p.conrelid IS DISTINCT FROM leaf;
END;

-- The constraints by which others refer to a table with rows of its own, that of a partitioned table
-- once.
CREATE FUNCTION penstock.referring_to(leaf oid) RETURNS SETOF oid
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.oid FROM pg_constraint c LEFT JOIN pg_constraint p ON p.oid = c.conparentid
    WHERE c.contype = 'f' AND c.confrelid = leaf AND p.confrelid IS DISTINCT FROM leaf;
END;

-- Whether a constraint's triggers on one of its tables are enabled: those that check new rows of the
-- table that refers, or those that act when rows of the other one go.  Clients are not let change
-- session_replication_role.
CREATE FUNCTION penstock.foreign_key_fires(con oid, relation oid, checks boolean) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(bool_or(tgenabled IN ('O', 'A')), false)
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE tgconstraint = con AND tgrelid = relation
        AND checks = (p.proname LIKE 'RI\_FKey\_check\_%');
END;

-- One constraint:
--
--   oid, name                  of it
--   child, parent              [relid, schema, name] of the table that refers, and of the other
--   columns, referenced        names, pairwise
--   full                       MATCH FULL
--   on_update, on_delete       confupdtype, confdeltype; set_columns: names of ON DELETE SET ... (...)
--   deferrable, deferred       as defined
--   checks, acts               whether its triggers fire, see above
--   kept                       the equality of the keys is that of their texts in the lake
--   owned_default              a column's default depends on who computes it
--   partitioned                one of its tables is partitioned, or a partition
--   root                       the partitioned table at the top of the one that is referred to
--   child_leaves, parent_leaves  relids of the tables that have their rows
CREATE FUNCTION penstock.foreign_key(con oid) RETURNS json
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT json_build_object(
        'oid', c.oid::bigint, 'name', c.conname,
        'child', json_build_array(r.oid::bigint, r.relnamespace::regnamespace::name, r.relname),
        'parent', json_build_array(f.oid::bigint, f.relnamespace::regnamespace::name, f.relname),
        'columns', penstock.column_names(r.oid, c.conkey),
        'referenced', penstock.column_names(f.oid, c.confkey),
        'full', c.confmatchtype = 'f',
        'on_update', c.confupdtype, 'on_delete', c.confdeltype,
        'set_columns', penstock.column_names(r.oid, c.confdelsetcols),
        'deferrable', c.condeferrable, 'deferred', c.condeferred,
        'checks', penstock.foreign_key_fires(c.oid, r.oid, true),
        'acts', penstock.foreign_key_fires(c.oid, f.oid, false),
        'kept', penstock.index_is_kept(c.conindid),
        'owned_default', EXISTS (
            SELECT FROM pg_attrdef d
            WHERE d.adrelid = r.oid AND d.adnum = ANY (c.conkey) AND (
                d.adbin::text ~ '\{SQLVALUEFUNCTION ' OR EXISTS (
                    SELECT FROM regexp_matches(d.adbin::text, ':(?:op)?funcid ([0-9]+)', 'g') f (oids)
                    JOIN pg_proc p ON p.oid = f.oids[1]::oid
                    WHERE p.provolatile <> 'i' AND p.oid <> 'nextval(regclass)'::regprocedure))),
        'partitioned', 'p' IN (r.relkind, f.relkind) OR r.relispartition OR f.relispartition,
        'root', coalesce(pg_partition_root(f.oid::regclass)::oid, f.oid)::bigint,
        'child_leaves', ARRAY(SELECT leaf::bigint FROM penstock.leaves_of(r.oid) leaf),
        'parent_leaves', ARRAY(SELECT leaf::bigint FROM penstock.leaves_of(f.oid) leaf))
    FROM pg_constraint c
    JOIN pg_class r ON r.oid = c.conrelid
    JOIN pg_class f ON f.oid = c.confrelid
    WHERE c.oid = con;
END;

-- As in 090_writes.sql, without foreign keys among what the lake does not keep.
CREATE OR REPLACE FUNCTION penstock.written_table(v penstock.table_version) RETURNS json
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
            (SELECT format('trigger "%s"', tgname) FROM pg_trigger
             WHERE tgrelid = c.oid AND NOT tgisinternal LIMIT 1),
            (SELECT format('unique index "%s"', k.relname)
             FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid
             WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion)
                 AND NOT penstock.index_is_kept(i.indexrelid) LIMIT 1)),
        'loading_obstacle', coalesce(
            (SELECT format('constraint "%s" that is not valid', conname) FROM pg_constraint
             WHERE conrelid = c.oid AND contype <> 'f' AND NOT convalidated LIMIT 1),
            (SELECT format('check constraint "%s" with a function that is not immutable', conname)
             FROM penstock.changing_check(c.oid) conname)))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = v.relid;
END;

-- What was locked, as JSON:
--
--   tables       each: its table (090_writes.sql), and part_of: which of ``relids`` it is or is in
--   references   the foreign keys of ``referring``
--   referring    those of others that refer to ``referring``
--   partners     the tables beyond ``leaves`` that the references refer to
CREATE FUNCTION penstock.locked_for_write(relids oid[], leaves oid[], writing oid[], partners oid[])
    RETURNS json
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT json_build_object(
        'tables', (
            SELECT json_agg(json_build_object(
                'table', penstock.written_table(v),
                'part_of', ARRAY(
                    SELECT r.oid::bigint FROM unnest(relids) r (oid)
                    WHERE r.oid = v.relid OR r.oid IN (
                        SELECT a.relid FROM pg_partition_ancestors(v.relid) a)))
                ORDER BY v.relid)
            FROM penstock.table_version v WHERE v.relid = ANY (leaves)),
        'references', (
            SELECT json_agg(penstock.foreign_key(con) ORDER BY con)
            FROM unnest(writing) leaf CROSS JOIN LATERAL penstock.references_of(leaf) con),
        'referring', (
            SELECT json_agg(penstock.foreign_key(con) ORDER BY con)
            FROM unnest(writing) leaf CROSS JOIN LATERAL penstock.referring_to(leaf) con),
        'partners', (
            SELECT json_agg(json_build_object(
                'table', penstock.written_table(v), 'part_of', '{}'::bigint[]) ORDER BY v.relid)
            FROM penstock.table_version v WHERE v.relid = ANY (partners)));
END;

-- Hold the tables that some refer to: no row that is looked for there can go before the transaction's
-- end.  They are locked before the tables that refer to them, as who deletes rows does it in that
-- order.  Gives those that have rows of their own.
CREATE FUNCTION penstock.hold_referenced(writing oid[]) RETURNS oid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    referenced oid;
    held oid[];
BEGIN
    FOR referenced IN
        SELECT DISTINCT c.confrelid FROM unnest(writing) leaf
        CROSS JOIN LATERAL penstock.references_of(leaf) con
        JOIN pg_constraint c ON c.oid = con ORDER BY 1
    LOOP
        EXECUTE format('LOCK TABLE %s IN ROW SHARE MODE', referenced::regclass);
        held := held || ARRAY(SELECT penstock.leaves_of(referenced));
    END LOOP;
    PERFORM FROM penstock.table_version v
        WHERE v.relid = ANY (held) AND v.relid <> ALL (writing) ORDER BY v.relid FOR KEY SHARE;
    RETURN held;
END
$$;

-- Lock the relations that a statement writes or sees, then the rows of their leaves in table_version, in
-- the order of control/commits.py.  ``written`` are those of ``relids`` that it writes.
--
-- Writers wait for each other (NO KEY UPDATE), but not for who needs the table's keys to stay (KEY
-- SHARE): only when keys do go (lock_referring) those are waited for.
CREATE FUNCTION penstock.lock_for_write(secret text, relids oid[], written oid[]) RETURNS json
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation oid;
    leaves oid[];
    writing oid[];
    held oid[];
BEGIN
    PERFORM penstock.check_secret(secret);
    FOR relation IN SELECT unnest(relids) ORDER BY 1 LOOP
        EXECUTE format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', relation::regclass);
    END LOOP;
    leaves := ARRAY(SELECT DISTINCT penstock.leaves_of(r) FROM unnest(relids) r);
    writing := ARRAY(SELECT DISTINCT penstock.leaves_of(r) FROM unnest(written) r);
    held := penstock.hold_referenced(writing);
    PERFORM FROM penstock.table_version v
        WHERE v.relid = ANY (leaves) ORDER BY v.relid FOR NO KEY UPDATE;
    RETURN penstock.locked_for_write(relids, leaves, writing, ARRAY(
        SELECT unnest(held) EXCEPT SELECT unnest(leaves)));
END
$$;

-- A statement has taken keys out of tables, which others refer to: wait for all who need them to stay,
-- and hold the tables that refer, and those that are changed by ON DELETE and ON UPDATE.  Gives them
-- as above; ``relids`` are locked for write.
CREATE FUNCTION penstock.lock_referring(secret text, relids oid[]) RETURNS json
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    each record;
    acted oid[];
    others oid[];
    held oid[];
BEGIN
    PERFORM penstock.check_secret(secret);
    PERFORM FROM penstock.table_version v
        WHERE v.relid = ANY (relids) ORDER BY v.relid FOR UPDATE;
    WITH RECURSIVE reached (relid, acted) AS (
        SELECT r.oid, true FROM unnest(relids) r (oid)
        UNION
        SELECT leaf, c.confupdtype IN ('c', 'n', 'd') OR c.confdeltype IN ('c', 'n', 'd')
        FROM reached
        CROSS JOIN LATERAL penstock.referring_to(reached.relid) con
        JOIN pg_constraint c ON c.oid = con
        CROSS JOIN LATERAL penstock.leaves_of(c.conrelid) leaf
        WHERE reached.acted)
    SELECT array_agg(r.relid ORDER BY r.relid) FILTER (WHERE r.acted),
           array_agg(r.relid ORDER BY r.relid) FILTER (WHERE NOT r.acted)
        INTO acted, others
        FROM (SELECT relid, bool_or(reached.acted) AS acted FROM reached GROUP BY relid) r;
    FOR each IN
        SELECT r AS relid, r = ANY (acted) AS acted FROM unnest(acted || others) r ORDER BY 1
    LOOP
        EXECUTE format('LOCK TABLE %s IN %s MODE', each.relid::regclass,
            CASE WHEN each.acted THEN 'ROW EXCLUSIVE' ELSE 'ROW SHARE' END);
    END LOOP;
    held := penstock.hold_referenced(acted);
    FOR each IN
        SELECT r AS relid, r = ANY (acted) AS acted FROM unnest(acted || others) r ORDER BY 1
    LOOP
        IF each.acted THEN
            PERFORM FROM penstock.table_version v WHERE v.relid = each.relid FOR UPDATE;
        ELSE
            PERFORM FROM penstock.table_version v WHERE v.relid = each.relid FOR SHARE;
        END IF;
    END LOOP;
    RETURN penstock.locked_for_write(acted, acted, acted, ARRAY(
        SELECT unnest(held || others) EXCEPT SELECT unnest(acted)));
END
$$;

-- Keep PostgreSQL's triggers of foreign keys from firing until the end of the subtransaction.
CREATE FUNCTION penstock.without_foreign_keys(secret text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.check_secret(secret);
    PERFORM set_config('session_replication_role', 'replica', true);
END
$$;

-- All tables that TRUNCATE ... CASCADE of some empties, partitions among them.
CREATE FUNCTION penstock.truncated_with(relids oid[]) RETURNS SETOF oid
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE emptied (relid) AS (
        SELECT unnest(relids)
        UNION
        SELECT more.relid FROM emptied CROSS JOIN LATERAL (
            SELECT t.relid::oid FROM pg_partition_tree(emptied.relid::regclass) t
            UNION ALL
            SELECT conrelid FROM pg_constraint
            WHERE contype = 'f' AND confrelid = emptied.relid) more (relid))
    SELECT relid FROM emptied;
END;

-- The foreign keys that the current transaction has added or validated on tables with a Delta table,
-- as ``references`` above, and their ``tables``: rows of the lake must be looked at.  A catalog row is
-- new as in new_promises() (030_definitions.sql).
CREATE FUNCTION penstock.new_references() RETURNS json
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH touched AS (
        SELECT DISTINCT e.relid FROM penstock.ddl_event e
        JOIN penstock.table_version v ON v.relid = e.relid AND v.version IS NOT NULL
        WHERE e.xid = pg_current_xact_id_if_assigned() AND NOT e.dropped),
    added AS (
        SELECT con AS oid, c.conrelid, c.confrelid FROM touched
        CROSS JOIN LATERAL penstock.references_of(touched.relid) con
        JOIN pg_constraint c ON c.oid = con
        WHERE c.convalidated AND age(c.xmin) <= 0
            AND penstock.foreign_key_fires(c.oid, c.conrelid, true))
    SELECT json_build_object(
        'references', (SELECT json_agg(penstock.foreign_key(oid) ORDER BY oid) FROM added),
        'tables', (
            SELECT json_agg(json_build_object(
                'table', penstock.written_table(v), 'part_of', '{}'::bigint[]))
            FROM penstock.table_version v
            WHERE v.relid IN (
                SELECT conrelid FROM added
                UNION SELECT penstock.leaves_of(confrelid) FROM added)),
        'referring', NULL, 'partners', NULL)
    WHERE EXISTS (SELECT FROM added);
END;

DROP FUNCTION penstock.lock_for_write(text, oid[]);
REVOKE ALL ON FUNCTION penstock.leaves_of, penstock.column_names, penstock.references_of,
    penstock.referring_to, penstock.foreign_key_fires, penstock.foreign_key,
    penstock.locked_for_write, penstock.hold_referenced FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock.truncated_with, penstock.new_references TO PUBLIC;

-- As in 090_writes.sql, but that rows go in as they are.
ALTER FUNCTION penstock.load_rows(text, text, text[]) SET session_replication_role = replica;
