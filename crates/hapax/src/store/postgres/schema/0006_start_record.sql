-- The library claims keys in the caller's transaction too. It makes ids and fingerprints itself, keeps the policy of a fingerprint with it, and decides by
-- the record that it is shown. So the claim becomes a function of its own, `start_here`, which `hapax.start` and `hapax.start_record` share.

-- Claims a key in the caller's transaction, or returns the record that stands in the way. `judged` is the moment by which a record is to be judged.
--
-- The unique insert decides. The advisory lock only spares a duplicate the wait for it: a call that does not get the lock is told so at once, or waits up
-- to `wait` microseconds. Under REPEATABLE READ and SERIALIZABLE a key that was claimed since the snapshot is error 40001.
--
-- A new key is one statement: every expression that PL/pgSQL evaluates by itself costs a microsecond in each transaction. It reads the floor of fences as of
-- its beginning. A record that is removed meanwhile was claimed two minutes ago at least (see `set_namespace` and `join_here`), and its fence is lower than
-- any of now.
CREATE FUNCTION hapax.start_here(
    space bytea, who bytea, of_method bytea, of_path bytea, of_key bytea, of_id bytea, of_fingerprint bytea, of_policy int8, wait int8, of_request_id bytea,
    OUT won boolean, OUT judged int8, OUT h hapax.heads
) LANGUAGE plpgsql AS $$
DECLARE
    lock constant int8 := ('x' || encode(substr(of_id, 1, 8), 'hex'))::bit(64)::int8;
    lock_timeout_before text;
    has_lock boolean := false;
    store record;
    moment int8;
    minted int8;
