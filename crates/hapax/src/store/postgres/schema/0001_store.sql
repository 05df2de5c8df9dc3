-- The store: what `hapax` keeps in a Postgres database, and the only ways to change it.
--
-- A node calls the functions below and nothing else; it needs no right on any table. Each function is one verb of a store: one
-- statement, one transaction, one round trip. They say in SQL what core/src/guard.rs says in Rust, by this server's clock.
--
-- Times and durations are microseconds. States are numbers: 1 running, 2 completed, 3 failed, 4 retryable, 5 unknown, and 10 to 13 what
-- a tombstone remembers: completed, failed, retryable, unknown. Names are bytes: they may hold anything, in any encoding.

CREATE SCHEMA IF NOT EXISTS hapax;
REVOKE ALL ON SCHEMA hapax FROM PUBLIC;

-- What belongs to the store as a whole and rarely changes.
CREATE TABLE hapax.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The version of this schema, and the oldest version that a program may have been made for.
    schema int4 NOT NULL,
    oldest int4 NOT NULL,
    secret bytea NOT NULL CHECK (octet_length(secret) = 32),
    -- Counts every forgetting.
    epoch int8 NOT NULL DEFAULT 0,
    -- The number of the last entry in the audit log. In a row of its own lock: numbers have no gaps, and become visible in order.
    logged int8 NOT NULL DEFAULT 0,
    -- Which server wrote this, on which timeline: another one may lack what this one had acknowledged.
    system_identifier int8 NOT NULL,
    timeline int4 NOT NULL
);

-- What the sweep moves on, and every claim and every end reads. Apart from `meta`, so that neither waits for the other.
CREATE TABLE hapax.pace (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- Time never runs back behind this, though the server's clock may be set, or another server have taken over.
    clock_floor int8 NOT NULL DEFAULT 0,
    -- And never stands still: by so much time is ahead of the clock since that was set back.
    skew int8 NOT NULL DEFAULT 0,
    -- The highest fence of any record that was removed.
    floor int8 NOT NULL DEFAULT 0,
    -- How long a slot of each ring of answers is written to.
    hours_width int8 NOT NULL DEFAULT 7200000000,
    days_width int8 NOT NULL DEFAULT 172800000000,
    -- No lease that ended before this is still to be written down as lost.
    lapsed_to int8 NOT NULL DEFAULT 0,
    -- The block of `heads` at which the sweep goes on.
    walked_to int8 NOT NULL DEFAULT 0,
    -- Why nobody may use the store: it is being copied, or has moved.
    closed text
) WITH (fillfactor = 10);

-- One row for each key. No index is on what the end of an attempt changes, so that it is written beside the old row on the same page and
-- no index hears of it; for that there is room on every page.
CREATE TABLE hapax.heads (
    -- Below 2^53, which every language can hold. No constraint says so: one would be parsed anew by each statement that writes here. See `no_fences`.
    fence int8 NOT NULL,
    version int8 NOT NULL,
    lease_until int8 NOT NULL,
    created_at int8 NOT NULL,
    claimed_at int8 NOT NULL,
    finished_at int8 NOT NULL,
    expires_at int8 NOT NULL,
    tombstone_until int8 NOT NULL,
    policy int8,
    -- By what its answer is kept if it ends in a transaction of somebody else's; null where it may not.
    terms int8,
    token uuid NOT NULL,
    attempts int4 NOT NULL,
    status int4,
    state int2 NOT NULL,
    -- Where the answer is, if it was kept.
    slot int2,
    -- Whether nobody knows what became of it: state 5 or 13. A column, because an index on the state would be written at each end.
    lost boolean NOT NULL,
    id bytea NOT NULL PRIMARY KEY,
    fingerprint bytea,
    namespace bytea NOT NULL,
    principal bytea,
    method bytea NOT NULL,
    path bytea NOT NULL,
    key bytea NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
        autovacuum_analyze_scale_factor = 0.1);
-- Grows at its end only: by this the sweep finds leases that are over.
CREATE INDEX heads_lease_until ON hapax.heads (lease_until);
CREATE INDEX heads_lost ON hapax.heads (id) WHERE lost;

CREATE TABLE hapax.policies (
    id int8 PRIMARY KEY,
    content bytea NOT NULL
);

-- What a route says of answers, for those that are completed where the route is not at hand.
CREATE TABLE hapax.terms (
    id int8 PRIMARY KEY,
    retention int8 NOT NULL,
    tombstone int8 NOT NULL,
    -- Whether answers are kept at all, how long a body at most, and whether with cookies.
    keep boolean NOT NULL,
    bytes_max int8 NOT NULL,
    cookies boolean NOT NULL,
    version bytea
);

CREATE TABLE hapax.audit (
    sequence int8 PRIMARY KEY,
    at int8 NOT NULL,
    action bytea NOT NULL,
    signed_by bytea NOT NULL,
    reason bytea NOT NULL,
    id bytea,
    namespace bytea,
    principal bytea,
    method bytea,
    path bytea,
    key bytea,
    before int2,
    after int2,
    status int4,
    fence int8,
    version int8
);
CREATE INDEX audit_id ON hapax.audit (id, sequence) WHERE id IS NOT NULL;

-- Answers are the volume. They live in two rings of sixteen plain tables, 0 to 15 by hours and 16 to 31 by days, each in the table of the
-- time in which it expires; so a table is emptied whole when its time is over, and nothing has to be looked for. Table 32 has what
-- outlasts both rings, row by row.
--
-- Plain tables and no partitions: emptying a partition waits for whoever has touched any of its sisters, and everybody behind it waits too.
CREATE TABLE hapax.slots (
    slot int2 PRIMARY KEY,
    -- The last time, counted in widths, for which it was emptied.
    cleared int8 NOT NULL DEFAULT 0
);

DO $do$
DECLARE
    name text;
BEGIN
    FOR slot IN 0 .. 32 LOOP
        name := 'answers_' || lpad(slot::text, 2, '0');
        -- The fence before the id: it grows with time, so that the index grows at its end. What is claimed in one batch has one fence.
        EXECUTE format('CREATE TABLE hapax.%I (fence int8 NOT NULL, expires_at int8 NOT NULL, id bytea NOT NULL, content bytea NOT NULL)', name);
        EXECUTE format('ALTER TABLE hapax.%I ALTER COLUMN content SET STORAGE EXTERNAL', name);
        EXECUTE format('CREATE INDEX %I ON hapax.%I (fence, id)', name || '_fence', name);
        -- There is no key to tell rows by; without this nothing could be deleted in a database that publishes all its tables.
        EXECUTE format('ALTER TABLE hapax.%I REPLICA IDENTITY FULL', name);
        INSERT INTO hapax.slots (slot) VALUES (slot);
    END LOOP;
