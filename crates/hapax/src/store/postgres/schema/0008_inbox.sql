-- The inbox: receipts of messages that commit with the effect of the message. docs/internals/inbox.md says why it is so.

-- Who receives, and for how long receipts are kept.
CREATE TABLE hapax.consumers (
    id int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    time_window int8,                        -- microseconds, by the time that the producer gave a message; null: for ever
    since int8 NOT NULL DEFAULT 0,           -- no older message is accepted: its receipt may be gone
    created_at int8 NOT NULL
);

-- Receipts, in a ring of tables. A message goes to the table of the three days in which it was produced, and 16 times three days later that table is used
-- again. No window is longer than 39 days, so the time of some tables is always over: they are emptied whole, which costs nothing per message. Receipts of other
-- times in a table do no harm.
DO $do$
BEGIN
    FOR slot IN 0 .. 15 LOOP
        EXECUTE format('CREATE TABLE hapax.receipts_%s (id uuid PRIMARY KEY, at int8 NOT NULL, consumer int4 NOT NULL)', lpad(slot::text, 2, '0'));
    END LOOP;
    EXECUTE 'CREATE VIEW hapax.receipts AS ' || (
        SELECT string_agg(format('SELECT * FROM hapax.receipts_%s', lpad(slot::text, 2, '0')), ' UNION ALL ' ORDER BY slot) FROM generate_series(0, 15) AS slot);
END $do$;

-- Receipts of consumers whose window never ends.
CREATE TABLE hapax.receipts_forever (id uuid PRIMARY KEY, at int8 NOT NULL, consumer int4 NOT NULL);

-- The version of an entity that a consumer applied last.
CREATE TABLE hapax.versions (
    id uuid PRIMARY KEY,                     -- a digest of the consumer's name and the entity's
    version int8 NOT NULL,
    consumer int4 NOT NULL
) WITH (fillfactor = 80);

-- Messages that were not applied, and are kept for an operator.
CREATE TABLE hapax.parked (
    number int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer int4 NOT NULL,
    receipt uuid NOT NULL,
    id text NOT NULL,
    state int2 NOT NULL,                     -- 0: it failed and is still tried, 1: parked, 2: to be tried again
    kind int2 NOT NULL,                      -- 1: failed, 2: too old, 3: ahead of the clock, 4: after a gap, 5: without an id
    attempts int4 NOT NULL DEFAULT 0,        -- counted before each
    reason text,
    not_applied boolean NOT NULL DEFAULT false, -- an operator has said so: its age does not matter
    topic text,
    key text,
    entity uuid,
    version int8,
    at int8,
    headers jsonb,
    payload bytea,
    parked_at int8 NOT NULL,                 -- in state 0: when it failed last
    UNIQUE (consumer, receipt)
);
CREATE INDEX parked_failed ON hapax.parked (parked_at) WHERE state = 0;
CREATE INDEX parked_again ON hapax.parked (consumer, number) WHERE state = 2;
CREATE INDEX parked_gaps ON hapax.parked (entity, version) WHERE state = 1 AND kind = 4;

-- `ReceiptId::of` of core/src/flow/receipt.rs: the first half of a SHA-256 over parts with their lengths.
CREATE FUNCTION hapax.receipt_id(consumer text, id text) RETURNS uuid
LANGUAGE sql STABLE AS $$
    SELECT encode(substr(sha256(int8send(15) || 'hapax receipt 1'::bytea || int8send(octet_length(convert_to(consumer, 'UTF8'))) || convert_to(consumer, 'UTF8')
        || int8send(octet_length(convert_to(id, 'UTF8'))) || convert_to(id, 'UTF8')), 1, 16), 'hex')::uuid
$$;

-- `EntityId::of`, the same for an entity.
CREATE FUNCTION hapax.entity_id(consumer text, entity text) RETURNS uuid
LANGUAGE sql STABLE AS $$
    SELECT encode(substr(sha256(int8send(14) || 'hapax entity 1'::bytea || int8send(octet_length(convert_to(consumer, 'UTF8'))) || convert_to(consumer, 'UTF8')
        || int8send(octet_length(convert_to(entity, 'UTF8'))) || convert_to(entity, 'UTF8')), 1, 16), 'hex')::uuid
$$;

-- The table for a time, by its number.
CREATE FUNCTION hapax.receipt_slot(at int8) RETURNS int4
LANGUAGE sql IMMUTABLE AS $$ SELECT (greatest(at, 0) / 259200000000 % 16)::int4 $$;

-- Whether a table may hold receipts that count: of some time from the end of the longest window up to now, and a little ahead of it.
CREATE FUNCTION hapax.receipts_count(slot int4, moment int8, widest int8) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (slot - greatest(moment - widest, 0) / 259200000000 % 16 + 16) % 16 <= (moment + 300000000) / 259200000000 - greatest(moment - widest, 0) / 259200000000
$$;

-- Writes receipts into a table, 16 being the one that is kept for ever. `receipt_insert` returns whether it did, and `receipts_insert` the ids that it wrote. Somebody
-- who writes the same one is waited for.
DO $do$
DECLARE
    kinds constant text[] := ARRAY[
        'INSERT INTO hapax.%s VALUES (of_id, of_at, of_consumer) ON CONFLICT DO NOTHING; RETURN FOUND;',
        'WITH done AS (INSERT INTO hapax.%s SELECT m.id, m.at, of_consumer FROM unnest(ids, ats) AS m(id, at) ORDER BY m.id ON CONFLICT DO NOTHING RETURNING id) '
            'SELECT coalesce(array_agg(done.id), ''{}'') INTO written FROM done; RETURN written;'];
    bodies text[];
    choice text[];
    width int4;
