# SPDX-License-Identifier: Apache-2.0
"""Tables with awkward values, for queries that PostgreSQL and the lake must answer alike."""

from __future__ import annotations

TABLES = {
    "people": """
        CREATE TABLE people (id int PRIMARY KEY, name text, city varchar(20), code char(5),
            born date, boss int, salary numeric(10,2), rate numeric, score float8, small int2,
            big int8, ok bool, seen timestamp, logged timestamptz, photo bytea, tags text[],
            nums int[], u uuid, doc jsonb, r float4);
        INSERT INTO people VALUES
        (1, 'Ann', 'Oslo', 'a', '1980-02-29', NULL, 1000.50, 1.5, 1.5, 1, 10000000000, true,
         '2024-01-31 10:20:30.123456', '2024-01-31 23:59:59.5+00', '\\x00ff', '{a,"b c",NULL}',
         '{1,2,3}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1}', 1.1),
        (2, 'bob', 'Rome', 'b  ', '1999-12-31', 1, 0.01, 2.25, -0.5, -2, -1, false,
         '1969-12-31 23:59:59', '1970-01-01 00:00:00+00', '', '{}', '{}', NULL, '[]', 100000000),
        (3, 'Ångström', NULL, 'abcde', '2000-01-01', 1, -99999.99, 100, 0, 32767,
         9223372036854775807, NULL, '2000-02-28 00:00:00', '2000-02-29 12:00:00+00', NULL, NULL,
         NULL, 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', NULL, -0.0),
        (4, NULL, 'Rome', '', '0001-01-01', 2, NULL, NULL, NULL, NULL, NULL, true, NULL, NULL,
         '\\x616263', '{x}', '{NULL,5}', NULL, NULL, NULL),
        (5, '', 'oslo', 'A', NULL, 2, 1000.50, 0.000000000000000001, 'NaN', -32768,
         -9223372036854775807, false, '9999-12-31 23:59:59.999999', '2024-07-01 00:00:00+00',
         '\\x61', '{"q\\"x",""}', '{7}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1}', 'NaN'),
        (6, 'a_b%c\\d', ' pad ', 'zz', '2024-12-31', 3, 12345678.90, 12345678901234567.25,
         'Infinity', 0, 0, true, '2024-02-29 01:02:03', '2024-02-29 01:02:03.000004+00', '\\x5c',
         '{NULL}', '{2147483647}', NULL, '{"b": [1, 2]}', 'Infinity'),
        (7, 'bob', 'Rome', 'b', '2024-12-30', 3, 3.33, 3, 1e-5, 7, 7, false,
         '2024-12-30 12:30:00', '2024-12-30 12:30:00+00', '\\x00', '{z,y}', '{3,1}', NULL, 'null',
         0.1)""",
    "sales": """
        CREATE TABLE sales (id int PRIMARY KEY, person int, day date, amount numeric(8,2),
            qty int, kind text);
        INSERT INTO sales SELECT g, g % 9, date '2024-01-01' + g * 3,
            CASE WHEN g % 7 = 0 THEN NULL ELSE (g * 37 % 1000) / 10.0 END, g % 5,
            (ARRAY['red','green','blue',NULL])[g % 4 + 1] FROM generate_series(1, 40) g""",
    "empty": "CREATE TABLE empty (id int, v text, n numeric(6,3), d numeric, x float8)",
    "measures": """
        CREATE TABLE measures (at timestamp, sensor int, value numeric(12,6), raw numeric);
        INSERT INTO measures SELECT timestamp '2024-03-01' + g * interval '37 minutes', g % 3,
            (g * 7919 % 1000) / 997.0, trim_scale(g / 8.0) FROM generate_series(0, 30) g""",
    "odd": """
        CREATE TABLE odd (id int, x float8, y float4, s text, n numeric, t timestamp, b bigint,
            i interval);
        INSERT INTO odd VALUES (1, 1, 1, 'a', 1, '2024-01-01', 1, '1 day'),
        (2, 'NaN', 'NaN', repeat('z', 40) || 'b', 12345678901234567.251,
         '2024-01-01 00:00:00.123456', 9007199254740993, '-1 mon 2 days 03:04:05.6'),
        (3, 2, 2, repeat('z', 40) || 'a😀', 2, '2024-01-02 00:00:00.999999', 2, NULL)""",
}
"""Name -> statements that make and fill it."""

VIEWS = """
    CREATE VIEW rome AS SELECT id, name, salary FROM people WHERE city = 'Rome';
    CREATE VIEW rome_count AS SELECT count(*)::int n FROM rome"""

PARTITIONS = """
    CREATE TABLE parted (k int, v int) PARTITION BY LIST (k);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1, 2);
    CREATE TABLE parted_3 (v int, k int);
    ALTER TABLE parted ATTACH PARTITION parted_3 FOR VALUES IN (3);
    CREATE TABLE parted_4 PARTITION OF parted FOR VALUES IN (4);
    INSERT INTO parted VALUES (1, 1), (2, 5), (3, 9), (3, NULL)"""
LEAVES = ("parted_1", "parted_3", "parted_4")
