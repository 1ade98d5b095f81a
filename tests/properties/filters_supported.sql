-- SPDX-License-Identifier: Apache-2.0
-- Row filters that are exact, over the table of tests/support/filter_oracle.py; one a line.
-- What PostgreSQL's own tests and documentation accept, operator by operator:
i4 > 1
ts > '2020-01-01'
tz >= '2024-03-31 02:30:00+00'
t LIKE 'a%'
t ~ 'b'
t = 'a' COLLATE "C"
row(i4, t) = row(1, 'a')
(i4, id) > (1, 2)
(i8, t, d) <= (5, 'ab', '2000-02-29')
i4 = ANY (array[1, 2])
i4 <> ALL ('{1,2,NULL}'::int[])
CASE WHEN i4 > 1 THEN b ELSE t = 'a' END
CASE t WHEN 'a' THEN b WHEN 'A' THEN true END
coalesce(i4, i8, 0) = 0
nullif(t, 'a') IS NULL
(10 / i4 < ceil(NULL::numeric::float4)) IS NULL
i4 + NULL / i4 IS NULL
i4 IS DISTINCT FROM 1 AND f8 IS NOT DISTINCT FROM 'NaN'
greatest(i4, i8, NULL) > least(i2, 5)
j IS NULL OR iv IS NOT NULL OR ip IS NULL
b IS TRUE OR (b AND NULL) IS UNKNOWN
lower(t) = 'ab' OR upper(v) = 'AB'
i4::bigint = 1
i4 BETWEEN 1 AND 5 AND i8 NOT BETWEEN SYMMETRIC 5 AND 0
t || 'x' = 'ax'
substring(t from 1 for 1) = 'a'
t = 'a'::varchar
char_length(t) = 2
f8 < pi()
NOT (b OR i4 = 1) AND t IS NOT NULL
"odd ""name" >= 0
-- Text is ordered by its bytes; character(n) compares without its trailing blanks.
t < 'é' AND t > 'Z'
t < '😀' AND t >= ''
c = 'a'
c = 'a    '
c < 'ab'
c::text = 'a'
c LIKE 'a____'
octet_length(c) = 5 AND length(c) = 1
nm = 'a' OR nm < 'b'
ch = 'a' OR ch <> 'b'
t IN ('a', '', NULL, 'o''k', '${x}', 'x' || E'\ny')
-- Floats: NaN is the largest and equals itself, -0 equals 0.
f8 > 'Infinity'
f8 = 'NaN' OR f4 = 'NaN'
f8 = 0 AND f4 = 0
f8 IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
f4 = 0.1
f4 = 0.1::float4
f8 = ANY (fa)
f8 > f4
i8 = 9007199254740993::float8
-- Numerics of 38 digits, and what touches them.
n = 99999999999999999999.999999999999999999
n38 >= 99999999999999999999999999999999999999
-n38 = 99999999999999999999999999999999999999
abs(n38) = 99999999999999999999999999999999999999
n > i8
n2 * 2 + 1 > i4
n2 % 2 = 0 AND n2 <> 0
round(n2) = 2 OR trunc(n2, 1) = 3.2 OR ceil(n2) = 4 OR floor(n) = -2
n::numeric(8,2) = 1.5 OR false
n::float8 = 1.5
n2::int = 2
-- Errors of PostgreSQL are errors here, and what it does not compute is not computed.
1 / i4 > 0
i4 <> 0 AND 10 / i4 > 1
CASE WHEN i4 = 0 THEN false ELSE 10 % i4 = 1 END
i4 + i8 > 0
i4 + 1 / i8 > 0
i2 * i2 > 0::int2
f8 * f8 > 1
sqrt(f8) > 1
i8::int2 = 5
n2::int2 > 0
i4 = ANY (array[1, 1 / i8::int])
substr(t, 1, i4) = 'a'
left(t, i4 % 3) = 'a'
-- Dates and times: fields and arithmetic without a time zone.
d = '2024-02-29' OR d + 1 = '2024-03-01' OR d - date '1970-01-01' = 0
d < ts
extract(year from d) = 2024 AND extract(month from ts) = 2
extract(epoch from ts) > 0.5
extract(week from d) = 1 OR extract(isoyear from d) = 2025 OR extract(dow from d) = 0
date_trunc('month', ts) = '2024-02-01'
ts + interval '1 month' > '2024-03-30'
ts - interval '4000 years' < '0001-01-01'
ts::date = '2024-02-29'
tz at time zone 'UTC' = '2024-02-29 00:00:00'
tm < '10:20:30.1' OR tm = '24:00'
-- Other types.
y < '\x80' OR y = '' OR length(y) = 1
u > 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' OR u = '00000000-0000-0000-0000-000000000000'
o > 2147483648
ta = '{a,NULL}' OR ia <> '{1}' OR fa = '{0,1}'
'a' = ANY (ta) OR i4 = ANY (ia)
cardinality(ia) = 3 OR array_length(ta, 1) IS NULL
-- LIKE and regular expressions.
t LIKE 'a\_b\%c%' OR t LIKE 'x_y' OR t ILIKE 'AB%'
t NOT LIKE '%b' AND v !~~ '_'
t LIKE 'a!_b!%%' ESCAPE '!'
t ~ '^.$'
t ~ '^a$' OR t ~ 'x.y'
t ~* '^AB C$' OR t !~* 'z'
t ~ '[[:upper:]][a-c]|\d_|\s\w'
t ~ '^[^\w\s]{1,2}$'
t ~ '(abc){3}' OR t ~ '^(?:a|é)b?$'
t ~ 'a\tb|[\n-]$'
c ~ 'a\s+$'
