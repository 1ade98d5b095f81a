-- SPDX-License-Identifier: Apache-2.0
-- Queries over tests/support/query_tables.py that PostgreSQL and the lake must answer alike; one a line.
SELECT * FROM people
SELECT * FROM sales ORDER BY id DESC LIMIT 5
SELECT * FROM empty
SELECT count(*), sum(n), avg(d), min(v), max(x), string_agg(v, ','), array_agg(id), bool_and(id > 0) FROM empty
TABLE sales
SELECT p.* FROM people p WHERE p.id IN (1, 3, 5)
SELECT id, id, id AS "Odd name" FROM people ORDER BY 1
SELECT 1, 'x', NULL, 1.50, true, 1e10::float8, date '2020-01-01' FROM people WHERE id = 1
SELECT id + 1, id - small, id * 2, id / 2, -7 / 2, -7 % 3, id % 3, -id, abs(-id), big + 1 FROM people WHERE id IN (1, 2, 7)
SELECT big + 1 FROM people
SELECT small + small FROM people
SELECT small * 2::int2 FROM people WHERE id = 3
SELECT 1 / (id - 1) FROM people
SELECT id % (id - 1) FROM people
SELECT (-2147483648) / (-1 * id) FROM people WHERE id = 1
SELECT salary / (id - 1) FROM people
SELECT score / 0 FROM people WHERE id = 1
SELECT score + 1, score * 2, score - 0.5, score / 4, -score, abs(score) FROM people
SELECT floor(score), ceil(score), round(score), trunc(score), ceil(-0.7::float8), floor(-0.0::float8) FROM people
SELECT sqrt(abs(score)) FROM people
SELECT sqrt(score) FROM people WHERE id = 2
SELECT score * 1e308::float8 * 10 FROM people WHERE id = 1
SELECT r + 1, r * 2, r / 3, r::float8, score::float4 FROM people WHERE id IN (1, 7)
SELECT salary + 1, salary - rate, salary * 2, salary * salary, -salary, abs(salary), salary % 7 FROM people
SELECT rate, rate + 1, rate + 0.001, rate - 1, abs(-rate) FROM people
SELECT rate * 2, rate * rate FROM people WHERE id IN (1, 2, 3, 7)
SELECT salary / 3, salary / 7, 1 / salary, rate / 3, salary / 0.0001, salary / 99999 FROM people
SELECT salary / rate, rate / salary FROM people WHERE id < 5
SELECT 1 / 3::numeric, 2.0 / 3, 10.000 / 3, 100000 / 7.0, 123456789 / 0.07, 0 / 3.0, -1 / 3.0, 1 / 1000000.0 FROM people WHERE id = 1
SELECT round(salary, 1), round(salary), round(salary, -2), trunc(salary, 1), trunc(salary), ceil(salary), floor(salary), round(salary, 5), sign(salary) FROM people
SELECT round(2.5), round(-2.5), round(0.125, 2), trunc(-1.999, 2), ceil(-0.5), floor(-0.5) FROM people WHERE id = 1
SELECT round(avg(salary), 2), avg(salary), sum(salary), avg(id), avg(small), avg(big), sum(big), sum(id), sum(small), avg(score), sum(r) FROM people WHERE id < 5
SELECT sum(rate), avg(rate), min(rate), max(rate) FROM people
SELECT sum(rate), avg(rate) FROM people WHERE id IN (1, 2)
SELECT salary::int, salary::int8, salary::float8, salary::text, rate::text, rate::float8, id::numeric, id::text, big::text, id::float8, ok::text, ok::int FROM people WHERE id IN (1, 2)
SELECT score::int FROM people
SELECT score::int8, score::int2 FROM people WHERE id IN (1, 2, 3, 7)
SELECT big::int FROM people
SELECT id::int2, id::int8, small::int4, id::bool FROM people
SELECT salary::numeric(6,1), salary::numeric(12,4) FROM people WHERE id <> 6
SELECT salary::numeric(4,1) FROM people
SELECT name::varchar(2), city::char(3), code::text || '|', code::char(2), city::text FROM people
SELECT code, length(code), code || 'x', octet_length(code), code = 'b', code = 'b   ', code < 'b' FROM people ORDER BY code, id
SELECT length(name), upper(name), lower(name), char_length(city), octet_length(name), bit_length(name), reverse(name) FROM people
SELECT substr(name, 2), substr(name, 0, 2), substr(name, 2, 3), substring(name from 2 for 2), substr(name, -1, 3), substr(name, 3, 0) FROM people
SELECT substr(name, 1, -1) FROM people
SELECT substr(name, id, small::int / 100) FROM people WHERE id IN (1, 3)
SELECT position('o' in name), strpos(name, 'n'), strpos(name, ''), replace(name, 'b', 'XX'), replace(name, '', 'x') FROM people
SELECT left(name, 2), left(name, -1), left(name, 0), right(name, 2), right(name, -1), left(name, -10), right(name, id - 4) FROM people
SELECT lpad(name, 5), lpad(name, 6, 'xy'), rpad(name, 5, '*'), rpad(name, 2), lpad(name, -1), lpad(name, 5, ''), lpad(name, 0, 'x') FROM people
SELECT concat(name, id, ok, NULL, salary, born), concat_ws('-', name, NULL, id, ok), concat_ws(NULL, 'a', 'b') FROM people
SELECT name || '-' || id, id || name, name || ok, name || salary, name || NULL FROM people
SELECT trim(city), ltrim(city), rtrim(city), btrim(name, 'bA'), ltrim(name, 'Ab'), rtrim(name, 'nb'), trim(both 'o' from city) FROM people
SELECT md5(name), md5(photo), split_part(name, 'b', 1), split_part(name, '_', -1), split_part('a,b,c', ',', id), starts_with(name, 'a') FROM people
SELECT split_part(name, 'b', 0) FROM people
SELECT repeat(name, 2), repeat(name, -1), translate(name, 'ab', 'x'), encode(photo, 'hex'), length(photo), octet_length(photo) FROM people
SELECT id FROM people WHERE name LIKE 'a%'
SELECT id, name LIKE '%\%%', name LIKE 'a\_b%', name LIKE '%_', name LIKE '', name NOT LIKE 'b%', name ILIKE 'B%', name ILIKE 'å%', name LIKE 'a!_b%' ESCAPE '!', name LIKE '%\\d' FROM people
SELECT id, code LIKE 'b%', city LIKE 'R_me', code ILIKE 'A%' FROM people
SELECT id, name < 'b', name >= 'Ann', name = 'bob', name <> 'bob', city > name FROM people
SELECT name FROM people ORDER BY name
SELECT name FROM people ORDER BY name DESC, id
SELECT name, id FROM people ORDER BY name NULLS FIRST, id DESC
SELECT name, id FROM people ORDER BY name DESC NULLS LAST, id
SELECT score, id FROM people ORDER BY score DESC, id
SELECT born, salary FROM people ORDER BY born, salary
SELECT upper(name) AS n FROM people ORDER BY lower(city), id
SELECT id FROM people ORDER BY salary * 2 DESC NULLS LAST, id OFFSET 2 LIMIT 3
SELECT id FROM people ORDER BY id LIMIT 0
SELECT id FROM people ORDER BY id LIMIT ALL OFFSET 5
SELECT id FROM people ORDER BY id FETCH FIRST 2 ROWS ONLY
SELECT id FROM people LIMIT -1
SELECT DISTINCT city FROM people
SELECT DISTINCT city, ok FROM people ORDER BY city, ok
SELECT DISTINCT salary FROM people ORDER BY salary DESC
SELECT DISTINCT rate FROM people
SELECT DISTINCT u FROM people ORDER BY u
SELECT DISTINCT count(*) FROM sales GROUP BY kind
SELECT DISTINCT count(*) AS n, qty > 2 FROM sales GROUP BY qty, person ORDER BY n DESC, 2
SELECT DISTINCT rank() OVER (PARTITION BY kind ORDER BY qty) FROM sales
SELECT count(*) FROM (SELECT DISTINCT sum(qty) FROM sales GROUP BY person) s
SELECT DISTINCT ON (count(*)) count(*), max(qty) FROM sales GROUP BY person ORDER BY 1, 2, min(id)
SELECT DISTINCT qty, count(*) FROM sales GROUP BY CUBE (qty, kind) ORDER BY 1, 2
SELECT DISTINCT ON (city) city, id, name FROM people ORDER BY city, id DESC
SELECT DISTINCT ON (kind) kind, id, amount FROM sales ORDER BY kind, amount DESC NULLS LAST, id LIMIT 3
SELECT city, count(*), count(name), count(DISTINCT name), sum(salary), min(name), max(born) FROM people GROUP BY city
SELECT city AS c, count(*) n FROM people GROUP BY c HAVING count(*) > 1 ORDER BY n DESC
SELECT kind, person % 2, sum(amount), avg(amount), avg(qty), count(*) FROM sales GROUP BY 1, 2 ORDER BY 1, 2
SELECT 'all', count(*) FROM sales HAVING count(*) > 100
SELECT count(*) FROM sales HAVING count(*) > 10
SELECT kind, qty, sum(amount) FROM sales GROUP BY ROLLUP (kind, qty) ORDER BY 1, 2, 3
SELECT kind, qty, count(*), grouping(kind), grouping(kind, qty) FROM sales GROUP BY CUBE (kind, qty) ORDER BY 1, 2, 4, 5
SELECT kind, qty, count(*) FROM sales GROUP BY GROUPING SETS ((kind), (qty), ()) ORDER BY 1, 2, 3
SELECT kind, qty, person % 2, sum(amount) FROM sales GROUP BY kind, ROLLUP (qty, person % 2)
SELECT id, v, count(*), sum(n), grouping(id, v) FROM empty GROUP BY ROLLUP (id, v)
SELECT kind, qty, sum(amount), count(*) FROM sales WHERE id < 0 GROUP BY CUBE (kind, qty)
SELECT v, d, n, x, count(*), max(d) FROM empty GROUP BY GROUPING SETS ((v, d), (n, x), ())
SELECT count(*), 'c' FROM empty GROUP BY ()
SELECT 1 FROM empty GROUP BY GROUPING SETS ((), ())
SELECT 1 FROM people WHERE id = 1 GROUP BY GROUPING SETS ((), ())
SELECT DISTINCT count(*) FROM empty GROUP BY GROUPING SETS ((), (), (id))
SELECT id, count(*) FROM empty GROUP BY GROUPING SETS ((id), (id, v))
SELECT id, count(*) FROM empty GROUP BY ROLLUP (id) HAVING count(*) > 0
SELECT id, count(*) FROM empty GROUP BY ROLLUP (id) HAVING grouping(id) = 1 AND id IS NULL
SELECT id + 1, coalesce(id + 1, -1), upper(v), upper(v) || 'x' IS NULL, grouping(id + 1), grouping(upper(v)) FROM empty GROUP BY ROLLUP (id + 1, upper(v))
SELECT id, id + 1, CASE WHEN grouping(id) = 1 THEN 'all' ELSE 'one' END FROM empty GROUP BY CUBE (id, id + 1)
SELECT coalesce(d, 1.50), coalesce(n, 2.5), d + n, count(*) FROM empty GROUP BY CUBE (d, n)
SELECT kind, count(*), sum(count(*)) OVER (), rank() OVER (ORDER BY kind NULLS FIRST) FROM sales WHERE qty > 1000 GROUP BY ROLLUP (kind)
SELECT kind, count(*), sum(count(*)) OVER (), rank() OVER (ORDER BY kind NULLS FIRST) FROM sales GROUP BY ROLLUP (kind)
SELECT e.v, count(s.id), (SELECT max(name) FROM people) FROM empty e JOIN sales s ON s.id = e.id GROUP BY ROLLUP (e.v) ORDER BY 1 LIMIT 3
SELECT * FROM (SELECT id, count(*) FROM empty GROUP BY ROLLUP (id)) a, (SELECT kind, count(*) FROM sales GROUP BY ROLLUP (kind)) b ORDER BY 3
SELECT id, sum(n) FROM empty GROUP BY ROLLUP (id) UNION ALL SELECT id, salary FROM people WHERE id < 3 ORDER BY 1
SELECT count(*) FROM people WHERE EXISTS (SELECT id FROM empty GROUP BY ROLLUP (id)) AND 0 IN (SELECT count(*) FROM empty GROUP BY CUBE (id, v))
WITH t AS (SELECT id, count(*) AS n FROM empty GROUP BY ROLLUP (id)) SELECT t.n, u.n FROM t JOIN t u ON t.id IS NOT DISTINCT FROM u.id
SELECT id, count(*) FROM sales GROUP BY ROLLUP (id) HAVING grouping(id) = 1
SELECT DISTINCT qty, count(*) FROM sales GROUP BY CUBE (qty, kind) HAVING grouping(qty) + grouping(kind) = 1 ORDER BY 1, 2
SELECT kind, avg(amount) / 3, count(*) FROM sales GROUP BY ROLLUP (kind) HAVING grouping(kind) = 0 AND count(*) > 1
SELECT count(*) FROM empty GROUP BY GROUPING SETS ((), ())
SELECT count(*) FROM sales GROUP BY GROUPING SETS ((), ())
SELECT DISTINCT count(*) FROM sales GROUP BY GROUPING SETS ((), ())
SELECT count(*), grouping(v) FROM empty GROUP BY GROUPING SETS ((), ()), v
SELECT 1 AS x FROM people WHERE id = 1 EXCEPT ALL SELECT id FROM sales WHERE id < 0
SELECT a.id, b.id FROM people a LEFT JOIN people b ON a.id < b.id AND a.id NOT IN (SELECT boss FROM people)
SELECT a.id, b.id FROM people a FULL JOIN people b ON a.id = b.id AND a.boss NOT IN (SELECT id FROM people WHERE id = 1)
SELECT a.id, b.id FROM people a RIGHT JOIN people b ON a.id = b.id AND b.boss <> ALL (SELECT boss FROM people WHERE id > 3)
SELECT a.id, b.id FROM people a LEFT JOIN people b ON a.id = b.id AND (a.boss IN (SELECT id FROM people) OR a.id NOT IN (SELECT boss FROM people WHERE boss IS NOT NULL))
SELECT id, EXISTS (SELECT 1 FROM sales s WHERE s.person = u.id) FROM (SELECT id FROM people UNION ALL SELECT qty FROM sales WHERE id < 3) u
SELECT id, (SELECT count(*) FROM people p WHERE p.id < u.id) FROM (SELECT id FROM people UNION ALL SELECT qty FROM sales WHERE id < 3) u
SELECT string_agg(DISTINCT kind, ', '), count(DISTINCT qty) FROM sales
SELECT string_agg(kind, ', ' ORDER BY id), sum(DISTINCT qty), count(DISTINCT person) FROM sales
SELECT string_agg(kind, ',' ORDER BY id), avg(DISTINCT qty) FILTER (WHERE id > 3) FROM sales
SELECT string_agg(DISTINCT kind, ', '), string_agg(DISTINCT kind, ', ' ORDER BY kind DESC) FROM sales
SELECT string_agg(DISTINCT kind, '-') FILTER (WHERE qty > 2), string_agg(kind, '' ORDER BY id) FILTER (WHERE id < 0), string_agg(NULL::text, ',' ORDER BY id) FROM sales
SELECT city, string_agg(name, ', ' ORDER BY name NULLS FIRST, id) FROM people GROUP BY city
SELECT id, EXISTS (SELECT 1 FROM sales s WHERE s.person = p.id) IS TRUE FROM people p
SELECT id FROM people p WHERE NOT EXISTS (SELECT 1 FROM sales s WHERE s.person = p.id) IS TRUE
SELECT p.id, p.name, s.kind, count(*) FROM people p JOIN sales s ON s.person = p.id GROUP BY p.id, ROLLUP (s.kind)
SELECT (E'\x0b' || id)::int FROM people WHERE id = 1
SELECT id, count(*) OVER (PARTITION BY code::char(1)), count(*) OVER (PARTITION BY salary) FROM people
SELECT seen - interval '107000000 days' FROM people WHERE id = 1
WITH c AS (SELECT kind, qty FROM sales WHERE id < 0) SELECT * FROM (SELECT kind, count(*) FROM c GROUP BY ROLLUP (kind)) s
WITH c AS (SELECT kind, qty FROM sales), u AS (SELECT kind, sum(qty) FROM c GROUP BY ROLLUP (kind)) SELECT * FROM u
WITH c AS (SELECT kind, qty FROM sales) SELECT kind, count(*) FROM c GROUP BY ROLLUP (kind) UNION ALL SELECT 'x', 1
SELECT 1 FROM sales HAVING EXISTS (SELECT grouping(id) FROM empty GROUP BY ROLLUP (id))
SELECT day - 62, count(*) FROM sales GROUP BY ROLLUP (day - 62)
SELECT score::int4, count(*) FROM people GROUP BY CUBE ((score::int4))
SELECT extract(year from seen + interval '1 day'), count(*) FROM people GROUP BY ROLLUP (extract(year from seen + interval '1 day'))
SELECT name::varchar(2) || 'x', make_date(2020, 1, id), count(*) FROM people WHERE id < 0 GROUP BY CUBE (name::varchar(2) || 'x', make_date(2020, 1, id))
SELECT p.id, p.name, count(s.id) FROM people p LEFT JOIN sales s ON s.person = p.id GROUP BY p.id ORDER BY p.id
SELECT sum(amount) FILTER (WHERE kind = 'red'), count(*) FILTER (WHERE qty > 2), avg(amount) FILTER (WHERE kind IS NULL), bool_or(qty > 3) FILTER (WHERE id > 5) FROM sales
SELECT bool_and(ok), bool_or(ok), every(ok IS NOT NULL), bit_and(id), bit_or(small) FROM people
SELECT string_agg(name, ',' ORDER BY id), string_agg(name, '; ' ORDER BY name DESC, id), string_agg(DISTINCT city, '|' ORDER BY city), string_agg(name, NULL ORDER BY id) FROM people
SELECT city, array_agg(id ORDER BY id DESC), array_agg(name ORDER BY name NULLS FIRST, id), array_agg(DISTINCT ok) FROM people GROUP BY city ORDER BY city
SELECT array_agg(id ORDER BY salary DESC NULLS LAST, id) FILTER (WHERE id > 2), array_agg(name ORDER BY id) FILTER (WHERE id > 100) FROM people
SELECT min(score), max(score), min(seen), max(logged), min(code), max(photo), min(rate), max(big), min(r) FROM people
SELECT sum(score) FROM people
SELECT count(DISTINCT city), count(DISTINCT salary), sum(DISTINCT salary), avg(DISTINCT id), count(DISTINCT rate) FROM people
SELECT a.id, b.name FROM people a JOIN people b ON a.boss = b.id
SELECT a.id, b.id FROM people a LEFT JOIN people b ON a.boss = b.id AND b.ok ORDER BY a.id
SELECT a.id, b.id FROM people a RIGHT JOIN people b ON a.boss = b.id
SELECT a.id, b.id FROM people a FULL JOIN sales b ON a.id = b.id + 5
SELECT a.id, b.id FROM people a FULL JOIN people b ON a.boss = b.id WHERE a.id > 2 OR b.id > 3
SELECT id, name, amount FROM people JOIN sales USING (id) ORDER BY id
SELECT * FROM people p FULL JOIN empty e USING (id) ORDER BY id
SELECT id, v FROM empty NATURAL JOIN people
SELECT * FROM (SELECT id, name FROM people) a NATURAL LEFT JOIN (SELECT id, qty FROM sales) b ORDER BY id
SELECT a.id, b.id FROM people a, people b WHERE a.id < b.id AND a.city = b.city
SELECT a.id, b.id FROM people a CROSS JOIN empty b
SELECT count(*) FROM people a CROSS JOIN sales b
SELECT a.id, b.qty FROM people a JOIN (sales b JOIN people c ON b.person = c.id) ON a.id = c.boss ORDER BY 1, 2
SELECT a.id, s.n FROM people a LEFT JOIN LATERAL (SELECT count(*) n FROM sales s WHERE s.person = a.id) s ON true ORDER BY 1
SELECT a.code, b.code FROM people a JOIN people b ON a.code = b.code ORDER BY a.id, b.id
WITH x AS (SELECT person, sum(amount) total FROM sales GROUP BY person) SELECT p.name, x.total FROM x JOIN people p ON p.id = x.person ORDER BY x.total DESC
WITH a AS (SELECT id FROM people WHERE id < 4), b(n) AS (SELECT id * 2 FROM a) SELECT a.id, b.n FROM a JOIN b ON a.id = b.n UNION ALL SELECT n, n FROM b ORDER BY 1, 2
WITH a AS (SELECT max(id) m FROM people) SELECT id, (SELECT m FROM a), (SELECT m + 1 FROM a) FROM people WHERE id < (SELECT m FROM a)
SELECT id FROM people UNION SELECT person FROM sales ORDER BY 1
SELECT city FROM people UNION ALL SELECT kind FROM sales WHERE id < 3
SELECT city FROM people INTERSECT SELECT city FROM people WHERE id > 3
SELECT id FROM people EXCEPT SELECT boss FROM people
SELECT qty FROM sales INTERSECT ALL SELECT id FROM people
SELECT qty FROM sales EXCEPT ALL SELECT id FROM people
SELECT id, salary FROM people UNION ALL SELECT id, NULL FROM sales WHERE id < 3
SELECT id::int8 AS k FROM people UNION SELECT small FROM people ORDER BY k DESC
SELECT salary FROM people UNION ALL SELECT amount FROM sales WHERE id < 4
SELECT salary FROM people UNION ALL SELECT id FROM people
SELECT rate FROM people UNION ALL SELECT salary FROM people
(SELECT id FROM people ORDER BY id DESC LIMIT 2) UNION ALL (SELECT id FROM sales ORDER BY id LIMIT 2)
SELECT (SELECT max(amount) FROM sales s WHERE s.person = p.id), p.id FROM people p ORDER BY 2
SELECT id FROM people p WHERE EXISTS (SELECT 1 FROM sales s WHERE s.person = p.id AND s.amount > 80)
SELECT id FROM people p WHERE NOT EXISTS (SELECT 1 FROM sales s WHERE s.person = p.id)
SELECT id FROM people WHERE id IN (SELECT boss FROM people)
SELECT id FROM people WHERE id NOT IN (SELECT boss FROM people)
SELECT id FROM people WHERE id NOT IN (SELECT boss FROM people WHERE boss IS NOT NULL)
SELECT id FROM people WHERE (id, city) IN (SELECT boss, city FROM people)
SELECT id, id = ANY (SELECT person FROM sales WHERE qty = 1) FROM people
SELECT (SELECT id FROM people) FROM sales
SELECT (SELECT avg(salary) FROM people WHERE id < 4), id FROM people WHERE id = 1
SELECT x.a, x.b FROM (SELECT avg(amount) a, kind b FROM sales GROUP BY kind) x WHERE x.a > 40 ORDER BY x.a
SELECT round(x.a * 2, 3), x.a + 1 FROM (SELECT avg(amount) a FROM sales GROUP BY kind) x
SELECT * FROM (VALUES (1, 'a', 1.5), (2, NULL, 2.25), (3, 'c', NULL)) v(n, t, d) JOIN people ON id = n
SELECT v.n, count(p.id) FROM (VALUES (1), (2)) v(n) LEFT JOIN people p ON p.boss = v.n GROUP BY v.n
SELECT g, count(s.id) FROM generate_series(1, 5) g LEFT JOIN sales s ON s.qty = g GROUP BY g ORDER BY g
SELECT id, row_number() OVER (ORDER BY id), rank() OVER (ORDER BY city), dense_rank() OVER (ORDER BY city NULLS FIRST), percent_rank() OVER (ORDER BY salary), cume_dist() OVER (ORDER BY salary), ntile(3) OVER (ORDER BY id) FROM people
SELECT id, lag(name) OVER w, lead(id, 2) OVER w, lag(id, 1, -1) OVER w, first_value(id) OVER w, last_value(id) OVER w, nth_value(id, 2) OVER w FROM people WINDOW w AS (PARTITION BY city ORDER BY id)
SELECT id, sum(amount) OVER (PARTITION BY kind ORDER BY id), avg(amount) OVER (PARTITION BY kind ORDER BY id), count(*) OVER (), sum(qty) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW), max(amount) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) FROM sales
SELECT id, count(*) FILTER (WHERE qty > 1) OVER (PARTITION BY kind), sum(id) OVER (ORDER BY qty), min(id) OVER (ORDER BY qty RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) FROM sales
SELECT kind, sum(amount), sum(sum(amount)) OVER (ORDER BY kind), rank() OVER (ORDER BY count(*) DESC, kind) FROM sales GROUP BY kind
SELECT rank() OVER (), count(*) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) FROM people
SELECT CASE WHEN salary > 100 THEN 'high' WHEN salary IS NULL THEN NULL ELSE 'low' END, CASE id WHEN 1 THEN 'one' WHEN 2 THEN 'two' END, CASE city WHEN 'Rome' THEN 1.5 ELSE salary END FROM people
SELECT coalesce(name, city, 'none'), coalesce(salary, 0), coalesce(salary, rate), nullif(id, 3), nullif(city, 'Rome'), nullif(salary, 0.01) FROM people
SELECT greatest(id, small, 3), least(name, city), greatest(salary, 5), least(score, 1), greatest(NULL, id), greatest(rate, salary) FROM people
SELECT id IS DISTINCT FROM boss, city IS NOT DISTINCT FROM 'Rome', ok IS TRUE, ok IS NOT FALSE, ok IS UNKNOWN, name IS NULL, NOT ok, ok AND id > 2, ok OR id > 2 FROM people
SELECT id BETWEEN 2 AND 4, id NOT BETWEEN 2 AND 4, id BETWEEN SYMMETRIC 4 AND 2, id IN (1, NULL), id NOT IN (1, NULL), name IN ('bob', 'x'), salary IN (1000.5, 3.330) FROM people
SELECT id = ANY (ARRAY[1, 2]), id = ANY ('{3,4}'::int[]), id <> ALL (ARRAY[1, 2]), id > ANY (ARRAY[5, 6]), 5 = ANY (nums), 'x' = ANY (tags), name LIKE ANY (ARRAY['a%', 'b%']), 1 = ANY ('{}'::int[]) FROM people
SELECT nums[1], tags[2], nums[0], nums[5], array_length(nums, 1), cardinality(tags), ARRAY[id, 5], ARRAY[name, NULL] FROM people
SELECT born + 1, born - 1, born - date '2000-01-01', born + small, 3 + born, born < '2000-01-01', born = seen, seen > born FROM people WHERE id <> 3
SELECT born + interval '1 month', born - interval '1 year 2 days', seen + interval '1 month 1 day 01:02:03.5', seen - interval '36 hours', logged + interval '90 minutes', interval '1 day' + born FROM people WHERE id <> 5
SELECT seen::date, seen::timestamptz, logged::timestamp, logged::date, born::timestamp, born::text, seen::text, logged::text FROM people
SELECT date_trunc('month', seen), date_trunc('week', seen), date_trunc('hour', logged), date_trunc('quarter', seen), date_trunc('year', born), date_trunc('day', seen), date_trunc('second', seen), date_trunc('milliseconds', seen) FROM people
SELECT extract(year from born), extract(month from born), extract(day from born), extract(dow from born), extract(doy from born), extract(isodow from born), extract(week from born), extract(isoyear from born), extract(quarter from born), extract(epoch from born) FROM people
SELECT extract(hour from seen), extract(minute from seen), extract(second from seen), extract(milliseconds from seen), extract(microseconds from seen), extract(epoch from seen), extract(epoch from logged), date_part('year', seen), date_part('hour', logged) FROM people
SELECT extract(epoch from seen - timestamp '2024-01-01'), extract(epoch from logged - '1970-01-01 00:00:00+00') FROM people
SELECT logged AT TIME ZONE 'UTC', seen AT TIME ZONE 'UTC', make_date(2024, id, 28) FROM people
SELECT make_date(2023, 2, 22 + id) FROM people
SELECT sensor, date_trunc('day', at), avg(value), avg(raw), sum(raw), max(value), count(*) FROM measures GROUP BY 1, 2 ORDER BY 1, 2
SELECT at, value, raw, value / raw FROM measures WHERE raw > 0
SELECT value * 1.0, value + raw, round(value, 3), value::numeric(4,2), raw * value FROM measures
SELECT (id + 1)::text || 'x', ('1' || id)::int, '42'::int + id, name::int FROM people WHERE id = 2
SELECT ('1' || id)::int, (' ' || id)::int8, ('2020-01-0' || id)::date FROM people
SELECT city::int FROM people WHERE city = 'Rome'
SELECT now() = now(), current_date = now()::date, current_user, session_user, current_database() <> '' FROM people WHERE id = 1
SELECT u = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', u > 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a10', doc, u FROM people
SELECT u, count(*), min(id) FROM people GROUP BY u
SELECT tableoid > 0, id FROM people
SELECT id & 3, id | 8, id # 1, ~id FROM people
SELECT '${id}', '\', '''', E'\n\t' || name FROM people WHERE id = 1
SELECT ok, NOT ok, ok = true, ok < true, ok <> false FROM people
SELECT photo, photo = '\x61', photo > '\x60', photo || '\x01' FROM people
SELECT r, score, r = score, r < score, r = 'NaN', score = 'Infinity' FROM people
SELECT id FROM people WHERE score > 1e300::float8 ORDER BY id
SELECT sum(qty) / count(*), sum(qty) * 1.0 / count(*), sum(amount) / count(*), sum(amount) / sum(qty) FROM sales GROUP BY kind
SELECT id, salary / (SELECT count(*) FROM sales), (SELECT avg(amount) FROM sales) * 2 / id FROM people
SELECT kind, 100.0 * count(*) / (SELECT count(*) FROM sales) FROM sales GROUP BY kind ORDER BY 2, 1
SELECT max(a.n) FROM (SELECT person, count(*) n FROM sales GROUP BY person) a
SELECT * FROM rome ORDER BY id
SELECT r.n, p.id FROM rome_count r JOIN people p ON p.id = r.n
SELECT sum(v), min(k), count(*) FROM parted
SELECT k, v FROM parted WHERE v > 2 ORDER BY k
SELECT k FROM ONLY parted
SELECT k FROM ONLY parted_1
SELECT max(x) FROM odd
SELECT min(x), max(y) FROM odd
SELECT max(t) FROM odd
SELECT max(s), min(s) FROM odd
SELECT max(n) FROM odd
SELECT max(b) FROM odd
SELECT id FROM odd WHERE x > 5
SELECT id FROM odd WHERE x = 'NaN'
SELECT id FROM odd WHERE NOT (x < 5)
SELECT id FROM odd WHERE y >= 5
SELECT id FROM odd WHERE x IN (7, 'NaN')
SELECT id FROM odd WHERE s > repeat('z', 40) || 'a'
SELECT id FROM odd WHERE s = repeat('z', 40) || 'b'
SELECT id FROM odd WHERE n = 12345678901234567.251
SELECT id FROM odd WHERE n >= 12345678901234567.251
SELECT id FROM odd WHERE n > 12345678901234567.25
SELECT id FROM odd WHERE t = '2024-01-02 00:00:00.999999'
SELECT id FROM odd WHERE t > '2024-01-02 00:00:00.999998'
SELECT id FROM odd WHERE b = 9007199254740993
SELECT a.id, b.id FROM odd a JOIN odd b ON a.x = b.x
SELECT id, id IN (SELECT boss FROM people) FROM people
SELECT id, id NOT IN (SELECT boss FROM people) FROM people
SELECT id, boss IN (SELECT boss FROM people WHERE id > 100) FROM people
SELECT id, boss IN (SELECT id FROM people) OR ok FROM people
SELECT id FROM people WHERE id NOT IN (SELECT boss FROM people) IS NULL
SELECT id FROM people p WHERE boss IN (SELECT s.person FROM sales s WHERE s.qty = p.id) OR id = 3
SELECT id, EXISTS (SELECT 1 FROM sales s WHERE s.person = p.id AND s.qty > 3) FROM people p
SELECT id, CASE WHEN id IN (SELECT boss FROM people) THEN 1 ELSE 0 END FROM people
SELECT kind, count(*) FROM sales GROUP BY GROUPING SETS ((kind), (kind), ())
SELECT count(*) FROM people WHERE id IN (SELECT person FROM sales) AND NOT EXISTS (SELECT 1 FROM empty)
SELECT p.id FROM people p LEFT JOIN sales s ON s.person = p.id AND s.id IN (SELECT id FROM people) ORDER BY p.id, s.id
SELECT id, (SELECT count(*) FROM sales s WHERE s.person = p.id + 100) FROM people p
SELECT id, (SELECT s.qty FROM sales s WHERE s.id = p.id) FROM people p
SELECT id, (SELECT s.qty FROM sales s WHERE s.person = p.id) FROM people p
SELECT id, (SELECT s.amount FROM sales s WHERE s.person = p.id ORDER BY s.id LIMIT 1) FROM people p ORDER BY id
SELECT (SELECT count(*) FROM people b WHERE b.boss = a.id) c, count(*) FROM people a GROUP BY 1
SELECT sum((SELECT max(amount) FROM sales s WHERE s.person = p.id)) FROM people p
SELECT id, sum(qty) OVER (ORDER BY id) - 1 AS r FROM sales ORDER BY sum(qty) OVER (ORDER BY id DESC), id
SELECT person, max(day) - min(day), count(*) * 2 FROM sales GROUP BY person HAVING sum(amount) > (SELECT avg(amount) FROM sales) ORDER BY 1
SELECT DISTINCT person % 3 AS m, count(*) OVER () FROM sales ORDER BY m
SELECT count(*) FROM (SELECT DISTINCT kind, qty FROM sales) x
SELECT a.kind, b.kind FROM sales a JOIN sales b ON a.kind = b.kind AND a.id = 1
SELECT 1 FROM people GROUP BY ()
SELECT id AS o1, name AS o2, city AS "q" FROM people ORDER BY "q", o1
SELECT x.h1 FROM (SELECT id AS h1, salary / (SELECT count(*) FROM sales) d FROM people) x ORDER BY d, 1
SELECT avg(x.d) FROM (SELECT salary / 3 d FROM people) x
SELECT max(x.d) FROM (SELECT round(salary / 3, 4) d FROM people) x
SELECT sum(x.d) FROM (SELECT salary / 3 d FROM people WHERE id < 5) x
SELECT d, d * 2, d + 1, -d, round(d, 1) FROM (SELECT salary / 3 d FROM people) x WHERE d > 1 ORDER BY d DESC
SELECT id, i, length(s), reverse(s), left(s, -1), right(s, 2), upper(s) FROM odd
SELECT id, u IN (SELECT u FROM people WHERE id > 2) FROM people WHERE (id, city) IN (SELECT id, city FROM people)
SELECT concat('a', id), concat_ws('-', 'b', name), concat('x', NULL, 'abc') FROM people
SELECT substr(NULL, id, -1), split_part(NULL, 'a', 0), split_part(name, NULL, 0), substr('abc', NULL, -1) FROM people
SELECT id FROM people WHERE (boss, name) > (1, 'a') OR (id, big) <= (2, -1)
SELECT id, (boss, name) < (2, 'b'), (id, name) IS NULL, (boss, name) IS NOT NULL FROM people
SELECT id, name ~ '^[[:alpha:]]+$', name ~* 'B', name !~ 'o.', code ~ 'a\s*$' FROM people
SELECT id, nums = '{1,2,3}', tags <> '{x}', pi() FROM people
SELECT id, abs(-99999999999999999999999999999999999999::numeric(38,0)), -(99999999999999999999999999999999999999::numeric(38,0)) FROM people WHERE id = 1
