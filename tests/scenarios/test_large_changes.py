# SPDX-License-Identifier: Apache-2.0
"""UPDATE, DELETE, MERGE, ON CONFLICT of tables of which only some rows are looked at.

Each script is run on a plain PostgreSQL too, and must print the same.
"""

from __future__ import annotations

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.writes import check_same

SOME = """
CREATE TABLE t (id int PRIMARY KEY, a text, v varchar(9), n numeric(8,2), f float8, d date,
    ts timestamptz, b bool, u text UNIQUE, g int GENERATED ALWAYS AS (id * 2) STORED, i8 bigint);
INSERT INTO t SELECT n, 'a' || n % 100, CASE WHEN n % 7 > 0 THEN 'v' || n % 7 END, n / 4.0, n / 8.0,
    '2024-01-01'::date + n % 50, '2024-01-01 00:00:00+00'::timestamptz + n * interval '1 hour',
    n % 3 = 0, 'u' || n, DEFAULT, -n FROM generate_series(1, 6000) n;
CREATE VIEW kept AS SELECT * FROM t WHERE a <> 'a7' WITH CHECK OPTION;
CREATE VIEW barrier WITH (security_barrier) AS SELECT id, a, n FROM t WHERE d < '2024-01-20';
"""

BY_CONDITION = f"""{SOME}
UPDATE t SET a = 'one' WHERE id = 5 RETURNING id, a, g, u;
UPDATE t SET a = 'some' WHERE id IN (7, 8, 9000) RETURNING id;
UPDATE t SET a = 'range' WHERE id BETWEEN 20 AND 23 AND b RETURNING id;
UPDATE t SET n = n + 1 WHERE v IS NULL AND id < 30 RETURNING id, n;
UPDATE t SET a = 'text' WHERE v = 'v3' AND d = '2024-01-04' AND id < 500 RETURNING id;
UPDATE t SET a = 'either' WHERE id = 40 OR (d > '2024-02-18' AND id < 100) RETURNING id;
UPDATE t SET a = 'not' WHERE NOT (id > 3 OR b) RETURNING id;
UPDATE t SET a = 'time' WHERE ts < '2024-01-01 03:00:00+00' RETURNING id;
UPDATE t SET a = 'spark' WHERE n < 12.5 AND upper(a) = 'A44' RETURNING id;
UPDATE t SET a = 'volatile' WHERE id = 60 AND random() >= 0 RETURNING id;
UPDATE t SET a = 'either' WHERE id = 61 OR (random() < 0 AND id = 62) RETURNING id;
UPDATE t SET a = 'subquery' WHERE id = (SELECT min(x.id) + 70 FROM t x WHERE x.id > 1) RETURNING id;
UPDATE t SET a = (SELECT x.u FROM t x WHERE x.id = t.id + 1) WHERE id = 80 RETURNING id, a;
UPDATE t SET a = (SELECT max(x.u) FROM t x) WHERE id = 81 RETURNING id, a;
UPDATE t SET a = 'nothing' WHERE id = 82 AND false RETURNING id;
UPDATE t SET a = 'nothing' WHERE id = NULL;
UPDATE t SET a = 'small' WHERE i8 = -83 RETURNING id;
UPDATE t SET a = 'big' WHERE id = 84::bigint OR id = 90000000000 RETURNING id;
UPDATE t SET a = 'float' WHERE f = 10.75 RETURNING id;
UPDATE t SET a = 'now' WHERE ts < now() AND ts < statement_timestamp() AND id = 87 RETURNING id;
UPDATE t SET a = 'bool' WHERE b AND id <= 9 RETURNING id;
UPDATE t SET a = 'is' WHERE (b IS NOT TRUE) AND id < 3 RETURNING id;
UPDATE t SET id = id + 10000 WHERE id = 90 RETURNING id, g;
UPDATE t SET id = 91 WHERE id = 92;
UPDATE t SET id = id + 1 WHERE id > 5990;
UPDATE t SET u = 'u93' WHERE id = 94;
UPDATE t SET u = u WHERE id = 94 RETURNING u;
UPDATE kept SET a = 'view' WHERE id = 100 RETURNING id;
UPDATE kept SET a = 'a7' WHERE id = 101;
UPDATE barrier SET a = 'barrier' WHERE id IN (110, 140) RETURNING id;
DELETE FROM t WHERE id > 5995 AND id % 2 = 0 RETURNING id;
DELETE FROM t WHERE id > 200 AND b;
DELETE FROM t WHERE d = '2024-01-03' RETURNING id, a;
SET extra_float_digits = -8; SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata';
UPDATE t SET a = 'float' WHERE f = 8.1250000000000001 AND ts < '1/2/2025 00:00' RETURNING id, ts;
UPDATE t SET a = 'zone' WHERE ts = '2/1/2024 05:30' AND d = '25/1/2024' RETURNING id, ts, d;
RESET extra_float_digits; RESET DateStyle; RESET TimeZone;
SELECT count(*), sum(id), sum(n), min(a), max(a), sum(length(u)), sum(g) FROM t;
SELECT id, a, n, u FROM t WHERE id < 130 OR id > 5900 ORDER BY id;
UPDATE t SET a = $2 WHERE id = $1 RETURNING id, a \\bind 7 bound \\g
UPDATE t SET a = $2 WHERE id = ANY ($1) AND a > $3 RETURNING id \\bind '{{1,2,3}}' bound '' \\g
UPDATE t SET a = 'two' WHERE d = $1 AND id < $2 RETURNING id \\bind 2024-01-05 300 \\g
UPDATE t SET a = 'null' WHERE id = $1 RETURNING id \\bind '' \\g
PREPARE p (int) AS SELECT $1; EXECUTE p (3);
CREATE TABLE log (id int, a text);
INSERT INTO log SELECT id, a FROM t WHERE id BETWEEN 2 AND 9 RETURNING id;
INSERT INTO log SELECT max(id), 'max' FROM t; TABLE log ORDER BY id;
INSERT INTO t (id) VALUES (9000) ON CONFLICT (id) DO UPDATE SET id = 9001
    RETURNING id, (SELECT x.u FROM t x WHERE x.id = t.id - 3900);
WITH gone AS (DELETE FROM t WHERE id = 11 RETURNING id, a) INSERT INTO log SELECT * FROM gone;
WITH gone AS (DELETE FROM log WHERE id = 11 RETURNING a)
    UPDATE t SET a = gone.a || '!' FROM gone WHERE id = 13 RETURNING t.a;
BEGIN; DELETE FROM t WHERE id = 1; UPDATE t SET a = 'again' WHERE id < 4 RETURNING id;
SAVEPOINT s; DELETE FROM t WHERE id > 10; ROLLBACK TO s; UPDATE t SET id = 1 WHERE id = 2; COMMIT;
SELECT id, a FROM t WHERE id < 20 ORDER BY id;
"""