BEGIN
    FOREACH width IN ARRAY ARRAY[1, 2] LOOP
        choice := '{}';
        FOR slot IN 0 .. 15 LOOP
            choice := choice || format(kinds[width], 'receipts_' || lpad(slot::text, 2, '0'));
        END LOOP;
        bodies[width] := format(E'IF slot = 16 THEN\n%s\nEND IF;\n', format(kinds[width], 'receipts_forever'));
        -- By halves: each condition costs a part of a microsecond.
        DECLARE
            half int4 := 1;
        BEGIN
            WHILE half < 16 LOOP
                FOR place IN 1 .. 16 - half BY 2 * half LOOP
                    choice[place] := format(E'IF slot < %s THEN\n%s\nELSE\n%s\nEND IF;', place + half - 1, choice[place], choice[place + half]);
                END LOOP;
                half := 2 * half;
            END LOOP;
        END;
        bodies[width] := bodies[width] || choice[1];
    END LOOP;
    EXECUTE 'CREATE FUNCTION hapax.receipt_insert(slot int4, of_id uuid, of_at int8, of_consumer int4) RETURNS boolean LANGUAGE plpgsql AS $fn$ BEGIN '
        || bodies[1] || ' END $fn$';
    EXECUTE 'CREATE FUNCTION hapax.receipts_insert(slot int4, ids uuid[], ats int8[], of_consumer int4) RETURNS uuid[] LANGUAGE plpgsql AS $fn$ '
        'DECLARE written uuid[]; BEGIN ' || bodies[2] || ' END $fn$';
END $do$;

CREATE FUNCTION hapax.receipts_table(slot int4) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT 'hapax.receipts_' || CASE WHEN slot = 16 THEN 'forever' ELSE lpad(slot::text, 2, '0') END $$;

