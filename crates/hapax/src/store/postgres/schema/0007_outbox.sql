-- The outbox: messages that commit with their effect, and what the relay needs to publish them. docs/internals/outbox.md says why it is so.

-- The order of messages. One value at a time: a session that kept some in advance would use numbers from before the lock on a key.
CREATE SEQUENCE hapax.outbox_seq AS int8 CACHE 1;

-- Messages, in a ring of tables: 65,536 numbers go to one table, and the next to the next. A table whose messages are all published is emptied
-- whole, which costs nothing per message.
DO $do$
DECLARE
    name text;
BEGIN
    FOR slot IN 0 .. 15 LOOP
        name := 'outbox_' || lpad(slot::text, 2, '0');
        EXECUTE format($sql$
            CREATE TABLE hapax.%I (
                seq int8 PRIMARY KEY,        -- never leaves the database
                xid xid8 NOT NULL,           -- the transaction that emitted it
                at int8 NOT NULL,            -- microseconds since the epoch, by the clock of the database
                id uuid NOT NULL,
                topic text NOT NULL,
                key text,
                ordered boolean NOT NULL,    -- whether it takes part in the order of its key
                version int8,
                headers jsonb NOT NULL,
                payload bytea NOT NULL
            )$sql$, name);
        EXECUTE format('CREATE INDEX ON hapax.%I (xid, seq)', name);
    END LOOP;
END $do$;

DO $do$
BEGIN
    EXECUTE 'CREATE VIEW hapax.outbox AS ' || (
        SELECT string_agg(format('SELECT * FROM hapax.outbox_%s', lpad(slot::text, 2, '0')), ' UNION ALL ' ORDER BY slot) FROM generate_series(0, 15) AS slot);
END $do$;

-- A reader is a destination, and how far it has got. A message is published to it if a snapshot `lo` sees it. Those that `hi` sees and `lo` does not are
-- being published in the order of their numbers, up to `after`.
CREATE TABLE hapax.readers (
    name text PRIMARY KEY,
    lo pg_snapshot NOT NULL,
    hi pg_snapshot,                          -- null: nothing is under way
    after int8 NOT NULL DEFAULT -1,
    -- Every message of a transaction that began after `lo` has a higher number than this.
    floor int8 NOT NULL DEFAULT 0,
    -- No message that `lo` sees has a higher number than this.
    top int8 NOT NULL DEFAULT 0,
    owner text,
    fence int8 NOT NULL DEFAULT 0,
    lease_until int8 NOT NULL DEFAULT 0,
    system_identifier int8 NOT NULL,
    timeline int4 NOT NULL,
    created_at int8 NOT NULL,
    published int8 NOT NULL DEFAULT 0,
    published_at int8,                       -- when the latest was
    set_aside int8 NOT NULL DEFAULT 0,       -- rows in `deliveries`
    stopped text                             -- why an operator has to start it again; null: it runs
) WITH (fillfactor = 50);

-- Messages that a destination did not take, and the later ones of their keys. They are copies: the outbox need not keep them.
CREATE TABLE hapax.deliveries (
    reader text NOT NULL REFERENCES hapax.readers ON DELETE CASCADE,
    seq int8 NOT NULL,
    state int2 NOT NULL,                     -- 1: to be sent, 2: held for an operator, 3: dead, which holds up nobody
    attempts int4 NOT NULL DEFAULT 0,        -- counted before each
    due_at int8,                             -- null: after an earlier one of its key, or after an operator
    reason text,
    at int8 NOT NULL,
    id uuid NOT NULL,
    topic text NOT NULL,
    key text,
    ordered boolean NOT NULL,
    version int8,
    headers jsonb NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (reader, seq)
);
CREATE INDEX deliveries_due ON hapax.deliveries (reader, due_at) WHERE state = 1 AND due_at IS NOT NULL;
CREATE INDEX deliveries_key ON hapax.deliveries (reader, topic, key, seq) WHERE state <> 3 AND ordered AND key IS NOT NULL;

-- The highest number that was given. A sequence that was never used says 1.
CREATE FUNCTION hapax.outbox_top() RETURNS int8
LANGUAGE sql VOLATILE AS $$ SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END FROM hapax.outbox_seq AS s $$;

-- Emitting.

-- Says what is wrong with a message.
CREATE FUNCTION hapax.refuse_message(topic text, key text, payload bytea) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF topic IS NULL OR octet_length(topic) NOT BETWEEN 1 AND 255 OR topic ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'a topic has 1 to 255 bytes and no control characters' USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(key) NOT BETWEEN 1 AND 1024 OR key ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'the key of a message has 1 to 1024 bytes and no control characters' USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(payload) > 1048576 THEN
        RAISE EXCEPTION 'the payload has % bytes, and a message may have 1048576', octet_length(payload)
            USING ERRCODE = 'HX010', HINT = 'keep the content elsewhere and send where it is';
    END IF;
    RAISE EXCEPTION 'a message has a payload, and is ordered or not' USING ERRCODE = 'invalid_parameter_value';
END $$;

-- Writes one message. The order matters: first the transaction gets its id, then its key is locked, then the message gets its number. So numbers, visibility and
-- commits of one key are in the same order, and `floor` of a reader holds. The keys of a transaction are counted in a setting of it, which a savepoint takes
-- back together with their locks.
DO $do$
DECLARE
    inserts text[];
    width int4 := 1;
BEGIN
    FOR slot IN 0 .. 15 LOOP
        inserts := inserts || format('INSERT INTO hapax.outbox_%s VALUES (n, x, hapax.clock(), of_id, topic, key, ordered, version, headers, payload);',
            lpad(slot::text, 2, '0'));
    END LOOP;
    -- By halves: each condition costs a part of a microsecond.
    WHILE width < 16 LOOP
        FOR place IN 1 .. 16 - width BY 2 * width LOOP
            inserts[place] := format(E'IF slot < %s THEN\n%s\nELSE\n%s\nEND IF;', place + width - 1, inserts[place], inserts[place + width]);
        END LOOP;
        width := 2 * width;
    END LOOP;
    EXECUTE $sql$
