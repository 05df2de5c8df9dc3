-- Two calls: the caller claims a key, writes its effect and keeps the answer in one transaction of its own. `hapax.start` claims, `hapax.complete`
-- ends. Nobody sees the claim before the commit, so it needs no lease: if the transaction is rolled back, or its process or the server dies, nothing of
-- it ever was.
--
-- No function may be called `begin`: psql takes that word in a CREATE FUNCTION for the beginning of its body, and a dump of the database in plain text
-- could not be restored.

-- The namespaces whose keys are claimed by `hapax.start`, and by which terms their answers are kept. An open transaction holds its head uncommitted, and
-- a gateway that claims the same key in a batch would wait for it; so a namespace belongs to one or the other.
CREATE TABLE hapax.namespaces (
    name bytea PRIMARY KEY,
    terms int8 NOT NULL
);
-- Their names again, in the row that every claim reads anyway. Null: there are none.
ALTER TABLE hapax.pace ADD COLUMN start_namespaces bytea[];

-- Callers give fingerprints as they made them, so the policy of their records says only that it is compared whole: the policy "raw" without headers.
-- Its number is the beginning of its digest: `number` of store/postgres/policies.rs.
INSERT INTO hapax.policies (id, content) VALUES (-2316753664949635463, '1 sha256 raw') ON CONFLICT DO NOTHING;

-- What stands for the attempt token of a record that a transaction has begun: the transaction itself, after eight bytes that no random token begins with
-- ("hapaxtx" and a zero).
CREATE FUNCTION hapax.this_transaction() RETURNS uuid
LANGUAGE sql STABLE AS $$ SELECT encode(decode('6861706178747800', 'hex') || xid8send(pg_current_xact_id()), 'hex')::uuid $$;
CREATE FUNCTION hapax.is_started(token uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT token BETWEEN '68617061-7874-7800-0000-000000000000' AND '68617061-7874-7800-ffff-ffffffffffff' $$;

-- Gives a namespace to `hapax.start`, or changes how long and how large its answers are kept from now on. For the owner of the schema alone.
CREATE FUNCTION hapax.set_namespace(
    namespace text, retention interval DEFAULT '24 hours', tombstone interval DEFAULT '7 days', answer_bytes_max int8 DEFAULT 1048576
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    names_max constant int4 := 100;
    space bytea := convert_to(namespace, 'UTF8');
    retained int8 := extract(epoch FROM retention) * 1000000;
    buried int8 := extract(epoch FROM tombstone) * 1000000;
    -- As the library numbers terms: `text` of store/postgres/terms.rs.
    number int8;
BEGIN
    PERFORM hapax.ready();
    IF namespace IS NULL OR octet_length(space) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'a namespace has 1 to 255 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Two minutes, so that a fence of a record that was removed is lower than any of now, also in the minute after a failover: see `adopt`.
    IF retained IS NULL OR retained < 120000000 OR retained > 315576000000000 OR buried IS NULL OR buried < 0 OR buried > 315576000000000 THEN
        RAISE EXCEPTION 'retention is between 2 minutes and 10 years, and tombstone at most 10 years' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF answer_bytes_max IS NULL OR answer_bytes_max NOT BETWEEN 0 AND 67108864 THEN
        RAISE EXCEPTION 'answer_bytes_max is between 0 and 64 MiB' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    number := ('x' || encode(substr(sha256(convert_to(format('terms 1 retention=%s tombstone=%s keep=true bytes_max=%s cookies=false',
        retained, buried, answer_bytes_max), 'UTF8')), 1, 8), 'hex'))::bit(64)::int8;
    INSERT INTO hapax.terms (id, retention, tombstone, keep, bytes_max, cookies, version)
    VALUES (number, retained, buried, true, answer_bytes_max, false, NULL) ON CONFLICT DO NOTHING;
    -- Also for a namespace that came from elsewhere without its trigger, as by a restore of the rows alone.
    IF NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = 'hapax.heads'::regclass AND t.tgname = 'must_be_completed') THEN
        CREATE CONSTRAINT TRIGGER must_be_completed AFTER INSERT OR UPDATE OF token ON hapax.heads DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.token BETWEEN '68617061-7874-7800-0000-000000000000' AND '68617061-7874-7800-ffff-ffffffffffff')
        EXECUTE FUNCTION hapax.must_be_completed();
    END IF;
    -- From now on expiry is judged by how far a sweep has come, and not by a clock that may jump: see `hapax.start_known`.
    UPDATE hapax.pace AS p SET clock_floor = greatest(p.clock_floor, hapax.clock() + p.skew);
    UPDATE hapax.namespaces AS n SET terms = number WHERE n.name = space;
    IF FOUND THEN
        RETURN;
    END IF;
    -- Records of `hapax.start` may be here already, from a store that was copied.
    IF EXISTS (SELECT FROM hapax.heads AS h WHERE h.namespace = space AND NOT hapax.is_started(h.token)) THEN
        RAISE EXCEPTION 'the namespace % has records of gateways or of the library, which claim keys in batches: a transaction that holds a key open would hold them up', namespace
            USING ERRCODE = 'HX008', HINT = 'give hapax.start a namespace of its own';
    END IF;
    IF (SELECT count(*) FROM hapax.namespaces) >= names_max THEN
        RAISE EXCEPTION 'hapax.start has % namespaces already', names_max USING ERRCODE = 'program_limit_exceeded';
    END IF;
    INSERT INTO hapax.namespaces (name, terms) VALUES (space, number);
    UPDATE hapax.pace AS p SET start_namespaces = coalesce(p.start_namespaces, '{}') || space;
