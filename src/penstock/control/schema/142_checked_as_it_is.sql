-- SPDX-License-Identifier: Apache-2.0
-- What 132_unchecked_rows.sql refuses depends on which tables have rows.  So their rows of
-- table_version are locked: who is just writing one is waited for, and in REPEATABLE READ a table
-- that was written since the snapshot is 40001, where it was taken for empty.

CREATE OR REPLACE FUNCTION penstock.table_with_values_of(type_oid oid) RETURNS text
    LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holders oid[];
BEGIN
    WITH RECURSIVE holder(oid) AS (
        SELECT type_oid
        UNION
        SELECT above.oid FROM holder h CROSS JOIN LATERAL (
            SELECT t.oid FROM pg_type t WHERE t.typbasetype = h.oid OR t.typelem = h.oid
            UNION ALL
            SELECT unnest(ARRAY[r.rngtypid, r.rngmultitypid]) FROM pg_range r
                WHERE r.rngsubtype = h.oid
            UNION ALL
            SELECT c.reltype FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                WHERE a.atttypid = h.oid AND a.attnum > 0 AND NOT a.attisdropped) above)
    SELECT array_agg(DISTINCT a.attrelid) INTO holders FROM holder h
        JOIN pg_attribute a ON a.atttypid = h.oid AND a.attnum > 0 AND NOT a.attisdropped;
    RETURN penstock.table_with_rows(holders);
END
$$;

-- The first of some tables that has a version in the lake.
CREATE FUNCTION penstock.table_with_rows(relations oid[]) RETURNS text
    LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM penstock.table_version v WHERE v.relid = ANY (relations)
        ORDER BY v.relid FOR SHARE;
    RETURN (SELECT v.relid::regclass::text FROM penstock.table_version v
        WHERE v.relid = ANY (relations) AND v.version IS NOT NULL ORDER BY 1 LIMIT 1);
END
$$;

CREATE OR REPLACE FUNCTION penstock.refuse_partition(partition oid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other oid := (SELECT p.partdefid FROM pg_inherits h
        JOIN pg_partitioned_table p ON p.partrelid = h.inhparent
        WHERE h.inhrelid = partition AND p.partdefid <> partition AND age(h.xmin) <= 0);
BEGIN
    IF penstock.table_with_rows(ARRAY(SELECT relid FROM pg_partition_tree(other))) IS NOT NULL THEN
        PERFORM penstock.refuse(
            format('a partition beside default partition %s, which has rows in the lake,'
                   ' is not supported', other::regclass),
            'Whether some of them belong to the new partition is not checked.',
            'Detach the default partition, and copy its rows into a new one.');
    END IF;
END
$$;

REVOKE ALL ON FUNCTION penstock.table_with_rows FROM PUBLIC;