CREATE FUNCTION hapax.emit_here(topic text, key text, payload bytea, headers jsonb, of_id uuid, ordered boolean, version int8) RETURNS int8
LANGUAGE plpgsql AS $fn$
#variable_conflict use_variable
DECLARE
    x constant xid8 := pg_current_xact_id();
    hash int4;
    mark text;
    locked text;
    n int8;
    slot int4;
BEGIN
    -- A transaction often emits once, and pays for the first use of each expression. So the checks are one expression, and what is called for its effect is
    -- assigned: PERFORM runs a query.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF topic IS NULL OR octet_length(topic) NOT BETWEEN 1 AND 255 OR topic ~ '[[:cntrl:]]' OR octet_length(key) NOT BETWEEN 1 AND 1024 OR key ~ '[[:cntrl:]]'
        OR payload IS NULL OR ordered IS NULL OR octet_length(payload) > 1048576
    THEN
        PERFORM hapax.refuse_message(topic, key, payload);
    END IF;
    IF key IS NOT NULL AND ordered THEN
        hash := hashtext((topic || chr(31) || key) COLLATE "C");
        mark := lpad(to_hex(hash), 8, '0') || ';';
        locked := coalesce(current_setting('hapax.ordered_keys', true), '');
        IF position(mark IN locked) = 0 THEN
            IF octet_length(locked) >= 9 * 256 THEN
                RAISE EXCEPTION 'a transaction may emit messages of 256 ordered keys, because each is locked until it ends'
                    USING ERRCODE = 'HX011', HINT = 'use several transactions, or say ordered => false';
            END IF;
            locked := set_config('hapax.ordered_keys', locked || mark, true);
        END IF;
        -- Also if it is noted already: who may emit can write the note.
        locked := pg_advisory_xact_lock(1303980045, hash)::text;
    END IF;
    n := nextval('hapax.outbox_seq');
    slot := ((n >> 16) & 15)::int4;
$sql$ || inserts[1] || $sql$
    RETURN 1;
END $fn$$sql$;
END $do$;