ON_CONFLICT = f"""{SOME}
INSERT INTO t (id, a) VALUES (5, 'five'), (7000, 'new') ON CONFLICT (id) DO UPDATE
    SET a = t.a || '/' || excluded.a RETURNING id, a, u;
INSERT INTO t (id, u) VALUES (6, 'u6'), (7001, 'u7'), (7002, 'new') ON CONFLICT DO NOTHING
    RETURNING id;
INSERT INTO t (id, u) VALUES (7003, 'u8') ON CONFLICT (u) DO UPDATE SET id = 9;
INSERT INTO t (id, u) VALUES (7003, 'u8') ON CONFLICT (u) DO UPDATE SET id = 7003 RETURNING id, a;
INSERT INTO t (id, u) VALUES (9, 'u10') ON CONFLICT (id) DO UPDATE SET u = excluded.u;
INSERT INTO t (id, u) VALUES (9, 'u10') ON CONFLICT (u) DO NOTHING;
INSERT INTO t (id) VALUES (7004), (7004) ON CONFLICT (id) DO UPDATE SET a = 'twice';
INSERT INTO t (id, a) SELECT n, 'series' FROM generate_series(5900, 7010, 10) n
    ON CONFLICT (id) DO UPDATE SET a = 'conflict' WHERE t.id % 100 = 0;
INSERT INTO t (id, u) SELECT id + 1, u FROM t WHERE id < 4
    ON CONFLICT (id) DO UPDATE SET a = excluded.u RETURNING id, a;
INSERT INTO t (id, a) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET a = excluded.a RETURNING a, u
    \\bind 20 bound \\g
INSERT INTO t (id, a) SELECT $1::int + 1, $2 ON CONFLICT (id) DO UPDATE SET a = 'again'
    RETURNING id, a \\bind 20 bound \\g
BEGIN; INSERT INTO t (id, u) SELECT 22, min(u) FROM t WHERE id BETWEEN 23 AND 24
    ON CONFLICT DO NOTHING; SAVEPOINT s; DELETE FROM t WHERE id = 23;
INSERT INTO t (id, u) SELECT id + 1, 'u23' FROM t WHERE id IN (24, 7100) ON CONFLICT (u) DO NOTHING;
INSERT INTO t (id, u) SELECT 25, 'u24' ON CONFLICT (id) DO UPDATE SET id = 7101, u = 'u23';
ROLLBACK TO s; INSERT INTO t (id, u) SELECT 7102, 'u23' ON CONFLICT (id) DO NOTHING; ROLLBACK;
CREATE TABLE k (a int, b text, s serial, v int, UNIQUE (b, a));
INSERT INTO k (a, b) SELECT n % 100, 'b' || n / 100 FROM generate_series(0, 1999) n;
INSERT INTO k (a, b, v) VALUES (1, 'b1', 1), (1, 'b99', 2), (NULL, 'b1', 3), (99, 'b19', 4)
    ON CONFLICT (a, b) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO k (b, a) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING * \bind b1 7 \\g
INSERT INTO k (b, a) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING * \bind b1 107 \\g
SELECT count(*), sum(a), sum(s), sum(v), max(b) FROM k;
SELECT count(*), sum(id), sum(length(a)), sum(length(u)) FROM t;
SELECT id, a, u FROM t WHERE id < 25 OR id > 5895 AND a <> 'a' || id % 100 ORDER BY id;
"""

