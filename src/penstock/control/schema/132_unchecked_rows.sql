-- SPDX-License-Identifier: Apache-2.0
-- Definitions that PostgreSQL checks, or follows, with the rows of tables.  Its own relations are
-- empty, so it would find nothing against them while the lake has rows.  What new constraints and
-- keys of a table promise is looked at by the node (030_definitions.sql); here is what is refused
-- where a table of the lake has a Delta version, whatever rows that holds:
--
--     CHECK and NOT NULL of a domain           the rows with its values are not checked
--     values of an enum renamed,               the lake holds the text of the values, which would
--       attributes of a type changed             have to be written again
--     a partition beside a default one         rows of the default one may belong to the new one
--     SET EXPRESSION of a generated column     the rows have to be computed again
--
-- A policy of a temporary table could read a table of the lake: queries of temporary tables are
-- not looked at, as they cannot reach the lake otherwise.

-- A table of the lake with a version that has a column whose values contain some of a type.
CREATE FUNCTION penstock.table_with_values_of(type_oid oid) RETURNS text
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE holder(oid) AS (
        SELECT type_oid
        UNION
        SELECT above.oid FROM holder h CROSS JOIN LATERAL (
            SELECT t.oid FROM pg_type t WHERE t.typbasetype = h.oid OR t.typelem = h.oid
            UNION ALL
            SELECT unnest(ARRAY[r.rngtypid, r.rngmultitypid]) FROM pg_range r
                WHERE r.rngsubtype = h.oid
            UNION ALL
            SELECT c.reltype FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                WHERE a.atttypid = h.oid AND a.attnum > 0 AND NOT a.attisdropped) above)
    SELECT a.attrelid::regclass::text FROM holder h
        JOIN pg_attribute a ON a.atttypid = h.oid AND a.attnum > 0 AND NOT a.attisdropped
        JOIN penstock.table_version v ON v.relid = a.attrelid AND v.version IS NOT NULL
        ORDER BY 1 LIMIT 1
$$;