-- Checks headers and adds the media type of the payload.
CREATE FUNCTION hapax.message_headers(headers jsonb, content_type text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    bad text;
    count int4;
    bytes int8;
BEGIN
    IF headers IS NULL OR headers = '{}' THEN
        RETURN jsonb_build_object('content-type', content_type);
    END IF;
    -- Few headers are checked by their text, which takes a third of the time of the query below.
    IF octet_length(headers::text) <= 512 AND headers::text ~ '^\{("[a-z0-9-]+": "([^"\\[:cntrl:]]|\\["\\])*"(, |\}$))+$' THEN
        RETURN jsonb_build_object('content-type', content_type) || headers;
    END IF;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers are an object of names with a text each' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT min(h.key) FILTER (WHERE h.key !~ '^[a-z0-9-]+$' OR jsonb_typeof(h.value) <> 'string' OR h.value #>> '{}' ~ '[[:cntrl:]]'), count(*),
           sum(octet_length(h.key) + octet_length(h.value #>> '{}'))
    INTO bad, count, bytes FROM jsonb_each(headers) AS h;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'the header % is none: a name has lower-case letters, digits and hyphens, and its value is a text without control characters', left(bad, 64)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF count > 64 OR bytes > 16384 THEN
        RAISE EXCEPTION 'a message has at most 64 headers of 16384 bytes together' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN jsonb_build_object('content-type', content_type) || headers;
END $$;

-- `MessageId::of` of core/src/flow/message_id.rs: a UUID of version 8.
CREATE FUNCTION hapax.message_id(operation text, step text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    of_operation constant bytea := convert_to(operation, 'UTF8');
    of_step constant bytea := convert_to(step, 'UTF8');
    digest bytea := substr(sha256(int8send(15) || 'hapax message 1' || int8send(octet_length(of_operation)) || of_operation
        || int8send(octet_length(of_step)) || of_step), 1, 16);
BEGIN
    digest := set_byte(digest, 6, get_byte(digest, 6) & 15 | 128);
    digest := set_byte(digest, 8, get_byte(digest, 8) & 63 | 128);
    RETURN encode(digest, 'hex')::uuid;
END $$;

-- The id of a message without an operation: a UUID of version 7.
CREATE FUNCTION hapax.new_message_id() RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    bytes bytea := overlay(uuid_send(gen_random_uuid()) PLACING substr(int8send(hapax.clock() / 1000), 3) FROM 1 FOR 6);
BEGIN
    RETURN encode(set_byte(bytes, 6, get_byte(bytes, 6) & 15 | 112), 'hex')::uuid;
END $$;

-- The operation under which messages get their ids, and the id of the request that made the attempt. An operation comes from the field Hapax-Operation, or
-- is the `operation_id` of `hapax.start`, which is the same in every life of its key: messages of another life are others.
CREATE FUNCTION hapax.emitting_operation(operation text, OUT of_life text, OUT request_id text, OUT begun_here boolean)
LANGUAGE plpgsql AS $$
DECLARE
    found_by bytea;
    proof bytea;
    created_at int8;
    h record;
BEGIN
    begun_here := false;
    IF octet_length(operation) = 64 AND operation !~ '[^0-9a-f]' THEN
        found_by := substr(decode(operation, 'hex'), 1, 16);
        begun_here := EXISTS (SELECT FROM hapax.heads AS f WHERE f.id = decode(operation, 'hex') AND f.token = hapax.this_transaction());
        IF NOT begun_here THEN
            found_by := substr(decode(operation, 'hex'), 17);
        END IF;
        SELECT m.secret, m.lives_since, o.created_at, o.request_id INTO h
        FROM hapax.meta AS m
        LEFT JOIN LATERAL (
            SELECT f.created_at, f.request_id FROM hapax.heads AS f
            WHERE f.id >= found_by AND f.id <= found_by || decode('ffffffffffffffffffffffffffffffff', 'hex') LIMIT 1
        ) AS o ON true;
        proof := substr(sha256(int8send(17) || 'hapax operation 2' || int8send(32) || h.secret || int8send(16) || found_by), 1, 16);
        IF h.created_at >= h.lives_since THEN
            proof := substr(proof, 1, 8) || substr(sha256(int8send(17) || 'hapax operation 3' || int8send(32) || h.secret || int8send(16) || found_by
                || int8send(8) || int8send(h.created_at)), 1, 8);
        END IF;
        created_at := h.created_at;
        of_life := encode(proof || found_by, 'hex');
        request_id := convert_from(h.request_id, 'UTF8');
    END IF;
    IF created_at IS NULL OR (NOT begun_here AND of_life <> operation) THEN
        RAISE EXCEPTION 'this is no operation of this store' USING ERRCODE = 'HX006',
            HINT = 'pass on what came in the field Hapax-Operation, or the operation_id that hapax.start gave to this transaction';
    END IF;
END $$;

-- One message of `hapax.emit`, whatever its payload is.
CREATE FUNCTION hapax.emit_one(
    topic text, key text, payload bytea, headers jsonb, operation text, step text, ordered boolean, version int8, content_type text, given_id uuid
) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    of_headers jsonb := hapax.message_headers(headers, content_type);
    id uuid := given_id;
    emitting record;
    emitted text;
    mark text;
BEGIN
    IF operation IS NOT NULL THEN
        SELECT * INTO emitting FROM hapax.emitting_operation(operation);
        IF emitting.request_id IS NOT NULL AND NOT of_headers ? 'correlation-id' THEN
            of_headers := of_headers || jsonb_build_object('correlation-id', emitting.request_id);
        END IF;
        IF id IS NULL THEN
            -- Without a name, a step is the number of the message in its transaction.
            emitted := coalesce(current_setting('hapax.emitted', true), '');
            IF step IS NULL AND NOT emitting.begun_here THEN
                RAISE EXCEPTION 'a message of this operation needs a step: another transaction of it may emit too' USING ERRCODE = 'invalid_parameter_value',
                    HINT = 'name what happened, as in step => ''placed''';
            ELSIF starts_with(step, '#') THEN
                RAISE EXCEPTION 'a step may not begin with #' USING ERRCODE = 'invalid_parameter_value';
            END IF;
            id := hapax.message_id(emitting.of_life, coalesce(step, '#' || (octet_length(emitted) / 33 + 1)));
            mark := replace(id::text, '-', '') || ';';
            IF position(mark IN emitted) > 0 THEN
                RAISE EXCEPTION 'this transaction has emitted a message of this operation in the step % already', step USING ERRCODE = 'invalid_parameter_value',
                    HINT = 'each message of an operation needs a step of its own';
            END IF;
            PERFORM set_config('hapax.emitted', emitted || mark, true);
        END IF;
    ELSIF step IS NOT NULL THEN
        RAISE EXCEPTION 'a step belongs to an operation' USING ERRCODE = 'invalid_parameter_value', HINT = 'pass the operation too, or leave the step out';
    END IF;
    id := coalesce(id, hapax.new_message_id());
    mark := hapax.emit_here(topic, key, payload, of_headers, id, ordered, version);
    RETURN id;
END $$;

-- For any language: emits a message in the caller's transaction and returns its id. It exists if and only if the transaction commits. There is one function for
-- each type of payload; a literal whose type is not said is a text.
CREATE FUNCTION hapax.emit(
    topic text, key text, payload text, headers jsonb DEFAULT '{}', operation text DEFAULT NULL, step text DEFAULT NULL, ordered boolean DEFAULT true,
    version int8 DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hapax.emit_one(topic, key, convert_to(payload, 'UTF8'), headers, operation, step, ordered, version, 'text/plain; charset=utf-8', NULL);
END $$;

CREATE FUNCTION hapax.emit(
    topic text, key text, payload jsonb, headers jsonb DEFAULT '{}', operation text DEFAULT NULL, step text DEFAULT NULL, ordered boolean DEFAULT true,
    version int8 DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hapax.emit_one(topic, key, convert_to(payload::text, 'UTF8'), headers, operation, step, ordered, version, 'application/json', NULL);
END $$;

CREATE FUNCTION hapax.emit(
    topic text, key text, payload bytea, headers jsonb DEFAULT '{}', operation text DEFAULT NULL, step text DEFAULT NULL, ordered boolean DEFAULT true,
    version int8 DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hapax.emit_one(topic, key, payload, headers, operation, step, ordered, version, 'application/octet-stream', NULL);
END $$;

-- Several messages: an array of objects with the names of the arguments above. `payload` may be any JSON, `payload_text` is a text and `payload_base64` bytes;
-- `id` is an id of the caller's own. The keys are locked in one order, so that two calls never wait for each other in a circle, as two transactions do that
-- emit A, B and B, A one by one. Returns the ids.
CREATE FUNCTION hapax.emit_all(messages jsonb) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known constant text[] := '{topic,key,payload,payload_text,payload_base64,headers,operation,step,ordered,version,id}';
    x constant xid8 := pg_current_xact_id();
    locked text := coalesce(current_setting('hapax.ordered_keys', true), '');
    ids uuid[] := '{}';
    strange text;
    hash int4;
    m record;
BEGIN
    IF messages IS NULL OR jsonb_typeof(messages) <> 'array' OR jsonb_path_exists(messages, '$[*] ? (@.type() != "object")') THEN
        RAISE EXCEPTION 'hapax.emit_all takes an array of objects' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT k INTO strange FROM jsonb_array_elements(messages) AS e, jsonb_object_keys(e) AS k WHERE k <> ALL (known) LIMIT 1;
    IF strange IS NOT NULL THEN
        RAISE EXCEPTION 'a message has no %', left(strange, 64) USING ERRCODE = 'invalid_parameter_value', HINT = 'it has ' || array_to_string(known, ', ');
    END IF;
    FOR hash IN
        SELECT hashtext(k.topic || chr(31) || k.key) FROM (
            SELECT DISTINCT (e ->> 'topic') COLLATE "C" AS topic, (e ->> 'key') COLLATE "C" AS key FROM jsonb_array_elements(messages) AS e
            WHERE e ->> 'key' IS NOT NULL AND coalesce((e ->> 'ordered')::boolean, true)
        ) AS k ORDER BY k.topic, k.key
    LOOP
        CONTINUE WHEN position(lpad(to_hex(hash), 8, '0') || ';' IN locked) > 0;
        IF octet_length(locked) >= 9 * 256 THEN
            RAISE EXCEPTION 'a transaction may emit messages of 256 ordered keys, because each is locked until it ends'
                USING ERRCODE = 'HX011', HINT = 'use several transactions, or say ordered => false';
        END IF;
        PERFORM pg_advisory_xact_lock(1303980045, hash);
        locked := locked || lpad(to_hex(hash), 8, '0') || ';';
    END LOOP;
    PERFORM set_config('hapax.ordered_keys', locked, true);
    FOR m IN SELECT e FROM jsonb_array_elements(messages) WITH ORDINALITY AS e(e, place) ORDER BY e.place LOOP
        ids := ids || hapax.emit_one(
            m.e ->> 'topic', m.e ->> 'key',
            CASE WHEN m.e ? 'payload_base64' THEN decode(m.e ->> 'payload_base64', 'base64')
                 WHEN m.e ? 'payload_text' THEN convert_to(m.e ->> 'payload_text', 'UTF8')
                 ELSE convert_to((m.e -> 'payload')::text, 'UTF8') END,
            coalesce(nullif(m.e -> 'headers', 'null'), '{}'), m.e ->> 'operation', m.e ->> 'step', coalesce((m.e ->> 'ordered')::boolean, true),
            (m.e ->> 'version')::int8,
            CASE WHEN m.e ? 'payload_base64' THEN 'application/octet-stream' WHEN m.e ? 'payload_text' THEN 'text/plain; charset=utf-8'
                 ELSE 'application/json' END,
            (m.e ->> 'id')::uuid);
    END LOOP;
    RETURN ids;
END $$;

-- For programs that make ids and headers themselves, by drivers that know bytes and numbers of 64 bits.
CREATE FUNCTION hapax.emit_message(topic bytea, key bytea, payload bytea, headers bytea, of_id bytea, ordered int8, version int8) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hapax.emit_here(convert_from(topic, 'UTF8'), convert_from(key, 'UTF8'), payload,
        hapax.message_headers(convert_from(headers, 'UTF8')::jsonb, 'application/octet-stream'), encode(of_id, 'hex')::uuid, ordered <> 0, version);
END $$;

-- Reading.

-- The next messages of a reader. The first row has only `hi`, the snapshot up to which they are; without one given, it is the present one. If no further row
-- comes, all that `hi` sees is published, and `hi` becomes the next `lo`.
--
-- What `hi` sees and `lo` does not is of two kinds. A transaction that has no id yet for `lo`: its numbers are above `floor`. And one that was running when
-- `lo` was taken: its numbers may be anything, and are found by its id.
CREATE FUNCTION hapax.outbox_page(of_lo text, of_hi text, of_floor int8, of_after int8, rows_max int4, bytes_max int8) RETURNS TABLE (
    hi text, seq int8, id uuid, at int8, topic text, key text, ordered boolean, version int8, headers text, payload bytea
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    lo constant pg_snapshot := of_lo::pg_snapshot;
    up_to constant pg_snapshot := coalesce(of_hi::pg_snapshot, pg_current_snapshot());
    began_later constant xid8 := pg_snapshot_xmax(lo);
    were_running constant xid8[] := ARRAY(SELECT x FROM pg_snapshot_xip(lo) AS x WHERE pg_visible_in_snapshot(x, up_to));
BEGIN
    hi := up_to::text;
    RETURN NEXT;
    RETURN QUERY
    SELECT NULL::text, p.seq, p.id, p.at, p.topic, p.key, p.ordered, p.version, p.headers::text, p.payload
    FROM (
        -- Up to the row with which they are too many bytes.
        SELECT m.*, sum(octet_length(m.payload)) OVER (ORDER BY m.seq) - octet_length(m.payload) AS before
        FROM (
            SELECT * FROM (
                (SELECT o.* FROM hapax.outbox AS o
                 WHERE o.seq > greatest(of_floor, of_after) AND o.xid >= began_later AND pg_visible_in_snapshot(o.xid, up_to)
                 ORDER BY o.seq LIMIT rows_max)
                UNION ALL
                (SELECT o.* FROM unnest(were_running) AS r(xid)
                 CROSS JOIN LATERAL (SELECT t.* FROM hapax.outbox AS t WHERE t.xid = r.xid AND t.seq > of_after ORDER BY t.seq LIMIT rows_max) AS o)
            ) AS u ORDER BY u.seq LIMIT rows_max
        ) AS m
    ) AS p WHERE p.before < bytes_max ORDER BY p.seq;
END $$;

-- Takes a reader, or makes it, if nobody else has its lease. `mark` is the floor of every snapshot that is taken after this.
--
-- The first reader of all gets every message that is there; a later one those that are emitted from now on.
CREATE FUNCTION hapax.reader_take(of_name text, by text, lease int8) RETURNS TABLE (
    fence int8, lo text, hi text, after int8, floor int8, mark int8, stopped text, has_failed_over boolean, was_restored boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    -- Before this transaction has an id: see `reader_mark`.
    top constant int8 := hapax.outbox_top();
    moment int8;
    here constant int8 := (SELECT c.system_identifier FROM pg_control_system() AS c);
    r hapax.readers;
BEGIN
    PERFORM hapax.not_a_standby();
    PERFORM hapax.ready();
    moment := hapax.now();
    IF EXISTS (SELECT FROM hapax.readers AS o WHERE o.system_identifier <> here) THEN
        PERFORM hapax.outbox_rebase();
        was_restored := true;
    END IF;
    IF NOT EXISTS (SELECT FROM hapax.readers AS o WHERE o.name = of_name) THEN
        LOCK TABLE hapax.readers IN EXCLUSIVE MODE;
        -- The floor of a snapshot holds for every later one.
        INSERT INTO hapax.readers (name, lo, floor, system_identifier, timeline, created_at)
        VALUES (of_name, CASE WHEN EXISTS (SELECT FROM hapax.readers) THEN pg_current_snapshot() ELSE '3:3:' END,
            coalesce((SELECT max(r.floor) FROM hapax.readers AS r), 0), here, hapax.timeline(), moment)
        ON CONFLICT (name) DO NOTHING;
    END IF;
    SELECT * INTO r FROM hapax.readers AS o WHERE o.name = of_name FOR UPDATE;
    IF r.owner IS DISTINCT FROM by AND r.lease_until > moment THEN
        RETURN;
    END IF;
    UPDATE hapax.readers AS o SET
        owner = CASE WHEN r.stopped IS NULL THEN by END, fence = o.fence + 1, lease_until = CASE WHEN r.stopped IS NULL THEN moment + lease ELSE 0 END,
        timeline = hapax.timeline()
    WHERE o.name = of_name;
    RETURN QUERY SELECT r.fence + 1, r.lo::text, r.hi::text, r.after, r.floor, top, r.stopped, r.timeline <> hapax.timeline(), coalesce(was_restored, false);
END $$;

CREATE FUNCTION hapax.reader_lost(of_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'another relay has the reader %', of_name USING ERRCODE = 'HX012', HINT = 'stop: what this one would write is old';
END $$;

-- Moves a reader on and renews its lease. `aside` are messages that were not taken, or that follow one: they are copied to `deliveries` in the same step.
-- Returns the floor of every snapshot that is taken after this.
--
-- The floor is read before this transaction has an id. A transaction that a later snapshot has no id for got its id after this one, and its numbers after its id.
CREATE FUNCTION hapax.reader_mark(
    of_name text, of_fence int8, of_lo text, of_hi text, of_after int8, of_floor int8, newly_published int8, lease int8,
    aside int8[], states int2[], attempts int4[], pauses int8[], reasons text[]
) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
    mark constant int8 := hapax.outbox_top();
    moment int8;
    copied int8 := 0;
BEGIN
    PERFORM hapax.ready();
    moment := hapax.now();
    UPDATE hapax.readers AS o SET
        lo = of_lo::pg_snapshot, hi = of_hi::pg_snapshot, after = of_after, floor = of_floor, top = mark, lease_until = moment + lease,
        published = o.published + newly_published, published_at = CASE WHEN newly_published > 0 THEN moment ELSE o.published_at END
    WHERE o.name = of_name AND o.fence = of_fence;
    IF NOT FOUND THEN
        PERFORM hapax.reader_lost(of_name);
    END IF;
    IF cardinality(aside) > 0 THEN
        -- One that failed has a pause, or none if it is given up. One that only follows is due when nothing of its key is before it.
        INSERT INTO hapax.deliveries (reader, seq, state, attempts, due_at, reason, at, id, topic, key, ordered, version, headers, payload)
        SELECT of_name, o.seq, a.state, a.attempts, moment + a.pause, a.reason, o.at, o.id, o.topic, o.key, o.ordered, o.version, o.headers, o.payload
        FROM unnest(aside, states, attempts, pauses, reasons) AS a(seq, state, attempts, pause, reason)
        CROSS JOIN LATERAL (SELECT t.* FROM hapax.outbox AS t WHERE t.seq = a.seq) AS o;
        GET DIAGNOSTICS copied = ROW_COUNT;
        IF copied <> cardinality(aside) THEN
            RAISE EXCEPTION 'messages that were to be set aside are no longer in the outbox' USING ERRCODE = 'data_corrupted';
        END IF;
        UPDATE hapax.deliveries AS d SET due_at = moment
        WHERE d.reader = of_name AND d.seq = ANY (aside) AND d.state = 1 AND d.due_at IS NULL
            AND NOT EXISTS (SELECT FROM hapax.deliveries AS e WHERE e.reader = d.reader AND e.topic = d.topic AND e.key = d.key AND e.seq < d.seq
                AND e.state <> 3 AND e.ordered AND e.key IS NOT NULL);
        UPDATE hapax.readers AS o SET set_aside = o.set_aside + copied WHERE o.name = of_name RETURNING o.set_aside INTO copied;
        IF copied > 1000000 THEN
            RAISE EXCEPTION 'more than 1000000 messages are set aside for the reader %', of_name USING ERRCODE = 'HX013',
                HINT = 'mend the destination, or retry or skip what it does not take, and start the reader again';
        END IF;
    END IF;
    RETURN mark;
END $$;

-- Gives a reader up, so that another relay can take it at once.
CREATE FUNCTION hapax.reader_release(of_name text, of_fence int8) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE hapax.readers AS o SET lease_until = 0, owner = NULL WHERE o.name = of_name AND o.fence = of_fence;
END $$;

-- Stops a reader until an operator starts it.
CREATE FUNCTION hapax.reader_stop(of_name text, of_fence int8, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE hapax.readers AS o SET lease_until = 0, owner = NULL, stopped = reason WHERE o.name = of_name AND o.fence = of_fence;
    IF NOT FOUND THEN
        PERFORM hapax.reader_lost(of_name);
    END IF;
END $$;

-- The keys of a reader whose messages wait in `deliveries`: later ones must follow them there.
CREATE FUNCTION hapax.deliveries_keys(of_name text) RETURNS TABLE (topic text, key text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY SELECT DISTINCT d.topic, d.key FROM hapax.deliveries AS d WHERE d.reader = of_name AND d.state <> 3 AND d.ordered AND d.key IS NOT NULL;
END $$;

-- Takes messages that are due, and counts the attempt before it is made. If nobody says how it ended, they are due again after `patience`.
CREATE FUNCTION hapax.deliveries_take(of_name text, of_fence int8, rows_max int4, bytes_max int8, patience int8) RETURNS TABLE (
    attempts int4, seq int8, id uuid, at int8, topic text, key text, ordered boolean, version int8, headers text, payload bytea
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    moment int8 := hapax.now();
    due int8[];
BEGIN
    SELECT array_agg(p.seq) INTO due FROM (
        SELECT d.seq, sum(octet_length(d.payload)) OVER (ORDER BY d.due_at, d.seq) - octet_length(d.payload) AS before
        FROM (SELECT * FROM hapax.deliveries AS o WHERE o.reader = of_name AND o.state = 1 AND o.due_at <= moment ORDER BY o.due_at LIMIT rows_max) AS d
    ) AS p WHERE p.before < bytes_max;
    IF due IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM hapax.readers AS o WHERE o.name = of_name AND o.fence = of_fence FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM hapax.reader_lost(of_name);
    END IF;
    RETURN QUERY
    UPDATE hapax.deliveries AS d SET attempts = d.attempts + 1, due_at = moment + patience WHERE d.reader = of_name AND d.seq = ANY (due) AND d.state = 1
    RETURNING d.attempts, d.seq, d.id, d.at, d.topic, d.key, d.ordered, d.version, d.headers::text, d.payload;
END $$;

-- Says how an attempt ended: `as_state` null means that the message was taken. Returns whether it is known that nothing of its key waits any more.
CREATE FUNCTION hapax.delivery_end(of_name text, of_fence int8, of_seq int8, as_state int2, pause int8, of_reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
    moment int8 := hapax.now();
    d hapax.deliveries;
BEGIN
    PERFORM hapax.ready();
    PERFORM FROM hapax.readers AS o WHERE o.name = of_name AND o.fence = of_fence FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM hapax.reader_lost(of_name);
    END IF;
    SELECT * INTO d FROM hapax.deliveries AS o WHERE o.reader = of_name AND o.seq = of_seq;
    IF NOT FOUND THEN
        -- An operator took it out. Others of its key may wait.
        RETURN false;
    END IF;
    IF as_state IS NULL THEN
        DELETE FROM hapax.deliveries AS o WHERE o.reader = of_name AND o.seq = of_seq;
        UPDATE hapax.readers AS o SET set_aside = o.set_aside - 1, published = o.published + 1, published_at = moment WHERE o.name = of_name;
    ELSE
        -- State 0: the attempt does not count.
        UPDATE hapax.deliveries AS o SET
            state = greatest(as_state, 1::int2), attempts = o.attempts - (as_state = 0)::int4, due_at = moment + pause, reason = of_reason
        WHERE o.reader = of_name AND o.seq = of_seq;
    END IF;
    RETURN hapax.wake_next(d);
END $$;

-- Makes the next message of a key due, if the given one was the last in its way.
CREATE FUNCTION hapax.wake_next(was hapax.deliveries) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    next hapax.deliveries;
BEGIN
    IF was.key IS NULL OR NOT was.ordered THEN
        RETURN true;
    END IF;
    SELECT * INTO next FROM hapax.deliveries AS d
    WHERE d.reader = was.reader AND d.topic = was.topic AND d.key = was.key AND d.state <> 3 AND d.ordered AND d.key IS NOT NULL ORDER BY d.seq LIMIT 1;
    IF NOT FOUND THEN
        RETURN true;
    END IF;
    UPDATE hapax.deliveries AS d SET due_at = hapax.now() WHERE d.reader = next.reader AND d.seq = next.seq AND d.state = 1 AND d.due_at IS NULL;
    RETURN false;
END $$;

-- Empties tables whose messages are all published to every reader. The table in use is left alone, so that a quiet outbox is not emptied again and again.
-- Returns how many were emptied. A table that somebody is just writing to is left for the next time.
CREATE FUNCTION hapax.outbox_sweep() RETURNS int4
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '50ms' AS $$
DECLARE
    top constant int8 := hapax.outbox_top();
    emptied int4 := 0;
    done boolean;
    name text;
    highest int8;
BEGIN
    IF NOT EXISTS (SELECT FROM hapax.readers) THEN
        RETURN 0;
    END IF;
    FOR slot IN 0 .. 15 LOOP
        CONTINUE WHEN slot = (top >> 16) & 15;
        name := 'hapax.outbox_' || lpad(slot::text, 2, '0');
        EXECUTE format('SELECT max(seq) FROM %s', name) INTO highest;
        CONTINUE WHEN highest IS NULL OR (highest <= (SELECT min(r.floor) FROM hapax.readers AS r)) IS NOT TRUE;
        BEGIN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', name);
            -- No new reader, and none that goes back, in between.
            LOCK TABLE hapax.readers IN SHARE MODE;
            -- Again, with the lock: everybody who has written here has ended.
            EXECUTE format($sql$
                SELECT EXISTS (SELECT FROM hapax.readers) AND NOT EXISTS (
                    SELECT FROM hapax.readers AS r WHERE (SELECT max(o.seq) FROM %1$s AS o) > r.floor
                        OR EXISTS (SELECT FROM pg_snapshot_xip(r.lo) AS x JOIN %1$s AS o ON o.xid = x))$sql$, name) INTO done;
            IF done THEN
                EXECUTE format('TRUNCATE %s', name);
                emptied := emptied + 1;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            -- In use.
        END;
    END LOOP;
    RETURN emptied;
END $$;

-- After the database was restored into another server: the ids of transactions in rows and snapshots are of the old one. What was not surely published gets the
-- id of this transaction, and every reader begins before it. Numbers stay: a writer that waits for this may have a higher one already.
CREATE FUNCTION hapax.outbox_rebase() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    here constant int8 := (SELECT c.system_identifier FROM pg_control_system() AS c);
    x constant xid8 := pg_current_xact_id();
    now_here pg_snapshot;
    highest int8;
    slots text := (SELECT string_agg('hapax.outbox_' || lpad(s::text, 2, '0'), ', ' ORDER BY s) FROM generate_series(0, 15) AS s);
BEGIN
    -- Nobody who has written here is still open after this.
    EXECUTE format('LOCK TABLE %s IN EXCLUSIVE MODE', slots);
    LOCK TABLE hapax.readers IN EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM hapax.readers AS r WHERE r.system_identifier <> here) THEN
        RETURN;
    END IF;
    FOR slot IN 0 .. 15 LOOP
        -- A number above `top` is of a message that was emitted after the reader's last mark, here or there.
        EXECUTE format($sql$
            DELETE FROM hapax.outbox_%1$s AS o WHERE NOT EXISTS (
                SELECT FROM hapax.readers AS r
                WHERE o.seq > r.top OR NOT (pg_visible_in_snapshot(o.xid, r.lo)
                    OR (r.hi IS NOT NULL AND pg_visible_in_snapshot(o.xid, r.hi) AND o.seq <= r.after)))$sql$, lpad(slot::text, 2, '0'));
        EXECUTE format('UPDATE hapax.outbox_%s SET xid = $1', lpad(slot::text, 2, '0')) USING x;
    END LOOP;
    highest := greatest((SELECT max(o.seq) FROM hapax.outbox AS o), (SELECT max(d.seq) FROM hapax.deliveries AS d));
    IF highest > hapax.outbox_top() THEN
        PERFORM setval('hapax.outbox_seq', highest);
    END IF;
    -- Sees all that has ended, and neither this transaction nor one that is still running, whatever their ids are.
    now_here := pg_current_snapshot();
    IF x < pg_snapshot_xmax(now_here) THEN
        now_here := format('%s:%s:%s', least(pg_snapshot_xmin(now_here)::text::int8, x::text::int8), pg_snapshot_xmax(now_here),
            (SELECT string_agg(i.xip::text, ',' ORDER BY i.xip) FROM (SELECT pg_snapshot_xip(now_here) AS xip UNION SELECT x) AS i))::pg_snapshot;
    END IF;
    UPDATE hapax.readers AS r SET
        lo = now_here, hi = NULL, after = -1, floor = 0, top = hapax.outbox_top(), system_identifier = here, timeline = hapax.timeline(), lease_until = 0,
        owner = NULL, fence = r.fence + 1;
END $$;

-- For operators.

-- Every reader, and what holds it up: the time of the oldest message that it has not published, and the backend that has had a transaction with messages open
-- for longest.
CREATE FUNCTION hapax.readers_now() RETURNS TABLE (
    name text, owner text, lease_until int8, fence int8, published int8, published_at int8, stopped text, waiting int8, held int8, dead int8,
    oldest_at int8, oldest_id uuid, oldest_topic text, oldest_key text, writer_pid int4, writer_since int8, now int8
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    r hapax.readers;
    p record;
    w record;
BEGIN
    SELECT l.pid, (extract(epoch FROM a.xact_start) * 1000000)::int8 AS since INTO w
    FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid JOIN pg_class AS c ON c.oid = l.relation
    WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted AND c.relnamespace = 'hapax'::regnamespace AND c.relname LIKE 'outbox\___'
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    ORDER BY a.xact_start LIMIT 1;
    FOR r IN SELECT * FROM hapax.readers AS o ORDER BY o.name LOOP
        SELECT m.at, m.id, m.topic, m.key INTO p FROM (
            (SELECT o.at, o.id, o.topic, o.key, o.seq FROM hapax.outbox_page(r.lo::text, NULL, r.floor, CASE WHEN r.hi IS NULL THEN -1 ELSE r.after END, 1, 1) AS o
             WHERE o.seq IS NOT NULL)
            UNION ALL
            (SELECT d.at, d.id, d.topic, d.key, d.seq FROM hapax.deliveries AS d WHERE d.reader = r.name AND d.state <> 3 ORDER BY d.seq LIMIT 1)
        ) AS m ORDER BY m.at LIMIT 1;
        name := r.name; owner := r.owner; lease_until := r.lease_until; fence := r.fence; published := r.published; published_at := r.published_at;
        stopped := r.stopped; oldest_at := p.at; oldest_id := p.id; oldest_topic := p.topic; oldest_key := p.key;
        writer_pid := w.pid; writer_since := w.since; now := hapax.now();
        SELECT count(*) FILTER (WHERE d.state = 1), count(*) FILTER (WHERE d.state = 2), count(*) FILTER (WHERE d.state = 3)
        INTO waiting, held, dead FROM hapax.deliveries AS d WHERE d.reader = r.name;
        RETURN NEXT;
    END LOOP;
END $$;

-- Messages that were set aside, by their place: after a reader and a number.
CREATE FUNCTION hapax.deliveries_list(of_reader text, of_state int2, after_reader text, after_seq int8, rows_max int4) RETURNS TABLE (
    reader text, seq int8, state int2, attempts int4, due_at int8, reason text, at int8, id uuid, topic text, key text, ordered boolean, version int8,
    headers text, payload_bytes int4
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT d.reader, d.seq, d.state, d.attempts, d.due_at, d.reason, d.at, d.id, d.topic, d.key, d.ordered, d.version, d.headers::text, octet_length(d.payload)
    FROM hapax.deliveries AS d
    WHERE (of_reader IS NULL OR d.reader = of_reader) AND (of_state IS NULL OR d.state = of_state) AND (after_reader IS NULL OR (d.reader, d.seq) > (after_reader, after_seq))
    ORDER BY d.reader, d.seq LIMIT rows_max;
END $$;

-- One message, wherever it is: in the outbox (`reader` is null) and among those set aside.
CREATE FUNCTION hapax.message_find(of_id uuid) RETURNS TABLE (
    reader text, state int2, attempts int4, due_at int8, reason text, at int8, id uuid, topic text, key text, ordered boolean, version int8, headers text,
    payload bytea
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT d.reader, d.state, d.attempts, d.due_at, d.reason, d.at, d.id, d.topic, d.key, d.ordered, d.version, d.headers::text, d.payload
    FROM hapax.deliveries AS d WHERE d.id = of_id
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, o.at, o.id, o.topic, o.key, o.ordered, o.version, o.headers::text, o.payload FROM hapax.outbox AS o WHERE o.id = of_id;
END $$;

-- Sends a message that was given up again, or at once; and takes one out for good. In the audit log. Returns how many there were.
CREATE FUNCTION hapax.delivery_retry(of_reader text, of_id uuid, signed_by bytea, reason bytea) RETURNS int4
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
    count int4;
BEGIN
    PERFORM hapax.ready();
    PERFORM FROM hapax.readers AS o WHERE o.name = of_reader FOR NO KEY UPDATE;
    -- One that was given up goes behind the earlier ones of its key that still wait.
    UPDATE hapax.deliveries AS d SET state = 1, attempts = 0, due_at = CASE WHEN NOT EXISTS (
            SELECT FROM hapax.deliveries AS e WHERE e.reader = d.reader AND e.topic = d.topic AND e.key = d.key AND e.seq < d.seq
                AND e.state <> 3 AND e.ordered AND e.key IS NOT NULL AND d.ordered) THEN hapax.now() END
    WHERE d.reader = of_reader AND d.id = of_id AND (d.state <> 1 OR d.due_at IS NOT NULL);
    GET DIAGNOSTICS count = ROW_COUNT;
    IF count > 0 THEN
        PERFORM hapax.write_down(hapax.now(), 'outbox-retry', signed_by, reason || convert_to(' (' || of_reader || ', ' || of_id || ')', 'UTF8'), NULL, NULL);
    END IF;
    RETURN count;
END $$;

CREATE FUNCTION hapax.delivery_skip(of_reader text, of_id uuid, signed_by bytea, reason bytea) RETURNS int4
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
    count int4 := 0;
    d hapax.deliveries;
    is_free boolean;
BEGIN
    PERFORM hapax.ready();
    PERFORM FROM hapax.readers AS o WHERE o.name = of_reader FOR NO KEY UPDATE;
    FOR d IN DELETE FROM hapax.deliveries AS o WHERE o.reader = of_reader AND o.id = of_id RETURNING * LOOP
        is_free := hapax.wake_next(d);
        count := count + 1;
    END LOOP;
    IF count > 0 THEN
        UPDATE hapax.readers AS o SET set_aside = o.set_aside - count WHERE o.name = of_reader;
        PERFORM hapax.write_down(hapax.now(), 'outbox-skip', signed_by, reason || convert_to(' (' || of_reader || ', ' || of_id || ')', 'UTF8'), NULL, NULL);
    END IF;
    RETURN count;
END $$;

-- Starts a reader that was stopped.
CREATE FUNCTION hapax.reader_start(of_reader text, signed_by bytea, reason bytea) RETURNS int4
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
    count int4;
BEGIN
    PERFORM hapax.ready();
    UPDATE hapax.readers AS o SET stopped = NULL WHERE o.name = of_reader AND o.stopped IS NOT NULL;
    GET DIAGNOSTICS count = ROW_COUNT;
    IF count > 0 THEN
        PERFORM hapax.write_down(hapax.now(), 'reader-start', signed_by, reason || convert_to(' (' || of_reader || ')', 'UTF8'), NULL, NULL);
    END IF;
    RETURN count;
END $$;

-- Removes a reader for good, with what was set aside for it: for a destination that is no more, and that would keep the outbox from being emptied.
CREATE FUNCTION hapax.reader_remove(of_reader text, signed_by bytea, reason bytea) RETURNS int4
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
    count int4;
BEGIN
    PERFORM hapax.ready();
    DELETE FROM hapax.readers AS o WHERE o.name = of_reader AND o.lease_until <= hapax.now();
    GET DIAGNOSTICS count = ROW_COUNT;
    IF count > 0 THEN
        PERFORM hapax.write_down(hapax.now(), 'reader-remove', signed_by, reason || convert_to(' (' || of_reader || ')', 'UTF8'), NULL, NULL);
    END IF;
    RETURN count;
END $$;

DO $do$
DECLARE
    name text;
BEGIN
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA hapax FROM PUBLIC;
    -- What a running store calls, for the roles that were granted the rest.
    FOREACH name IN ARRAY '{outbox_page,reader_take,reader_mark,reader_release,reader_stop,deliveries_keys,deliveries_take,delivery_end,outbox_sweep,readers_now,'
        'deliveries_list,message_find,delivery_retry,delivery_skip,reader_start,reader_remove,emit_message}'::text[]
    LOOP
        PERFORM hapax.grant_like(p.oid::regprocedure, 'hapax.pulse()') FROM pg_proc AS p WHERE p.pronamespace = 'hapax'::regnamespace AND p.proname = name;
    END LOOP;
END $do$;