BEGIN
    LOOP
        -- The attempt's token is this transaction; its lease is over at once. The lock is tried last.
        INSERT INTO hapax.heads AS o (
            fence, version, lease_until, created_at, claimed_at, finished_at, expires_at, tombstone_until, policy, terms, token, attempts,
            status, state, slot, lost, id, fingerprint, namespace, principal, method, path, key, request_id)
        SELECT t.minted, t.minted, t.moment, t.moment, t.moment, 0, 0, 0, of_policy, t.terms, hapax.this_transaction(), 1,
               NULL, 1, NULL, false, of_id, of_fingerprint, space, who, of_method, of_path, of_key, of_request_id
        FROM (
            SELECT c.moment, greatest(c.moment, c.floor + 1) AS minted, n.terms
            FROM hapax.namespaces AS n CROSS JOIN (
                SELECT greatest(hapax.clock() + p.skew, p.clock_floor) AS moment, p.floor FROM hapax.pace AS p WHERE p.closed IS NULL OFFSET 0
            ) AS c WHERE n.name = space OFFSET 0
        ) AS t
        WHERE t.minted < 9007199254740992 AND current_setting('synchronous_commit') NOT IN ('off', 'local')
            AND octet_length(of_key) <= 255 AND encode(of_key, 'hex') ~ '^([2-6].|7[0-9a-e])+$' AND octet_length(of_fingerprint) = 32
            AND octet_length(of_path) BETWEEN 1 AND 8192 AND octet_length(of_method) BETWEEN 1 AND 64 AND coalesce(octet_length(who), 0) <= 8192
            AND coalesce(octet_length(of_request_id), 0) <= 255 AND coalesce(wait, 0) <= 30000000
            AND EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgrelid = 'hapax.heads'::regclass AND g.tgname = 'must_be_completed')
            -- A repeat takes no lock.
            AND CASE WHEN NOT EXISTS (SELECT FROM hapax.heads AS r WHERE r.id = of_id) THEN pg_try_advisory_xact_lock(lock) END
        ON CONFLICT (id) DO NOTHING RETURNING o.* INTO h;
        IF FOUND THEN
            won := true;
            judged := h.claimed_at;
            RETURN;
        END IF;

        IF current_setting('synchronous_commit') IN ('off', 'local') THEN
            PERFORM set_config('synchronous_commit', 'on', true);
            CONTINUE;
        END IF;
        SELECT p.clock_floor, p.skew, p.floor, p.closed, n.terms INTO store
        FROM hapax.pace AS p LEFT JOIN hapax.namespaces AS n ON n.name = space;
        IF store.closed IS NOT NULL THEN
            RAISE EXCEPTION 'this store %', store.closed USING ERRCODE = 'HX002';
        END IF;
        IF store.terms IS NULL OR NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = 'hapax.heads'::regclass AND t.tgname = 'must_be_completed') THEN
            RAISE EXCEPTION 'hapax.start was not given the namespace %', coalesce(quote_literal(convert_from(space, 'UTF8')), 'null') USING ERRCODE = 'HX008',
                HINT = format('hapax migrate --namespace %s, or as the owner of the schema: SELECT hapax.set_namespace(%L)',
                    convert_from(space, 'UTF8'), convert_from(space, 'UTF8'));
        END IF;
        IF of_key IS NULL OR octet_length(of_key) > 255 OR encode(of_key, 'hex') !~ '^([2-6].|7[0-9a-e])+$' THEN
            RAISE EXCEPTION 'a key is 1 to 255 bytes of printable ASCII' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF of_path IS NULL OR of_method IS NULL OR of_id IS NULL OR octet_length(of_path) NOT BETWEEN 1 AND 8192 OR octet_length(of_method) NOT BETWEEN 1 AND 64 OR octet_length(who) > 8192 THEN
            RAISE EXCEPTION 'an operation is a method and a path, such as ''POST /orders'', or a name; it and the principal have at most 8192 bytes each'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF of_fingerprint IS NULL OR octet_length(of_fingerprint) <> 32 THEN
            RAISE EXCEPTION 'a fingerprint has 32 bytes' USING ERRCODE = 'invalid_parameter_value', HINT = 'hapax.fingerprint(body) makes one';
        END IF;
        IF wait > 30000000 OR octet_length(of_request_id) > 255 THEN
            RAISE EXCEPTION 'wait is at most 30 seconds, and a request id has at most 255 bytes' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        moment := greatest(hapax.clock() + store.skew, store.clock_floor);
        -- No node is there to compare the server's clock with. If it is far ahead of its last reading, what is kept is judged by that reading: a record that
        -- seems younger than it is replays longer, and nothing runs again.
        judged := CASE WHEN store.clock_floor > 0 THEN least(moment, store.clock_floor + 3600000000) ELSE moment END;
        SELECT * INTO h FROM hapax.heads AS o WHERE o.id = of_id;
        IF h.id IS NOT NULL AND NOT hapax.is_gone(h.state, h.tombstone_until, judged)
            AND (h.fingerprint IS DISTINCT FROM of_fingerprint OR hapax.state_at(h.state, h.lease_until, h.expires_at, judged) <> 4)
        THEN
            won := false;
            RETURN;
        END IF;

        -- There is no record, or one that may be claimed again: only with the lock.
        IF NOT has_lock THEN
            has_lock := pg_try_advisory_xact_lock(lock);
            IF NOT has_lock AND wait > 0 THEN
                lock_timeout_before := current_setting('lock_timeout');
                BEGIN
                    PERFORM set_config('lock_timeout', ((wait + 999) / 1000)::text, true);
                    PERFORM pg_advisory_xact_lock(lock);
                    has_lock := true;
                    SELECT * INTO h FROM hapax.heads AS o WHERE o.id = of_id;
                    IF h.id IS NOT NULL THEN
                        -- There is something to look at. Whoever else waits need not wait for this transaction: its lock goes with this block.
                        RAISE EXCEPTION USING ERRCODE = 'HX000';
                    END IF;
                    PERFORM set_config('lock_timeout', lock_timeout_before, true);
                EXCEPTION
                    WHEN SQLSTATE 'HX000' THEN
                        has_lock := false;
                        wait := NULL;
                    WHEN lock_not_available THEN
                        PERFORM hapax.refuse_start('in-flight');
                END;
                CONTINUE;
            END IF;
            IF NOT has_lock THEN
                PERFORM hapax.refuse_start('in-flight');
            END IF;
            -- What was read before the lock may have changed.
            CONTINUE;
        END IF;
        -- Looked at with the lock, and not inserted: a call without a lock was first, or the fences have come to their end.
        minted := greatest(moment, store.floor + 1, h.fence + 1);
        IF minted >= 9007199254740992 THEN
            PERFORM hapax.no_fences();
        END IF;
        CONTINUE WHEN h.id IS NULL;
        IF hapax.is_gone(h.state, h.tombstone_until, judged) THEN
            UPDATE hapax.heads AS o SET
                fence = minted, version = greatest(minted, o.version + 1), lease_until = moment, created_at = moment, claimed_at = moment,
                finished_at = 0, expires_at = 0, tombstone_until = 0, policy = of_policy, terms = store.terms, token = hapax.this_transaction(),
                attempts = 1, status = NULL, state = 1, slot = NULL, lost = false, fingerprint = of_fingerprint, request_id = of_request_id
            WHERE o.id = of_id AND o.fence = h.fence AND hapax.is_gone(o.state, o.tombstone_until, judged) RETURNING o.* INTO h;
        ELSE
            UPDATE hapax.heads AS o SET
                fence = minted, version = o.version + 1, lease_until = moment, claimed_at = moment, terms = store.terms, token = hapax.this_transaction(),
                attempts = least(o.attempts::int8 + 1, 2147483647)::int4, status = NULL, state = 1, slot = NULL, lost = false, request_id = of_request_id
            WHERE o.id = of_id AND o.fence = h.fence AND o.state = 4 AND o.expires_at > judged RETURNING o.* INTO h;
        END IF;
        -- Not found: somebody who took no lock was first. Look again.
        CONTINUE WHEN NOT FOUND;
        IF EXISTS (SELECT FROM hapax.pace AS later WHERE later.floor >= minted) THEN
            RAISE EXCEPTION 'a record was removed meanwhile' USING ERRCODE = 'serialization_failure', HINT = 'run the transaction again';
        END IF;
        won := true;
        judged := moment;
        RETURN;
    END LOOP;