END $do$;
CREATE INDEX answers_32_expires_at ON hapax.answers_32 (expires_at);

-- What a function says of one record: what became of a write, and the record as it is stored.
CREATE TYPE hapax.verdict AS (
    -- 0 it lost, or was only read; 1 it won; 2 nobody could tell: ask again.
    verdict int2,
    now int8,
    id bytea,
    -- Null if there is no record.
    state int2,
    fence int8,
    version int8,
    attempts int4,
    lease_until int8,
    created_at int8,
    claimed_at int8,
    finished_at int8,
    expires_at int8,
    tombstone_until int8,
    status int4,
    kept boolean,
    token uuid,
    fingerprint bytea,
    policy int8,
    namespace bytea,
    principal bytea,
    method bytea,
    path bytea,
    key bytea,
    answer bytea
);

-- The clock of this server, which judges every lease. A function of its own, so that a test can turn it by hand.
CREATE FUNCTION hapax.clock() RETURNS int8
LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 $$;

CREATE FUNCTION hapax.now() RETURNS int8
LANGUAGE plpgsql VOLATILE SET jit = off AS $$
BEGIN
    RETURN (SELECT greatest(hapax.clock() + pace.skew, pace.clock_floor) FROM hapax.pace AS pace);
END $$;

-- The state as it is at a moment, whether or not a sweep has come by: `Head::state_at`.
CREATE FUNCTION hapax.state_at(state int2, lease_until int8, expires_at int8, moment int8) RETURNS int2
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN state = 1 AND lease_until <= moment THEN 5
        WHEN state = 1 THEN 1
        WHEN expires_at <= moment AND state < 10 THEN state + 8
        ELSE state
    END::int2
$$;

-- Whether a record is as good as absent: `Head::is_gone`. What was never resolved stays for good.
CREATE FUNCTION hapax.is_gone(state int2, tombstone_until int8, moment int8) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT state NOT IN (1, 5, 13) AND tombstone_until <= moment $$;

CREATE FUNCTION hapax.verdict_of(verdict int2, moment int8, h hapax.heads, answer bytea) RETURNS hapax.verdict
LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(verdict, moment, h.id, h.state, h.fence, h.version, h.attempts, h.lease_until, h.created_at, h.claimed_at, h.finished_at,
               h.expires_at, h.tombstone_until, h.status, h.slot IS NOT NULL, h.token, h.fingerprint, h.policy, h.namespace, h.principal,
               h.method, h.path, h.key, answer)::hapax.verdict
$$;

-- Where an answer goes that expires then: into the table of the time in which it expires, in the first ring that reaches so far. A ring
-- is never written to within three widths of coming round, which leaves a time in which its oldest table can be emptied.
CREATE FUNCTION hapax.slot_for(expires_at int8, moment int8, hours_width int8, days_width int8) RETURNS int2
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN expires_at / hours_width - moment / hours_width <= 13 THEN expires_at / hours_width % 16
        WHEN expires_at / days_width - moment / days_width <= 13 THEN 16 + expires_at / days_width % 16
        ELSE 32
    END::int2
$$;

-- Refuses to go on where the promises would not hold, and makes the commit wait for the disk whatever the database's default is.
CREATE FUNCTION hapax.ready() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'hapax works under READ COMMITTED only, and this session is under %', current_setting('transaction_isolation')
            USING ERRCODE = 'HX001', HINT = 'ALTER ROLE … SET default_transaction_isolation = ''read committed''';
    END IF;
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

CREATE FUNCTION hapax.not_a_standby() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby, and what it has may be old' USING ERRCODE = '25006';
    END IF;
END $$;

