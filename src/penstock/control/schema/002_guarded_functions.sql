-- SPDX-License-Identifier: Apache-2.0
-- What a client's own session must do for the node, inside the client's transaction: lock and move
-- table versions, write the commit record.  The functions run with the rights of the schema's
-- owner and ask for a secret that only the node knows; without it, 42501.
--
-- The secret is always a bind parameter, never part of a statement's text.  Two settings that any
-- client may change would show parameters to it (log_parameter_max_length_on_error in an error's
-- context, debug_print_plan in a LOG message): the node sets both back in the same transaction
-- first (penstock/control/guard.py).

CREATE FUNCTION penstock.check_secret(secret text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM penstock.guard g
                   WHERE g.secret_hash = sha256(convert_to(secret, 'UTF8'))) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = 'permission denied for the node''s own functions',
            DETAIL = 'Only the node itself moves the lake''s versions.';
    END IF;
END
$$;

CREATE FUNCTION penstock.lock_tables(secret text, relids oid[])
    RETURNS TABLE (relid oid, location text, version bigint, sole_writer text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.check_secret(secret);
    RETURN QUERY
        SELECT v.relid, v.location, v.version, v.sole_writer FROM penstock.table_version v
        WHERE v.relid = ANY (relids) ORDER BY v.relid FOR UPDATE;
END
$$;

CREATE FUNCTION penstock.set_table_version(
    secret text, relid oid, version bigint, sole_writer text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM penstock.check_secret(secret);
    UPDATE penstock.table_version v
        SET version = set_table_version.version, sole_writer = set_table_version.sole_writer
        WHERE v.relid = set_table_version.relid;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_table',
            MESSAGE = format('relation with OID %s is not a table of the lake', relid);
    END IF;
END
$$;

CREATE FUNCTION penstock.set_table_columns(secret text, relid oid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.check_secret(secret);
    PERFORM penstock.take_columns(relid);
END
$$;

-- The Delta table now has the columns that the relation has.
CREATE FUNCTION penstock.take_columns(table_oid oid) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM penstock.table_column WHERE relid = table_oid;
    INSERT INTO penstock.table_column (relid, attnum, name, type_oid, typmod)
        SELECT attrelid, attnum, attname, atttypid, atttypmod FROM pg_attribute
        WHERE attrelid = table_oid AND attnum > 0 AND NOT attisdropped
$$;

CREATE FUNCTION penstock.emit_commit(secret text, record jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.check_secret(secret);
    PERFORM pg_logical_emit_message(true, 'penstock', record::text);
END
$$;

REVOKE ALL ON FUNCTION penstock.check_secret, penstock.take_columns FROM PUBLIC;

-- A message of prefix penstock is a commit of the lake: nobody else writes messages.
DO $$
DECLARE
    function oid;
BEGIN
    FOR function IN SELECT oid FROM pg_catalog.pg_proc
        WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function::regprocedure);
    END LOOP;
END
$$;
