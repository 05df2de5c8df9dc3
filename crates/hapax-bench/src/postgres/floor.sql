-- The tables of the store, as somebody would make them who has one statement for a claim and one for its end.
CREATE TABLE heads (
    fence int8 NOT NULL,
    version int8 NOT NULL,
    lease_until int8 NOT NULL,
    created_at int8 NOT NULL,
    claimed_at int8 NOT NULL,
    finished_at int8 NOT NULL,
    expires_at int8 NOT NULL,
    tombstone_until int8 NOT NULL,
    policy int8,
    terms int8,
    token uuid NOT NULL,
    attempts int4 NOT NULL,
    status int4,
    state int2 NOT NULL,
    slot int2,
    lost boolean NOT NULL,
    id bytea NOT NULL PRIMARY KEY,
    fingerprint bytea,
    namespace bytea NOT NULL,
    principal bytea,
    method bytea NOT NULL,
    path bytea NOT NULL,
    key bytea NOT NULL
) WITH (fillfactor = 60);
CREATE INDEX ON heads (lease_until);
CREATE INDEX ON heads (id) WHERE lost;

CREATE TABLE answers (fence int8 NOT NULL, expires_at int8 NOT NULL, id bytea NOT NULL, content bytea NOT NULL);
ALTER TABLE answers ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE INDEX ON answers (fence);

-- Those that are read again: their keys are numbers, so that a script can name them.
INSERT INTO heads
SELECT i, i + 1, 0, 0, 0, 0, 0, 0, 1, NULL, gen_random_uuid(), 1, 201, 2, 0, false, sha256(i::text::bytea), sha256(i::text::bytea),
       'bench', 'ada', 'POST', '/v1/charges', gen_random_uuid()::text::bytea
FROM generate_series(1, {stored}) AS i;
INSERT INTO answers SELECT i, 0, sha256(i::text::bytea), '{answer}' FROM generate_series(1, {stored}) AS i;
VACUUM ANALYZE heads, answers;
CHECKPOINT;