-- A choice among statements, the first of which is for slot 0, by halves: each condition that is looked at costs a microsecond in each
-- transaction, and a CASE looks at one after the other.
CREATE FUNCTION hapax.by_slot(slot text, statements text[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    width int4 := 1;
    count int4 := cardinality(statements);
BEGIN
    WHILE width < count LOOP
        FOR place IN 1 .. count - width BY 2 * width LOOP
            statements[place] := format(E'IF %s < %s THEN\n%s\nELSE\n%s\nEND IF;', slot, place + width - 1, statements[place], statements[place + width]);
        END LOOP;
        width := 2 * width;
    END LOOP;
    RETURN statements[1];
END $$;

-- The functions that name the tables of answers: one static statement for each table, as plans are kept for static ones only.
DO $do$
DECLARE
    -- Every column of a verdict but the first and the last, of a head `h`.
    head constant text := 'moment, h.id, h.state, h.fence, h.version, h.attempts, h.lease_until, h.created_at, h.claimed_at, h.finished_at,
               h.expires_at, h.tombstone_until, h.status, h.slot IS NOT NULL, h.token, h.fingerprint, h.policy, h.namespace, h.principal,
               h.method, h.path, h.key';
    read text[];
    finish text[];
    content text[];
    keep text[];
    unkeep text[];
    name text;
BEGIN
    FOR slot IN 0 .. 32 LOOP
        name := 'hapax.answers_' || lpad(slot::text, 2, '0');
        read := read || format($sql$
            RETURN QUERY
            SELECT (CASE WHEN a.content IS NULL THEN 2 ELSE 0 END)::int2, moment, %3$s, a.content
            FROM unnest(part.ids) AS g(id)
            CROSS JOIN LATERAL (SELECT * FROM hapax.heads AS o WHERE o.id = g.id LIMIT 1) AS h
            LEFT JOIN LATERAL (SELECT k.content FROM %2$s AS k WHERE k.fence = h.fence AND k.id = h.id AND h.slot = %1$s LIMIT 1) AS a ON true;$sql$,
            slot, name, replace(head, 'moment, ', ''));
        finish := finish || format($sql$
            RETURN QUERY
            WITH h AS (
                UPDATE hapax.heads AS o SET
                    state = g.state, status = g.status, version = o.version + 1, finished_at = moment, expires_at = moment + g.retention,
                    tombstone_until = moment + g.retention + g.tombstone, slot = g.slot, lost = g.state = 5
                FROM (
                    SELECT u.*, CASE WHEN u.answer IS NOT NULL
                        THEN hapax.slot_for(moment + u.retention, moment, pace.hours_width, pace.days_width) END AS slot
                    FROM unnest(ids, fences, states, statuses, retentions, tombstones, answers)
                        AS u(id, fence, state, status, retention, tombstone, answer)
                ) AS g
                WHERE o.id = ANY (ARRAY[g.id]) AND o.fence = g.fence AND o.state IN (1, 5, 13) AND o.fingerprint IS NOT NULL
                    AND g.state IN (2, 3, 4, 5) AND (only_slot OR g.slot IS NOT DISTINCT FROM into_slot)
                RETURNING o.*, g.answer
            ), kept AS (
                INSERT INTO %1$s (fence, expires_at, id, content)
                SELECT h.fence, h.expires_at, h.id, h.answer FROM h WHERE h.answer IS NOT NULL
            )
            SELECT 1::int2, %2$s, NULL::bytea FROM h;$sql$, name, head);
        content := content || format('RETURN (SELECT a.content FROM %s AS a WHERE a.fence = h.fence AND a.id = h.id LIMIT 1);', name);
        keep := keep || format('INSERT INTO %s (fence, expires_at, id, content) VALUES (of_fence, expires, of_id, answer);', name);
        unkeep := unkeep || format('DELETE FROM %s AS a WHERE a.fence = h.fence AND a.id = h.id;', name);
    END LOOP;

    -- Records as they are, answers included: one row for each id.
    EXECUTE $sql$
CREATE FUNCTION hapax.get(ids bytea[], at_moment int8 DEFAULT NULL) RETURNS SETOF hapax.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_memoize = off SET plan_cache_mode = force_generic_plan SET jit = off AS $fn$
DECLARE
    moment int8;
    part record;
    one hapax.heads;
    content bytea;
BEGIN
    IF pg_is_in_recovery() THEN
        PERFORM hapax.not_a_standby();
    END IF;
    -- Whoever lost is told of the moment by which it lost, and of no later one.
    IF at_moment IS NULL THEN
        SELECT greatest(hapax.clock() + pace.skew, pace.clock_floor) INTO moment FROM hapax.pace AS pace;
    ELSE
        moment := at_moment;
    END IF;
    -- One alone: see `claim`.
    IF cardinality(ids) = 1 THEN
        SELECT * INTO one FROM hapax.heads AS o WHERE o.id = ids[1];
        IF one.slot IS NOT NULL AND one.expires_at > moment THEN
            content := hapax.content(one);
            RETURN QUERY SELECT (CASE WHEN content IS NULL THEN 2 ELSE 0 END)::int2, $sql$ || replace(head, 'h.', 'one.') || $sql$, content;
        ELSE
            RETURN QUERY SELECT 0::int2, $sql$ || replace(replace(head, 'h.id', 'ids[1]'), 'h.', 'one.') || $sql$, NULL::bytea;
        END IF;
        RETURN;
    END IF;
    -- First where the answers are, if any: each table is asked for its own. What changes between the two looks is asked again.
    FOR part IN
        SELECT CASE WHEN o.expires_at > moment THEN o.slot END AS slot, array_agg(g.id) AS ids
        FROM unnest(ids) AS g(id) LEFT JOIN LATERAL (SELECT f.slot, f.expires_at FROM hapax.heads AS f WHERE f.id = g.id LIMIT 1) AS o ON true
        GROUP BY 1
    LOOP
        IF part.slot IS NOT NULL THEN
            $sql$ || hapax.by_slot('part.slot', read) || format($sql$
        ELSE
            RETURN QUERY
            SELECT (CASE WHEN h.slot IS NOT NULL AND h.expires_at > moment THEN 2 ELSE 0 END)::int2, %s, NULL::bytea
            FROM unnest(part.ids) AS g(id)
            LEFT JOIN LATERAL (SELECT * FROM hapax.heads AS o WHERE o.id = g.id LIMIT 1) AS h ON true;
        END IF;
    END LOOP;
END $fn$$sql$, replace(head, 'h.id', 'g.id'));

    -- Attempts that end, under `Held`. Neither lease nor retention matters: late is not lost.
    EXECUTE $sql$
CREATE FUNCTION hapax.finish(
    ids bytea[], fences int8[], states int2[], statuses int4[], retentions int8[], tombstones int8[], answers bytea[]
) RETURNS SETOF hapax.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $fn$
DECLARE
    pace hapax.pace;
    moment int8;
    one hapax.heads;
    into_slots int2[];
    into_slot int2;
    only_slot boolean;
    ended int4 := 0;
    count int4;
    kept boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM hapax.ready();
    END IF;
    SELECT * INTO pace FROM hapax.pace;
    moment := greatest(hapax.clock() + pace.skew, pace.clock_floor);
    -- One alone: see `claim`.
    IF cardinality(ids) = 1 THEN
        UPDATE hapax.heads AS o SET
            state = states[1], status = statuses[1], version = o.version + 1, finished_at = moment, expires_at = moment + retentions[1],
            tombstone_until = moment + retentions[1] + tombstones[1], lost = states[1] = 5,
            slot = CASE WHEN answers[1] IS NOT NULL
                THEN hapax.slot_for(moment + retentions[1], moment, pace.hours_width, pace.days_width) END
        WHERE o.id = ids[1] AND o.fence = fences[1] AND o.state IN (1, 5, 13) AND o.fingerprint IS NOT NULL AND states[1] IN (2, 3, 4, 5)
        RETURNING o.* INTO one;
        IF NOT FOUND THEN
            RETURN QUERY SELECT * FROM hapax.get(ids, moment);
            RETURN;
        END IF;
        IF one.slot IS NOT NULL THEN
            kept := hapax.keep(one.slot, one.fence, one.expires_at, one.id, answers[1]);
        END IF;
        RETURN QUERY SELECT 1::int2, $sql$ || replace(head, 'h.', 'one.') || $sql$, NULL::bytea;
        RETURN;
    END IF;
    -- Routes that keep their answers equally long have them in one table: then all is one statement.
    SELECT array_agg(DISTINCT hapax.slot_for(moment + g.retention, moment, pace.hours_width, pace.days_width)) INTO into_slots
    FROM unnest(retentions, answers) AS g(retention, answer) WHERE g.answer IS NOT NULL;
    only_slot := coalesce(cardinality(into_slots), 0) <= 1;
    IF NOT only_slot THEN
        into_slots := into_slots || NULL::int2;
    END IF;
    FOREACH into_slot IN ARRAY coalesce(into_slots, '{32}') LOOP
        $sql$ || hapax.by_slot('coalesce(into_slot, 32)', finish) || $sql$
        GET DIAGNOSTICS count = ROW_COUNT;
        ended := ended + count;
    END LOOP;
    IF ended < cardinality(ids) THEN
        -- Those whose fence is no longer theirs. One that has just ended has a row already and is passed over.
        RETURN QUERY SELECT * FROM hapax.get(ids, moment) AS seen WHERE NOT EXISTS (
            SELECT FROM unnest(ids, fences, states) AS g(id, fence, state) JOIN hapax.heads AS o ON o.id = ANY (ARRAY[g.id])
            WHERE g.id = seen.id AND o.fence = g.fence AND o.xmin = pg_current_xact_id_if_assigned()::xid);
    END IF;
END $fn$$sql$;

    EXECUTE $sql$
CREATE FUNCTION hapax.content(h hapax.heads) RETURNS bytea
LANGUAGE plpgsql AS $fn$
BEGIN
    $sql$ || hapax.by_slot('h.slot', content) || $sql$
END $fn$$sql$;

    EXECUTE $sql$
-- Returns something, because a function in an assignment costs less than one that is performed.
CREATE FUNCTION hapax.keep(slot int2, of_fence int8, expires int8, of_id bytea, answer bytea) RETURNS boolean
LANGUAGE plpgsql AS $fn$
BEGIN
    $sql$ || hapax.by_slot('slot', keep) || $sql$
    RETURN true;
END $fn$$sql$;

    EXECUTE $sql$
CREATE FUNCTION hapax.unkeep(h hapax.heads) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $fn$
BEGIN
    IF h.slot IS NOT NULL THEN
        $sql$ || hapax.by_slot('h.slot', unkeep) || $sql$
    END IF;
END $fn$$sql$;
END $do$;
DROP FUNCTION hapax.by_slot;

-- Only a clock beyond the year 2255 comes so far.
CREATE FUNCTION hapax.no_fences() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fences end at 2^53: the clock of this store is wrong, or that of one it was copied from' USING ERRCODE = 'numeric_value_out_of_range';
END $$;

-- New attempts: under `Absent` where no fence is given, else under `Lapsed`. Ids are distinct and sorted. What is not decided has no row
-- in the result: it is asked again, never taken for absent. Of a record that is new only what the caller did not say is said.
CREATE FUNCTION hapax.claim(
    ids bytea[], fences int8[], tokens uuid[], leases int8[], policies int8[], fingerprints bytea[], namespaces bytea[], principals bytea[],
    methods bytea[], paths bytea[], keys bytea[], terms_ids int8[]
) RETURNS SETOF hapax.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    pace hapax.pace;
    moment int8;
    minted int8;
    -- By what a first look tells, without a lock: those that are there, and those that are there but may be claimed all the same.
    present bytea[];
    claimable int4[];
    place int4;
    h hapax.heads;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM hapax.ready();
    END IF;
    SELECT * INTO pace FROM hapax.pace;
    IF pace.closed IS NOT NULL THEN
        RAISE EXCEPTION 'this store %', pace.closed USING ERRCODE = 'HX002';
    END IF;
    moment := greatest(hapax.clock() + pace.skew, pace.clock_floor);
    minted := greatest(moment, pace.floor + 1);

    -- One alone is what there is without load. It is told apart because the statements for many take longer to begin than it takes.
    IF cardinality(ids) = 1 AND fences[1] IS NULL AND NOT EXISTS (SELECT FROM hapax.heads AS o WHERE o.id = ids[1]) THEN
        IF minted >= 9007199254740992 THEN
            PERFORM hapax.no_fences();
        END IF;
        RETURN QUERY
        INSERT INTO hapax.heads AS n (
            fence, version, lease_until, created_at, claimed_at, finished_at, expires_at, tombstone_until, policy, terms, token, attempts,
            status, state, slot, lost, id, fingerprint, namespace, principal, method, path, key)
        VALUES (minted, minted, moment + leases[1], moment, moment, 0, 0, 0, policies[1], terms_ids[1], tokens[1], 1,
                NULL, 1, NULL, false, ids[1], fingerprints[1], namespaces[1], principals[1], methods[1], paths[1], keys[1])
        ON CONFLICT (id) DO NOTHING
        RETURNING 1::int2, moment, n.id, n.state, n.fence, n.version, n.attempts, n.lease_until, n.created_at, n.claimed_at, n.finished_at,
                  n.expires_at, n.tombstone_until, n.status, false, NULL::uuid, NULL::bytea, NULL::int8, NULL::bytea, NULL::bytea, NULL::bytea,
                  NULL::bytea, NULL::bytea, NULL::bytea;
        IF EXISTS (SELECT FROM hapax.pace AS later WHERE later.floor >= minted) THEN
            RAISE EXCEPTION 'a record was removed meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
        RETURN;
    END IF;

    SELECT array_agg(g.id) FILTER (WHERE g.fence IS NULL AND NOT hapax.is_gone(o.state, o.tombstone_until, moment)),
           array_agg(g.place) FILTER (WHERE g.fence IS NOT NULL OR hapax.is_gone(o.state, o.tombstone_until, moment))
    INTO present, claimable
    FROM unnest(ids, fences) WITH ORDINALITY AS g(id, fence, place)
    LEFT JOIN LATERAL (SELECT f.id, f.state, f.tombstone_until FROM hapax.heads AS f WHERE f.id = g.id LIMIT 1) AS o ON true
    WHERE g.fence IS NOT NULL OR o.id IS NOT NULL;

    -- Only what was absent is inserted, so that this waits for nobody who holds a record. Whoever inserts the same id at this moment is
    -- waited for, and if that takes long the batch is given up and sent one by one.
    IF cardinality(ids) > coalesce(cardinality(present), 0) + coalesce(cardinality(claimable), 0) THEN
        IF minted >= 9007199254740992 THEN
            PERFORM hapax.no_fences();
        END IF;
        RETURN QUERY
        INSERT INTO hapax.heads AS n (
            fence, version, lease_until, created_at, claimed_at, finished_at, expires_at, tombstone_until, policy, terms, token, attempts,
            status, state, slot, lost, id, fingerprint, namespace, principal, method, path, key)
        SELECT minted, minted, moment + g.lease, moment, moment, 0, 0, 0, g.policy, g.terms, g.token, 1,
               NULL, 1, NULL, false, g.id, g.fingerprint, g.namespace, g.principal, g.method, g.path, g.key
        FROM unnest(ids, fences, tokens, leases, policies, fingerprints, namespaces, principals, methods, paths, keys, terms_ids)
            AS g(id, fence, token, lease, policy, fingerprint, namespace, principal, method, path, key, terms)
        WHERE g.fence IS NULL AND (present IS NULL OR g.id <> ALL (present)) AND (claimable IS NULL OR g.id <> ALL (
            SELECT ids[c.place] FROM unnest(claimable) AS c(place)))
        ON CONFLICT (id) DO NOTHING
        RETURNING 1::int2, moment, n.id, n.state, n.fence, n.version, n.attempts, n.lease_until, n.created_at, n.claimed_at, n.finished_at,
                  n.expires_at, n.tombstone_until, n.status, false, NULL::uuid, NULL::bytea, NULL::int8, NULL::bytea, NULL::bytea, NULL::bytea,
                  NULL::bytea, NULL::bytea, NULL::bytea;
        -- A record of one of these ids may have been removed since the floor was read; a fence must be above that of any.
        IF EXISTS (SELECT FROM hapax.pace AS later WHERE later.floor >= minted) THEN
            RAISE EXCEPTION 'a record was removed meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;

    -- Takeovers, and records whose tombstone is over: few, so one by one.
    FOREACH place IN ARRAY coalesce(claimable, '{}') LOOP
        IF fences[place] IS NULL THEN
            UPDATE hapax.heads AS o SET
                fence = greatest(moment, pace.floor + 1, o.fence + 1),
                version = greatest(moment, pace.floor + 1, o.fence + 1, o.version + 1),
                lease_until = moment + leases[place], created_at = moment, claimed_at = moment, finished_at = 0, expires_at = 0,
                tombstone_until = 0, policy = policies[place], terms = terms_ids[place], token = tokens[place], attempts = 1, status = NULL,
                state = 1, slot = NULL, lost = false, fingerprint = fingerprints[place], namespace = namespaces[place], principal = principals[place],
                method = methods[place], path = paths[place], key = keys[place]
            WHERE o.id = ids[place] AND hapax.is_gone(o.state, o.tombstone_until, moment)
            RETURNING o.* INTO h;
            -- Somebody else was first, or it was removed: asked again.
            CONTINUE WHEN NOT FOUND;
        ELSE
            UPDATE hapax.heads AS o SET
                fence = greatest(moment, pace.floor + 1, o.fence + 1), version = o.version + 1, lease_until = moment + leases[place],
                claimed_at = moment, terms = terms_ids[place], token = tokens[place], attempts = least(o.attempts::int8 + 1, 2147483647)::int4, status = NULL, state = 1,
                slot = NULL, lost = false
            WHERE o.id = ids[place] AND o.fence = fences[place]
                AND ((o.state = 1 AND o.lease_until <= moment) OR (o.state IN (4, 5) AND o.expires_at > moment))
            RETURNING o.* INTO h;
            IF NOT FOUND THEN
                present := present || ids[place];
                CONTINUE;
            END IF;
        END IF;
        IF h.fence >= 9007199254740992 THEN
            PERFORM hapax.no_fences();
        END IF;
        RETURN NEXT hapax.verdict_of(1::int2, moment, h, NULL);
    END LOOP;

    IF present IS NOT NULL THEN
        -- Of what is absent by now only a takeover may hear so; a first claim tries again.
        RETURN QUERY SELECT * FROM hapax.get(present, moment) AS s
            WHERE s.state IS NOT NULL OR EXISTS (SELECT FROM unnest(ids, fences) AS g(id, fence) WHERE g.id = s.id AND g.fence IS NOT NULL);
    END IF;
END $$;

-- Leases of attempts that go on. A record that somebody has in hand at this moment has no row in the result: it is not known to be lost.
CREATE FUNCTION hapax.renew(ids bytea[], fences int8[], leases int8[]) RETURNS TABLE (id bytea, verdict int2)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    moment int8;
BEGIN
    PERFORM hapax.ready();
    moment := hapax.now();
    RETURN QUERY
    WITH free AS MATERIALIZED (
        SELECT o.id, g.lease FROM unnest(ids, fences, leases) AS g(id, fence, lease) JOIN hapax.heads AS o ON o.id = ANY (ARRAY[g.id])
        WHERE o.fence = g.fence AND o.state = 1 FOR NO KEY UPDATE OF o SKIP LOCKED
    )
    UPDATE hapax.heads AS o SET lease_until = moment + free.lease, version = o.version + 1
    FROM free WHERE o.id = ANY (ARRAY[free.id]) RETURNING o.id, 1::int2;
    RETURN QUERY
    SELECT g.id, 0::int2 FROM unnest(ids, fences) AS g(id, fence)
    LEFT JOIN LATERAL (SELECT f.id, f.fence, f.state FROM hapax.heads AS f WHERE f.id = g.id LIMIT 1) AS o ON true
    WHERE o.id IS NULL OR o.fence <> g.fence OR o.state <> 1;
END $$;

-- An attempt whose lease is over is written down as lost, under `Lapsed`.
CREATE FUNCTION hapax.lose(of_id bytea, of_fence int8, retention int8, tombstone int8) RETURNS SETOF hapax.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    moment int8;
    h hapax.heads;
BEGIN
    PERFORM hapax.ready();
    moment := hapax.now();
    UPDATE hapax.heads AS o SET
        state = 5, status = NULL, slot = NULL, lost = true, version = o.version + 1, finished_at = moment, expires_at = moment + retention,
        tombstone_until = moment + retention + tombstone
    WHERE o.id = of_id AND o.fence = of_fence AND o.state = 1 AND o.lease_until <= moment
    RETURNING o.* INTO h;
    IF FOUND THEN
        RETURN NEXT hapax.verdict_of(1::int2, moment, h, NULL);
    ELSE
        RETURN QUERY SELECT * FROM hapax.get(ARRAY[of_id], moment);
    END IF;
END $$;

-- Writes an entry with the next number into the audit log, in the transaction of the change it is about.
CREATE FUNCTION hapax.write_down(moment int8, action bytea, signed_by bytea, reason bytea, was hapax.heads, became hapax.heads)
RETURNS hapax.audit
LANGUAGE plpgsql AS $$
DECLARE
    entry hapax.audit;
    number int8;
BEGIN
    UPDATE hapax.meta SET logged = logged + 1 RETURNING logged INTO number;
    INSERT INTO hapax.audit VALUES (
        number, moment, action, signed_by, reason, became.id, became.namespace, became.principal, became.method, became.path, became.key,
        hapax.state_at(was.state, was.lease_until, was.expires_at, moment), became.state, became.status, became.fence, became.version)
    RETURNING * INTO entry;
    RETURN entry;
END $$;

-- Somebody who knows says what became of an unknown, under `Version`. Mints a fence, so that the lost attempt can no longer end.
CREATE FUNCTION hapax.settle(
    of_id bytea, of_version int8, as_state int2, as_status int4, retention int8, tombstone int8, answer bytea, signed_by bytea, reason bytea
) RETURNS SETOF hapax.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    pace hapax.pace;
    moment int8;
    was hapax.heads;
    became hapax.heads;
BEGIN
    PERFORM hapax.ready();
    SELECT * INTO was FROM hapax.heads AS o WHERE o.id = of_id FOR UPDATE;
    SELECT * INTO pace FROM hapax.pace;
    moment := greatest(hapax.clock() + pace.skew, pace.clock_floor);
    IF was.version = of_version AND was.fingerprint IS NOT NULL AND as_state IN (2, 3, 4)
        AND hapax.state_at(was.state, was.lease_until, was.expires_at, moment) IN (5, 13)
    THEN
        UPDATE hapax.heads AS o SET
            state = as_state, status = as_status, fence = greatest(moment, pace.floor + 1, o.fence + 1), version = o.version + 1,
            finished_at = moment, expires_at = moment + retention, tombstone_until = moment + retention + tombstone, lost = false,
            slot = CASE WHEN answer IS NOT NULL THEN hapax.slot_for(moment + retention, moment, pace.hours_width, pace.days_width) END
        WHERE o.id = of_id RETURNING o.* INTO became;
        IF became.fence >= 9007199254740992 THEN
            PERFORM hapax.no_fences();
        END IF;
        IF answer IS NOT NULL THEN
            PERFORM hapax.keep(became.slot, became.fence, became.expires_at, became.id, answer);
        END IF;
        PERFORM hapax.write_down(moment, 'settle', signed_by, reason, was, became);
        RETURN NEXT hapax.verdict_of(1::int2, moment, became, NULL);
    ELSE
        RETURN QUERY SELECT * FROM hapax.get(ARRAY[of_id], moment);
    END IF;
END $$;

-- Answer and fingerprint go, a tombstone stays, under `Version`; what it keeps of the past is never shorter than without.
CREATE FUNCTION hapax.forget(of_id bytea, of_version int8, retention int8, tombstone int8, signed_by bytea, reason bytea)
RETURNS SETOF hapax.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    pace hapax.pace;
    moment int8;
    was hapax.heads;
    became hapax.heads;
    last int2;
BEGIN
    PERFORM hapax.ready();
    SELECT * INTO was FROM hapax.heads AS o WHERE o.id = of_id FOR UPDATE;
    SELECT * INTO pace FROM hapax.pace;
    moment := greatest(hapax.clock() + pace.skew, pace.clock_floor);
    last := hapax.state_at(was.state, was.lease_until, was.expires_at, moment);
    IF was.version = of_version AND last <> 1 THEN
        last := CASE WHEN last < 10 THEN last + 8 ELSE last END;
        UPDATE hapax.heads AS o SET
            state = last, fence = greatest(moment, pace.floor + 1, o.fence + 1), version = o.version + 1, fingerprint = NULL, policy = NULL,
            terms = NULL, status = NULL, slot = NULL, lost = last = 13, finished_at = moment, expires_at = moment,
            tombstone_until = greatest(moment + tombstone, o.tombstone_until)
        WHERE o.id = of_id RETURNING o.* INTO became;
        IF became.fence >= 9007199254740992 THEN
            PERFORM hapax.no_fences();
        END IF;
        PERFORM hapax.unkeep(was);
        PERFORM hapax.write_down(moment, 'forget', signed_by, reason, was, became);
        UPDATE hapax.meta SET epoch = epoch + 1;
        RETURN NEXT hapax.verdict_of(1::int2, moment, became, NULL);
    ELSE
        RETURN QUERY SELECT * FROM hapax.get(ARRAY[of_id], moment);
    END IF;
END $$;

CREATE FUNCTION hapax.note(action bytea, signed_by bytea, reason bytea) RETURNS SETOF hapax.audit
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
BEGIN
    PERFORM hapax.ready();
    RETURN NEXT hapax.write_down(hapax.now(), action, signed_by, reason, NULL, NULL);
END $$;

-- A page of the audit log: after a number, oldest first; else newest first, before a number if one is given.
CREATE FUNCTION hapax.log(record bytea, after_sequence int8, before_sequence int8, rows int4) RETURNS SETOF hapax.audit
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
BEGIN
    PERFORM hapax.not_a_standby();
    CASE
    WHEN record IS NULL AND after_sequence IS NOT NULL THEN
        RETURN QUERY SELECT * FROM hapax.audit AS a WHERE a.sequence > after_sequence ORDER BY a.sequence LIMIT rows;
    WHEN record IS NULL THEN
        RETURN QUERY SELECT * FROM hapax.audit AS a WHERE a.sequence < coalesce(before_sequence, 9223372036854775807)
            ORDER BY a.sequence DESC LIMIT rows;
    WHEN after_sequence IS NOT NULL THEN
        RETURN QUERY SELECT * FROM hapax.audit AS a WHERE a.id = record AND a.sequence > after_sequence ORDER BY a.sequence LIMIT rows;
    ELSE
        RETURN QUERY SELECT * FROM hapax.audit AS a WHERE a.id = record AND a.sequence < coalesce(before_sequence, 9223372036854775807)
            ORDER BY a.sequence DESC LIMIT rows;
    END CASE;
END $$;

-- A page of heads in the order of their ids: of all, of those in a state by its word, or of those whose end is not known ('open').
CREATE FUNCTION hapax.list(of_state text, after_id bytea, rows int4) RETURNS SETOF hapax.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE
    moment int8;
    unswept int8;
BEGIN
    PERFORM hapax.not_a_standby();
    moment := hapax.now();
    after_id := coalesce(after_id, '');
    IF of_state IN ('running', 'unknown', 'open') THEN
        -- Those are few, and found by what is lost and by the leases that were not yet over when the sweep last looked.
        SELECT lapsed_to INTO unswept FROM hapax.pace;
        RETURN QUERY
        SELECT v.* FROM (
            (SELECT o FROM hapax.heads AS o WHERE o.lost AND o.id > after_id AND CASE of_state
                WHEN 'running' THEN false
                WHEN 'unknown' THEN hapax.state_at(o.state, o.lease_until, o.expires_at, moment) = 5
                ELSE true END
             ORDER BY o.id LIMIT rows)
            UNION ALL
            (SELECT o FROM hapax.heads AS o
             -- One whose lease is over is running until it is written down as lost.
             WHERE o.lease_until > unswept AND o.state = 1 AND o.id > after_id AND of_state <> 'unknown'
             ORDER BY o.id LIMIT rows)
        ) AS found(o), LATERAL hapax.verdict_of(0::int2, moment, found.o, NULL) AS v ORDER BY v.id LIMIT rows;
    ELSE
        RETURN QUERY
        SELECT v.* FROM hapax.heads AS o, LATERAL hapax.verdict_of(0::int2, moment, o, NULL) AS v
        WHERE o.id > after_id AND CASE of_state
            WHEN 'completed' THEN o.state = 2 AND o.expires_at > moment
            WHEN 'failed' THEN o.state = 3 AND o.expires_at > moment
            WHEN 'retryable' THEN o.state = 4 AND o.expires_at > moment
            WHEN 'expired' THEN o.state <> 1 AND o.expires_at <= moment
            ELSE true END
        ORDER BY o.id LIMIT rows;
    END IF;
END $$;

-- What time has brought is written down: up to so many records. One sweeps at a time; whoever comes meanwhile finds nothing to do.
CREATE FUNCTION hapax.sweep(rows int4) RETURNS TABLE (lost int4, buried int4, removed int4, unlogged int4)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    -- The life of a lost attempt, whose policy is not at hand: a day, and a week.
    retention constant int8 := 86400000000;
    tombstone constant int8 := 604800000000;
    -- How long after a lease was over a claim may become visible that was on its way.
    late constant int8 := 2000000;
    -- How old what is written down may become while there is nothing to do.
    rest constant int8 := 3000000;
    step constant int8 := 256;
    steps_max constant int4 := 16;
    pace hapax.pace;
    moment int8;
    skew_before int8;
    first_left int8;
    blocks int8;
    walked int8 := 0;
    count int4;
    fence_max int8;
BEGIN
    PERFORM hapax.ready();
    lost := 0; buried := 0; removed := 0; unlogged := 0;
    SELECT * INTO pace FROM hapax.pace FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- A clock that was set back, or a server that has taken over with a slower one: time goes on from where it was.
    skew_before := pace.skew;
    pace.skew := greatest(pace.skew, pace.clock_floor - hapax.clock());
    moment := greatest(hapax.clock() + pace.skew, pace.clock_floor);

    -- Leases that were over since the last time.
    WITH over AS MATERIALIZED (
        SELECT o.id FROM hapax.heads AS o WHERE o.lease_until > pace.lapsed_to AND o.lease_until <= moment AND o.state = 1
        ORDER BY o.lease_until LIMIT rows FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE hapax.heads AS o SET
        state = 5, status = NULL, slot = NULL, lost = true, version = o.version + 1, finished_at = moment, expires_at = moment + retention,
        tombstone_until = moment + retention + tombstone
    FROM over WHERE o.id = ANY (ARRAY[over.id]);
    GET DIAGNOSTICS lost = ROW_COUNT;
    SELECT min(o.lease_until) - 1 INTO first_left FROM hapax.heads AS o
    WHERE o.lease_until > pace.lapsed_to AND o.lease_until <= moment AND o.state = 1;
    -- One that somebody has locked for long is left to the walk below: everything after it would be looked at again and again.
    pace.lapsed_to := greatest(pace.lapsed_to, least(moment - late, CASE WHEN first_left IS NOT NULL THEN greatest(first_left, moment - 60000000) END));

    -- Tombstones that are over, block by block: whoever has walked past all of them begins again. What the first look missed is found here too.
    blocks := pg_relation_size('hapax.heads') / current_setting('block_size')::int8;
    FOR i IN 1 .. steps_max LOOP
        EXIT WHEN walked >= blocks OR lost + removed >= rows;
        IF pace.walked_to >= blocks THEN
            pace.walked_to := 0;
        END IF;
        WITH over AS MATERIALIZED (
            SELECT o.id FROM hapax.heads AS o
            WHERE o.ctid >= format('(%s,0)', pace.walked_to)::tid AND o.ctid < format('(%s,0)', pace.walked_to + step)::tid
                AND o.state = 1 AND o.lease_until <= moment
            LIMIT rows - lost - removed FOR NO KEY UPDATE SKIP LOCKED
        )
        UPDATE hapax.heads AS o SET
            state = 5, status = NULL, slot = NULL, lost = true, version = o.version + 1, finished_at = moment, expires_at = moment + retention,
            tombstone_until = moment + retention + tombstone
        FROM over WHERE o.id = ANY (ARRAY[over.id]);
        GET DIAGNOSTICS count = ROW_COUNT;
        lost := lost + count;
        WITH over AS MATERIALIZED (
            SELECT o.id FROM hapax.heads AS o
            WHERE o.ctid >= format('(%s,0)', pace.walked_to)::tid AND o.ctid < format('(%s,0)', pace.walked_to + step)::tid
                AND hapax.is_gone(o.state, o.tombstone_until, moment)
            LIMIT rows - lost - removed FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM hapax.heads AS o USING over WHERE o.id = ANY (ARRAY[over.id]) RETURNING o.fence
        )
        SELECT count(*), max(gone.fence) INTO count, fence_max FROM gone;
        removed := removed + count;
        pace.floor := greatest(pace.floor, fence_max);
        IF lost + removed < rows THEN
            pace.walked_to := pace.walked_to + step;
            walked := walked + step;
        END IF;
    END LOOP;

    -- Answers that outlast the rings, and entries of the audit log that are over their 400 days.
    IF lost + removed < rows THEN
        DELETE FROM hapax.answers_32 AS a WHERE a.ctid = ANY (ARRAY(
            SELECT d.ctid FROM hapax.answers_32 AS d WHERE d.expires_at <= moment ORDER BY d.expires_at LIMIT rows - lost - removed));
        GET DIAGNOSTICS buried = ROW_COUNT;
    END IF;
    IF lost + removed + buried < rows THEN
        DELETE FROM hapax.audit AS a WHERE a.sequence IN (
            SELECT d.sequence FROM (SELECT f.sequence, f.at FROM hapax.audit AS f ORDER BY f.sequence LIMIT rows - lost - removed - buried) AS d
            WHERE d.at + 34560000000000 <= moment);
        GET DIAGNOSTICS unlogged = ROW_COUNT;
    END IF;

    -- Not each time: as long as some transaction is open, every version of this row stays, and everybody reads past them.
    IF lost + removed + buried + unlogged > 0 OR moment - pace.clock_floor >= rest OR pace.skew > skew_before THEN
        UPDATE hapax.pace SET clock_floor = moment, skew = pace.skew, floor = pace.floor, lapsed_to = pace.lapsed_to, walked_to = pace.walked_to;
    END IF;
    RETURN NEXT;
END $$;

-- Empties the table of answers whose time is over, if one is due and nobody has it in hand; says how many. A table is due from the end of
-- its time on and for one and a half widths; after three it may be written to again. Who holds it up for so long is waited for until the ring
-- has come round.
CREATE FUNCTION hapax.turn() RETURNS int4
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '50ms' AS $$
DECLARE
    width int8;
    moment int8;
    bucket int8;
    due hapax.slots;
    name text;
BEGIN
    PERFORM hapax.ready();
    FOR ring IN 0 .. 1 LOOP
        SELECT CASE ring WHEN 0 THEN hours_width ELSE days_width END INTO width FROM hapax.pace;
        FOR back IN 1 .. 2 LOOP
            moment := hapax.now();
            bucket := moment / width - back;
            CONTINUE WHEN NOT hapax.may_empty(bucket, moment, width);
            SELECT * INTO due FROM hapax.slots AS s WHERE s.slot = ring * 16 + bucket % 16 AND s.cleared < bucket FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            name := 'hapax.answers_' || lpad(due.slot::text, 2, '0');
            IF pg_relation_size(name::regclass) = 0 THEN
                UPDATE hapax.slots AS s SET cleared = bucket WHERE s.slot = due.slot;
                CONTINUE;
            END IF;
            BEGIN
                EXECUTE 'LOCK TABLE ' || name || ' IN ACCESS EXCLUSIVE MODE';
                -- Nobody writes to it now. That it is still too early for anything that is needed must be true now, and not before the wait.
                moment := hapax.now();
                IF hapax.may_empty(bucket, moment, width) THEN
                    -- From here on it is at least so late, whatever clock is asked next: what is gone was over.
                    UPDATE hapax.pace SET clock_floor = greatest(clock_floor, moment);
                    EXECUTE 'TRUNCATE ' || name;
                    UPDATE hapax.slots AS s SET cleared = bucket WHERE s.slot = due.slot;
                    RETURN 1;
                END IF;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END LOOP;
    END LOOP;
    RETURN 0;
END $$;

-- Whether the table of a time that is over can hold nothing but that: what comes round to it next is not written before three widths have passed.
CREATE FUNCTION hapax.may_empty(bucket int8, moment int8, width int8) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT moment >= (bucket + 1) * width AND moment < (bucket + 2) * width + width / 2 $$;

CREATE FUNCTION hapax.pulse() RETURNS TABLE (
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
        m.system_identifier, m.timeline, m.schema, m.oldest FROM hapax.meta AS m;
END $$;

-- The timeline that is written to now: what the control file says is as old as the last checkpoint.
CREATE FUNCTION hapax.timeline() RETURNS int4
LANGUAGE sql VOLATILE AS $$ SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int4 $$;

-- Takes note that the store is on another server, or on the same one on another timeline, or that commits were lost. What any node has in
-- memory may be of commits that are no more, so all of it is void; and every fence from now on is above every one that the caller has seen,
-- and above this moment by any clock that is nearly right. True for the one caller whose note of the server it is.
CREATE FUNCTION hapax.adopt(seen int8) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
    -- A minute: what other nodes have seen and this one has not.
    margin constant int8 := 60000000;
    here int8 := (SELECT c.system_identifier FROM pg_control_system() AS c);
    is_news boolean;
BEGIN
    PERFORM hapax.ready();
    UPDATE hapax.meta AS m SET system_identifier = here, timeline = hapax.timeline(), epoch = m.epoch + 1
    WHERE m.system_identifier <> here OR m.timeline <> hapax.timeline();
    is_news := FOUND;
    IF NOT is_news THEN
        UPDATE hapax.meta AS m SET epoch = m.epoch + 1;
    END IF;
    UPDATE hapax.pace AS p SET floor = greatest(p.floor, greatest(hapax.clock() + p.skew, p.clock_floor, seen) + margin)
    WHERE p.floor < greatest(hapax.clock() + p.skew, p.clock_floor, seen);
    RETURN is_news;
END $$;

CREATE FUNCTION hapax.policy(of_id int8, of_content bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM hapax.ready();
    INSERT INTO hapax.policies VALUES (of_id, of_content) ON CONFLICT DO NOTHING;
END $$;

CREATE FUNCTION hapax.policies(ids int8[]) RETURNS SETOF hapax.policies
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT * FROM hapax.policies AS p WHERE p.id = ANY (ids) $$;

CREATE FUNCTION hapax.term(of_id int8, retention int8, tombstone int8, keep boolean, bytes_max int8, cookies boolean, version bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM hapax.ready();
    INSERT INTO hapax.terms VALUES (of_id, retention, tombstone, keep, bytes_max, cookies, version) ON CONFLICT DO NOTHING;
END $$;

-- The records as people read them. For whoever owns the schema, and whomever they let.
CREATE VIEW hapax.records AS
SELECT encode(h.id, 'hex') AS id,
       CASE hapax.state_at(h.state, h.lease_until, h.expires_at, n.now) WHEN 1 THEN 'running' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed'
           WHEN 4 THEN 'retryable' WHEN 5 THEN 'unknown' ELSE 'expired' END AS state,
       encode(h.namespace, 'escape') AS namespace, encode(h.principal, 'escape') AS principal, encode(h.method, 'escape') AS method,
       encode(h.path, 'escape') AS path, encode(h.key, 'escape') AS key, h.fence, h.version, h.attempts, h.status,
       to_timestamp(h.created_at / 1e6) AS created_at, to_timestamp(h.claimed_at / 1e6) AS claimed_at,
       CASE WHEN h.state = 1 THEN to_timestamp(h.lease_until / 1e6) END AS lease_until,
       CASE WHEN h.state <> 1 THEN to_timestamp(h.finished_at / 1e6) END AS finished_at,
       CASE WHEN h.state <> 1 THEN to_timestamp(least(h.expires_at, 9e15) / 1e6) END AS expires_at
FROM hapax.heads AS h, (SELECT hapax.now() AS now) AS n;

INSERT INTO hapax.pace DEFAULT VALUES;
-- Three random identifiers have more than 256 random bits among them.
INSERT INTO hapax.meta (schema, oldest, secret, system_identifier, timeline)
SELECT 1, 1, sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), c.system_identifier, hapax.timeline()
FROM pg_control_system() AS c;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA hapax FROM PUBLIC;
