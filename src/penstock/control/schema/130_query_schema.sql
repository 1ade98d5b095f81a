-- SPDX-License-Identifier: Apache-2.0
-- Analysed forms of queries (020, 125) without temporary objects: PostgreSQL refuses to PREPARE a
-- transaction that has touched any, also in a subtransaction that was undone.
--
-- The function whose body is the query is made in the schema penstock_query.  Everybody may create
-- there, so that the query is analysed with the caller's own rights and names, and nobody can:
-- whatever is made in it is undone at once, by an error that carries the function's tree.  So no
-- object of that schema is ever visible to anybody.

CREATE SCHEMA penstock_query;
COMMENT ON SCHEMA penstock_query IS
    'Empty for ever: queries are analysed here, and what that makes is undone';
GRANT USAGE, CREATE ON SCHEMA penstock_query TO PUBLIC;

-- Its trigger comes first, in the order of names: before others have taken note of the object.
CREATE FUNCTION penstock.undo_in_query_schema() RETURNS event_trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made oid;
BEGIN
    SELECT objid INTO made FROM pg_event_trigger_ddl_commands()
        WHERE schema_name = 'penstock_query' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PE000',
            MESSAGE = 'nothing can be created in schema "penstock_query"',
            DETAIL = coalesce((SELECT prosqlbody::text FROM pg_proc WHERE oid = made), ''),
            HINT = 'It is the node''s own.';
    END IF;
END
$$;
REVOKE ALL ON FUNCTION penstock.undo_in_query_schema FROM PUBLIC;
CREATE EVENT TRIGGER penstock_analysed ON ddl_command_end
    EXECUTE FUNCTION penstock.undo_in_query_schema();
ALTER EVENT TRIGGER penstock_analysed ENABLE ALWAYS;

-- The tree of one statement as the body of a function that gives ``result``.  Sessions side by side
-- have names of their own: one would wait for the other's otherwise.
CREATE FUNCTION penstock.analyse(statement text, parameter_types oid[], result text) RETURNS text
    LANGUAGE plpgsql
AS $$
DECLARE
    tree text;
BEGIN
    EXECUTE pg_catalog.format(
        E'CREATE FUNCTION penstock_query.query_%s(%s) RETURNS %s LANGUAGE sql BEGIN ATOMIC %s\n; END',
        pg_catalog.pg_backend_pid(),
        (SELECT pg_catalog.string_agg(pg_catalog.format_type(t.type, NULL), ', ' ORDER BY t.number)
         FROM pg_catalog.unnest(parameter_types) WITH ORDINALITY t (type, number)),
        result, statement);
    RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
        MESSAGE = 'lake tables cannot be used while "event_triggers" is "off"';
EXCEPTION WHEN SQLSTATE 'PE000' THEN
    GET STACKED DIAGNOSTICS tree = PG_EXCEPTION_DETAIL;
    RETURN tree;
END
$$;
COMMENT ON FUNCTION penstock.analyse IS
    'The analysed tree of a statement, for the node; it is not run';

CREATE OR REPLACE FUNCTION penstock.analysed(query text, parameter_types oid[]) RETURNS text
    LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool THEN
        RETURN NULL;
    END IF;
    RETURN penstock.analyse(query, parameter_types, 'SETOF pg_catalog.record');
END
$$;

CREATE OR REPLACE FUNCTION penstock.analysed_each(statements text[], parameter_types oid[])
    RETURNS text[]
    LANGUAGE plpgsql
AS $$
DECLARE
    statement text;
    tree text;
    trees text[];
BEGIN
    FOREACH statement IN ARRAY statements LOOP
        BEGIN
            tree := penstock.analyse(statement, parameter_types, 'pg_catalog.void');
        EXCEPTION WHEN SQLSTATE '42000' OR SQLSTATE '22000' OR SQLSTATE '0A000' THEN
            tree := NULL;
        END;
        trees := trees || tree;
    END LOOP;
    RETURN trees;
END
$$;
GRANT EXECUTE ON FUNCTION penstock.analyse TO PUBLIC;
