-- SPDX-License-Identifier: Apache-2.0
-- The row filters that the current transaction made, for the node to refuse those that the lake
-- cannot evaluate exactly (frontdoor/definitions/publications.py).  ALTER PUBLICATION ... SET TABLE makes all of
-- them anew, and a statement before this one in the transaction may have made some, too: they are
-- looked at again, which costs a look and nothing else.
--
-- Planning a query with the filter computes its constant parts.  PostgreSQL's walsender does that
-- before the first row, and an error there would stop it for good; so it is raised here.

CREATE FUNCTION penstock.new_row_filters() RETURNS TABLE (
        publication text, schema_name text, table_name text, columns json, tree text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made record;
BEGIN
    IF NOT EXISTS (SELECT FROM penstock.ddl_event e
                   WHERE e.xid = pg_current_xact_id_if_assigned() AND NOT e.dropped
                     AND e.object_type LIKE 'publication%') THEN
        RETURN;
    END IF;
    FOR made IN
        SELECT p.pubname, n.nspname, c.relname, c.oid, r.prqual
        FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
        JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prqual IS NOT NULL AND age(r.xmin) <= 0
        ORDER BY p.pubname, n.nspname, c.relname
    LOOP
        EXECUTE format('EXPLAIN SELECT 1 FROM ONLY %I.%I WHERE %s', made.nspname, made.relname,
                       pg_get_expr(made.prqual, made.oid));
        RETURN QUERY SELECT made.pubname::text, made.nspname::text, made.relname::text,
            (SELECT json_agg(json_build_array(a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,
                                              a.attnotnull) ORDER BY a.attnum)
             FROM pg_attribute a
             WHERE a.attrelid = made.oid AND a.attnum > 0 AND NOT a.attisdropped),
            made.prqual::text;
    END LOOP;
END
$$;
COMMENT ON FUNCTION penstock.new_row_filters IS
    'Row filters that this transaction made, for the node';
GRANT EXECUTE ON FUNCTION penstock.new_row_filters TO PUBLIC;
