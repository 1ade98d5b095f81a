-- SPDX-License-Identifier: Apache-2.0
-- What a plan leaves out must be empty in the lake.
--
-- By default PostgreSQL also leaves out partitions whose CHECK constraints refute a condition.  In
-- the lake a CHECK is no promise: it is not looked at for rows that a subscription brings, or that
-- another program writes.  Partition bounds are.

CREATE OR REPLACE FUNCTION penstock.plan_of(statement text) RETURNS json
    LANGUAGE plpgsql
    SET constraint_exclusion = off
AS $$
DECLARE
    result record;
BEGIN
    FOR result IN
        EXECUTE 'EXPLAIN (VERBOSE, GENERIC_PLAN, COSTS OFF, FORMAT JSON) ' || statement
    LOOP
        RETURN result."QUERY PLAN";
    END LOOP;
END
$$;

-- The relations in the plan of a query, NULL among them for one whose name is already another's.
-- Not generic, it lacks partitions that the time of the transaction rules out.
CREATE FUNCTION penstock.relations_in_plan(statement text, generic boolean) RETURNS oid[]
    LANGUAGE plpgsql
    SET constraint_exclusion = off
AS $$
DECLARE
    result record;
    options text := CASE WHEN generic THEN 'VERBOSE, GENERIC_PLAN' ELSE 'VERBOSE' END;
BEGIN
    FOR result IN
        EXECUTE pg_catalog.concat('EXPLAIN (', options, ', COSTS OFF, FORMAT JSON) ', statement)
    LOOP
        RETURN ARRAY(
            SELECT DISTINCT pg_catalog.to_regclass(pg_catalog.format('%I.%I',
                pg_catalog.jsonb_extract_path_text(node, 'Schema'),
                pg_catalog.jsonb_extract_path_text(node, 'Relation Name')))::pg_catalog.oid
            FROM pg_catalog.jsonb_path_query(result."QUERY PLAN"::pg_catalog.jsonb,
                '$.** ? (exists (@."Relation Name"))') AS n (node));
    END LOOP;
END
$$;
GRANT EXECUTE ON FUNCTION penstock.relations_in_plan TO PUBLIC;
