-- SPDX-License-Identifier: Apache-2.0
-- Queries that have no exact translation, each with a part of the refusal after "--".
SELECT p FROM people p -- whole row
SELECT ctid FROM people -- system column
SELECT * FROM people TABLESAMPLE SYSTEM (50) -- TABLESAMPLE
SELECT * FROM people FOR UPDATE -- FOR UPDATE
SELECT * FROM people, plain -- not a lake table
SELECT relname FROM people, pg_class -- not a lake table
SELECT name ~ '(a+)+' FROM people -- a group repeated without an end
SELECT name ~ city FROM people -- not a constant
SELECT to_char(born, 'YYYY') FROM people -- to_char
SELECT random() FROM people -- random
SELECT name COLLATE "pg_c_utf8" < 'b' FROM people -- collation
SELECT doc = doc FROM people -- jsonb
SELECT doc -> 'a' FROM people -- jsonb_object_field
SELECT doc FROM people ORDER BY doc -- ORDER BY
SELECT DISTINCT doc FROM people -- DISTINCT
SELECT seen - logged FROM people -- timestamp
SELECT seen - seen FROM people -- timestamp_mi
SELECT score::text FROM people -- cast
SELECT score::numeric FROM people -- cast
SELECT power(score, 2), exp(score) FROM people -- power
SELECT stddev(id) FROM people -- stddev
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id) FROM people -- ordered-set
SELECT generate_series(1, id) FROM people -- set-returning
SELECT * FROM people, unnest(tags) -- unnest
SELECT name LIKE city FROM people -- not a constant
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r, people WHERE n < 5) SELECT * FROM r -- RECURSIVE
WITH a AS (SELECT id FROM people LIMIT 2) SELECT * FROM a x, a y -- named twice
SELECT id FROM people ORDER BY city FETCH FIRST 2 ROWS WITH TIES -- TIES
SELECT id FROM people LIMIT (SELECT 2) -- LIMIT
SELECT sum(id) OVER (ORDER BY id RANGE BETWEEN 2 PRECEDING AND CURRENT ROW) FROM people -- RANGE
SELECT sum(id) OVER (ORDER BY id GROUPS 2 PRECEDING) FROM people -- GROUPS
SELECT array_agg(id) FROM (SELECT id FROM people ORDER BY id) x -- over a subquery with ORDER BY
SELECT (id, name) = (1, 'x'), ROW(1, 2) FROM people -- row constructor
SELECT own(id) FROM people -- own
SELECT max(sum_a) FROM (SELECT avg(salary) sum_a FROM people GROUP BY city) x -- different display scales
SELECT rate * rate FROM people WHERE id = 6 -- 38 digits
SELECT nums || 1 FROM people -- array_append
SELECT age(seen) FROM people -- age
SELECT FROM people -- without columns
SELECT id AS a, id AS b, count(*) FROM people GROUP BY GROUPING SETS ((a), (b)) -- one expression as two
SELECT 1 AS x FROM people EXCEPT ALL SELECT 1.0 FROM people -- display scales
SELECT code FROM people INTERSECT ALL SELECT code::char(8) FROM people -- character values
SELECT doc FROM people INTERSECT ALL SELECT doc FROM people -- jsonb
SELECT id, count(*) OVER (PARTITION BY doc) FROM people -- jsonb
SELECT DISTINCT ON (doc) id FROM people -- jsonb
SELECT ARRAY[u] FROM people -- ARRAY of type uuid
SELECT count(b.tableoid) FROM people a LEFT JOIN empty b ON a.id = b.id -- outer join
SELECT count(*) FROM (SELECT FROM people UNION ALL SELECT FROM sales) x -- without columns
SELECT a.id FROM people a LEFT JOIN people b ON (a.id, a.city) NOT IN (SELECT boss, city FROM people) -- several columns
SELECT coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(coalesce(id, 0), 1), 2), 3), 4), 5), 6), 7), 8), 9), 10), 11), 12), 13), 14), 15), 16), 17), 18), 19), 20), 21), 22), 23), 24), 25), 26), 27), 28), 29), 30), 31), 32), 33), 34), 35), 36), 37), 38), 39) FROM people -- as deep
