-- The request id: each record says which request made its latest attempt. And no answer keeps the id of the request that it was made for.
--
-- Programs of the version before go on: they call `claim` without ids, and read the columns of a verdict by their places, to which one more is added
-- at the end.

-- Null: there was none, or the record is from before.
ALTER TABLE hapax.heads ADD COLUMN request_id bytea;
ALTER TYPE hapax.verdict ADD ATTRIBUTE request_id bytea;

CREATE OR REPLACE FUNCTION hapax.verdict_of(verdict int2, moment int8, h hapax.heads, answer bytea) RETURNS hapax.verdict
LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(verdict, moment, h.id, h.state, h.fence, h.version, h.attempts, h.lease_until, h.created_at, h.claimed_at, h.finished_at,
               h.expires_at, h.tombstone_until, h.status, h.slot IS NOT NULL, h.token, h.fingerprint, h.policy, h.namespace, h.principal,
               h.method, h.path, h.key, answer, h.request_id)::hapax.verdict
$$;

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

-- The functions that name the tables of answers, with the new column: one static statement for each table, as plans are kept for static ones only.
DO $do$
DECLARE
    -- Every column of a verdict but the first and the last two, of a head `h`.
    head constant text := 'moment, h.id, h.state, h.fence, h.version, h.attempts, h.lease_until, h.created_at, h.claimed_at, h.finished_at,
               h.expires_at, h.tombstone_until, h.status, h.slot IS NOT NULL, h.token, h.fingerprint, h.policy, h.namespace, h.principal,
               h.method, h.path, h.key';
    read text[];
    finish text[];
    name text;
BEGIN
    FOR slot IN 0 .. 32 LOOP
        name := 'hapax.answers_' || lpad(slot::text, 2, '0');
        read := read || format($sql$
            RETURN QUERY
            SELECT (CASE WHEN a.content IS NULL THEN 2 ELSE 0 END)::int2, moment, %3$s, a.content, h.request_id
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
            SELECT 1::int2, %2$s, NULL::bytea, h.request_id FROM h;$sql$, name, head);
    END LOOP;

    -- Records as they are, answers included: one row for each id.
    EXECUTE $sql$
CREATE OR REPLACE FUNCTION hapax.get(ids bytea[], at_moment int8 DEFAULT NULL) RETURNS SETOF hapax.verdict
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
            RETURN QUERY SELECT (CASE WHEN content IS NULL THEN 2 ELSE 0 END)::int2, $sql$ || replace(head, 'h.', 'one.') || $sql$, content, one.request_id;
        ELSE
            RETURN QUERY SELECT 0::int2, $sql$ || replace(replace(head, 'h.id', 'ids[1]'), 'h.', 'one.') || $sql$, NULL::bytea, one.request_id;
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
            SELECT (CASE WHEN h.slot IS NOT NULL AND h.expires_at > moment THEN 2 ELSE 0 END)::int2, %s, NULL::bytea, h.request_id
            FROM unnest(part.ids) AS g(id)
            LEFT JOIN LATERAL (SELECT * FROM hapax.heads AS o WHERE o.id = g.id LIMIT 1) AS h ON true;
        END IF;
    END LOOP;
END $fn$$sql$, replace(head, 'h.id', 'g.id'));

    -- Attempts that end, under `Held`. Neither lease nor retention matters: late is not lost.
    EXECUTE $sql$
