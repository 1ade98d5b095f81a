-- SPDX-License-Identifier: Apache-2.0
-- Row filters that PostgreSQL accepts and the lake refuses, each with the beginning of the detail.
-- The expression that is named is the innermost one.
b AND lower(t) ~ 'a\1' -- (lower(t) ~ 'a\1') has no exact form in Spark: the escape "\1" in the regular expression "a\1"
t ~ '(a*)*b' -- (t ~ '(a*)*b') has no exact form in Spark: a group repeated without an end
t ~ '(?=a)' -- (t ~ '(?=a)') has no exact form in Spark: an option or a look around
t ~ v -- (t ~ v) has no exact form in Spark: a regular expression that is not a constant
t ~ '\ya' -- (t ~ '\ya') has no exact form in Spark: the escape "\y"
t ~ '***=a' -- (t ~ '***=a') has no exact form in Spark: a director
t ~ '[[.a.]]' -- (t ~ '[[.a.]]') has no exact form in Spark: this class or collating element
t ~ 'a**' -- (t ~ 'a**') has no exact form in Spark: a repetition of a repetition
t LIKE v -- (t ~~ v) has no exact form in Spark: a LIKE pattern that is not a constant
t LIKE 'a\' -- (t ~~ 'a\') has no exact form in Spark: a LIKE pattern that ends with the escape character
t SIMILAR TO 'a' -- similar_to_escape('a') has no exact form in Spark: function similar_to_escape
i4 > 0 AND n + 1 > 5 -- (n + 1) has no exact form in Spark: a numeric result that may need more than 38 digits
n > 1e-20 -- (n > 0.00000000000000000001) has no exact form in Spark: an operation on numerics that need more than 38 digits
n2 / 3 > 1 -- (n2 / 3) has no exact form in Spark: division of numerics
coalesce(n, n38) > 0 -- COALESCE(n, n38) has no exact form in Spark: a numeric result that may need
repeat(t, i4) = 'aa' -- repeat(t, i4) has no exact form in Spark: function repeat(text, int4) to a length
j -> 'a' IS NOT NULL -- (j -> 'a') has no exact form in Spark: function jsonb_object_field(jsonb, text)
j = '{}' -- a constant of type jsonb has no exact form in Spark
iv > '1 day' -- (iv > 
ip = '10.0.0.1' -- a constant of type inet has no exact form in Spark
ts < 'infinity' -- a constant of type timestamp without time zone has no exact form in Spark: infinite timestamps
f8 ^ 2 > 4 -- (f8 ^ 2) has no exact form in Spark: function dpow(float8, float8)
t COLLATE "pg_c_utf8" = 'a' -- ((t COLLATE with OID
ts - ts > '1 day' -- (ts - ts) has no exact form in Spark: function timestamp_mi
extract(day from iv) = 1 -- extract('day', iv) has no exact form in Spark
make_date(i4, 1, 1) = d -- make_date(i4, 1, 1) has no exact form in Spark: function make_date(int4, int4, int4), because
ta @> '{a}' -- (ta @> 
ia < '{1}' -- (ia < '[1]') has no exact form in Spark: function array_lt(anyarray, anyarray)
ch < 'b' -- (ch < 'b') has no exact form in Spark: function charlt
greatest(c, 'b') = 'b' -- GREATEST(c, 'b') has no exact form in Spark: greatest of character values
i4 << 2 > 5 -- (i4 << 2) has no exact form in Spark: function int4shl(int4, int4)
initcap(t) = 'A' -- initcap(t) has no exact form in Spark: function initcap(text)
ts + interval '5000 years' > '2024-01-01' -- (ts + 
