-- SPDX-License-Identifier: Apache-2.0
-- The analysed form of a query, as the session that asks sees it: its search path, role, temporary
-- and uncommitted objects.  The node translates it for Spark.
--
-- PostgreSQL keeps the analysed tree of an SQL-standard function body.  So the query becomes the
-- body of a temporary function, the tree is read from the catalog, and an exception undoes it all:
-- nothing of it is ever visible, not even to this session.  Nothing of the query is run.
--
-- Null in a read-only transaction, where nothing can be created: the node then asks in a session
-- of its own that looks like this one.

CREATE FUNCTION penstock.analysed(query text, parameter_types oid[]) RETURNS text
    LANGUAGE plpgsql
AS $$
DECLARE
    arguments text;
    tree text;
BEGIN
    IF pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool THEN
        RETURN NULL;
    END IF;
    SELECT pg_catalog.string_agg(pg_catalog.format_type(t.type, NULL), ', ' ORDER BY t.number)
        INTO arguments
        FROM pg_catalog.unnest(parameter_types) WITH ORDINALITY t (type, number);
    BEGIN
        EXECUTE pg_catalog.format(
            E'CREATE FUNCTION pg_temp.penstock_query(%s) RETURNS SETOF pg_catalog.record'
            ' LANGUAGE sql BEGIN ATOMIC %s\n; END', arguments, query);
        -- Not a regproc constant: a cached plan would keep the OID of an earlier call.
        SELECT p.prosqlbody INTO STRICT tree FROM pg_catalog.pg_proc p
            WHERE p.oid OPERATOR(pg_catalog.=) pg_catalog.to_regproc('pg_temp.penstock_query');
        RAISE EXCEPTION SQLSTATE 'PE000';
    EXCEPTION WHEN SQLSTATE 'PE000' THEN
        NULL;
    END;
    RETURN tree;
END
$$;
COMMENT ON FUNCTION penstock.analysed IS
    'The analysed tree of a query, for the node; it is not run';
GRANT EXECUTE ON FUNCTION penstock.analysed TO PUBLIC;