CREATE OR REPLACE FUNCTION hapax.finish(
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
        RETURN QUERY SELECT 1::int2, $sql$ || replace(head, 'h.', 'one.') || $sql$, NULL::bytea, one.request_id;
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
END $do$;
DROP FUNCTION hapax.by_slot;

-- New attempts: under `Absent` where no fence is given, else under `Lapsed`. Ids are distinct and sorted. What is not decided has no row
-- in the result: it is asked again, never taken for absent. Of a record that is new only what the caller did not say is said.
-- Programs of the version before give no request ids.
CREATE FUNCTION hapax.claim(
    ids bytea[], fences int8[], tokens uuid[], leases int8[], policies int8[], fingerprints bytea[], namespaces bytea[], principals bytea[],
    methods bytea[], paths bytea[], keys bytea[], terms_ids int8[], request_ids bytea[] DEFAULT NULL
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
    IF moment > pace.clock_floor + 3600000000 AND pace.clock_floor > 0 THEN
        PERFORM hapax.clock_ahead();
    END IF;
    minted := greatest(moment, pace.floor + 1);

    -- One alone is what there is without load. It is told apart because the statements for many take longer to begin than it takes.
    IF cardinality(ids) = 1 AND fences[1] IS NULL AND NOT EXISTS (SELECT FROM hapax.heads AS o WHERE o.id = ids[1]) THEN
        IF minted >= 9007199254740992 THEN
            PERFORM hapax.no_fences();
        END IF;
        RETURN QUERY
        INSERT INTO hapax.heads AS n (
            fence, version, lease_until, created_at, claimed_at, finished_at, expires_at, tombstone_until, policy, terms, token, attempts,
            status, state, slot, lost, id, fingerprint, namespace, principal, method, path, key, request_id)
        VALUES (minted, minted, moment + leases[1], moment, moment, 0, 0, 0, policies[1], terms_ids[1], tokens[1], 1,
                NULL, 1, NULL, false, ids[1], fingerprints[1], namespaces[1], principals[1], methods[1], paths[1], keys[1],
                request_ids[1])
        ON CONFLICT (id) DO NOTHING
        RETURNING 1::int2, moment, n.id, n.state, n.fence, n.version, n.attempts, n.lease_until, n.created_at, n.claimed_at, n.finished_at,
                  n.expires_at, n.tombstone_until, n.status, false, NULL::uuid, NULL::bytea, NULL::int8, NULL::bytea, NULL::bytea, NULL::bytea,
                  NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea;
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
            status, state, slot, lost, id, fingerprint, namespace, principal, method, path, key, request_id)
        SELECT minted, minted, moment + g.lease, moment, moment, 0, 0, 0, g.policy, g.terms, g.token, 1,
               NULL, 1, NULL, false, g.id, g.fingerprint, g.namespace, g.principal, g.method, g.path, g.key, g.request_id
        FROM unnest(ids, fences, tokens, leases, policies, fingerprints, namespaces, principals, methods, paths, keys, terms_ids, request_ids)
            AS g(id, fence, token, lease, policy, fingerprint, namespace, principal, method, path, key, terms, request_id)
        WHERE g.fence IS NULL AND (present IS NULL OR g.id <> ALL (present)) AND (claimable IS NULL OR g.id <> ALL (
            SELECT ids[c.place] FROM unnest(claimable) AS c(place)))
        ON CONFLICT (id) DO NOTHING
        RETURNING 1::int2, moment, n.id, n.state, n.fence, n.version, n.attempts, n.lease_until, n.created_at, n.claimed_at, n.finished_at,
                  n.expires_at, n.tombstone_until, n.status, false, NULL::uuid, NULL::bytea, NULL::int8, NULL::bytea, NULL::bytea, NULL::bytea,
                  NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea;
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
                method = methods[place], path = paths[place], key = keys[place], request_id = request_ids[place]
            WHERE o.id = ids[place] AND hapax.is_gone(o.state, o.tombstone_until, moment)
            RETURNING o.* INTO h;
            -- Somebody else was first, or it was removed: asked again.
            CONTINUE WHEN NOT FOUND;
        ELSE
            UPDATE hapax.heads AS o SET
                fence = greatest(moment, pace.floor + 1, o.fence + 1), version = o.version + 1, lease_until = moment + leases[place],
                claimed_at = moment, terms = terms_ids[place], token = tokens[place], attempts = least(o.attempts::int8 + 1, 2147483647)::int4, status = NULL, state = 1,
                slot = NULL, lost = false, request_id = request_ids[place]
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
SELECT hapax.grant_like(
    'hapax.claim(bytea[], int8[], uuid[], int8[], int8[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], int8[], bytea[])',
    'hapax.claim(bytea[], int8[], uuid[], int8[], int8[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], int8[])');
DROP FUNCTION hapax.claim(bytea[], int8[], uuid[], int8[], int8[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], int8[]);

-- Answer, fingerprint and request id go, a tombstone stays, under `Version`; what it keeps of the past is never shorter than without.
CREATE OR REPLACE FUNCTION hapax.forget(of_id bytea, of_version int8, retention int8, tombstone int8, signed_by bytea, reason bytea)
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
            terms = NULL, request_id = NULL, status = NULL, slot = NULL, lost = last = 13, finished_at = moment, expires_at = moment,
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

DROP FUNCTION hapax.import(uuid, bytea, int8, bytea[], int2[], int8[], int8[], int4[], int8[],
    int8[], int8[], int8[], int8[], int4[], uuid[], bytea[], int8[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[]);
-- Writes records verbatim, unless they are here in the same or a higher version. Their terms do not come with them: of a record that is still
-- open this takes no promise, as nobody holds a live lease. An attempt that would end late in a transaction of its own is refused by `complete`, and
-- rolled back with its effect; the next one brings the terms of its route.
CREATE FUNCTION hapax.import(
    of_copy uuid, of_record bytea, of_entry int8, ids bytea[], states int2[], fences int8[], versions int8[], attempts int4[], created int8[],
    claimed int8[], finished int8[], expiries int8[], tombstones int8[], statuses int4[], tokens uuid[], fingerprints bytea[], policies int8[],
    namespaces bytea[], principals bytea[], methods bytea[], paths bytea[], keys bytea[], answers bytea[], request_ids bytea[]
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pace hapax.pace;
    moment int8;
    kept record;
BEGIN
    IF NOT hapax.arriving(of_copy, of_record, of_entry) THEN
        RETURN false;
    END IF;
    -- Above every fence that has come, so that none comes again.
    UPDATE hapax.pace AS p SET floor = greatest(p.floor, (SELECT max(f) FROM unnest(fences) AS f)) RETURNING * INTO pace;
    IF pace.floor >= 9007199254740992 THEN
        PERFORM hapax.no_fences();
    END IF;
    moment := greatest(hapax.clock() + pace.skew, pace.clock_floor);
    DELETE FROM hapax.heads AS o USING unnest(ids, versions) AS g(id, version) WHERE o.id = g.id AND o.version < g.version;
    FOR kept IN WITH come AS (
        INSERT INTO hapax.heads AS o (
            fence, version, lease_until, created_at, claimed_at, finished_at, expires_at, tombstone_until, policy, token, attempts, status,
            state, slot, lost, id, fingerprint, namespace, principal, method, path, key, request_id)
        -- Whoever held a lease is gone: it is over now, where the sweep looks for it next.
        SELECT g.fence, g.version, moment, g.created, g.claimed, g.finished, g.expires, g.tombstone, g.policy, g.token, g.attempts, g.status,
               g.state, CASE WHEN g.answer IS NOT NULL AND g.expires > moment
                   THEN hapax.slot_for(g.expires, moment, pace.hours_width, pace.days_width) END,
               g.state IN (5, 13), g.id, g.fingerprint, g.namespace, g.principal, g.method, g.path, g.key, g.request_id
        FROM unnest(ids, states, fences, versions, attempts, created, claimed, finished, expiries, tombstones, statuses, tokens, fingerprints,
                    policies, namespaces, principals, methods, paths, keys, answers, request_ids)
            AS g(id, state, fence, version, attempts, created, claimed, finished, expires, tombstone, status, token, fingerprint, policy,
                 namespace, principal, method, path, key, answer, request_id)
        ON CONFLICT (id) DO NOTHING
        RETURNING o AS head
    )
    SELECT c.head, g.answer FROM come AS c JOIN unnest(ids, answers) AS g(id, answer) ON g.id = (c.head).id WHERE (c.head).slot IS NOT NULL
    LOOP
        PERFORM hapax.keep((kept.head).slot, (kept.head).fence, (kept.head).expires_at, (kept.head).id, kept.answer);
    END LOOP;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION hapax.import(uuid, bytea, int8, bytea[], int2[], int8[], int8[], int4[], int8[],
    int8[], int8[], int8[], int8[], int4[], uuid[], bytea[], int8[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[],
    bytea[]) FROM PUBLIC;

-- The fields of an answer as they are stored: `put_fields` of core/src/answer.rs, without those that are never kept. Null: they ask for the answer
-- not to be kept. docs/http.md has the list of what is left out.
CREATE OR REPLACE FUNCTION hapax.kept_fields(headers jsonb, cookies boolean, version bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    fields_max constant int4 := 100;
    bytes_max constant int4 := 65536;
    never constant text[] := '{connection,keep-alive,proxy-authenticate,proxy-authorization,te,trailer,transfer-encoding,upgrade,date,age,'
        'content-length,idempotent-replayed,idempotency-expires,x-request-id}';
    token constant text := '^[a-z0-9!#$%&''*+.^_`|~-]+$';
    control constant text := '[' || chr(1) || '-' || chr(8) || chr(10) || '-' || chr(31) || chr(127) || ']';
    by_connection text[] := '{}';
    wants_keeping boolean := true;
    fields bytea := '';
    count int4 := 0;
    met int4 := 0;
    name text;
    given jsonb;
    value bytea;
BEGIN
    IF headers <> '{}' THEN
        IF position('connection' IN lower(headers::text COLLATE "C")) > 0 THEN
            SELECT coalesce(array_agg(btrim(option, ' ' || chr(9))), '{}') INTO by_connection
            FROM hapax.fields_of(headers) AS f, unnest(string_to_array(lower((f.value #>> '{}') COLLATE "C"), ',')) AS option WHERE f.name = 'connection';
        END IF;
        FOR name, given IN SELECT f.name, f.value FROM hapax.fields_of(headers) AS f LOOP
            IF name IS NULL OR name !~ token THEN
                RAISE EXCEPTION 'headers are an object of names with a text or an array of texts each, or an array of pairs of texts; this is no name of one: %',
                    coalesce(left(name, 64), 'null') USING ERRCODE = 'invalid_parameter_value';
            END IF;
            IF jsonb_typeof(given) IS NULL OR jsonb_typeof(given) NOT IN ('string', 'number') OR given #>> '{}' ~ control THEN
                RAISE EXCEPTION 'the header field % has a value that is none: a text without control characters is one', left(name, 64)
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            value := convert_to(btrim(given #>> '{}', ' ' || chr(9)), 'UTF8');
            IF name = 'hapax-keep' AND lower((given #>> '{}') COLLATE "C") = 'no' THEN
                wants_keeping := false;
            END IF;
            met := met + 1;
            EXIT WHEN met > fields_max OR octet_length(fields) > bytes_max;
            CONTINUE WHEN name = ANY (never) OR starts_with(name, 'hapax-') OR name = ANY (by_connection) OR (name = 'set-cookie' AND NOT cookies);
            count := count + 1;
            fields := fields || int4send(octet_length(name)) || convert_to(name, 'UTF8') || int4send(octet_length(value)) || value;
        END LOOP;
    END IF;
    IF met > fields_max OR octet_length(fields) > bytes_max THEN
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

-- The records as people read them. For whoever owns the schema, and whomever they let. Numbers from 1000 on are no status: they say why an attempt was lost.
CREATE OR REPLACE VIEW hapax.records AS
SELECT encode(h.id, 'hex') AS id,
       CASE hapax.state_at(h.state, h.lease_until, h.expires_at, n.now) WHEN 1 THEN 'running' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed'
           WHEN 4 THEN 'retryable' WHEN 5 THEN 'unknown' ELSE 'expired' END AS state,
       encode(h.namespace, 'escape') AS namespace, encode(h.principal, 'escape') AS principal, encode(h.method, 'escape') AS method,
       encode(h.path, 'escape') AS path, encode(h.key, 'escape') AS key, h.fence, h.version, h.attempts, CASE WHEN h.status < 1000 THEN h.status END AS status,
       to_timestamp(h.created_at / 1e6) AS created_at, to_timestamp(h.claimed_at / 1e6) AS claimed_at,
       CASE WHEN h.state = 1 THEN to_timestamp(h.lease_until / 1e6) END AS lease_until,
       CASE WHEN h.state <> 1 THEN to_timestamp(h.finished_at / 1e6) END AS finished_at,
       CASE WHEN h.state <> 1 THEN to_timestamp(least(h.expires_at, 9e15) / 1e6) END AS expires_at,
       encode(h.request_id, 'escape') AS request_id
FROM hapax.heads AS h, (SELECT hapax.now() AS now) AS n;
