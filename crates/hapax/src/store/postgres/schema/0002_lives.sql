-- Lives: a key that is used again after its tombstone is over names another operation. What is checked here is what
-- core/src/operation.rs makes.

-- From when on each life of a key has an operation id of its own, by the record's `created_at`; records from before keep theirs. Set once.
ALTER TABLE hapax.meta ADD COLUMN lives_since int8 NOT NULL DEFAULT 0;
-- When the life began that an entry is about; 0 in entries from before, whose records follow the first rule.
ALTER TABLE hapax.audit ADD COLUMN created_at int8 NOT NULL DEFAULT 0;

-- A store that is in use goes on by the first rule for an hour, so that programs of the version before can be replaced one by one: for that
-- long both make the same ids. One that nobody has used yet begins with the second.
UPDATE hapax.meta AS m SET lives_since = hapax.now() + 3600000000
WHERE EXISTS (SELECT FROM hapax.heads) OR m.logged > 0 OR EXISTS (SELECT FROM hapax.pace AS p WHERE p.clock_floor > 0);

-- Lets everybody call a function who may call this other one. For migrations that bring a function for roles which were granted the rest.
CREATE FUNCTION hapax.grant_like(added regprocedure, known regprocedure) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    granted record;
BEGIN
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', added);
    FOR granted IN
        SELECT DISTINCT r.rolname FROM pg_proc AS p, aclexplode(p.proacl) AS a JOIN pg_roles AS r ON r.oid = a.grantee
        WHERE p.oid = known AND a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', added, granted.rolname);
    END LOOP;
END $$;

CREATE FUNCTION hapax.lives_since() RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN (SELECT m.lives_since FROM hapax.meta AS m);
END $$;
SELECT hapax.grant_like('hapax.lives_since()', 'hapax.pulse()');