JOINS = f"""{SOME}
CREATE TABLE s (k int, x text); INSERT INTO s SELECT n * 50, 's' || n FROM generate_series(1, 30) n;
CREATE TABLE w (k bigint PRIMARY KEY, x varchar(20), d date);
INSERT INTO w SELECT n * 3, 'w' || n, '2024-01-01'::date + n % 9 FROM generate_series(1, 3000) n;
UPDATE t SET a = s.x FROM s WHERE t.id = s.k AND s.k < 300 RETURNING id, a;
UPDATE t SET a = w.x FROM w WHERE t.id = w.k AND w.k < 20 RETURNING id, a;
UPDATE t SET a = w.x FROM w, s WHERE t.id = w.k AND w.k = s.k AND s.x < 's15' RETURNING id, a;
UPDATE t SET a = z.x FROM (VALUES (3, 'three'), (4, 'four'), (9999, 'no')) z (id, x)
    WHERE t.id = z.id RETURNING t.id, a;
UPDATE t SET a = z.x FROM unnest('{{5,6}}'::int[], '{{five,six}}'::text[]) z (id, x)
    WHERE t.id = z.id RETURNING t.id, a;
UPDATE t SET a = 'in' WHERE id IN (SELECT k FROM s WHERE x IN ('s3', 's4')) RETURNING id;
UPDATE t SET a = 'exists' WHERE EXISTS (SELECT FROM w WHERE w.k = t.id AND d = '2024-01-02'
    AND w.k < 100) RETURNING id;
UPDATE t SET a = 'anti' WHERE id < 12 AND NOT EXISTS (SELECT FROM w WHERE w.k = t.id) RETURNING id;
UPDATE t SET a = 'not in' WHERE id < 6 AND id NOT IN (SELECT k FROM w) RETURNING id;
UPDATE t SET a = coalesce(w.x, 'outer') FROM s LEFT JOIN w ON w.k = s.k
    WHERE t.id = s.k AND t.id < 400 RETURNING id, a;
UPDATE t SET a = 'no partner' FROM s LEFT JOIN w ON w.k = s.k
    WHERE t.id = s.k AND w.k IS NULL AND t.id < 400 RETURNING id, a;
UPDATE t SET a = (SELECT w.x FROM w WHERE w.k = t.id) WHERE id IN (60, 61) RETURNING id, a;
UPDATE t SET a = q.n::text FROM (SELECT k, count(*) n FROM w GROUP BY k) q
    WHERE q.k = t.id AND t.id < 20 RETURNING id, a;
UPDATE t SET a = q.x FROM (SELECT * FROM w ORDER BY k LIMIT 3) q WHERE q.k = t.id RETURNING id, a;
UPDATE t SET a = t2.u FROM t t2 WHERE t2.id = t.id + 1 AND t.id < 5 RETURNING t.id, t.a;
UPDATE t SET id = 8997 WHERE id = 31 RETURNING id, (SELECT w.x FROM w WHERE w.k = t.id);
CREATE VIEW partnered AS SELECT * FROM t WHERE EXISTS (SELECT FROM w WHERE w.k = t.id)
    WITH CHECK OPTION;
UPDATE partnered SET id = 8994 WHERE id = 33 RETURNING id;
UPDATE partnered SET id = 8995 WHERE id = 36 RETURNING id;
INSERT INTO t (id) SELECT 8991 RETURNING (SELECT w.x FROM w WHERE w.k = t.id),
    (SELECT max(x.id) FROM t x WHERE x.id < t.id);
DELETE FROM w USING t WHERE w.k = t.id AND t.d = '2024-01-02' AND t.id > 2000 RETURNING w.k;
DELETE FROM t USING (VALUES ('u33'), ('u34')) z (u) WHERE t.u = z.u RETURNING id;
MERGE INTO t USING s ON t.id = s.k
    WHEN MATCHED AND s.k > 1400 THEN DELETE
    WHEN MATCHED AND s.k < 200 THEN UPDATE SET a = s.x
    WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.k + 50000, 'not matched')
    RETURNING merge_action(), t.id, t.a;
MERGE INTO t USING (VALUES (40, 'x'), (8000, 'y')) z (k, x) ON t.id = z.k
    WHEN MATCHED THEN UPDATE SET a = z.x WHEN NOT MATCHED THEN INSERT (id, a) VALUES (z.k, z.x)
    RETURNING merge_action(), t.id, t.a;
MERGE INTO t USING s ON t.id = s.k AND t.b
    WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.k + 1, 'no')
    WHEN NOT MATCHED BY SOURCE AND t.id = 41 THEN DELETE;
MERGE INTO t USING s ON t.id = s.k AND t.b
    WHEN NOT MATCHED THEN DO NOTHING
    WHEN NOT MATCHED BY SOURCE AND t.id = 41 THEN DELETE RETURNING t.id;
CREATE TEMP TABLE z (id bigint, u varchar(5), n int);
INSERT INTO z SELECT n * 700, 'u' || n * 700 + n % 2, n FROM generate_series(1, 9) n;
INSERT INTO z VALUES (NULL, NULL, 0), (5000000000, 'none', 10);
UPDATE t SET a = 'z' || z.n FROM z WHERE z.id = t.id RETURNING t.id, t.a;
MERGE INTO t USING z ON t.id = z.id AND t.u = z.u WHEN MATCHED THEN DELETE
    WHEN NOT MATCHED AND z.n = 1 THEN INSERT (id, u) VALUES (60001, z.u);
MERGE INTO t USING z ON t.id = z.id AND t.u = z.u WHEN MATCHED THEN DELETE
    WHEN NOT MATCHED AND z.n = 3 THEN INSERT (id, a) VALUES (60001, z.u)
    RETURNING merge_action(), t.id, t.a;
UPDATE t SET a = 'left' FROM z LEFT JOIN s ON s.k = z.id WHERE z.id = t.id AND s.k IS NULL
    RETURNING t.id;
DELETE FROM t USING z WHERE t.n = z.n RETURNING t.id, z.id;
DELETE FROM t WHERE id IN (SELECT id FROM z WHERE n > 4) RETURNING id;
DELETE FROM w USING pg_temp.z AS y WHERE y.id = w.k RETURNING w.k;
INSERT INTO s SELECT t.id, w.x FROM t JOIN w ON w.k = t.id WHERE t.id BETWEEN 900 AND 910;
SELECT * FROM s ORDER BY k, x; SELECT count(*), sum(k), min(x) FROM w;
SELECT count(*), sum(id), sum(length(a)), sum(length(u)) FROM t;
SELECT id, a FROM t WHERE a !~ '^a[0-9]' ORDER BY id;
"""

