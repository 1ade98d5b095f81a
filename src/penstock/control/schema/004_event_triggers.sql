-- SPDX-License-Identifier: Apache-2.0
-- Every definition that changes is recorded, new tables are registered as tables of the lake, and
-- what the lake cannot hold is refused.  A refusal is an error inside the statement, so PostgreSQL
-- undoes it.  The front door refuses most of it earlier, by its list of commands; this is the
-- second line, and it also holds for the node's own sessions.
--
-- Left alone: temporary objects, and the schema penstock itself.
--
-- Allowed although the lake does not enforce it: foreign keys.  PostgreSQL's own apply does not
-- check them either (it runs with session_replication_role = replica).  Exclusion constraints and
-- WITHOUT OVERLAPS are refused: PostgreSQL's apply does check those, and the lake cannot.

CREATE FUNCTION penstock.refuse(message text, detail text, hint text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF hint IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
            MESSAGE = message, DETAIL = detail;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
        MESSAGE = message, DETAIL = detail, HINT = hint;
END
$$;

-- Commands that make something through which data could be read or changed behind the node's back.
CREATE FUNCTION penstock.refuse_command(
    tag text, object_type text, identity text, in_extension boolean) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    what text;
    -- Extensions that add types and plain functions, none that runs SQL of its own.
    harmless constant text[] := ARRAY[
        'plpgsql', 'btree_gin', 'btree_gist', 'citext', 'cube', 'fuzzystrmatch', 'hstore',
        'intarray', 'isn', 'ltree', 'pg_trgm', 'pgcrypto', 'seg', 'unaccent', 'uuid-ossp'];
BEGIN
    IF object_type = 'extension' AND tag = 'CREATE EXTENSION' THEN
        IF trim(BOTH '"' FROM identity) <> ALL (harmless) THEN
            PERFORM penstock.refuse(
                format('extension %s is not supported by the lake', identity),
                'Its functions could read tables of the lake, whose rows are not in this server.',
                'Supported extensions are ' || array_to_string(harmless, ', ') || '.');
        END IF;
        RETURN;
    END IF;
    IF in_extension THEN
        RETURN;
    END IF;
    what := CASE
        WHEN tag IN ('CREATE TABLE AS', 'SELECT INTO') THEN tag
        WHEN tag IN ('CREATE FUNCTION', 'CREATE PROCEDURE', 'CREATE TRIGGER', 'CREATE RULE',
                     'CREATE MATERIALIZED VIEW', 'CREATE FOREIGN TABLE', 'IMPORT FOREIGN SCHEMA',
                     'CREATE LANGUAGE') THEN tag
    END;
    IF what IS NOT NULL THEN
        PERFORM penstock.refuse(
            format('%s is not supported by the lake', what),
            'It would see the tables of the lake without their rows, which are not in this server.',
            CASE WHEN tag IN ('CREATE TABLE AS', 'SELECT INTO')
                 THEN 'Create the table first, then insert into it.'
                 WHEN tag = 'CREATE MATERIALIZED VIEW' THEN 'Use a view.' END);
    END IF;
END
$$;

-- Properties of a table that the lake cannot hold.  Called after each change of the table.
CREATE FUNCTION penstock.refuse_table(table_oid oid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class record;
    col record;
    con record;
    parents text;
    same text;
BEGIN
    SELECT oid::regclass::text AS name, relkind, relpersistence, relispartition, reloftype
        INTO class FROM pg_class WHERE oid = table_oid;
    IF class.relpersistence = 'u' THEN
        PERFORM penstock.refuse('unlogged tables are not supported by the lake',
            format('Table %s would be empty after a crash; a Delta table is not.', class.name),
            'Use an ordinary table, or a temporary one.');
    END IF;
    IF class.reloftype <> 0 THEN
        PERFORM penstock.refuse('typed tables are not supported by the lake',
            format('Table %s would change with its type.', class.name),
            'List the columns instead.');
    END IF;
    SELECT string_agg(inhparent::regclass::text, ', ') INTO parents
        FROM pg_inherits WHERE inhrelid = table_oid AND NOT class.relispartition;
    IF parents IS NOT NULL THEN
        PERFORM penstock.refuse('table inheritance is not supported by the lake',
            format('Table %s inherits from %s.', class.name, parents),
            'Use declarative partitioning.');
    END IF;
    FOR col IN
        SELECT attname, format_type(atttypid, atttypmod) AS type, attgenerated,
               CASE WHEN t.scale < 0 THEN t.digits - t.scale ELSE greatest(t.digits, t.scale) END
                   AS decimal_digits
        FROM pg_attribute
        -- numeric.c: the type modifier is digits << 16 | scale (11 bits, signed), plus 4.
        LEFT JOIN LATERAL (SELECT (atttypmod - 4) >> 16 & 65535 AS digits,
                                  ((atttypmod - 4) & 2047 # 1024) - 1024 AS scale) t
            ON atttypid IN ('numeric'::regtype, 'numeric[]'::regtype) AND atttypmod >= 4
        WHERE attrelid = table_oid AND attnum > 0 AND NOT attisdropped
    LOOP
        IF col.attgenerated = 'v' THEN
            PERFORM penstock.refuse(
                'virtual generated columns are not supported by the lake',
                format('Column "%s" of table %s has no stored value.', col.attname, class.name),
                'Declare the column STORED.');
        END IF;
        IF col.decimal_digits > 38 THEN
            PERFORM penstock.refuse(format('type %s is not supported by the lake', col.type),
                format('Column "%s" of table %s needs more than the 38 digits of a decimal.',
                       col.attname, class.name),
                'Use a numeric with fewer digits, or text.');
        END IF;
    END LOOP;
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO same
        FROM pg_attribute WHERE attrelid = table_oid AND attnum > 0 AND NOT attisdropped
        GROUP BY lower(attname COLLATE "C") HAVING count(*) > 1 LIMIT 1;
    IF same IS NOT NULL THEN
        PERFORM penstock.refuse(
            'column names that differ only in case are not supported by the lake',
            format('Table %s has columns %s.', class.name, same), 'Rename one of them.');
    END IF;
    FOR con IN
        SELECT conname FROM pg_constraint c
        WHERE conrelid = table_oid AND (contype = 'x' OR to_jsonb(c)->>'conperiod' = 'true')
    LOOP
        PERFORM penstock.refuse(
            'exclusion constraints and WITHOUT OVERLAPS are not supported by the lake',
            format('Constraint "%s" of table %s could not be checked.', con.conname, class.name),
            NULL);
    END LOOP;
END
$$;

-- The table or view that an object belongs to.
CREATE FUNCTION penstock.relation_of(classid oid, objid oid) RETURNS oid
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE classid
        WHEN 'pg_class'::regclass THEN coalesce(
            (SELECT indrelid FROM pg_index WHERE indexrelid = objid),
            (SELECT oid FROM pg_class WHERE oid = objid AND relkind IN ('r', 'p', 'v')))
        WHEN 'pg_constraint'::regclass THEN
            (SELECT nullif(conrelid, 0) FROM pg_constraint WHERE oid = objid)
        WHEN 'pg_policy'::regclass THEN (SELECT polrelid FROM pg_policy WHERE oid = objid)
        WHEN 'pg_trigger'::regclass THEN (SELECT tgrelid FROM pg_trigger WHERE oid = objid)
        WHEN 'pg_rewrite'::regclass THEN (SELECT ev_class FROM pg_rewrite WHERE oid = objid)
        WHEN 'pg_attrdef'::regclass THEN (SELECT adrelid FROM pg_attrdef WHERE oid = objid)
        WHEN 'pg_publication_rel'::regclass THEN
            (SELECT prrelid FROM pg_publication_rel WHERE oid = objid)
    END
$$;

-- A permanent table outside the system's schemas and outside penstock.
CREATE FUNCTION penstock.belongs_to_lake(table_oid oid) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = table_oid AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
          AND n.nspname NOT IN ('penstock', 'pg_catalog', 'information_schema', 'pg_toast'))
$$;

-- The WAL tells what changed, in order with the commits: one message for each statement.
CREATE FUNCTION penstock.emit_ddl(after_id bigint) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    events jsonb;
BEGIN
    SELECT jsonb_agg(jsonb_build_object(
            'tag', e.tag, 'dropped', e.dropped, 'object_type', e.object_type, 'objid', e.objid::int8,
            'objsubid', e.objsubid, 'identity', e.identity, 'relid', e.relid::int8) ORDER BY e.id)
        INTO events FROM penstock.ddl_event e
        WHERE e.id > after_id AND e.xid = pg_current_xact_id()
          AND (e.object_type LIKE 'publication%' OR e.object_type LIKE 'table%');
    IF events IS NOT NULL THEN
        PERFORM pg_logical_emit_message(true, 'penstock', jsonb_build_object(
            'v', 1, 'xid', pg_current_xact_id()::text, 'ddl', events)::text);
    END IF;
END
$$;

CREATE FUNCTION penstock.last_ddl_event() RETURNS bigint
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(max(id), 0) FROM penstock.ddl_event WHERE xid = pg_current_xact_id()
$$;

CREATE FUNCTION penstock.on_ddl_command_end() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    command record;
    relation oid;
    before bigint := penstock.last_ddl_event();
BEGIN
    FOR command IN
        SELECT classid, objid, objsubid, command_tag, object_type, schema_name, object_identity,
               in_extension
        FROM pg_event_trigger_ddl_commands()
        WHERE schema_name IS NULL OR schema_name NOT IN ('pg_temp', 'penstock')
    LOOP
        relation := penstock.relation_of(command.classid, command.objid);
        IF EXISTS (SELECT FROM pg_class WHERE oid = relation AND relpersistence = 't') THEN
            CONTINUE;
        END IF;
        PERFORM penstock.refuse_command(
            command.command_tag, command.object_type, command.object_identity,
            command.in_extension);
        INSERT INTO penstock.ddl_event
            (tag, object_type, classid, objid, objsubid, schema_name, identity, relid)
            VALUES (command.command_tag, command.object_type, command.classid, command.objid,
                    command.objsubid, command.schema_name, command.object_identity, relation);
        IF command.object_type LIKE 'publication%' THEN
            PERFORM penstock.refuse_publication();
        END IF;
        CONTINUE WHEN command.object_type NOT LIKE 'table%' OR relation IS NULL
                   OR NOT penstock.belongs_to_lake(relation);
        PERFORM penstock.refuse_table(relation);
        PERFORM penstock.register_tables(relation);
        -- ALTER TABLE reports the table that it names; its partitions change with it.
        IF command.command_tag = 'ALTER TABLE' THEN
            INSERT INTO penstock.ddl_event
                (tag, object_type, classid, objid, objsubid, schema_name, identity, relid)
                SELECT command.command_tag, command.object_type, command.classid, p.relid,
                       0, c.relnamespace::regnamespace::text,
                       format('%I.%I', c.relnamespace::regnamespace::name, c.relname), p.relid
                FROM pg_partition_tree(relation) p JOIN pg_class c ON c.oid = p.relid
                WHERE p.relid <> relation;
        END IF;
    END LOOP;
    PERFORM penstock.emit_ddl(before);
END
$$;

CREATE FUNCTION penstock.register_tables(top oid) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO penstock.table_version (relid, location)
        SELECT c.oid, CASE c.relkind WHEN 'r' THEN gen_random_uuid()::text ELSE '' END
        FROM pg_class c
        WHERE c.oid IN (SELECT top UNION SELECT relid FROM pg_partition_tree(top))
          AND c.relkind IN ('r', 'p')
    ON CONFLICT (relid) DO NOTHING
$$;

CREATE FUNCTION penstock.refuse_publication() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
               WHERE c.relnamespace = 'penstock'::regnamespace)
       OR EXISTS (SELECT FROM pg_publication_namespace
                  WHERE pnnspid = 'penstock'::regnamespace) THEN
        PERFORM penstock.refuse('schema "penstock" cannot be published',
            'Its tables are the node''s own.', NULL);
    END IF;
END
$$;

CREATE FUNCTION penstock.on_sql_drop() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before bigint := penstock.last_ddl_event();
BEGIN
    INSERT INTO penstock.ddl_event
        (tag, dropped, object_type, classid, objid, objsubid, schema_name, identity, relid)
        SELECT tg_tag, true, object_type, classid, objid, objsubid, schema_name, object_identity,
               CASE WHEN object_type IN ('table', 'view', 'table column') THEN objid END
        FROM pg_event_trigger_dropped_objects()
        WHERE NOT is_temporary AND (original OR normal OR object_type IN ('table', 'table column'))
          AND schema_name IS DISTINCT FROM 'penstock';
    WITH gone AS (
        DELETE FROM penstock.table_version v USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND v.relid = d.objid
        RETURNING v.location)
    INSERT INTO penstock.dropped_table (location, xid)
        SELECT location, pg_current_xact_id() FROM gone WHERE location <> '';
    DELETE FROM penstock.table_column t USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND t.relid = d.objid;
    DELETE FROM penstock.subscription_option o USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND o.subid = d.objid;
    DELETE FROM penstock.origin_position o USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND o.origin = 'pg_' || d.objid;
    DELETE FROM penstock.subscription_error o USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND o.subid = d.objid;
    DELETE FROM penstock.subscription_table o USING pg_event_trigger_dropped_objects() d
        WHERE (d.classid = 'pg_subscription'::regclass AND o.subid = d.objid)
           OR (d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND o.relid = d.objid);
    DELETE FROM penstock.subscription_worker o USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND o.subid = d.objid;
    DELETE FROM penstock.subscription_stats o USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND o.subid = d.objid;
    DELETE FROM penstock.conflict_log o USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND o.subid = d.objid;
    DELETE FROM penstock.subscription_published o USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_subscription'::regclass AND o.subid = d.objid;
    PERFORM penstock.emit_ddl(before);
END
$$;

-- PostgreSQL would rewrite the table's rows: the lake must do so too.  objsubid holds the reasons
-- (pg_event_trigger_table_rewrite_reason): 2 a default value that differs by row, 4 a column type.
CREATE FUNCTION penstock.on_table_rewrite() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation oid := pg_event_trigger_table_rewrite_oid();
BEGIN
    IF penstock.belongs_to_lake(relation) THEN
        INSERT INTO penstock.ddl_event
            (tag, object_type, classid, objid, objsubid, schema_name, identity, relid)
            SELECT tg_tag, 'rewrite', 'pg_class'::regclass, c.oid,
                   pg_event_trigger_table_rewrite_reason(), c.relnamespace::regnamespace::text,
                   format('%I.%I', c.relnamespace::regnamespace::name, c.relname), c.oid
            FROM pg_class c WHERE c.oid = relation;
    END IF;
END
$$;

CREATE EVENT TRIGGER penstock_ddl ON ddl_command_end
    EXECUTE FUNCTION penstock.on_ddl_command_end();
CREATE EVENT TRIGGER penstock_drop ON sql_drop EXECUTE FUNCTION penstock.on_sql_drop();
CREATE EVENT TRIGGER penstock_rewrite ON table_rewrite
    EXECUTE FUNCTION penstock.on_table_rewrite();
-- Also with session_replication_role = replica.
ALTER EVENT TRIGGER penstock_ddl ENABLE ALWAYS;
ALTER EVENT TRIGGER penstock_drop ENABLE ALWAYS;
ALTER EVENT TRIGGER penstock_rewrite ENABLE ALWAYS;
REVOKE ALL ON FUNCTION penstock.refuse, penstock.refuse_command,
    penstock.refuse_table, penstock.relation_of, penstock.belongs_to_lake,
    penstock.emit_ddl, penstock.last_ddl_event, penstock.on_ddl_command_end,
    penstock.register_tables, penstock.refuse_publication, penstock.on_sql_drop,
    penstock.on_table_rewrite FROM PUBLIC;

-- Tables that were there before the triggers (an external control database may have some).
SELECT penstock.refuse_table(oid) FROM pg_class
    WHERE penstock.belongs_to_lake(oid);
SELECT penstock.register_tables(oid) FROM pg_class
    WHERE penstock.belongs_to_lake(oid);