END $$;

-- Claims a key in the caller's transaction: `run`, or the answer that was kept. Everything else is an error, after which the transaction is rolled back.
CREATE OR REPLACE FUNCTION hapax.start(
    namespace text, principal text, operation text, key text, fingerprint bytea, wait interval DEFAULT NULL, request_id text DEFAULT NULL
) RETURNS hapax.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    seen record;
    h hapax.heads;
    state int2;
    started hapax.started;
BEGIN
    SELECT s.won, s.judged, s.h INTO seen
    FROM (SELECT convert_to(start.namespace, 'UTF8') AS space, convert_to(start.principal, 'UTF8') AS who,
                 -- A name without a method is work without HTTP, as in the library.
                 convert_to(CASE WHEN position(' ' IN start.operation) > 0 THEN split_part(start.operation, ' ', 1) ELSE 'RUN' END, 'UTF8') AS method,
                 convert_to(substr(start.operation, position(' ' IN start.operation) + 1), 'UTF8') AS path, convert_to(start.key, 'UTF8') AS of_key
          OFFSET 0) AS i
    CROSS JOIN LATERAL hapax.start_here(i.space, i.who, i.method, i.path, i.of_key, hapax.record_id(i.space, i.who, i.method, i.path, i.of_key),
        start.fingerprint, -2316753664949635463,
        -- A longer wait may not fit into a number, and is refused.
        CASE WHEN start.wait > '30 seconds' THEN 30000001 ELSE (extract(epoch FROM start.wait) * 1000000)::int8 END, convert_to(start.request_id, 'UTF8')) AS s;
    h := seen.h;
    IF seen.won THEN
        started.run := true;
        started.operation_id := encode(h.id, 'hex');
        started.fence := h.fence;
        RETURN started;
    END IF;
    -- `decide` of core/src/decide.rs, in its order: another request must learn nothing of this record, not even its state.
    state := hapax.state_at(h.state, h.lease_until, h.expires_at, seen.judged);
    IF h.fingerprint IS NULL THEN
        PERFORM hapax.refuse_start('key-expired');
    ELSIF h.fingerprint <> start.fingerprint THEN
        PERFORM hapax.refuse_start('key-reused');
    ELSIF state IN (2, 3) AND h.slot IS NOT NULL THEN
        RETURN hapax.decoded(h);
    ELSIF state IN (2, 3) THEN
        PERFORM hapax.refuse_start('answer-not-kept');
    -- Begun in this transaction, and not completed.
    ELSIF state = 1 OR h.token = hapax.this_transaction() THEN
        PERFORM hapax.refuse_start('in-flight');
    ELSIF state IN (5, 13) THEN
        PERFORM hapax.refuse_start('outcome-unknown');
    END IF;
    PERFORM hapax.refuse_start('key-expired');
END $$;
DROP FUNCTION hapax.start_known;

-- The claim that was won, or the record that was found: `store/start_row.rs` reads it. Every number as drivers send numbers, of 64 bits.
CREATE TYPE hapax.start_row AS (
    won int8,
    now int8,
    state int8,
    fence int8,
    version int8,
    attempts int8,
    lease_until int8,
    created_at int8,
    claimed_at int8,
    finished_at int8,
    expires_at int8,
    tombstone_until int8,
    status int8,
    kept int8,
    token bytea,
    -- Null, and so are the three that follow, if it was won.
    fingerprint bytea,
    -- The text of the fingerprint's policy.
    policy bytea,
    request_id bytea,
    answer bytea
);

-- `hapax.start` for the library, which decides by what it is shown.
CREATE FUNCTION hapax.start_record(
    space bytea, who bytea, of_method bytea, of_path bytea, of_key bytea, of_id bytea, of_fingerprint bytea, of_policy int8, wait int8, of_request_id bytea
) RETURNS hapax.start_row
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    reply hapax.start_row;
BEGIN
    SELECT s.won::int4, s.judged, (s.h).state, (s.h).fence, (s.h).version, (s.h).attempts, (s.h).lease_until, (s.h).created_at, (s.h).claimed_at,
           (s.h).finished_at, (s.h).expires_at, (s.h).tombstone_until, (s.h).status, ((s.h).slot IS NOT NULL)::int4, uuid_send((s.h).token),
           CASE WHEN NOT s.won THEN (s.h).fingerprint END,
           CASE WHEN NOT s.won THEN (SELECT p.content FROM hapax.policies AS p WHERE p.id = (s.h).policy) END,
           CASE WHEN NOT s.won THEN (s.h).request_id END,
           CASE WHEN NOT s.won AND (s.h).slot IS NOT NULL THEN hapax.content(s.h) END
    INTO reply
    FROM hapax.start_here(space, who, of_method, of_path, of_key, of_id, of_fingerprint, of_policy, wait, of_request_id) AS s;
    RETURN reply;