PARTITIONS = """
CREATE TABLE p (r int, k text, v text, PRIMARY KEY (r, k)) PARTITION BY RANGE (r);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (3000);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (3000) TO (5000);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (5000) TO (9000) PARTITION BY LIST (k);
CREATE TABLE p3a PARTITION OF p3 FOR VALUES IN ('a');
CREATE TABLE p3b PARTITION OF p3 DEFAULT;
INSERT INTO p SELECT n, chr(97 + n % 3), 'v' || n FROM generate_series(1, 8000) n;
UPDATE p SET v = 'one' WHERE r = 2000 RETURNING tableoid::regclass, *;
UPDATE p SET v = 'key' WHERE r = 5002 AND k = 'b' RETURNING tableoid::regclass, *;
UPDATE p SET r = r + 3000 WHERE r = 2500 RETURNING tableoid::regclass, r;
UPDATE p SET r = 3001, k = 'b' WHERE r = 10;
UPDATE p SET r = 9500 WHERE r = 10;
UPDATE p SET k = 'a' WHERE r IN (7000, 7001) RETURNING tableoid::regclass, r, k;
UPDATE p1 SET v = 'leaf' WHERE r < 3 RETURNING r;
DELETE FROM p WHERE r > 7990 AND k <> 'a' RETURNING r;
DELETE FROM p USING (VALUES (4, 'b'), (4000, 'b'), (6000, 'a')) z (r, k)
    WHERE p.r = z.r AND p.k = z.k RETURNING p.*;
CREATE TABLE s (r int, x text);
INSERT INTO s SELECT n * 1000, 's' || n FROM generate_series(1, 7) n;
UPDATE p SET v = x FROM s WHERE p.r = s.r AND x > 's2' RETURNING p.tableoid::regclass, p.r, v;
MERGE INTO p USING s ON p.r = s.r WHEN MATCHED AND s.r < 2500 THEN DELETE
    WHEN NOT MATCHED THEN INSERT VALUES (s.r, 'a', 'none') RETURNING merge_action(), p.r;
INSERT INTO p VALUES (20, 'c', 'again'), (3005, 'c', 'again'), (8500, 'z', 'new')
    ON CONFLICT (r, k) DO UPDATE SET v = excluded.v || p.v RETURNING *;
UPDATE p SET v = 'param' WHERE r = $1 AND k = $2 RETURNING * \\bind 30 a \\g
SELECT count(*), sum(r), sum(length(v)), min(k) FROM p1;
SELECT count(*), sum(r), sum(length(v)) FROM p; SELECT * FROM p WHERE v !~ '^v' ORDER BY r, k;
"""


MANY = """
CREATE TABLE t (id int PRIMARY KEY, a text, n int);
INSERT INTO t SELECT n, 'a' || n, n % 1000 FROM generate_series(1, 210000) n;
UPDATE t SET a = 'key' WHERE id = 205000 RETURNING *;
UPDATE t SET a = 'spark' WHERE md5(a) = md5('a77') RETURNING *;
UPDATE t SET n = n + 1 WHERE id > 200000;
DELETE FROM t WHERE n % 2 = 0;
UPDATE t SET id = id - 1 WHERE id % 3 = 0 AND n < 100;
SELECT count(*), sum(id), sum(n), sum(length(a)) FROM t;
"""


@pytest.mark.parametrize(
    "script",
    [BY_CONDITION, ON_CONFLICT, JOINS, PARTITIONS, MANY],
    ids=["condition", "conflict", "joins", "partitions", "many"],
)
def test_a_node_prints_what_postgresql_prints(
    node: Node, publisher_db: Database, script: str, request: pytest.FixtureRequest
) -> None:
    """Of rows that are not looked at nothing is missed: rows, tags, errors, what is left."""
    check_same(node, publisher_db, f"large_{request.node.callspec.id}", script)
