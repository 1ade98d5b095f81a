-- SPDX-License-Identifier: Apache-2.0
-- The columns that CREATE TABLE AS would give a table (130 says how queries are analysed).

CREATE OR REPLACE FUNCTION penstock.undo_in_query_schema() RETURNS event_trigger
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
            DETAIL = coalesce(
                (SELECT prosqlbody::text FROM pg_proc WHERE oid = made),
                (SELECT string_agg(
                    format('%I %s', attname, format_type(atttypid, atttypmod))
                    || CASE WHEN attcollation <> typcollation THEN
                        format(' COLLATE %s', attcollation::regcollation) ELSE '' END,
                    ', ' ORDER BY attnum)
                 FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
                 WHERE attrelid = made AND attnum > 0),
                ''),
            HINT = 'It is the node''s own.';
    END IF;
END
$$;

CREATE FUNCTION penstock.described(query text, names text) RETURNS text
    LANGUAGE plpgsql
AS $$
DECLARE
    columns text;
BEGIN
    EXECUTE pg_catalog.format(
        E'CREATE VIEW penstock_query.query_%s %s AS %s\n',
        pg_catalog.pg_backend_pid(), names, query);
    RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
        MESSAGE = 'lake tables cannot be used while "event_triggers" is "off"';
EXCEPTION WHEN SQLSTATE 'PE000' THEN
    GET STACKED DIAGNOSTICS columns = PG_EXCEPTION_DETAIL;
    RETURN columns;
END
$$;
COMMENT ON FUNCTION penstock.described IS
    'The columns of a query with these names, as CREATE TABLE has them; it is not run';
GRANT EXECUTE ON FUNCTION penstock.described TO PUBLIC;
