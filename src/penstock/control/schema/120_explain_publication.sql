-- SPDX-License-Identifier: Apache-2.0
-- What a publication publishes now, and what is wrong with it.
--
-- Rows and bytes are not in this server.  Before the node relays a statement that calls
-- explain_publication('name'), it counts them in the lake, at the versions that the session sees,
-- and leaves them in the setting penstock.explained for its duration (frontdoor/reading/explained.py).

-- The tables that hold the rows of what a publication publishes, with what is needed to count them.
CREATE FUNCTION penstock.published_parts(publication text) RETURNS TABLE (
        relid oid, schema_name text, table_name text, location text, version bigint,
        columns json, tree text, obstacle text)
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.relid, n.nspname, c.relname, v.location, v.version,
        (SELECT json_agg(json_build_array(attnum, attname, atttypid::int8, atttypmod, attnotnull)
                         ORDER BY attnum)
         FROM pg_attribute WHERE attrelid = t.relid AND attnum > 0 AND NOT attisdropped),
        t.qual::text,
        CASE WHEN NOT has_table_privilege(t.relid, 'SELECT') THEN 'privilege'
             WHEN row_security_active(t.relid) THEN 'row security' END
    FROM pg_get_publication_tables(published_parts.publication) t
    JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN penstock.table_version v ON v.location <> '' AND (
        v.relid = t.relid OR v.relid IN (
            SELECT p.relid FROM pg_partition_tree(t.relid) p WHERE p.isleaf))
$$;

-- Problems with the identity of the tables that hold a published table's rows: PostgreSQL refuses
-- UPDATE and DELETE there (execReplication.c, CheckCmdReplicaIdentity), with these words.
--
-- It is mended by a unique index that can be the identity, has the filter's columns, and only
-- columns of the list; else by FULL, for which there may be no list.
CREATE FUNCTION penstock.identity_problems(
        publication name, relid oid, filtered name[], listed name[], filter text)
    RETURNS TABLE (problem text, solution text)
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH leaf AS (
        SELECT c.oid, c.oid::regclass::text AS name, c.relreplident = 'f' AS full_identity,
            (SELECT array_agg(a.attname) FROM pg_index i JOIN pg_attribute a
                ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1])
             WHERE i.indexrelid = pg_get_replica_identity_index(c.oid)) AS identity
        FROM pg_class c WHERE c.relkind = 'r' AND (c.oid = identity_problems.relid OR c.oid IN (
            SELECT p.relid FROM pg_partition_tree(identity_problems.relid) p WHERE p.isleaf))
    ), found AS (
        SELECT leaf.*, CASE
            WHEN NOT full_identity AND NOT filtered <@ coalesce(identity, '{}') THEN
                'Column used in the publication WHERE expression is not part of the replica identity.'
            WHEN listed IS NOT NULL AND (full_identity OR NOT coalesce(identity, '{}') <@ listed) THEN
                'Column list used by the publication does not cover the replica identity.'
            WHEN NOT full_identity AND identity IS NULL THEN
                'The table does not have a replica identity.' END AS problem,
            (SELECT CASE WHEN x.indisprimary THEN 'DEFAULT'
                    ELSE 'USING INDEX ' || quote_ident(x.relname) END
             FROM (SELECT i.indisprimary, k.relname, count(*) AS columns,
                       array_agg(a.attname) AS names, bool_and(a.attnotnull) AS not_null
                   FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid
                   JOIN pg_attribute a ON a.attrelid = leaf.oid
                       AND a.attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1])
                   WHERE i.indrelid = leaf.oid AND i.indisunique AND i.indimmediate
                       AND i.indpred IS NULL AND i.indexprs IS NULL
                   GROUP BY i.indexrelid, i.indisprimary, k.relname) x
             WHERE x.not_null AND filtered <@ x.names AND (listed IS NULL OR x.names <@ listed)
             ORDER BY x.indisprimary DESC, x.columns, x.relname LIMIT 1) AS choice
        FROM leaf)
    SELECT problem, CASE
        WHEN choice IS NOT NULL OR listed IS NULL THEN
            format('ALTER TABLE %s REPLICA IDENTITY %s;', name, coalesce(choice, 'FULL'))
        ELSE format('ALTER PUBLICATION %1$I DROP TABLE %2$s; ALTER PUBLICATION %1$I ADD TABLE %2$s%3$s;',
                    publication, identity_problems.relid::regclass, ' WHERE ' || filter)
            || CASE WHEN full_identity THEN '' ELSE
                format(' ALTER TABLE %s REPLICA IDENTITY FULL;', name) END END
    FROM found WHERE problem IS NOT NULL ORDER BY name
$$;

CREATE FUNCTION penstock.explain_publication(publication text) RETURNS TABLE (
        schema_name text, table_name text, rows bigint, bytes bigint, columns text[],
        row_filter text, problem text, solution text)
    LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
DECLARE
    explained pg_catalog.json := nullif(
        pg_catalog.current_setting('penstock.explained', true), '')::pg_catalog.json;
BEGIN
    IF explained->>'publication' IS DISTINCT FROM explain_publication.publication THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
            MESSAGE = 'the argument of penstock.explain_publication must be a string constant',
            DETAIL = 'The rows are counted before the statement is run.';
    END IF;
    RETURN QUERY
        SELECT n.nspname::text, c.relname::text,
            (explained->'counts'->t.relid::text->>0)::bigint,
            (explained->'counts'->t.relid::text->>1)::bigint,
            shown.names::text[], filter.text, problems.problem, problems.solution
        FROM pg_catalog.pg_publication p
        CROSS JOIN LATERAL pg_catalog.pg_get_publication_tables(p.pubname::text) t
        JOIN pg_catalog.pg_class c ON c.oid = t.relid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = t.relid
        CROSS JOIN LATERAL (SELECT pg_catalog.pg_get_expr(t.qual, t.relid)) filter (text)
        CROSS JOIN LATERAL (
            SELECT pg_catalog.array_agg(a.attname ORDER BY a.attnum) AS names,
                pg_catalog.array_agg(a.attname) FILTER (WHERE r.prattrs IS NOT NULL) AS listed
            FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = t.relid AND a.attnum = ANY (t.attrs::pg_catalog.int2[])) shown
        CROSS JOIN LATERAL (
            SELECT coalesce(pg_catalog.array_agg(DISTINCT a.attname), '{}') AS names
            FROM pg_catalog.regexp_matches(t.qual::text, ':varattno ([0-9]+)', 'g') v (numbers)
            JOIN pg_catalog.pg_attribute a
                ON a.attrelid = t.relid AND a.attnum = v.numbers[1]::pg_catalog.int2) filtered
        CROSS JOIN LATERAL (
            SELECT pg_catalog.string_agg(DISTINCT i.problem, E'\n') AS problem,
                pg_catalog.string_agg(i.solution, E'\n') AS solution
            FROM penstock.identity_problems(p.pubname, t.relid, filtered.names, shown.listed,
                                            filter.text) i
            WHERE p.pubupdate OR p.pubdelete) problems
        WHERE p.pubname = explain_publication.publication
        ORDER BY 1, 2;
END
$$;
COMMENT ON FUNCTION penstock.explain_publication IS
    'Tables of a publication: rows that its filter lets through now, bytes of the table''s files, '
    'published columns, and what is wrong with the replica identity';
GRANT EXECUTE ON FUNCTION penstock.published_parts, penstock.identity_problems,
    penstock.explain_publication TO PUBLIC;