-- A new promise of a domain; a catalog row is new as in new_promises().  The words are looked for
-- because RENAME and SET DEFAULT write the same rows.
CREATE FUNCTION penstock.refuse_domain(domain oid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holder text := penstock.table_with_values_of(domain);
BEGIN
    IF holder IS NOT NULL AND current_query() ~* '\m(add|validate|not)\M' AND (
        EXISTS (SELECT FROM pg_type WHERE oid = domain AND typnotnull AND age(xmin) <= 0)
        OR EXISTS (SELECT FROM pg_constraint
                   WHERE contypid = domain AND convalidated AND age(xmin) <= 0)) THEN
        PERFORM penstock.refuse(
            format('new constraints of domain %s are not supported by the lake', domain::regtype),
            format('Table %s has rows in the lake, which are not checked.', holder),
            'Add a CHECK as NOT VALID: then it holds for new rows.');
    END IF;
END
$$;

CREATE FUNCTION penstock.refuse_type(classid oid, objid oid, objsubid integer) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed oid;
    holder text;
BEGIN
    IF classid = 'pg_type'::regclass THEN
        changed := CASE WHEN current_query() ~* '\mrename\M' AND EXISTS (
            SELECT FROM pg_enum WHERE enumtypid = objid AND age(xmin) <= 0) THEN objid END;
    ELSIF objsubid = 0 THEN  -- a renamed attribute is reported as a column
        changed := (SELECT reltype FROM pg_class WHERE oid = objid AND relkind = 'c');
    END IF;
    holder := penstock.table_with_values_of(changed);
    IF holder IS NOT NULL THEN
        PERFORM penstock.refuse(
            format('ALTER TYPE %s is not supported by the lake', changed::regtype),
            format('Table %s has rows with values of the type in the lake, which keeps their text.',
                   holder),
            'Make another type and a column of it.');
    END IF;
END
$$;

CREATE FUNCTION penstock.refuse_partition(partition oid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other oid := (SELECT p.partdefid FROM pg_inherits h
        JOIN pg_partitioned_table p ON p.partrelid = h.inhparent
        WHERE h.inhrelid = partition AND p.partdefid <> partition AND age(h.xmin) <= 0);
BEGIN
    IF EXISTS (SELECT FROM penstock.table_version v WHERE v.version IS NOT NULL
               AND v.relid IN (SELECT relid FROM pg_partition_tree(other))) THEN
        PERFORM penstock.refuse(
            format('a partition beside default partition %s, which has rows in the lake,'
                   ' is not supported', other::regclass),
            'Whether some of them belong to the new partition is not checked.',
            'Detach the default partition, and copy its rows into a new one.');
    END IF;
END
$$;

-- Spark takes names for the same that Java's equalsIgnoreCase does: by the simple case mapping of
-- each character of Unicode, which refuse_table() knows of ASCII only.  Delta's own columns hide a
-- table's where a file has a deletion vector.
CREATE FUNCTION penstock.refuse_column_names(relation oid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    folding text := coalesce((SELECT quote_ident(collname) FROM pg_collation
        WHERE collname IN ('pg_c_utf8', 'und-x-icu') AND collencoding IN (-1, 6)
            AND collnamespace = 'pg_catalog'::regnamespace ORDER BY collname LIMIT 1), '"C"');
    same text;
BEGIN
    EXECUTE format('SELECT string_agg(quote_ident(attname), '', '' ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
        GROUP BY lower(upper(attname::text COLLATE %s)) HAVING count(*) > 1 LIMIT 1', folding)
        INTO same USING relation;
    IF same IS NOT NULL THEN
        PERFORM penstock.refuse(
            'column names that differ only in case are not supported by the lake',
            format('Table %s has columns %s.', relation::regclass, same), 'Rename one of them.');
    END IF;
    SELECT attname INTO same FROM pg_attribute
        WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
            AND attname ~* '^(_metadata|__delta_internal.*)$';
    IF FOUND THEN
        PERFORM penstock.refuse(format('column name "%s" is not supported by the lake', same),
            'Spark and Delta Lake have a column of this name.', 'Choose another name.');
    END IF;
END
$$;

CREATE FUNCTION penstock.refuse_unchecked() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    command record;
    policed oid;
BEGIN
    FOR command IN SELECT c.classid, c.objid, c.objsubid, c.command_tag
                   FROM pg_event_trigger_ddl_commands() c
    LOOP
        IF command.command_tag = 'ALTER DOMAIN' THEN
            PERFORM penstock.refuse_domain(coalesce(
                (SELECT contypid FROM pg_constraint WHERE command.classid = 'pg_constraint'::regclass
                    AND oid = command.objid), command.objid));
        ELSIF command.command_tag = 'ALTER TYPE' THEN
            PERFORM penstock.refuse_type(command.classid, command.objid, command.objsubid);
        ELSIF command.classid = 'pg_class'::regclass THEN
            PERFORM penstock.refuse_partition(h.inhrelid) FROM pg_inherits h
                WHERE command.objid IN (h.inhrelid, h.inhparent) AND age(h.xmin) <= 0;
            IF penstock.belongs_to_lake(command.objid) THEN
                PERFORM penstock.refuse_column_names(command.objid);
            END IF;
        ELSIF command.classid = 'pg_policy'::regclass THEN
            policed := penstock.relation_of(command.classid, command.objid);
            IF EXISTS (SELECT FROM pg_class WHERE oid = policed AND relpersistence = 't') THEN
                PERFORM penstock.refuse('policies of temporary tables are not supported',
                    'They could read tables of the lake, whose rows are not in this server.', NULL);
            END IF;
        END IF;
    END LOOP;
END
$$;

-- Values that differ by row (reason 2) are those of a new column, which the lake judges itself, or
-- of one that was there.
CREATE FUNCTION penstock.refuse_recomputed() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation oid := pg_event_trigger_table_rewrite_oid();
BEGIN
    IF pg_event_trigger_table_rewrite_reason() & 2 <> 0
       AND EXISTS (SELECT FROM penstock.table_version
                   WHERE relid = relation AND version IS NOT NULL)
       AND NOT EXISTS (SELECT FROM pg_attribute a
                       WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
                       AND NOT EXISTS (SELECT FROM penstock.table_column t
                                       WHERE t.relid = relation AND t.attnum = a.attnum)) THEN
        PERFORM penstock.refuse(
            format('computing a column of table %s anew is not supported by the lake',
                   relation::regclass),
            'The table has rows in the lake, which are not in this server.',
            'Drop the column and add another.');
    END IF;
END
$$;

CREATE EVENT TRIGGER penstock_unchecked ON ddl_command_end
    EXECUTE FUNCTION penstock.refuse_unchecked();
CREATE EVENT TRIGGER penstock_recomputed ON table_rewrite
    EXECUTE FUNCTION penstock.refuse_recomputed();
ALTER EVENT TRIGGER penstock_unchecked ENABLE ALWAYS;
ALTER EVENT TRIGGER penstock_recomputed ENABLE ALWAYS;
REVOKE ALL ON FUNCTION penstock.table_with_values_of, penstock.refuse_domain, penstock.refuse_type,
    penstock.refuse_partition, penstock.refuse_column_names, penstock.refuse_unchecked, penstock.refuse_recomputed FROM PUBLIC;
