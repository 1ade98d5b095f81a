-- SPDX-License-Identifier: Apache-2.0
-- The plan of a statement with parameters, for the front door, whichever protocol it speaks.
--
-- Sent as a statement of its own in the extended protocol, EXPLAIN (GENERIC_PLAN) has the same
-- parameters as the statement that it explains, and folds their values into the plan: with NULL,
-- "id = $1" is false and the table is not in the plan.  Here they have no values.
--
-- It runs with the caller's rights and search_path, and executes nothing: a cursor takes only one
-- statement, and that is an EXPLAIN.

CREATE FUNCTION penstock.plan_of(statement text) RETURNS json
    LANGUAGE plpgsql
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
GRANT EXECUTE ON FUNCTION penstock.plan_of TO PUBLIC;
