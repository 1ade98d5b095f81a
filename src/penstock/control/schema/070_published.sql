-- SPDX-License-Identifier: Apache-2.0
-- What a publisher's catalogs said of a subscribed table: two conclusions are drawn from it.
--
-- While ``publications`` and ``definition`` stay what they were, nothing has happened to the table's
-- rows that was not sent: a key that is inserted is new (workers/published.py).  A column with an
-- attnum above ``natts`` was added since, and was not renamed or published anew.

CREATE TABLE penstock.subscription_published (
    subid oid,
    relid oid,
    remote_oid oid NOT NULL,
    publications text NOT NULL,
    definition text NOT NULL,
    complete boolean NOT NULL,
    since pg_lsn NOT NULL,
    natts smallint NOT NULL,
    columns text[] NOT NULL,
    files jsonb NOT NULL,
    PRIMARY KEY (subid, relid)
);
COMMENT ON TABLE penstock.subscription_published IS
    'What the publisher''s catalogs said of a subscribed table';
COMMENT ON COLUMN penstock.subscription_published.publications IS
    'Versions (OID and xmin) of the catalog rows by which the table is published';
COMMENT ON COLUMN penstock.subscription_published.definition IS
    'Version (OID and xmin) of the table''s row in pg_class';
COMMENT ON COLUMN penstock.subscription_published.complete IS
    'Whether all that happens to the table''s rows is sent';
COMMENT ON COLUMN penstock.subscription_published.since IS
    'The publisher''s LSN from which on this is known';
COMMENT ON COLUMN penstock.subscription_published.natts IS
    'Columns of the publisher''s table up to this attnum were there when columns were compared';
COMMENT ON COLUMN penstock.subscription_published.columns IS
    'The published columns that were seen until then';
COMMENT ON COLUMN penstock.subscription_published.files IS
    'pg_class.relfilenode by OID then, of each relation with rows: another one tells of a rewrite';