END $$;
SELECT hapax.grant_like('hapax.start_record(bytea, bytea, bytea, bytea, bytea, bytea, bytea, int8, int8, bytea)',
    'hapax.join(bytea, int8, int8, int8, int8, int8, bytea)');

-- Ends an attempt under `Held`, in the caller's transaction: the part that `hapax.join` and `hapax.complete` share. What a transaction has begun itself is
-- remembered for two minutes at least, which `start_here` counts on, and by a clock that is far ahead it is kept in table 32, which is emptied row by row.
CREATE OR REPLACE FUNCTION hapax.join_here(of_id bytea, of_fence int8, of_state int8, of_status int8, retention int8, tombstone int8, answer bytea) RETURNS int8
LANGUAGE plpgsql AS $$
DECLARE
    ended record;
    kept boolean;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    UPDATE hapax.heads AS o SET
        state = of_state, status = of_status, version = o.version + 1, finished_at = t.moment,
        expires_at = t.moment + CASE WHEN hapax.is_started(o.token) THEN t.at_least ELSE retention END,
        tombstone_until = t.moment + CASE WHEN hapax.is_started(o.token) THEN t.at_least ELSE retention END + tombstone, lost = of_state = 5,
        slot = CASE
            WHEN answer IS NULL THEN NULL
            WHEN hapax.is_started(o.token) AND t.moment > t.clock_floor + 3600000000 THEN 32
            ELSE hapax.slot_for(t.moment + CASE WHEN hapax.is_started(o.token) THEN t.at_least ELSE retention END, t.moment, t.hours_width, t.days_width)
        END
    FROM (SELECT greatest(hapax.clock() + p.skew, p.clock_floor) AS moment, greatest(retention, 120000000) AS at_least, p.clock_floor, p.hours_width, p.days_width
          FROM hapax.pace AS p OFFSET 0) AS t
    WHERE o.id = of_id AND o.fence = of_fence AND o.state IN (1, 5, 13) AND o.fingerprint IS NOT NULL
        AND of_state IN (2, 3, 4, 5) AND retention >= 0 AND tombstone >= 0
    RETURNING o.slot, o.expires_at, o.finished_at INTO ended;
    IF NOT FOUND THEN
        PERFORM hapax.not_joined(of_id, of_fence, of_state IN (2, 3, 4, 5) AND retention >= 0 AND tombstone >= 0);
    END IF;
    IF ended.slot IS NOT NULL THEN
        kept := hapax.keep(ended.slot, of_fence, ended.expires_at, of_id, answer);
    END IF;
    RETURN ended.finished_at;
END $$;

-- The key under which a request calls the next service in a step: the same for every transaction with the same scope and key, also after a rollback, and
-- unguessable. It is the key that the library derives: `OperationIds::of_every_life` and `OperationId::derive` of core/src/operation.rs.
CREATE OR REPLACE FUNCTION hapax.derive(operation_id text, step text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_step bytea := convert_to(step, 'UTF8');
    found_by bytea;
    operation bytea;
    digest bytea;
BEGIN
    IF operation_id IS NULL OR step IS NULL OR operation_id !~ '^[0-9a-f]{64}$' THEN
        RAISE EXCEPTION 'a key is derived from an operation id, as hapax.start gives it, and the name of a step' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    found_by := substr(decode(operation_id, 'hex'), 1, 16);
    SELECT convert_to(encode(substr(sha256(int8send(17) || 'hapax operation 2' || int8send(32) || m.secret || int8send(16) || found_by), 1, 16)
        || found_by, 'hex'), 'UTF8') INTO operation FROM hapax.meta AS m;
    digest := substr(sha256(int8send(19) || 'hapax derived key 1' || int8send(octet_length(operation)) || operation
        || int8send(octet_length(of_step)) || of_step), 1, 16);
    -- A UUID of version 8, which every API accepts.
    digest := set_byte(digest, 6, get_byte(digest, 6) & 15 | 128);
    digest := set_byte(digest, 8, get_byte(digest, 8) & 63 | 128);
    RETURN encode(digest, 'hex')::uuid::text;
END $$;

REVOKE ALL ON FUNCTION hapax.start_here, hapax.start_record FROM PUBLIC;
