-- SPDX-License-Identifier: Apache-2.0
-- A publication FOR ALL TABLES has the node's own tables, too: the list of its tables, which
-- subscribers ask for, leaves the schema penstock out.  Subscribers of 15 ask the view, later ones the
-- function (tablesync.c, fetch_remote_table_info; subscriptioncmds.c, fetch_table_list).
--
-- A function of the server itself cannot be replaced, since it is called by its OID: it gets another
-- name, and the view is made again with the new one.

-- A function outside of the schema penstock would be refused, and the rest is not the lake's.
ALTER EVENT TRIGGER penstock_ddl DISABLE;
SET LOCAL allow_system_table_mods = on;
DO $$
DECLARE
    view text := pg_catalog.pg_get_viewdef('pg_catalog.pg_publication_tables'::regclass);
BEGIN
    ALTER FUNCTION pg_catalog.pg_get_publication_tables(text[])
        RENAME TO pg_get_native_publication_tables;
    CREATE FUNCTION pg_catalog.pg_get_publication_tables(
            VARIADIC pubname text[], OUT pubid oid, OUT relid oid, OUT attrs int2vector,
            OUT qual pg_node_tree)
        RETURNS SETOF record LANGUAGE sql STABLE STRICT PARALLEL SAFE ROWS 1000
    BEGIN ATOMIC
        SELECT t.pubid, t.relid, t.attrs, t.qual
        FROM pg_catalog.pg_get_native_publication_tables(VARIADIC pubname) t
        JOIN pg_catalog.pg_class c ON c.oid = t.relid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname <> 'penstock';
    END;
    EXECUTE 'CREATE OR REPLACE VIEW pg_catalog.pg_publication_tables AS ' || view;
END
$$;
SET LOCAL allow_system_table_mods = off;
ALTER EVENT TRIGGER penstock_ddl ENABLE ALWAYS;
