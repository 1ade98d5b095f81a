-- SPDX-License-Identifier: Apache-2.0
-- Analysed forms of some statements, for the front door: as penstock.analysed, but of any statement
-- with a plan, and null for one that PostgreSQL refuses, which does not fail the transaction.

CREATE FUNCTION penstock.analysed_each(statements text[], parameter_types oid[]) RETURNS text[]
    LANGUAGE plpgsql
AS $$
DECLARE
    arguments text;
    statement text;
    tree text;
    trees text[];
BEGIN
    SELECT pg_catalog.string_agg(pg_catalog.format_type(t.type, NULL), ', ' ORDER BY t.number)
        INTO arguments
        FROM pg_catalog.unnest(parameter_types) WITH ORDINALITY t (type, number);
    FOREACH statement IN ARRAY statements LOOP
        tree := NULL;
        BEGIN
            EXECUTE pg_catalog.format(
                E'CREATE FUNCTION pg_temp.penstock_query(%s) RETURNS pg_catalog.void'
                ' LANGUAGE sql BEGIN ATOMIC %s\n; END', arguments, statement);
            SELECT p.prosqlbody INTO STRICT tree FROM pg_catalog.pg_proc p
                WHERE p.oid OPERATOR(pg_catalog.=) pg_catalog.to_regproc('pg_temp.penstock_query');
            RAISE EXCEPTION SQLSTATE 'PE000';
        EXCEPTION
            WHEN SQLSTATE 'PE000' OR SQLSTATE '42000' OR SQLSTATE '22000' OR SQLSTATE '0A000' THEN
                NULL;
        END;
        trees := trees || tree;
    END LOOP;
    RETURN trees;
END
$$;
COMMENT ON FUNCTION penstock.analysed_each IS
    'The analysed trees of statements, for the node; they are not run';
GRANT EXECUTE ON FUNCTION penstock.analysed_each TO PUBLIC;