-- As before, but for one thing: programs of the version before hear that they may go on until a minute before the second rule holds.
CREATE OR REPLACE FUNCTION hapax.pulse() RETURNS TABLE (
    now int8, epoch int8, secret bytea, system_identifier int8, timeline int4, known_system_identifier int8, known_timeline int4, schema int4, oldest int4
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM hapax.not_a_standby();
    PERFORM hapax.ready();
    IF EXISTS (SELECT FROM hapax.pace AS p WHERE p.closed IS NOT NULL) THEN
        RAISE EXCEPTION 'this store %', (SELECT p.closed FROM hapax.pace AS p) USING ERRCODE = 'HX002';
    END IF;
    RETURN QUERY SELECT hapax.now(), m.epoch, m.secret, (SELECT c.system_identifier FROM pg_control_system() AS c), hapax.timeline(),
        m.system_identifier, m.timeline, m.schema,
        CASE WHEN m.oldest = 2 AND hapax.now() + 60000000 < m.lives_since THEN 1 ELSE m.oldest END FROM hapax.meta AS m;
END $$;

-- An entry says which life it is about.
CREATE OR REPLACE FUNCTION hapax.write_down(moment int8, action bytea, signed_by bytea, reason bytea, was hapax.heads, became hapax.heads)
RETURNS hapax.audit
LANGUAGE plpgsql AS $$
DECLARE
    entry hapax.audit;
    number int8;
BEGIN
    UPDATE hapax.meta SET logged = logged + 1 RETURNING logged INTO number;
    INSERT INTO hapax.audit VALUES (
        number, moment, action, signed_by, reason, became.id, became.namespace, became.principal, became.method, became.path, became.key,
        hapax.state_at(was.state, was.lease_until, was.expires_at, moment), became.state, became.status, became.fence, became.version,
        coalesce(became.created_at, 0))
    RETURNING * INTO entry;
    RETURN entry;
END $$;

-- Completes the record of an operation by the terms of its route, within one of the functions below.
CREATE OR REPLACE FUNCTION hapax.complete_here(operation text, of_fence int8, status int8, headers jsonb, body bytea) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- The two halves of an operation id: the proof, and how the record's id begins. `OperationIds::make` of core/src/operation.rs.
    proof bytea;
    found_by bytea;
    -- The proof by the first rule. By either rule its first eight bytes say that the operation is one of this store.
    first_rule bytea;
    meta hapax.meta;
    h record;
    fields bytea;
    answer bytea;
BEGIN
    SELECT * INTO meta FROM hapax.meta;
    IF octet_length(operation) = 64 AND operation !~ '[^0-9a-f]' THEN
        proof := decode(substr(operation, 1, 32), 'hex');
        found_by := decode(substr(operation, 33), 'hex');
        first_rule := substr(sha256(int8send(17) || 'hapax operation 2' || int8send(32) || meta.secret || int8send(16) || found_by), 1, 16);
    END IF;
    IF first_rule IS NULL OR substr(proof, 1, 8) <> substr(first_rule, 1, 8) THEN
        RAISE EXCEPTION 'this is no operation of this store'
            USING ERRCODE = 'HX006', HINT = 'pass on what came in the field Hapax-Operation, to the database that the gateway keeps its records in';
    END IF;
    IF of_fence IS NULL OR status IS NULL OR status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'an answer has a fence, and a status from 200 to 599' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT o.id, o.fence, o.created_at, o.terms, t.retention, t.tombstone, t.keep, t.bytes_max, t.cookies, t.version INTO h
    FROM hapax.heads AS o LEFT JOIN hapax.terms AS t ON t.id = o.terms
    WHERE o.id >= found_by AND o.id <= found_by || decode('ffffffffffffffffffffffffffffffff', 'hex') LIMIT 1;
    IF h.fence IS DISTINCT FROM of_fence THEN
        PERFORM hapax.fenced_out(h.fence, of_fence);
    END IF;
    -- The rest of the proof says which life of the key. The fence is the present one's: whoever made this up, or brought it from an earlier
    -- life, owns nothing.
    IF substr(proof, 9) <> (CASE WHEN h.created_at < meta.lives_since THEN substr(first_rule, 9) ELSE substr(sha256(
        int8send(17) || 'hapax operation 3' || int8send(32) || meta.secret || int8send(16) || found_by || int8send(8) || int8send(h.created_at)), 1, 8) END)
    THEN
        RAISE EXCEPTION 'fenced out: this operation is of another life of its key, and what this transaction has done must not be committed'
            USING ERRCODE = 'HX003', HINT = 'roll back: the key has been used anew since';
    END IF;
    IF h.retention IS NULL THEN
        RAISE EXCEPTION 'the route of this operation is not one whose records are completed in a transaction'
            USING ERRCODE = 'HX004', HINT = 'say mode = "transaction" on the route';
    END IF;
    -- Looked at in any case: what is wrong shall not depend on how much is kept.
    fields := hapax.kept_fields(coalesce(headers, '{}'), h.cookies, h.version);
    IF h.keep AND fields IS NOT NULL AND coalesce(octet_length(body), 0) <= h.bytes_max THEN
        answer := hapax.encoded(h.id, status::int4, fields, coalesce(body, ''));
    END IF;
    -- Another one may have been first since the look above: this judges.
    PERFORM hapax.join(h.id, of_fence, CASE WHEN status BETWEEN 400 AND 499 THEN 3 ELSE 2 END, status, h.retention, h.tombstone, answer);
END $$;

-- What a copy takes along, for the owner of the schema alone.
DROP FUNCTION hapax.survey();
CREATE FUNCTION hapax.survey() RETURNS TABLE (
    word text, copy uuid, other bytea, record bytea, entry int8, secret bytea, epoch int8, floor int8, logged int8, now int8, records int8, running int8,
    lives_since int8
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM hapax.not_a_standby();
    RETURN QUERY SELECT s.word, s.copy, s.other, s.record, s.entry, m.secret, m.epoch, p.floor, m.logged, hapax.now(), c.records, c.running,
        m.lives_since
    FROM hapax.meta AS m CROSS JOIN hapax.pace AS p LEFT JOIN hapax.standing AS s ON true
        CROSS JOIN (SELECT count(*) AS records, count(*) FILTER (WHERE h.state = 1) AS running FROM hapax.heads AS h) AS c;
END $$;

DROP FUNCTION hapax.arrive(uuid, bytea, bytea, text);
CREATE FUNCTION hapax.arrive(of_copy uuid, from_other bytea, of_secret bytea, of_lives_since int8, refusal text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    stood text;
BEGIN
    PERFORM hapax.ready();
    LOCK TABLE hapax.heads, hapax.audit IN ACCESS EXCLUSIVE MODE;
    SELECT s.word INTO stood FROM hapax.standing AS s;
    IF stood = 'leaving'
        OR (stood = 'moved' AND of_secret <> (SELECT m.secret FROM hapax.meta AS m))
        OR (stood IS NULL AND (EXISTS (SELECT FROM hapax.heads) OR (SELECT m.logged FROM hapax.meta AS m) > 0))
    THEN
        RETURN false;
    END IF;
    PERFORM hapax.clear();
    UPDATE hapax.meta SET secret = of_secret, lives_since = of_lives_since;
    PERFORM hapax.stand('arriving', of_copy, from_other, refusal);
    RETURN true;
END $$;

DROP FUNCTION hapax.import_log(uuid, bytea, int8, int8[], int8[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[],
    int2[], int2[], int4[], int8[], int8[]);
CREATE FUNCTION hapax.import_log(
    of_copy uuid, of_record bytea, of_entry int8, sequences int8[], ats int8[], actions bytea[], signers bytea[], reasons bytea[], ids bytea[],
    namespaces bytea[], principals bytea[], methods bytea[], paths bytea[], keys bytea[], befores int2[], afters int2[], statuses int4[],
    fences int8[], versions int8[], created int8[]
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT hapax.arriving(of_copy, of_record, of_entry) THEN
        RETURN false;
    END IF;
    INSERT INTO hapax.audit
    SELECT * FROM unnest(sequences, ats, actions, signers, reasons, ids, namespaces, principals, methods, paths, keys, befores, afters, statuses,
                         fences, versions, created)
    ON CONFLICT (sequence) DO NOTHING;
    UPDATE hapax.meta AS m SET logged = greatest(m.logged, of_entry);
    RETURN true;
END $$;

REVOKE ALL ON FUNCTION hapax.grant_like(regprocedure, regprocedure), hapax.survey(), hapax.arrive(uuid, bytea, bytea, int8, text),
    hapax.import_log(uuid, bytea, int8, int8[], int8[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[],
        int2[], int2[], int4[], int8[], int8[], int8[]) FROM PUBLIC;

-- A clock that jumps ahead would end every retention at once: what is finished would be taken for gone, and could run again. So time moves on by
-- more than an hour at once only if the clock of a node says that it is so late. A gateway that was stopped for a month is such a case.

-- Compares the clock of this server with that of the node that asks. Where this one is ahead of the node's, and of its own last reading, time goes
-- on from that reading; where they agree again, from here. Returns by how much this server's clock is ahead of the store's time; null if
-- somebody else is about to move it on.
CREATE FUNCTION hapax.keep_time(node_clock int8) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    jump_max constant int8 := 3600000000;
    here int8 := hapax.clock();
    pace hapax.pace;
BEGIN
    PERFORM hapax.not_a_standby();
    SELECT * INTO pace FROM hapax.pace;
    IF here + pace.skew <= pace.clock_floor + jump_max AND (pace.skew >= 0 OR here > node_clock + jump_max) THEN
        RETURN greatest(-pace.skew, 0);
    END IF;
    PERFORM hapax.ready();
    SELECT * INTO pace FROM hapax.pace FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    here := hapax.clock();
    IF here <= node_clock + jump_max OR pace.clock_floor = 0 THEN
        pace.skew := greatest(pace.skew, 0);
        pace.clock_floor := greatest(pace.clock_floor, here + pace.skew);
    ELSIF here + pace.skew > pace.clock_floor + jump_max THEN
        pace.skew := pace.clock_floor - here;
    END IF;
    UPDATE hapax.pace AS p SET skew = pace.skew, clock_floor = pace.clock_floor;
    RETURN greatest(-pace.skew, 0);
END $$;
SELECT hapax.grant_like('hapax.keep_time(int8)', 'hapax.pulse()');

CREATE FUNCTION hapax.clock_ahead() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the clock of the database is far ahead of its last reading' USING ERRCODE = 'HX007', HINT = 'call hapax.keep_time first';
END $$;

-- Puts a condition into functions that are otherwise as they were.
CREATE FUNCTION hapax.edit(edited regprocedure, was text, becomes text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    source text := pg_get_functiondef(edited);
BEGIN
    IF position(was IN source) = 0 THEN
        RAISE EXCEPTION '% is not as it was made: %', edited, was;
    END IF;
    EXECUTE replace(source, was, becomes);
END $$;
-- A claim decides whether a record is gone; a sweep and a turn of the ring remove for good.
SELECT hapax.edit(p.oid, 'minted := greatest(moment, pace.floor + 1);',
    'IF moment > pace.clock_floor + 3600000000 AND pace.clock_floor > 0 THEN
        PERFORM hapax.clock_ahead();
    END IF;
    minted := greatest(moment, pace.floor + 1);')
FROM pg_proc AS p WHERE p.pronamespace = 'hapax'::regnamespace AND p.proname = 'claim';
SELECT hapax.edit('hapax.sweep(int4)', '-- Leases that were over since the last time.',
    'IF moment > pace.clock_floor + 3600000000 AND pace.clock_floor > 0 THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- Leases that were over since the last time.');
SELECT hapax.edit('hapax.turn()', 'PERFORM hapax.ready();',
    'PERFORM hapax.ready();
    IF EXISTS (SELECT FROM hapax.pace AS p WHERE hapax.now() > p.clock_floor + 3600000000 AND p.clock_floor > 0) THEN
        RETURN 0;
    END IF;');
DROP FUNCTION hapax.edit;

-- The operator says that the database was restored from a backup: see `adopt`. For the owner of the schema alone.
CREATE FUNCTION hapax.restored(signed_by bytea, reason bytea) RETURNS TABLE (now int8, floor int8, epoch int8)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
    PERFORM hapax.not_a_standby();
    PERFORM hapax.adopt(0);
    PERFORM hapax.write_down(hapax.now(), 'restored', signed_by, reason, NULL, NULL);
    RETURN QUERY SELECT hapax.now(), p.floor, m.epoch FROM hapax.pace AS p, hapax.meta AS m;
END $$;
REVOKE ALL ON FUNCTION hapax.clock_ahead(), hapax.restored(bytea, bytea) FROM PUBLIC;