CREATE FUNCTION hapax.check_consumer(name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'the name of a consumer has 1 to 1024 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

CREATE FUNCTION hapax.check_received(id text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF id IS NULL OR octet_length(id) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'the id of a message has 1 to 1024 bytes' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'take the id that the producer gave it, and neither a delivery tag nor an offset';
    END IF;
END $$;

-- The consumer of this name. One that is not there is registered, with a window of 14 days.
CREATE FUNCTION hapax.consumer(of_name text) RETURNS hapax.consumers
LANGUAGE plpgsql AS $$
DECLARE
    c hapax.consumers;
BEGIN
    SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = of_name;
    IF NOT FOUND THEN
        PERFORM hapax.check_consumer(of_name);
        INSERT INTO hapax.consumers (name, time_window, created_at) VALUES (of_name, 1209600000000, hapax.now()) ON CONFLICT DO NOTHING;
        SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = of_name;
    END IF;
    RETURN c;
END $$;

-- The times that a consumer accepts. Asked after its receipts were written, which keeps their tables from being emptied until this transaction ends. Before that it would
-- not be known whether a table is emptied in between.
CREATE FUNCTION hapax.accepts(was hapax.consumers, OUT oldest int8, OUT latest int8)
LANGUAGE plpgsql AS $$
DECLARE
    is_same boolean;
BEGIN
    SELECT greatest(c.since, t.moment - c.time_window), t.moment + 300000000, (c.time_window IS NULL) = (was.time_window IS NULL) INTO oldest, latest, is_same
    FROM hapax.consumers AS c, (SELECT greatest(hapax.clock() + p.skew, p.clock_floor) AS moment FROM hapax.pace AS p OFFSET 0) AS t WHERE c.id = was.id;
    IF NOT is_same THEN
        RAISE EXCEPTION 'the window of this consumer has just been changed' USING ERRCODE = 'serialization_failure', HINT = 'run the transaction again';
    END IF;
END $$;

-- Two deliveries of a message without a time, one after the other: they may write into different tables. Each of the 256 locks is for many ids, so that a batch
-- does not fill the server's table of locks.
CREATE FUNCTION hapax.receipts_lock(ids uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    stripe int4;
BEGIN
    FOR stripe IN SELECT DISTINCT get_byte(uuid_send(i), 0) FROM unnest(ids) AS i ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(1303980046, stripe);
    END LOOP;
END $$;

-- Those that are in any table.
CREATE FUNCTION hapax.receipts_known(ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    RETURN ARRAY(SELECT r.id FROM hapax.receipts AS r WHERE r.id = ANY (ids));
END $$;

-- Receives one message, and returns a letter: n new, d duplicate, o too old, f ahead of the clock. For the last two no receipt was written.
CREATE FUNCTION hapax.receive_one(of_name text, of_id text, of_at int8) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    c hapax.consumers;
    receipt uuid;
    moment int8 := of_at;
    slot int4 := 16;
    accepted record;
    letter text := 'n';
BEGIN
    PERFORM hapax.ready();
    IF of_id IS NULL OR octet_length(of_id) NOT BETWEEN 1 AND 1024 THEN
        PERFORM hapax.check_received(of_id);
    END IF;
    SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = of_name;
    IF NOT FOUND THEN
        c := hapax.consumer(of_name);
    END IF;
    receipt := hapax.receipt_id(of_name, of_id);
    IF of_at IS NULL THEN
        moment := hapax.now();
    END IF;
    IF c.time_window IS NOT NULL THEN
        slot := hapax.receipt_slot(moment);
        IF of_at IS NULL THEN
            PERFORM hapax.receipts_lock(ARRAY[receipt]);
            IF cardinality(hapax.receipts_known(ARRAY[receipt])) > 0 THEN
                RETURN 'd';
            END IF;
        END IF;
    END IF;
    IF NOT hapax.receipt_insert(slot, receipt, moment, c.id) THEN
        RETURN 'd';
    END IF;
    accepted := hapax.accepts(c);
    IF moment < accepted.oldest THEN
        letter := 'o';
    ELSIF moment > accepted.latest THEN
        letter := 'f';
    ELSE
        RETURN letter;
    END IF;
    EXECUTE format('DELETE FROM %s WHERE id = $1', hapax.receipts_table(slot)) USING receipt;
    RETURN letter;
END $$;

-- The same for a batch, by the digests of its ids. The result has a letter for each message, in their order; there are two more: s stale, whose receipt is written,
-- and g after a gap, whose is not. `parks_gaps` says whether a version that is not the next one is a gap.
CREATE FUNCTION hapax.receive_here(of_name text, ids uuid[], ats int8[], entities uuid[], versions int8[], parks_gaps boolean) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    size constant int4 := cardinality(ids);
    c hapax.consumers;
    moment int8;
    untimed uuid[];
    known uuid[] := '{}';
    slot int4;
    slot_ids uuid[];
    slot_ats int8[];
    written uuid[] := '{}';
    accepted record;
    letters text[];
BEGIN
    PERFORM hapax.ready();
    PERFORM hapax.check_consumer(of_name);
    IF size IS DISTINCT FROM cardinality(ats) OR size <> coalesce(cardinality(entities), size) OR size <> coalesce(cardinality(versions), size)
        OR array_position(ids, NULL) IS NOT NULL
    THEN
        RAISE EXCEPTION 'a batch has an id and a time for each message' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF size = 0 THEN
        RETURN '';
    END IF;
    c := hapax.consumer(of_name);
    moment := hapax.now();
    IF c.time_window IS NOT NULL AND array_position(ats, NULL) IS NOT NULL THEN
        untimed := ARRAY(SELECT m.id FROM unnest(ids, ats) AS m(id, at) WHERE m.at IS NULL);
        PERFORM hapax.receipts_lock(untimed);
        known := hapax.receipts_known(untimed);
    END IF;
    -- In one order, so that two batches never wait for each other in a circle.
    FOR slot, slot_ids, slot_ats IN
        SELECT f.slot, array_agg(f.id), array_agg(f.at) FROM (
            SELECT DISTINCT ON (m.id) m.id, coalesce(m.at, moment) AS at,
                CASE WHEN c.time_window IS NULL THEN 16 ELSE hapax.receipt_slot(coalesce(m.at, moment)) END AS slot
            FROM unnest(ids, ats) WITH ORDINALITY AS m(id, at, place)
            ORDER BY m.id, m.place
        ) AS f WHERE f.id <> ALL (known) GROUP BY f.slot ORDER BY f.slot
    LOOP
        written := written || hapax.receipts_insert(slot, slot_ids, slot_ats, c.id);
    END LOOP;
    accepted := hapax.accepts(c);
    IF entities IS NULL AND cardinality(written) = size
        AND NOT EXISTS (SELECT FROM unnest(ats) AS a(at) WHERE a.at < accepted.oldest OR a.at > accepted.latest)
    THEN
        RETURN repeat('n', size);
    END IF;
    -- What was written is at place 0. A repeat within the batch has no letter yet.
    letters := ARRAY(
        SELECT CASE WHEN m.place > m.first THEN NULL WHEN NOT m.is_written THEN 'd' WHEN m.at < accepted.oldest THEN 'o' WHEN m.at > accepted.latest THEN 'f' ELSE 'n' END
        FROM (
            SELECT a.place, a.at, bool_or(a.place = 0) OVER same AS is_written, min(a.place) FILTER (WHERE a.place > 0) OVER same AS first
            FROM (
                SELECT b.id, b.place, coalesce(b.at, moment) AS at FROM unnest(ids, ats) WITH ORDINALITY AS b(id, at, place)
                UNION ALL SELECT w.id, 0, NULL FROM unnest(written) AS w(id)
            ) AS a WINDOW same AS (PARTITION BY a.id)
        ) AS m WHERE m.place > 0 ORDER BY m.place);
    IF entities IS NOT NULL THEN
        letters := hapax.receive_versions(c.id, letters, entities, versions, parks_gaps);
    END IF;
    IF letters && '{o,f,g}' THEN
        FOR slot, slot_ids IN
            SELECT f.slot, array_agg(f.id) FROM (
                SELECT m.id, CASE WHEN c.time_window IS NULL THEN 16 ELSE hapax.receipt_slot(coalesce(m.at, moment)) END AS slot
                FROM unnest(ids, ats, letters) AS m(id, at, letter) WHERE m.letter IN ('o', 'f', 'g')
            ) AS f GROUP BY f.slot
        LOOP
            EXECUTE format('DELETE FROM %s WHERE id = ANY ($1)', hapax.receipts_table(slot)) USING slot_ids;
        END LOOP;
    END IF;
    -- A repeat within the batch is a duplicate if the first one was received.
    IF array_position(letters, NULL) IS NOT NULL THEN
        letters := ARRAY(
            SELECT coalesce(m.letter, CASE WHEN m.first_letter IN ('n', 's') THEN 'd' ELSE m.first_letter END) FROM (
                SELECT b.letter, b.place, first_value(b.letter) OVER (PARTITION BY b.id ORDER BY b.place) AS first_letter
                FROM unnest(ids, letters) WITH ORDINALITY AS b(id, letter, place)
            ) AS m ORDER BY m.place);
    END IF;
    RETURN array_to_string(letters, '');
END $$;

-- Compares the versions of new messages with the last applied ones, and moves those on.
CREATE FUNCTION hapax.receive_versions(of_consumer int4, letters text[], entities uuid[], versions int8[], parks_gaps boolean) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    places int8[];
    of_entities uuid[];
    of_versions int8[];
    fresh uuid[];
    entity uuid;
    last int8;
    m record;
BEGIN
    SELECT array_agg(b.place), array_agg(b.entity), array_agg(b.version) INTO places, of_entities, of_versions
    FROM unnest(letters, entities, versions) WITH ORDINALITY AS b(letter, entity, version, place)
    WHERE b.letter = 'n' AND b.entity IS NOT NULL AND b.version IS NOT NULL;
    IF places IS NULL THEN
        RETURN letters;
    END IF;
    -- The first version that is seen of an entity counts, whatever it is. Rows are written and locked in one order.
    WITH done AS (
        INSERT INTO hapax.versions SELECT f.entity, f.version, of_consumer FROM (
            SELECT DISTINCT ON (b.entity) b.entity, b.version FROM unnest(places, of_entities, of_versions) AS b(place, entity, version) ORDER BY b.entity, b.place
        ) AS f ORDER BY f.entity ON CONFLICT DO NOTHING RETURNING id
    ) SELECT array_agg(d.id) INTO fresh FROM done AS d;
    -- What was applied last is at place 0.
    WITH locked AS (
        SELECT v.id, v.version FROM hapax.versions AS v
        WHERE v.id = ANY (ARRAY(SELECT k FROM unnest(of_entities) AS k EXCEPT SELECT f FROM unnest(fresh) AS f)) ORDER BY v.id FOR NO KEY UPDATE
    )
    SELECT places || array_agg(0::int8), of_entities || array_agg(l.id), of_versions || array_agg(l.version) INTO places, of_entities, of_versions FROM locked AS l;
    IF parks_gaps THEN
        FOR m IN SELECT * FROM unnest(places, of_entities, of_versions) AS b(place, entity, version) ORDER BY b.entity, b.place LOOP
            IF m.entity IS DISTINCT FROM entity THEN
                entity := m.entity;
                last := m.version;
            ELSIF m.version <= last THEN
                letters[m.place] := 's';
            ELSIF m.version > last + 1 THEN
                letters[m.place] := 'g';
            ELSE
                last := m.version;
            END IF;
        END LOOP;
    ELSE
        FOR m IN
            SELECT s.place FROM (
                SELECT b.place, b.version, max(b.version) OVER (PARTITION BY b.entity ORDER BY b.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS last
                FROM unnest(places, of_entities, of_versions) AS b(place, entity, version)
            ) AS s WHERE s.place > 0 AND s.version <= s.last
        LOOP
            letters[m.place] := 's';
        END LOOP;
    END IF;
    SELECT array_agg(n.entity), array_agg(n.version) INTO of_entities, of_versions FROM (
        SELECT b.entity, max(b.version) AS version FROM unnest(places, of_entities, of_versions) AS b(place, entity, version)
        WHERE b.place = 0 OR letters[b.place] = 'n' GROUP BY b.entity ORDER BY b.entity) AS n;
    UPDATE hapax.versions AS v SET version = n.version FROM unnest(of_entities, of_versions) AS n(entity, version) WHERE v.id = n.entity AND v.version < n.version;
    IF parks_gaps THEN
        PERFORM hapax.release_gaps(of_entities, of_versions);
    END IF;
    RETURN letters;
END $$;

-- After the greatest number there is none.
CREATE FUNCTION hapax.next_version(version int8) RETURNS int8
LANGUAGE sql IMMUTABLE AS $$ SELECT version + (version < 9223372036854775807)::int4 $$;

-- Lets messages that were parked after a gap be tried again, once what they waited for is applied.
CREATE FUNCTION hapax.release_gaps(entities uuid[], lasts int8[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    UPDATE hapax.parked AS p SET state = 2, attempts = 0 FROM unnest(entities, lasts) AS n(entity, last)
    WHERE p.state = 1 AND p.kind = 4 AND p.entity = n.entity AND p.version <= hapax.next_version(n.last);
END $$;

-- For any language: receives a message in the caller's transaction. True: apply it and commit. False: it was applied already, acknowledge it. The receipt exists if and
-- only if the transaction commits: call it inside a transaction (after BEGIN), else the receipt is kept and the effect may not be. A duplicate that another
-- transaction is just receiving is waited for.
CREATE FUNCTION hapax.receive(consumer text, id text, at timestamptz DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    letter text;
BEGIN
    IF NOT isfinite(at) THEN
        RAISE EXCEPTION 'the time of a message is a moment, and not infinity' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    letter := hapax.receive_one(consumer, id, (extract(epoch FROM at) * 1000000)::int8);
    IF letter = 'o' THEN
        RAISE EXCEPTION 'the message is older than the receipts of this consumer: nobody can tell whether it was applied' USING ERRCODE = 'HX007',
            HINT = 'park it (hapax.park) and acknowledge it; an operator decides';
    ELSIF letter = 'f' THEN
        RAISE EXCEPTION 'the time of the message is more than five minutes ahead of the clock' USING ERRCODE = 'HX012',
            HINT = 'correct the clock of the producer; park the message (hapax.park) and acknowledge it';
    END IF;
    RETURN letter = 'n';
END $$;

-- The same without errors for what is too old or ahead: the letter of `receive_one`, as a number.
CREATE FUNCTION hapax.receive_message(consumer text, id text, at int8) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ascii(hapax.receive_one(consumer, id, at));
END $$;

-- For any language: receives a batch. `messages` is an array of arrays: id, microseconds since the epoch or null, the entity or null, its version or null. `gaps` is
-- 'apply' or 'park'. Returns a letter for each message, in their order: n new, d duplicate, o too old, f ahead of the clock, s stale, g after a gap.
CREATE FUNCTION hapax.receive_all(consumer text, messages jsonb, gaps text DEFAULT 'apply') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ids uuid[];
    ats int8[];
    entities uuid[];
    versions int8[];
    bad text;
BEGIN
    IF messages IS NULL OR jsonb_typeof(messages) <> 'array' OR jsonb_path_exists(messages, 'strict $[*] ? (@.type() != "array")') THEN
        RAISE EXCEPTION 'hapax.receive_all takes an array of arrays: [[id, microseconds, entity, version], …]' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF gaps IS NULL OR gaps NOT IN ('apply', 'park') THEN
        RAISE EXCEPTION 'gaps are ''apply'' or ''park''' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT m.e::text INTO bad FROM jsonb_array_elements(messages) AS m(e)
    WHERE jsonb_typeof(m.e -> 0) IS DISTINCT FROM 'string' OR octet_length(m.e ->> 0) NOT BETWEEN 1 AND 1024
        OR coalesce(jsonb_typeof(m.e -> 1), 'null') NOT IN ('number', 'null') OR coalesce(jsonb_typeof(m.e -> 2), 'null') NOT IN ('string', 'null')
        OR coalesce(jsonb_typeof(m.e -> 3), 'null') NOT IN ('number', 'null')
    LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'not a message: %', left(bad, 200) USING ERRCODE = 'invalid_parameter_value',
            HINT = 'it is [id, microseconds or null, entity or null, version or null], and its id has 1 to 1024 bytes';
    END IF;
    SELECT coalesce(array_agg(hapax.receipt_id(consumer, m.e ->> 0) ORDER BY m.place), '{}'), coalesce(array_agg((m.e ->> 1)::int8 ORDER BY m.place), '{}'),
        array_agg(hapax.entity_id(consumer, m.e ->> 2) ORDER BY m.place) FILTER (WHERE m.has_entities), array_agg((m.e ->> 3)::int8 ORDER BY m.place) FILTER (WHERE m.has_entities)
    INTO ids, ats, entities, versions
    FROM (SELECT a.e, a.place, bool_or(a.e ->> 3 IS NOT NULL) OVER () AS has_entities FROM jsonb_array_elements(messages) WITH ORDINALITY AS a(e, place)) AS m;
    RETURN hapax.receive_here(consumer, ids, ats, entities, versions, gaps = 'park');
END $$;

-- For programs that compute the digests themselves. A batch does not wait long for one message that another transaction is receiving: it fails with 55P03, and its
-- other messages are received without that one.
CREATE FUNCTION hapax.receive_batch(consumer text, ids uuid[], ats int8[], entities uuid[], versions int8[], parks_gaps boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
BEGIN
    RETURN hapax.receive_here(consumer, ids, ats, entities, versions, parks_gaps);
END $$;

-- Registers a consumer, or changes its window: one hour to 39 days, or null, which is for ever. No receipt is lost. A change from or to 'for ever' moves the receipts of
-- the consumer, and waits for everybody who is receiving.
CREATE FUNCTION hapax.set_window(consumer text, time_window interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '5s' AS $$
DECLARE
    of_name constant text := consumer;
    micros constant int8 := (extract(epoch FROM time_window) * 1000000)::int8;
    oldest int8;
    c hapax.consumers;
BEGIN
    PERFORM hapax.ready();
    PERFORM hapax.check_consumer(of_name);
    IF micros NOT BETWEEN 3600000000 AND 3369600000000 THEN
        RAISE EXCEPTION 'a window is one hour to 39 days long, or null for one without end' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO hapax.consumers (name, time_window, created_at) VALUES (of_name, micros, hapax.now()) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = of_name;
    IF c.time_window IS NOT DISTINCT FROM micros THEN
        RETURN;
    END IF;
    SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = of_name FOR NO KEY UPDATE;
    IF (c.time_window IS NULL) <> (micros IS NULL) THEN
        -- Everybody who has received has ended after this. Who comes later sees the change: see `accepts`.
        EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', (SELECT string_agg(hapax.receipts_table(s), ', ' ORDER BY s) FROM generate_series(0, 16) AS s));
        oldest := greatest(c.since, hapax.now() - coalesce(c.time_window, 3369600000000));
        FOR slot IN 0 .. 15 LOOP
            IF micros IS NULL THEN
                EXECUTE format('WITH moved AS (DELETE FROM %s AS r WHERE r.consumer = $1 RETURNING *) INSERT INTO hapax.receipts_forever SELECT * FROM moved ORDER BY id '
                    'ON CONFLICT DO NOTHING', hapax.receipts_table(slot)) USING c.id;
            ELSE
                EXECUTE format('INSERT INTO %s SELECT * FROM hapax.receipts_forever AS r WHERE r.consumer = $1 AND r.at >= $2 AND hapax.receipt_slot(r.at) = $3 ORDER BY r.id '
                    'ON CONFLICT DO NOTHING', hapax.receipts_table(slot)) USING c.id, oldest, slot;
            END IF;
        END LOOP;
        IF micros IS NOT NULL THEN
            DELETE FROM hapax.receipts_forever AS r WHERE r.consumer = c.id;
        END IF;
    END IF;
    UPDATE hapax.consumers AS o SET time_window = micros, since = coalesce(oldest, o.since) WHERE o.id = c.id;
END $$;

-- Empties tables whose every possible time is over for every window, and forgets failures of a week ago. Returns how many tables. A table that somebody is using is left for the next time. `node_clock` is the
-- time of the caller, in microseconds: if the clock of the server is more than an hour ahead of it, nothing is emptied.
CREATE FUNCTION hapax.receipts_sweep(node_clock int8 DEFAULT NULL) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '50ms' AS $$
DECLARE
    moment int8;
    widest int8;
    oldest int8;
    name text;
    is_used boolean;
    emptied int8 := 0;
BEGIN
    PERFORM hapax.ready();
    IF hapax.now() > node_clock + 3600000000 THEN
        RETURN 0;
    END IF;
    -- Another member has applied the message since, or it never came again.
    DELETE FROM hapax.parked AS p WHERE p.number IN (
        SELECT q.number FROM hapax.parked AS q WHERE q.state = 0 AND q.parked_at < hapax.now() - 604800000000 ORDER BY q.parked_at LIMIT 10000 FOR UPDATE SKIP LOCKED);
    FOR slot IN 0 .. 15 LOOP
        moment := hapax.now();
        widest := coalesce((SELECT max(c.time_window) FROM hapax.consumers AS c), 0);
        CONTINUE WHEN hapax.receipts_count(slot, moment, widest);
        name := hapax.receipts_table(slot);
        CONTINUE WHEN pg_relation_size(name::regclass) = 0;
        -- Receipts of a later time than the clock knows: it was ahead, and was set back.
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE at >= $1)', name) INTO is_used USING moment - widest;
        CONTINUE WHEN is_used;
        BEGIN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', name);
            -- Again, with the lock: everybody who has written here has ended, and every window that they went by is seen.
            moment := hapax.now();
            widest := coalesce((SELECT max(c.time_window) FROM hapax.consumers AS c), 0);
            IF NOT hapax.receipts_count(slot, moment, widest) THEN
                -- What is gone stays too old, also if the clock is set back or a window becomes longer.
                oldest := (moment - widest) / 259200000000 * 259200000000;
                UPDATE hapax.consumers AS c SET since = oldest WHERE c.time_window IS NOT NULL AND c.since < oldest;
                EXECUTE format('TRUNCATE %s', name);
                emptied := emptied + 1;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            -- In use.
        END;
    END LOOP;
    RETURN emptied;
END $$;

-- Parking.

CREATE FUNCTION hapax.parked_kind(kind text) RETURNS int2
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    place int4 := array_position('{failed,too-old,ahead,gap,no-id}', kind);
BEGIN
    IF place IS NULL THEN
        RAISE EXCEPTION 'a message is parked because it failed, or is too-old, ahead, gap or no-id' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN place;
END $$;

-- Counts an attempt at a message that failed, before it is tried again alone. Returns how many there were. Call it in a transaction of its own.
CREATE FUNCTION hapax.message_failed(consumer text, id text, reason text DEFAULT NULL) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '100ms' AS $$
#variable_conflict use_column
DECLARE
    c hapax.consumers;
    count int8;
BEGIN
    PERFORM hapax.ready();
    PERFORM hapax.check_received(message_failed.id);
    c := hapax.consumer(message_failed.consumer);
    INSERT INTO hapax.parked AS p (consumer, receipt, id, state, kind, attempts, reason, parked_at)
    VALUES (c.id, hapax.receipt_id(message_failed.consumer, message_failed.id), message_failed.id, 0, 1, 1, left(message_failed.reason, 4096), hapax.now())
    ON CONFLICT (consumer, receipt) DO UPDATE SET attempts = p.attempts + 1, reason = excluded.reason,
        parked_at = CASE WHEN p.state = 0 THEN excluded.parked_at ELSE p.parked_at END
    RETURNING p.attempts INTO count;
    RETURN count;
END $$;

-- Forgets the failures of a message that is applied after all, in the transaction of its effect. One that is parked stays parked, also if this transaction has parked it.
CREATE FUNCTION hapax.message_recovered(consumer text, id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM hapax.ready();
    DELETE FROM hapax.parked AS p USING hapax.consumers AS c
    WHERE c.name = message_recovered.consumer AND p.consumer = c.id AND p.receipt = hapax.receipt_id(message_recovered.consumer, message_recovered.id) AND p.state = 0;
    RETURN FOUND;
END $$;

-- Parks a message, to be acknowledged afterwards. Returns whether it did: not if it is parked already. A message without an id gets one of its content. `kind` is failed,
-- too-old, ahead, gap or no-id.
CREATE FUNCTION hapax.park(
    consumer text, id text, kind text, reason text DEFAULT NULL, topic text DEFAULT NULL, key text DEFAULT NULL, entity text DEFAULT NULL, version int8 DEFAULT NULL,
    at timestamptz DEFAULT NULL, headers jsonb DEFAULT NULL, payload bytea DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hapax.park_message(consumer, id, kind, reason, topic, key, entity, version,
        CASE WHEN isfinite(at) THEN (extract(epoch FROM at) * 1000000)::int8 END, headers, payload);
END $$;

-- The same with the time in microseconds.
CREATE FUNCTION hapax.park_message(
    consumer text, id text, kind text, reason text, topic text, key text, entity text, version int8, at int8, headers jsonb, payload bytea
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    c hapax.consumers;
    of_kind constant int2 := hapax.parked_kind(park_message.kind);
    of_entity constant uuid := CASE WHEN park_message.version IS NOT NULL THEN hapax.entity_id(park_message.consumer, park_message.entity) END;
    of_id text := park_message.id;
    as_state int2 := 1;
    last int8;
BEGIN
    PERFORM hapax.ready();
    c := hapax.consumer(park_message.consumer);
    IF of_id IS NULL AND of_kind = 5 THEN
        of_id := 'no-id-' || replace(hapax.receipt_id(coalesce(park_message.topic, '') || chr(31) || coalesce(park_message.key, ''), encode(sha256(coalesce(park_message.payload, '')), 'hex'))::text, '-', '');
    END IF;
    PERFORM hapax.check_received(of_id);
    IF of_kind = 4 THEN
        -- Whoever applies the version before waits for this, or is waited for.
        SELECT v.version INTO last FROM hapax.versions AS v WHERE v.id = of_entity FOR NO KEY UPDATE;
        IF park_message.version <= hapax.next_version(last) THEN
            as_state := 2;
        END IF;
    END IF;
    INSERT INTO hapax.parked AS p (consumer, receipt, id, state, kind, reason, topic, key, entity, version, at, headers, payload, parked_at)
    VALUES (c.id, hapax.receipt_id(park_message.consumer, of_id), of_id, as_state, of_kind, left(park_message.reason, 4096), park_message.topic, park_message.key, of_entity,
        CASE WHEN of_entity IS NOT NULL THEN park_message.version END, park_message.at, park_message.headers, park_message.payload, hapax.now())
    ON CONFLICT (consumer, receipt) DO UPDATE SET
        state = excluded.state, kind = excluded.kind, reason = coalesce(excluded.reason, p.reason), topic = excluded.topic, key = excluded.key, entity = excluded.entity,
        version = excluded.version, at = excluded.at, headers = excluded.headers, payload = excluded.payload, parked_at = excluded.parked_at
    WHERE p.state = 0;
    RETURN FOUND;
END $$;

-- Parks a message again that was to be tried again and failed.
CREATE FUNCTION hapax.park_again(consumer text, id text, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM hapax.ready();
    UPDATE hapax.parked AS p SET state = 1, kind = 1, reason = left(park_again.reason, 4096) FROM hapax.consumers AS c
    WHERE c.name = park_again.consumer AND p.consumer = c.id AND p.receipt = hapax.receipt_id(park_again.consumer, park_again.id) AND p.state = 2;
    RETURN FOUND;
END $$;

-- Takes the next message that is to be tried again, until the caller's transaction ends. One whose receipt may be gone by now is parked again, unless an operator has
-- said that it was not applied. Its headers are texts, whatever they were parked as.
CREATE FUNCTION hapax.parked_take(consumer text) RETURNS TABLE (
    id text, kind text, attempts int8, reason text, topic text, key text, version int8, at int8, headers text, payload bytea
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    c hapax.consumers;
BEGIN
    PERFORM hapax.ready();
    SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = parked_take.consumer;
    UPDATE hapax.parked AS p SET state = 1, kind = 2 WHERE p.number IN (
        SELECT q.number FROM hapax.parked AS q
        WHERE q.consumer = c.id AND q.state = 2 AND NOT q.not_applied AND coalesce(q.at, q.parked_at) < greatest(c.since, hapax.now() - c.time_window)
        FOR NO KEY UPDATE SKIP LOCKED);
    RETURN QUERY
    SELECT p.id, ('{failed,too-old,ahead,gap,no-id}'::text[])[p.kind], p.attempts::int8, p.reason, p.topic, p.key, p.version, p.at,
        (SELECT jsonb_object_agg(h.key, coalesce(h.value #>> '{}', '')) FROM jsonb_each(CASE WHEN jsonb_typeof(p.headers) = 'object' THEN p.headers END) AS h)::text, p.payload
    FROM hapax.parked AS p WHERE p.consumer = c.id AND p.state = 2 ORDER BY p.number LIMIT 1 FOR UPDATE OF p SKIP LOCKED;
END $$;

-- Writes the receipt of a message that was parked. False if there is one.
CREATE FUNCTION hapax.parked_receipt(c hapax.consumers, p hapax.parked) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    moment int8 := hapax.now();
    slot int4 := CASE WHEN c.time_window IS NULL THEN 16 ELSE hapax.receipt_slot(coalesce(p.at, moment)) END;
BEGIN
    IF p.at IS NULL AND slot < 16 THEN
        PERFORM hapax.receipts_lock(ARRAY[p.receipt]);
        IF cardinality(hapax.receipts_known(ARRAY[p.receipt])) > 0 THEN
            RETURN false;
        END IF;
    END IF;
    IF NOT hapax.receipt_insert(slot, p.receipt, least(p.at, moment), c.id) THEN
        RETURN false;
    END IF;
    IF coalesce(p.at, p.parked_at) < (hapax.accepts(c)).oldest AND NOT p.not_applied THEN
        RAISE EXCEPTION 'the message is older than the receipts of this consumer: nobody can tell whether it was applied' USING ERRCODE = 'HX007',
            HINT = 'roll back: it is parked again';
    END IF;
    RETURN true;
END $$;

-- Receives a message that was parked, in the transaction of its effect: its row goes, and its receipt is written. True: apply it and commit. False: it was applied
-- already, or a later version was, or it is no longer parked; commit, so that its row goes. It does not wait long for another transaction that is receiving it: it fails
-- with 55P03.
CREATE FUNCTION hapax.parked_done(consumer text, id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '100ms' AS $$
#variable_conflict use_column
DECLARE
    c hapax.consumers;
    was hapax.parked;
BEGIN
    PERFORM hapax.ready();
    SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = parked_done.consumer;
    DELETE FROM hapax.parked AS p WHERE p.consumer = c.id AND p.receipt = hapax.receipt_id(parked_done.consumer, parked_done.id) AND p.state = 2 RETURNING * INTO was;
    IF was.number IS NULL OR NOT hapax.parked_receipt(c, was) THEN
        RETURN false;
    END IF;
    IF was.entity IS NOT NULL THEN
        INSERT INTO hapax.versions AS v VALUES (was.entity, was.version, c.id)
        ON CONFLICT (id) DO UPDATE SET version = excluded.version WHERE v.version < excluded.version;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM hapax.release_gaps(ARRAY[was.entity], ARRAY[was.version]);
    END IF;
    RETURN true;
END $$;

-- For operators.

-- Every consumer and what is parked of it. `receipts` is an estimate of the server, of all consumers whose receipts are in the same tables.
CREATE FUNCTION hapax.consumers_now() RETURNS TABLE (
    name text, time_window int8, since int8, created_at int8, receipts int8, trying int8, again int8, failed int8, too_old int8, ahead int8, gap int8, no_id int8,
    oldest_parked_at int8, now int8
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    in_ring constant int8 := (SELECT sum(greatest(t.reltuples, 0))::int8 FROM pg_class AS t
        WHERE t.relnamespace = 'hapax'::regnamespace AND t.relkind = 'r' AND t.relname LIKE 'receipts\___');
    for_ever constant int8 := (SELECT greatest(t.reltuples, 0)::int8 FROM pg_class AS t WHERE t.oid = 'hapax.receipts_forever'::regclass);
BEGIN
    RETURN QUERY
    SELECT c.name, c.time_window, c.since, c.created_at, CASE WHEN c.time_window IS NULL THEN for_ever ELSE in_ring END,
        count(p.number) FILTER (WHERE p.state = 0), count(p.number) FILTER (WHERE p.state = 2), count(p.number) FILTER (WHERE p.state = 1 AND p.kind = 1),
        count(p.number) FILTER (WHERE p.state = 1 AND p.kind = 2), count(p.number) FILTER (WHERE p.state = 1 AND p.kind = 3),
        count(p.number) FILTER (WHERE p.state = 1 AND p.kind = 4), count(p.number) FILTER (WHERE p.state = 1 AND p.kind = 5),
        min(p.parked_at) FILTER (WHERE p.state = 1), hapax.now()
    FROM hapax.consumers AS c LEFT JOIN hapax.parked AS p ON p.consumer = c.id GROUP BY c.id ORDER BY c.name;
END $$;

-- Parked messages by their numbers, after one.
CREATE FUNCTION hapax.parked_list(of_consumer text, of_state int2, after_number int8, rows_max int4) RETURNS TABLE (
    number int8, consumer text, id text, state int2, kind text, attempts int4, reason text, topic text, key text, version int8, at int8, headers text,
    payload_bytes int4, parked_at int8
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT p.number, c.name, p.id, p.state, ('{failed,too-old,ahead,gap,no-id}'::text[])[p.kind], p.attempts, p.reason, p.topic, p.key, p.version, p.at,
        p.headers::text, octet_length(p.payload), p.parked_at
    FROM hapax.parked AS p JOIN hapax.consumers AS c ON c.id = p.consumer
    WHERE (of_consumer IS NULL OR c.name = of_consumer) AND (of_state IS NULL OR p.state = of_state) AND p.number > coalesce(after_number, 0)
    ORDER BY p.number LIMIT rows_max;
END $$;

-- One message, at one consumer or at each.
CREATE FUNCTION hapax.parked_find(of_consumer text, of_id text) RETURNS TABLE (
    number int8, consumer text, id text, state int2, kind text, attempts int4, reason text, topic text, key text, version int8, at int8, headers text,
    payload bytea, parked_at int8
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT p.number, c.name, p.id, p.state, ('{failed,too-old,ahead,gap,no-id}'::text[])[p.kind], p.attempts, p.reason, p.topic, p.key, p.version, p.at,
        p.headers::text, p.payload, p.parked_at
    FROM hapax.consumers AS c JOIN hapax.parked AS p ON p.consumer = c.id AND p.receipt = hapax.receipt_id(c.name, of_id)
    WHERE of_consumer IS NULL OR c.name = of_consumer ORDER BY p.number;
END $$;

-- Lets a parked message be tried again. If its receipt may be gone, `not_applied` must state that it was not applied. In the audit log. Returns whether there was one.
CREATE FUNCTION hapax.parked_retry(of_consumer text, of_id text, not_applied boolean, signed_by bytea, reason bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    c hapax.consumers;
    was hapax.parked;
BEGIN
    PERFORM hapax.ready();
    SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = of_consumer;
    SELECT * INTO was FROM hapax.parked AS p WHERE p.consumer = c.id AND p.receipt = hapax.receipt_id(of_consumer, of_id) AND p.state = 1 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF parked_retry.not_applied IS NOT TRUE
        AND (was.kind = 2 OR coalesce(was.at, was.parked_at) < greatest(c.since, hapax.now() - c.time_window))
    THEN
        RAISE EXCEPTION 'the message is older than the receipts of this consumer: nobody can tell whether it was applied' USING ERRCODE = 'HX013',
            HINT = 'look whether its effect is there; then state that it was not applied, or skip it';
    END IF;
    UPDATE hapax.parked AS p SET state = 2, attempts = 0, not_applied = coalesce(parked_retry.not_applied, false) WHERE p.number = was.number;
    PERFORM hapax.write_down(hapax.now(), 'inbox-retry', signed_by, parked_retry.reason || convert_to(
        ' (' || of_consumer || ', ' || of_id || CASE WHEN parked_retry.not_applied THEN ', not applied' ELSE '' END || ')', 'UTF8'), NULL, NULL);
    RETURN true;
END $$;

-- Takes a parked message out for good: its receipt is written, so that it is never applied. A message that waits for it after a gap is tried, and one that comes later is
-- after no gap. In the audit log. Returns whether there was one.
CREATE FUNCTION hapax.parked_skip(of_consumer text, of_id text, signed_by bytea, reason bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    c hapax.consumers;
    was hapax.parked;
BEGIN
    PERFORM hapax.ready();
    SELECT * INTO c FROM hapax.consumers AS o WHERE o.name = of_consumer;
    DELETE FROM hapax.parked AS p WHERE p.consumer = c.id AND p.receipt = hapax.receipt_id(of_consumer, of_id) RETURNING * INTO was;
    IF was.number IS NULL THEN
        RETURN false;
    END IF;
    was.not_applied := true;
    PERFORM hapax.parked_receipt(c, was);
    IF was.entity IS NOT NULL THEN
        UPDATE hapax.versions AS v SET version = was.version WHERE v.id = was.entity AND v.version < was.version AND hapax.next_version(v.version) = was.version;
        PERFORM hapax.release_gaps(ARRAY[was.entity], ARRAY[was.version]);
    END IF;
    PERFORM hapax.write_down(hapax.now(), 'inbox-skip', signed_by, parked_skip.reason || convert_to(' (' || of_consumer || ', ' || of_id || ')', 'UTF8'), NULL, NULL);
    RETURN true;
END $$;

DO $do$
DECLARE
    name text;
BEGIN
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA hapax FROM PUBLIC;
    -- What a running store calls, for the roles that were granted the rest.
    FOREACH name IN ARRAY '{receive_message,receive_batch,set_window,receipts_sweep,message_failed,message_recovered,park_message,park_again,parked_take,parked_done,'
        'consumers_now,parked_list,parked_find,parked_retry,parked_skip}'::text[]
    LOOP
        PERFORM hapax.grant_like(p.oid::regprocedure, 'hapax.pulse()') FROM pg_proc AS p WHERE p.pronamespace = 'hapax'::regnamespace AND p.proname = name;
    END LOOP;
END $do$;
