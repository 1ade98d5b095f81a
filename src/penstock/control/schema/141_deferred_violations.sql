-- SPDX-License-Identifier: Apache-2.0
-- Deferrable foreign keys (frontdoor/writing/deferred.py).  A row is a constraint that the lake's rows
-- do not keep as the transaction has left them, with the keys.  The node writes it behind each
-- statement, so rollbacks to savepoints undo it with the statement; a constraint trigger that is
-- deferred like the constraint itself raises the error when there still is the row at COMMIT, PREPARE
-- TRANSACTION or SET CONSTRAINTS ALL IMMEDIATE, or at once.  So no committed row is ever here.

CREATE UNLOGGED TABLE penstock.deferred_violation (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    con oid NOT NULL,
    by_parent boolean NOT NULL,
    deferred boolean NOT NULL,
    keys bytea NOT NULL,
    error jsonb NOT NULL
);
COMMENT ON TABLE penstock.deferred_violation IS
    'Constraint con is violated: by rows that went, if by_parent, else by rows that came; error has'
    ' the fields of the message';

CREATE FUNCTION penstock.raise_violation() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM penstock.deferred_violation WHERE id = NEW.id) THEN
        RAISE EXCEPTION USING ERRCODE = NEW.error->>'C', MESSAGE = NEW.error->>'M',
            DETAIL = NEW.error->>'D', SCHEMA = NEW.error->>'s', TABLE = NEW.error->>'t',
            CONSTRAINT = NEW.error->>'n';
    END IF;
    RETURN NULL;
END
$$;

-- Triggers are refused on tables of the lake, and by this server on all.
ALTER EVENT TRIGGER penstock_ddl DISABLE;
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON penstock.deferred_violation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.deferred)
    EXECUTE FUNCTION penstock.raise_violation();
CREATE CONSTRAINT TRIGGER immediate AFTER INSERT ON penstock.deferred_violation
    DEFERRABLE INITIALLY IMMEDIATE FOR EACH ROW WHEN (NOT NEW.deferred)
    EXECUTE FUNCTION penstock.raise_violation();
ALTER EVENT TRIGGER penstock_ddl ENABLE ALWAYS;

-- The transaction's violations: constraint, by_parent, and the keys in base64.
CREATE FUNCTION penstock.violations(secret text) RETURNS TABLE (
        con bigint, by_parent boolean, keys text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.check_secret(secret);
    RETURN QUERY SELECT v.con::bigint, v.by_parent, encode(v.keys, 'base64')
        FROM penstock.deferred_violation v ORDER BY v.id;
END
$$;

-- What a constraint's violation is from now on; without keys there is none.
CREATE FUNCTION penstock.set_violation(
    secret text, constraint_oid oid, of_parent boolean, is_deferred boolean, violating text,
    fields jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.check_secret(secret);
    DELETE FROM penstock.deferred_violation WHERE con = constraint_oid AND by_parent = of_parent;
    IF violating IS NOT NULL THEN
        INSERT INTO penstock.deferred_violation (con, by_parent, deferred, keys, error)
            VALUES (constraint_oid, of_parent, is_deferred, decode(violating, 'base64'), fields);
    END IF;
END
$$;

REVOKE ALL ON FUNCTION penstock.raise_violation FROM PUBLIC;