END $$;

-- For a gateway that starts: whether its namespace is one of these.
CREATE FUNCTION hapax.is_for_start(namespace bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM hapax.namespaces AS n WHERE n.name = namespace);
END $$;
SELECT hapax.grant_like('hapax.is_for_start(bytea)', 'hapax.pulse()');

CREATE FUNCTION hapax.belongs_to_start(names bytea[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the namespace % belongs to hapax.start, whose transactions hold their keys open: a claim of a gateway or of the library would wait for them',
        (SELECT convert_from(n.name, 'UTF8') FROM hapax.namespaces AS n WHERE n.name = ANY (names) LIMIT 1)
        USING ERRCODE = 'HX008', HINT = 'give the gateway, or the library, another namespace';
END $$;

-- Puts that condition into `claim`, which is otherwise as it was.
DO $do$
DECLARE
    was constant text := '    moment := greatest(hapax.clock() + pace.skew, pace.clock_floor);
    IF moment > pace.clock_floor';
    source text;
BEGIN
    SELECT pg_get_functiondef(p.oid) INTO STRICT source FROM pg_proc AS p WHERE p.pronamespace = 'hapax'::regnamespace AND p.proname = 'claim';
    IF position(was IN source) = 0 THEN
        RAISE EXCEPTION 'hapax.claim is not as it was made';
    END IF;
    EXECUTE replace(source, was, '    IF namespaces && pace.start_namespaces THEN
        PERFORM hapax.belongs_to_start(namespaces);
    END IF;
' || was);
END $do$;

-- What `hapax.start` answers: `run` and by what to complete, or the answer that was kept.
CREATE TYPE hapax.started AS (
    run boolean,
    -- The record's id: for `hapax.complete`, and for keys derived from it.
    operation_id text,
    fence int8,
    -- The answer, if `run` is false. A name has an array of values if it came more than once.
    status int4,
    headers jsonb,
    body bytea
);

-- A kept answer: what `hapax.encoded` wrote.
CREATE FUNCTION hapax.decoded(h hapax.heads) RETURNS hapax.started
LANGUAGE plpgsql AS $$
DECLARE
    stored bytea := hapax.content(h);
    content bytea := substr(stored, 18);
    place int4 := 7;
    length int4;
    name text;
    value text;
    answer hapax.started;
BEGIN
    IF stored IS NULL THEN
        RAISE EXCEPTION 'the stored answer is missing' USING ERRCODE = 'data_corrupted',
            DETAIL = 'record ' || encode(h.id, 'hex'), HINT = 'the effect was done: do not run it again';
    END IF;
    IF get_byte(stored, 0) <> 1 OR substr(stored, 2, 16) <> substr(sha256(h.id || content), 1, 16) THEN
        RAISE EXCEPTION 'the stored answer does not match its checksum' USING ERRCODE = 'data_corrupted',
            DETAIL = 'record ' || encode(h.id, 'hex'), HINT = 'the effect was done: do not run it again';
    END IF;
    answer.run := false;
    answer.status := (get_byte(content, 0) << 8) + get_byte(content, 1);
    answer.headers := '{}';
    FOR field IN 1 .. ('x' || encode(substr(content, 3, 4), 'hex'))::bit(32)::int4 LOOP
        length := ('x' || encode(substr(content, place, 4), 'hex'))::bit(32)::int4;
        name := convert_from(substr(content, place + 4, length), 'UTF8');
        place := place + 4 + length;
        length := ('x' || encode(substr(content, place, 4), 'hex'))::bit(32)::int4;
        value := convert_from(substr(content, place + 4, length), 'UTF8');
        place := place + 4 + length;
        answer.headers := answer.headers || jsonb_build_object(name, CASE jsonb_typeof(answer.headers -> name)
            WHEN 'string' THEN jsonb_build_array(answer.headers -> name, value)
            WHEN 'array' THEN answer.headers -> name || to_jsonb(value)
            ELSE to_jsonb(value) END);
    END LOOP;
    answer.body := substr(content, place + 4);
    RETURN answer;
END $$;

-- Says why a request may neither run nor have the stored answer. The last three digits of a code are the HTTP status, but for HX418 and HX419: 409.
CREATE FUNCTION hapax.refuse_start(reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    CASE reason
    WHEN 'in-flight' THEN
        RAISE EXCEPTION 'in-flight: a transaction with this key is open' USING ERRCODE = 'HX409', HINT = 'repeat the request in a second';
    WHEN 'key-reused' THEN
        RAISE EXCEPTION 'key-reused: this key was used for another request' USING ERRCODE = 'HX422', HINT = 'use a new key for a new request';
    WHEN 'key-expired' THEN
        RAISE EXCEPTION 'key-expired: this key was used, and its answer is no longer kept' USING ERRCODE = 'HX410',
            HINT = 'find out what the first request did before you use a new key';
    WHEN 'answer-not-kept' THEN
        RAISE EXCEPTION 'answer-not-kept: the first request was done, and its answer was not kept' USING ERRCODE = 'HX418', HINT = 'do not repeat it';
    ELSE
        RAISE EXCEPTION 'outcome-unknown: nobody knows what became of the first request' USING ERRCODE = 'HX419',
            HINT = 'find out what it did, then say so with hapax keys settle';
    END CASE;
END $$;

-- `RecordId::of` of core/src/scope.rs.
CREATE FUNCTION hapax.record_id(space bytea, who bytea, method bytea, path bytea, key bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(int8send(14) || 'hapax record 1' || int8send(octet_length(space)) || space
        || CASE WHEN who IS NULL THEN int8send(0) ELSE int8send(1) || int8send(octet_length(who)) || who END
        || int8send(octet_length(method)) || method || int8send(octet_length(path)) || path || int8send(octet_length(key)) || key)
$$;

-- `hapax.start` for a key that is known, or that somebody holds, or a call that is wrong.
CREATE FUNCTION hapax.start_known(
    namespace text, principal text, operation text, key text, fingerprint bytea, wait interval, request_id text
) RETURNS hapax.started
LANGUAGE plpgsql AS $$
DECLARE
    raw_policy constant int8 := -2316753664949635463;
    space bytea := convert_to(namespace, 'UTF8');
    who bytea := convert_to(principal, 'UTF8');
    -- A name without a method is work without HTTP, as in the library.
    method bytea := convert_to(CASE WHEN position(' ' IN operation) > 0 THEN split_part(operation, ' ', 1) ELSE 'RUN' END, 'UTF8');
    path bytea := convert_to(substr(operation, position(' ' IN operation) + 1), 'UTF8');
    of_key bytea := convert_to(key, 'UTF8');
    of_id bytea;
    -- This transaction, in place of an attempt's token.
    mine uuid;
    lock int8;
    lock_timeout_before text;
    has_lock boolean := false;
    store record;
    moment int8;
    judged int8;
    minted int8;
    h hapax.heads;
    state int2;
    started hapax.started;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT p.clock_floor, p.skew, p.floor, p.closed, n.terms INTO store
    FROM hapax.pace AS p LEFT JOIN hapax.namespaces AS n ON n.name = space;
    IF store.closed IS NOT NULL THEN
        RAISE EXCEPTION 'this store %', store.closed USING ERRCODE = 'HX002';
    END IF;
    IF store.terms IS NULL OR NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = 'hapax.heads'::regclass AND t.tgname = 'must_be_completed') THEN
        RAISE EXCEPTION 'hapax.start was not given the namespace %', coalesce(quote_literal(namespace), 'null') USING ERRCODE = 'HX008',
            HINT = format('hapax migrate --namespace %s, or as the owner of the schema: SELECT hapax.set_namespace(%L)', namespace, namespace);
    END IF;
    IF key IS NULL OR octet_length(of_key) NOT BETWEEN 1 AND 255 OR key ~ '[^ -~]' THEN
        RAISE EXCEPTION 'a key is 1 to 255 bytes of printable ASCII' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF operation IS NULL OR octet_length(path) NOT BETWEEN 1 AND 512 OR octet_length(method) NOT BETWEEN 1 AND 64 OR octet_length(who) > 512 THEN
        RAISE EXCEPTION 'an operation is a method and a path, such as ''POST /orders'', or a name; it and the principal have at most 512 bytes each'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF fingerprint IS NULL OR octet_length(fingerprint) <> 32 THEN
        RAISE EXCEPTION 'a fingerprint has 32 bytes' USING ERRCODE = 'invalid_parameter_value', HINT = 'hapax.fingerprint(body) makes one';
    END IF;
    IF wait > '30 seconds' OR octet_length(request_id) > 255 THEN
        RAISE EXCEPTION 'wait is at most 30 seconds, and a request id has at most 255 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    of_id := hapax.record_id(space, who, method, path, of_key);
    moment := greatest(hapax.clock() + store.skew, store.clock_floor);
    -- No node is there to compare the server's clock with. If it is far ahead of its last reading, what is kept is judged by that reading: a record that
    -- seems younger than it is replays longer, and nothing runs again.
    judged := CASE WHEN store.clock_floor > 0 THEN least(moment, store.clock_floor + 3600000000) ELSE moment END;
    LOOP
        SELECT * INTO h FROM hapax.heads AS o WHERE o.id = of_id;
        IF h.id IS NOT NULL THEN
            EXIT WHEN NOT hapax.is_gone(h.state, h.tombstone_until, judged)
                AND (h.fingerprint IS DISTINCT FROM start_known.fingerprint OR hapax.state_at(h.state, h.lease_until, h.expires_at, judged) <> 4);
        END IF;
        IF NOT has_lock THEN
            lock := ('x' || encode(substr(of_id, 1, 8), 'hex'))::bit(64)::int8;
            has_lock := pg_try_advisory_xact_lock(lock);
            IF NOT has_lock AND wait > '0' THEN
                lock_timeout_before := current_setting('lock_timeout');
                BEGIN
                    PERFORM set_config('lock_timeout', ceil(extract(epoch FROM wait) * 1000)::text, true);
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
                        CONTINUE;
                    WHEN lock_not_available THEN
                        NULL;
                END;
            END IF;
            IF NOT has_lock THEN
                PERFORM hapax.refuse_start('in-flight');
            END IF;
        END IF;
        minted := greatest(moment, store.floor + 1, h.fence + 1);
        IF minted >= 9007199254740992 THEN
            PERFORM hapax.no_fences();
        END IF;
        mine := hapax.this_transaction();
        IF h.id IS NULL THEN
            INSERT INTO hapax.heads AS n (
                fence, version, lease_until, created_at, claimed_at, finished_at, expires_at, tombstone_until, policy, terms, token, attempts,
                status, state, slot, lost, id, fingerprint, namespace, principal, method, path, key, request_id)
            VALUES (minted, minted, moment, moment, moment, 0, 0, 0, raw_policy, store.terms, mine, 1,
                    NULL, 1, NULL, false, of_id, start_known.fingerprint, space, who, method, path, of_key, convert_to(start_known.request_id, 'UTF8'))
            ON CONFLICT (id) DO NOTHING RETURNING n.* INTO h;
        ELSIF hapax.is_gone(h.state, h.tombstone_until, judged) THEN
            UPDATE hapax.heads AS o SET
                fence = minted, version = greatest(minted, o.version + 1), lease_until = moment, created_at = moment, claimed_at = moment,
                finished_at = 0, expires_at = 0, tombstone_until = 0, policy = raw_policy, terms = store.terms, token = mine, attempts = 1, status = NULL,
                state = 1, slot = NULL, lost = false, fingerprint = start_known.fingerprint, request_id = convert_to(start_known.request_id, 'UTF8')
            WHERE o.id = of_id AND o.fence = h.fence AND hapax.is_gone(o.state, o.tombstone_until, judged) RETURNING o.* INTO h;
        ELSE
            UPDATE hapax.heads AS o SET
                fence = minted, version = o.version + 1, lease_until = moment, claimed_at = moment, terms = store.terms, token = mine,
                attempts = least(o.attempts::int8 + 1, 2147483647)::int4, status = NULL, state = 1, slot = NULL, lost = false,
                request_id = convert_to(start_known.request_id, 'UTF8')
            WHERE o.id = of_id AND o.fence = h.fence AND o.state = 4 AND o.expires_at > judged RETURNING o.* INTO h;
        END IF;
        -- Not found: somebody who took no lock was first. Look again.
        CONTINUE WHEN NOT FOUND;
        IF EXISTS (SELECT FROM hapax.pace AS later WHERE later.floor >= minted) THEN
            RAISE EXCEPTION 'a record was removed meanwhile' USING ERRCODE = 'serialization_failure', HINT = 'run the transaction again';
        END IF;
        started.run := true;
        started.fence := h.fence;
        started.operation_id := encode(of_id, 'hex');
        RETURN started;
    END LOOP;
    -- `decide` of core/src/decide.rs, in its order: another request must learn nothing of this record, not even its state.
    state := hapax.state_at(h.state, h.lease_until, h.expires_at, judged);
    IF h.fingerprint IS NULL THEN
        PERFORM hapax.refuse_start('key-expired');
    ELSIF h.fingerprint <> start_known.fingerprint THEN
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

-- Claims a key in the caller's transaction: `run`, or the answer that was kept. Everything else is an error, after which the transaction is rolled back.
--
-- The unique insert decides. The advisory lock only spares a duplicate the wait for it: who does not get the lock is told so at once, or waits up to `wait`.
-- Under REPEATABLE READ and SERIALIZABLE a key that was claimed since the snapshot is error 40001.
--
-- A new key is one statement: every expression that PL/pgSQL evaluates by itself costs a microsecond in each transaction. It reads the floor of fences as of
-- its beginning. A record that is removed meanwhile was claimed two minutes ago at least (see `set_namespace`), and its fence is lower than any of now.
CREATE FUNCTION hapax.start(
    namespace text, principal text, operation text, key text, fingerprint bytea, wait interval DEFAULT NULL, request_id text DEFAULT NULL
) RETURNS hapax.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    started hapax.started;
BEGIN
    -- The attempt's token is this transaction; its lease is over at once. The lock is tried last.
    INSERT INTO hapax.heads AS o (
        fence, version, lease_until, created_at, claimed_at, finished_at, expires_at, tombstone_until, policy, terms, token, attempts,
        status, state, slot, lost, id, fingerprint, namespace, principal, method, path, key, request_id)
    SELECT t.minted, t.minted, t.moment, t.moment, t.moment, 0, 0, 0, -2316753664949635463, t.terms,
           hapax.this_transaction(), 1, NULL, 1, NULL, false, r.id, start.fingerprint,
           i.space, i.who, i.method, i.path, i.of_key, convert_to(start.request_id, 'UTF8')
    FROM (SELECT convert_to(start.namespace, 'UTF8') AS space, convert_to(start.principal, 'UTF8') AS who,
                 -- A name without a method is work without HTTP, as in the library.
                 convert_to(CASE WHEN position(' ' IN start.operation) > 0 THEN split_part(start.operation, ' ', 1) ELSE 'RUN' END, 'UTF8') AS method,
                 convert_to(substr(start.operation, position(' ' IN start.operation) + 1), 'UTF8') AS path, convert_to(start.key, 'UTF8') AS of_key
          OFFSET 0) AS i
    CROSS JOIN LATERAL (SELECT hapax.record_id(i.space, i.who, i.method, i.path, i.of_key) AS id OFFSET 0) AS r
    CROSS JOIN LATERAL (
        SELECT c.moment, greatest(c.moment, c.floor + 1) AS minted, n.terms
        FROM hapax.namespaces AS n CROSS JOIN (
            SELECT greatest(hapax.clock() + p.skew, p.clock_floor) AS moment, p.floor FROM hapax.pace AS p WHERE p.closed IS NULL OFFSET 0
        ) AS c WHERE n.name = i.space OFFSET 0
    ) AS t
    WHERE t.minted < 9007199254740992 AND current_setting('synchronous_commit') NOT IN ('off', 'local')
        AND octet_length(i.of_key) BETWEEN 1 AND 255 AND start.key !~ '[^ -~]' AND octet_length(start.fingerprint) = 32
        AND octet_length(i.path) BETWEEN 1 AND 512 AND octet_length(i.method) BETWEEN 1 AND 64 AND coalesce(octet_length(i.who), 0) <= 512
        AND coalesce(octet_length(start.request_id), 0) <= 255 AND coalesce(start.wait, '0') <= '30 seconds'
        AND EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgrelid = 'hapax.heads'::regclass AND g.tgname = 'must_be_completed')
        -- A repeat takes no lock.
        AND CASE WHEN NOT EXISTS (SELECT FROM hapax.heads AS h WHERE h.id = r.id)
            THEN pg_try_advisory_xact_lock(('x' || encode(substr(r.id, 1, 8), 'hex'))::bit(64)::int8) END
    ON CONFLICT (id) DO NOTHING
    RETURNING true, encode(o.id, 'hex'), o.fence, NULL::int4, NULL::jsonb, NULL::bytea INTO started;
    IF FOUND THEN
        RETURN started;
    END IF;
    RETURN hapax.start_known(namespace, principal, operation, key, fingerprint, wait, request_id);
END $$;

-- A transaction that has begun a key and not completed it cannot be committed: its effect would have no record. The trigger is made with the first
-- namespace, because asking for it costs every claim some microseconds. A claim of a gateway has another kind of token, and is passed over.
CREATE FUNCTION hapax.must_be_completed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM hapax.heads AS o WHERE o.id = NEW.id AND o.fence = NEW.fence AND o.state IN (2, 3)) THEN
        RAISE EXCEPTION 'this transaction has started a key and not completed it: nothing of it can be committed'
            USING ERRCODE = 'HX009', HINT = 'call hapax.complete in the same transaction as hapax.start, before COMMIT';
    END IF;
    RETURN NULL;
END $$;

-- The fields of an answer as they are stored, by the same rules as before. Fields of one value each, which most answers have, are read without `fields_of`:
-- that took half of the time of `complete`.
CREATE OR REPLACE FUNCTION hapax.kept_fields(headers jsonb, cookies boolean, version bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    fields_max constant int4 := 100;
    bytes_max constant int4 := 65536;
    never constant text[] := '{connection,keep-alive,proxy-authenticate,proxy-authorization,te,trailer,transfer-encoding,upgrade,date,age,'
        'content-length,idempotent-replayed,idempotency-expires,x-request-id}';
    token constant text := '^[a-z0-9!#$%&''*+.^_`|~-]+$';
    -- Any control character but the tab.
    control constant text := '[' || chr(1) || '-' || chr(8) || chr(10) || '-' || chr(31) || chr(127) || ']';
    names text[];
    givens jsonb[];
    has_arrays boolean := true;
    by_connection text[] := '{}';
    wants_keeping boolean := true;
    fields bytea := '';
    count int4 := 0;
    name text;
    content text;
    value bytea;
BEGIN
    IF jsonb_typeof(headers) = 'object' THEN
        SELECT array_agg(lower(e.key COLLATE "C")), array_agg(e.value), coalesce(bool_or(jsonb_typeof(e.value) = 'array'), false)
        INTO names, givens, has_arrays FROM jsonb_each(headers) AS e;
    END IF;
    IF has_arrays THEN
        SELECT array_agg(f.name), array_agg(f.value) INTO names, givens FROM hapax.fields_of(headers) AS f;
    END IF;
    IF cardinality(names) > fields_max THEN
        RAISE EXCEPTION 'an answer has at most % header fields, of % bytes together', fields_max, bytes_max USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF 'connection' = ANY (names) THEN
        SELECT array_agg(btrim(option, ' ' || chr(9))) INTO by_connection
        FROM unnest(names, givens) AS f(name, value), unnest(string_to_array(lower((f.value #>> '{}') COLLATE "C"), ',')) AS option
        WHERE f.name = 'connection';
    END IF;
    FOR place IN 1 .. coalesce(cardinality(names), 0) LOOP
        name := names[place];
        IF name IS NULL OR name !~ token THEN
            RAISE EXCEPTION 'headers are an object of names with a text or an array of texts each, or an array of pairs of texts; this is no name of one: %',
                coalesce(left(name, 64), 'null') USING ERRCODE = 'invalid_parameter_value';
        END IF;
        content := givens[place] #>> '{}';
        IF jsonb_typeof(givens[place]) IS NULL OR jsonb_typeof(givens[place]) NOT IN ('string', 'number') OR content ~ control THEN
            RAISE EXCEPTION 'the header field % has a value that is none: a text without control characters is one', left(name, 64)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF name = 'hapax-keep' AND lower(content COLLATE "C") = 'no' THEN
            wants_keeping := false;
        END IF;
        CONTINUE WHEN name = ANY (never) OR starts_with(name, 'hapax-') OR name = ANY (by_connection) OR (name = 'set-cookie' AND NOT cookies);
        value := convert_to(btrim(content, ' ' || chr(9)), 'UTF8');
        count := count + 1;
        fields := fields || int4send(octet_length(name)) || convert_to(name, 'UTF8') || int4send(octet_length(value)) || value;
    END LOOP;
    IF octet_length(fields) > bytes_max THEN
        RAISE EXCEPTION 'an answer has at most % header fields, of % bytes together', fields_max, bytes_max USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT wants_keeping THEN
        RETURN NULL;
    END IF;
    IF version IS NOT NULL THEN
        count := count + 1;
        fields := fields || int4send(20) || 'hapax-answer-version' || int4send(octet_length(version)) || version;
    END IF;
    RETURN int4send(count) || fields;
END $$;

-- Ends an attempt under `Held`, in the caller's transaction: the part that `hapax.join` and `hapax.complete` share. In few statements, as `hapax.start`.
CREATE FUNCTION hapax.join_here(of_id bytea, of_fence int8, of_state int8, of_status int8, retention int8, tombstone int8, answer bytea) RETURNS int8
LANGUAGE plpgsql AS $$
DECLARE
    ended record;
    kept boolean;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    UPDATE hapax.heads AS o SET
        state = of_state, status = of_status, version = o.version + 1, finished_at = t.moment, expires_at = t.moment + retention,
        tombstone_until = t.moment + retention + tombstone, lost = of_state = 5,
        slot = CASE WHEN answer IS NOT NULL THEN hapax.slot_for(t.moment + retention, t.moment, t.hours_width, t.days_width) END
    FROM (SELECT greatest(hapax.clock() + p.skew, p.clock_floor) AS moment, p.hours_width, p.days_width FROM hapax.pace AS p OFFSET 0) AS t
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

CREATE OR REPLACE FUNCTION hapax.join(of_id bytea, of_fence int8, of_state int8, of_status int8, retention int8, tombstone int8, answer bytea) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    RETURN hapax.join_here(of_id, of_fence, of_state, of_status, retention, tombstone, answer);
END $$;

-- Completes the record of an operation by the terms of its route or namespace, and says what is wrong.
CREATE OR REPLACE FUNCTION hapax.complete_here(operation text, of_fence int8, status int8, headers jsonb, body bytea) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- The two halves of an operation id: the proof, and how the record's id begins. `OperationIds::make` of core/src/operation.rs.
    proof bytea;
    found_by bytea;
    -- Or else the id of a record that this transaction has begun, which needs no proof.
    own bytea;
    -- The proof by the first rule. By either rule its first eight bytes say that the operation is one of this store.
    first_rule bytea;
    h record;
    fields bytea;
    answer bytea;
    moment int8;
BEGIN
    IF octet_length(operation) = 64 AND operation !~ '[^0-9a-f]' THEN
        proof := decode(substr(operation, 1, 32), 'hex');
        found_by := decode(substr(operation, 33), 'hex');
        SELECT f.id INTO own FROM hapax.heads AS f WHERE f.id = proof || found_by AND f.token = hapax.this_transaction();
        found_by := coalesce(substr(own, 1, 16), found_by);
    END IF;
    SELECT m.secret, m.lives_since, o.id, o.fence, o.created_at, t.retention, t.tombstone, t.keep, t.bytes_max, t.cookies, t.version INTO h
    FROM hapax.meta AS m
    LEFT JOIN LATERAL (
        SELECT f.id, f.fence, f.created_at, f.terms FROM hapax.heads AS f
        WHERE f.id >= found_by AND f.id <= found_by || decode('ffffffffffffffffffffffffffffffff', 'hex') LIMIT 1
    ) AS o ON true
    LEFT JOIN hapax.terms AS t ON t.id = o.terms;
    first_rule := substr(sha256(int8send(17) || 'hapax operation 2' || int8send(32) || h.secret || int8send(16) || found_by), 1, 16);
    IF own IS NULL AND (first_rule IS NULL OR substr(proof, 1, 8) <> substr(first_rule, 1, 8)) THEN
        RAISE EXCEPTION 'this is no operation of this store'
            USING ERRCODE = 'HX006', HINT = 'pass on what came in the field Hapax-Operation, to the database that the gateway keeps its records in';
    END IF;
    IF of_fence IS NULL OR status IS NULL OR status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'an answer has a fence, and a status from 200 to 599' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF h.fence IS DISTINCT FROM of_fence THEN
        PERFORM hapax.fenced_out(h.fence, of_fence);
    END IF;
    -- The rest of the proof says which life of the key. The fence is the present one's: whoever made this up, or brought it from an earlier
    -- life, owns nothing.
    IF substr(proof, 9) <> (CASE WHEN h.created_at < h.lives_since THEN substr(first_rule, 9) ELSE substr(sha256(
        int8send(17) || 'hapax operation 3' || int8send(32) || h.secret || int8send(16) || found_by || int8send(8) || int8send(h.created_at)), 1, 8) END) AND own IS NULL
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
    moment := hapax.join_here(h.id, of_fence, CASE WHEN status BETWEEN 400 AND 499 THEN 3 ELSE 2 END, status, h.retention, h.tombstone, answer);
END $$;

-- Completes what this transaction has begun, in few statements as `hapax.start`. A call in which anything is wrong or unusual, and one of a service behind
-- a gateway, goes to `hapax.complete_here`.
CREATE FUNCTION hapax.complete_own(operation text, of_fence int8, of_status int8, headers jsonb, body bytea) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    given record;
    ended record;
    kept boolean;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT int4send(count(*)::int4) || coalesce(string_agg(int4send(octet_length(e.name)) || convert_to(e.name, 'UTF8')
               || int4send(octet_length(e.value)) || e.value, ''), '') AS fields,
           -- Whether there are few fields, and each is kept as it is.
           coalesce(bool_and(e.is_plain), true) AND count(*) <= 20 AND coalesce(jsonb_typeof(headers), 'object') = 'object' AS are_plain
    INTO given
    FROM (SELECT lower(j.key COLLATE "C") AS name, convert_to(j.value #>> '{}', 'UTF8') AS value,
                 jsonb_typeof(j.value) = 'string' AND j.key ~ '^[A-Za-z0-9-]{1,64}$' AND j.value #>> '{}' ~ '^[!-~]([ -~]*[!-~])?$' AND length(j.value #>> '{}') <= 1000
                 AND lower(j.key COLLATE "C") <> ALL ('{connection,keep-alive,proxy-authenticate,proxy-authorization,te,trailer,transfer-encoding,upgrade,date,age,content-length,idempotent-replayed,idempotency-expires,x-request-id,set-cookie}')
                 AND NOT starts_with(lower(j.key COLLATE "C"), 'hapax-') AS is_plain
          FROM jsonb_each(CASE jsonb_typeof(headers) WHEN 'object' THEN headers ELSE '{}' END) AS j) AS e;
    IF given.are_plain THEN
        UPDATE hapax.heads AS o SET
            state = CASE WHEN of_status BETWEEN 400 AND 499 THEN 3 ELSE 2 END, status = of_status, version = o.version + 1, finished_at = t.moment,
            expires_at = t.moment + k.retention, tombstone_until = t.moment + k.retention + k.tombstone,
            slot = CASE WHEN NOT k.keep OR coalesce(octet_length(body), 0) > k.bytes_max THEN NULL
                -- By a clock that is far ahead it would be in a table that is emptied too early; table 32 is emptied row by row.
                WHEN t.moment > t.clock_floor + 3600000000 THEN 32
                ELSE hapax.slot_for(t.moment + k.retention, t.moment, t.hours_width, t.days_width) END
        FROM (SELECT greatest(hapax.clock() + p.skew, p.clock_floor) AS moment, p.clock_floor, p.hours_width, p.days_width
              FROM hapax.pace AS p OFFSET 0) AS t
        CROSS JOIN hapax.terms AS k
        WHERE o.id = CASE WHEN operation ~ '^[0-9a-f]{64}$' THEN decode(operation, 'hex') END AND o.fence = of_fence AND o.state = 1
            AND o.token = hapax.this_transaction() AND k.id = o.terms AND k.version IS NULL AND of_status BETWEEN 200 AND 599
        RETURNING o.slot, o.expires_at, o.id INTO ended;
        IF FOUND THEN
            IF ended.slot IS NOT NULL THEN
                kept := hapax.keep(ended.slot, of_fence, ended.expires_at, ended.id,
                    hapax.encoded(ended.id, of_status::int4, given.fields, coalesce(body, '')));
            END IF;
            RETURN true;
        END IF;
    END IF;
    PERFORM hapax.complete_here(operation, of_fence, of_status, headers, body);
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION hapax.complete(operation text, fence int8, status int8, headers jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    done boolean;
BEGIN
    done := hapax.complete_own(operation, fence, status, headers, '');
END $$;

CREATE OR REPLACE FUNCTION hapax.complete(operation text, fence int8, status int8, headers jsonb, body bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    done boolean;
BEGIN
    done := hapax.complete_own(operation, fence, status, headers, body);
END $$;

CREATE OR REPLACE FUNCTION hapax.complete(operation text, fence int8, status int8, headers jsonb, body text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    done boolean;
BEGIN
    done := hapax.complete_own(operation, fence, status, headers, convert_to(body, 'UTF8'));
END $$;

-- Whether two requests are the same: a digest of the body, and of anything else that counts, such as the query. A body as text and as bytes has the same
-- digest. As jsonb it is compared by value: spacing, the order of members and the spelling of escapes do not count, and of a name that comes twice the last
-- value counts; numbers count by their spelling.
CREATE FUNCTION hapax.fingerprint_of(kind bytea, body bytea, others text[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    parts bytea := int8send(21) || 'hapax sql fingerprint' || int8send(octet_length(kind)) || kind || int8send(octet_length(body)) || body;
    part text;
BEGIN
    FOREACH part IN ARRAY coalesce(others, '{}') LOOP
        parts := parts || coalesce(int8send(octet_length(convert_to(part, 'UTF8'))) || convert_to(part, 'UTF8'), int8send(-1));
    END LOOP;
    RETURN sha256(parts);
END $$;
CREATE FUNCTION hapax.fingerprint(body bytea, VARIADIC others text[] DEFAULT '{}') RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hapax.fingerprint_of('raw', coalesce(body, ''), others);
END $$;
CREATE FUNCTION hapax.fingerprint(body text, VARIADIC others text[] DEFAULT '{}') RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hapax.fingerprint_of('raw', convert_to(coalesce(body, ''), 'UTF8'), others);
END $$;
CREATE FUNCTION hapax.fingerprint(body jsonb, VARIADIC others text[] DEFAULT '{}') RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hapax.fingerprint_of('jsonb', convert_to(coalesce(body::text, ''), 'UTF8'), others);
END $$;

-- The key under which a request calls the next service in a step: the same for every transaction with the same scope and key, also after a rollback, and
-- unguessable.
CREATE FUNCTION hapax.derive(operation_id text, step text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_step bytea := convert_to(step, 'UTF8');
    digest bytea;
BEGIN
    IF operation_id IS NULL OR step IS NULL OR operation_id !~ '^[0-9a-f]{64}$' THEN
        RAISE EXCEPTION 'a key is derived from an operation id, as hapax.start gives it, and the name of a step' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT substr(sha256(int8send(19) || 'hapax derived key 2' || int8send(32) || m.secret || int8send(32) || decode(operation_id, 'hex')
        || int8send(octet_length(of_step)) || of_step), 1, 16) INTO digest FROM hapax.meta AS m;
    -- A UUID of version 8, which every API accepts.
    digest := set_byte(digest, 6, get_byte(digest, 6) & 15 | 128);
    digest := set_byte(digest, 8, get_byte(digest, 8) & 63 | 128);
    RETURN encode(digest, 'hex')::uuid::text;
END $$;

-- How many records there are of each namespace and state, and since when the oldest is in it. Reads every head: for a dashboard, not for a request.
CREATE FUNCTION hapax.stats() RETURNS TABLE (namespace text, state text, records int8, oldest timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM hapax.not_a_standby();
    RETURN QUERY
    SELECT encode(h.namespace, 'escape'), CASE s.state WHEN 1 THEN 'running' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed' WHEN 4 THEN 'retryable'
            WHEN 5 THEN 'unknown' ELSE 'expired' END, count(*), min(to_timestamp(greatest(h.finished_at, h.claimed_at) / 1e6))
    FROM (SELECT hapax.now() AS now) AS n, hapax.heads AS h, LATERAL (SELECT hapax.state_at(h.state, h.lease_until, h.expires_at, n.now) AS state) AS s
    WHERE NOT hapax.is_gone(h.state, h.tombstone_until, n.now)
    GROUP BY 1, 2;
END $$;
SELECT hapax.grant_like('hapax.stats()', 'hapax.pulse()');

REVOKE ALL ON FUNCTION hapax.set_namespace, hapax.belongs_to_start, hapax.decoded, hapax.refuse_start, hapax.start, hapax.start_known, hapax.record_id,
    hapax.must_be_completed, hapax.join_here, hapax.complete_own, hapax.this_transaction, hapax.is_started, hapax.fingerprint_of,
    hapax.fingerprint(bytea, text[]), hapax.fingerprint(text, text[]), hapax.fingerprint(jsonb, text[]), hapax.derive FROM PUBLIC;
