-- SPDX-License-Identifier: Apache-2.0
-- Which row of its relation a statement has made of each that it has changed (frontdoor/writing/versions.py).

-- What is given is in the order of ``ctids``: block * 65536 + number of the row's version now.  A row
-- that was deleted, or moved to another partition, has its own.
CREATE FUNCTION penstock.row_versions(secret text, relation oid, ctids tid[])
    RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text := (
        SELECT format('%I.%I', n.nspname, c.relname)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relation);
BEGIN
    PERFORM penstock.check_secret(secret);
    RETURN QUERY
        SELECT (now::text::point)[0]::bigint << 16 | (now::text::point)[1]::bigint
        FROM unnest(ctids) WITH ORDINALITY c (ctid, nth)
        CROSS JOIN LATERAL currtid2(name, c.ctid) now
        ORDER BY nth;
END
$$;
