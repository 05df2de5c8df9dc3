-- Moving everything into another store, or everything from another in here: core/src/transfer.rs in SQL. For whoever owns the schema,
-- and for no node. Each function is one step; the same step again changes nothing more.

-- Where the store stands while it takes part in a copy, or after it was moved. No row: it is in use, or ready to be.
CREATE TABLE hapax.standing (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    word text NOT NULL CHECK (word IN ('leaving', 'moved', 'arriving')),
    -- Tells one copy from every other.
    copy uuid NOT NULL,
    -- The store at its other end.
    other bytea NOT NULL,
    -- Arriving: the last record and the last entry of the audit log that have come.
    record bytea,
    entry int8 NOT NULL DEFAULT 0
);

-- What keeps everybody from writing into a store that is out of use, also those who were on their way when it was closed. Off while the
-- store is in use, and then it costs nothing.
CREATE FUNCTION hapax.refuse() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    -- Only a copy knows its own name; a setting anybody may set.
    IF NOT EXISTS (SELECT FROM hapax.standing AS s WHERE s.copy::text = current_setting('hapax.copying', true)) THEN
        RAISE EXCEPTION 'this store %', (SELECT p.closed FROM hapax.pace AS p) USING ERRCODE = 'HX002';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER out_of_use BEFORE INSERT OR UPDATE OR DELETE ON hapax.heads FOR EACH STATEMENT EXECUTE FUNCTION hapax.refuse();
ALTER TABLE hapax.heads DISABLE TRIGGER out_of_use;
CREATE TRIGGER out_of_use BEFORE INSERT OR UPDATE OR DELETE ON hapax.audit FOR EACH STATEMENT EXECUTE FUNCTION hapax.refuse();
ALTER TABLE hapax.audit DISABLE TRIGGER out_of_use;

-- Writes down where the store stands; a null word puts it into use. `refusal` is what everybody else hears.
CREATE FUNCTION hapax.stand(as_word text, of_copy uuid, of_other bytea, refusal text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM hapax.standing;
    UPDATE hapax.pace SET closed = refusal;
    IF as_word IS NULL THEN
        ALTER TABLE hapax.heads DISABLE TRIGGER out_of_use;
        ALTER TABLE hapax.audit DISABLE TRIGGER out_of_use;
    ELSE
        INSERT INTO hapax.standing (word, copy, other) VALUES (as_word, of_copy, of_other);
        ALTER TABLE hapax.heads ENABLE ALWAYS TRIGGER out_of_use;
        ALTER TABLE hapax.audit ENABLE ALWAYS TRIGGER out_of_use;
    END IF;
END $$;

-- Everything goes, but what fingerprints cover and what a fence must stay above.
CREATE FUNCTION hapax.clear() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    FOR slot IN 0 .. 32 LOOP
        EXECUTE 'TRUNCATE hapax.answers_' || lpad(slot::text, 2, '0');
    END LOOP;
    TRUNCATE hapax.heads, hapax.audit;
    UPDATE hapax.meta SET logged = 0;
END $$;

CREATE FUNCTION hapax.survey() RETURNS TABLE (
    word text, copy uuid, other bytea, record bytea, entry int8, secret bytea, epoch int8, floor int8, logged int8, now int8, records int8, running int8
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM hapax.not_a_standby();
    RETURN QUERY SELECT s.word, s.copy, s.other, s.record, s.entry, m.secret, m.epoch, p.floor, m.logged, hapax.now(), c.records, c.running
    FROM hapax.meta AS m CROSS JOIN hapax.pace AS p LEFT JOIN hapax.standing AS s ON true
        CROSS JOIN (SELECT count(*) AS records, count(*) FILTER (WHERE h.state = 1) AS running FROM hapax.heads AS h) AS c;
END $$;

-- Takes the store out of use. Null: it has left; else how many live leases stand in the way, or -1 if it is not its turn.
CREATE FUNCTION hapax.leave(of_copy uuid, to_other bytea, refusal text) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    moment int8;
    live int8;
BEGIN
    PERFORM hapax.ready();
    -- Whoever is writing is waited for, and nobody begins before this is decided.
    LOCK TABLE hapax.heads, hapax.audit IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM hapax.standing AS s WHERE s.word <> 'leaving') THEN
        RETURN -1;
    END IF;
    moment := hapax.now();
    SELECT count(*) INTO live FROM hapax.heads AS h WHERE h.lease_until > moment AND h.state = 1;
    IF live > 0 THEN
        RETURN live;
    END IF;
    PERFORM hapax.stand('leaving', of_copy, to_other, refusal);
    RETURN NULL;
END $$;

-- The next records by their ids, as they are stored: so many, and a few at most once their answers are that long. A kept answer that is not
-- where it should be has the verdict 2.
CREATE FUNCTION hapax.export(after_id bytea, rows int4, bytes int8) RETURNS SETOF hapax.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off AS $$
DECLARE
    few constant int4 := 16;
    ids bytea[] := ARRAY(SELECT o.id FROM hapax.heads AS o WHERE o.id > coalesce(after_id, '') ORDER BY o.id LIMIT rows);
    v hapax.verdict;
BEGIN
    FOR place IN 1 .. cardinality(ids) BY few LOOP
        FOR v IN SELECT * FROM hapax.get(ids[place : place + few - 1]) LOOP
            bytes := bytes - coalesce(octet_length(v.answer), 0);
            RETURN NEXT v;
        END LOOP;
        EXIT WHEN bytes <= 0;
    END LOOP;
END $$;

-- Says for good that everything is elsewhere.
CREATE FUNCTION hapax.moved(of_copy uuid, refusal text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
    PERFORM hapax.ready();
    UPDATE hapax.standing AS s SET word = 'moved' WHERE s.word IN ('leaving', 'moved') AND s.copy = of_copy;
    IF FOUND THEN
        UPDATE hapax.pace SET closed = refusal;
    END IF;
    RETURN FOUND;
END $$;

CREATE FUNCTION hapax.give_up() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    stood text := (SELECT s.word FROM hapax.standing AS s FOR UPDATE);
BEGIN
    PERFORM hapax.ready();
    IF stood = 'moved' THEN
        RETURN false;
    END IF;
    IF stood = 'arriving' THEN
        PERFORM hapax.clear();
    END IF;
    IF stood IS NOT NULL THEN
        PERFORM hapax.stand(NULL, NULL, NULL, NULL);
    END IF;
    RETURN true;
END $$;

-- Prepares for what is to come. False: there is something here that would be lost.
CREATE FUNCTION hapax.arrive(of_copy uuid, from_other bytea, of_secret bytea, refusal text) RETURNS boolean
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
    UPDATE hapax.meta SET secret = of_secret;
    PERFORM hapax.stand('arriving', of_copy, from_other, refusal);
    RETURN true;
END $$;

-- Whether what comes belongs to the copy that is waited for; notes up to where everything has come, with this.
CREATE FUNCTION hapax.arriving(of_copy uuid, of_record bytea, of_entry int8) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM hapax.ready();
    PERFORM set_config('hapax.copying', of_copy::text, true);
    UPDATE hapax.standing AS s SET record = of_record, entry = of_entry WHERE s.word = 'arriving' AND s.copy = of_copy;
    RETURN FOUND;
END $$;

-- Writes records verbatim, unless they are here in the same or a higher version. Their terms do not come with them: of a record that is still
-- open this takes no promise, as nobody holds a live lease. An attempt that would end late in a transaction of its own is refused by `complete`, and
-- rolled back with its effect; the next one brings the terms of its route.
CREATE FUNCTION hapax.import(
    of_copy uuid, of_record bytea, of_entry int8, ids bytea[], states int2[], fences int8[], versions int8[], attempts int4[], created int8[],
    claimed int8[], finished int8[], expiries int8[], tombstones int8[], statuses int4[], tokens uuid[], fingerprints bytea[], policies int8[],
    namespaces bytea[], principals bytea[], methods bytea[], paths bytea[], keys bytea[], answers bytea[]
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
            state, slot, lost, id, fingerprint, namespace, principal, method, path, key)
        -- Whoever held a lease is gone: it is over now, where the sweep looks for it next.
        SELECT g.fence, g.version, moment, g.created, g.claimed, g.finished, g.expires, g.tombstone, g.policy, g.token, g.attempts, g.status,
               g.state, CASE WHEN g.answer IS NOT NULL AND g.expires > moment
                   THEN hapax.slot_for(g.expires, moment, pace.hours_width, pace.days_width) END,
               g.state IN (5, 13), g.id, g.fingerprint, g.namespace, g.principal, g.method, g.path, g.key
        FROM unnest(ids, states, fences, versions, attempts, created, claimed, finished, expiries, tombstones, statuses, tokens, fingerprints,
                    policies, namespaces, principals, methods, paths, keys, answers)
            AS g(id, state, fence, version, attempts, created, claimed, finished, expires, tombstone, status, token, fingerprint, policy,
                 namespace, principal, method, path, key, answer)
        ON CONFLICT (id) DO NOTHING
        RETURNING o AS head
    )
    SELECT c.head, g.answer FROM come AS c JOIN unnest(ids, answers) AS g(id, answer) ON g.id = (c.head).id WHERE (c.head).slot IS NOT NULL
    LOOP
        PERFORM hapax.keep((kept.head).slot, (kept.head).fence, (kept.head).expires_at, (kept.head).id, kept.answer);
    END LOOP;
    RETURN true;
END $$;

-- Writes entries of the audit log with the numbers they have, unless they are here.
CREATE FUNCTION hapax.import_log(
    of_copy uuid, of_record bytea, of_entry int8, sequences int8[], ats int8[], actions bytea[], signers bytea[], reasons bytea[], ids bytea[],
    namespaces bytea[], principals bytea[], methods bytea[], paths bytea[], keys bytea[], befores int2[], afters int2[], statuses int4[],
    fences int8[], versions int8[]
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT hapax.arriving(of_copy, of_record, of_entry) THEN
        RETURN false;
    END IF;
    INSERT INTO hapax.audit
    SELECT * FROM unnest(sequences, ats, actions, signers, reasons, ids, namespaces, principals, methods, paths, keys, befores, afters, statuses,
                         fences, versions)
    ON CONFLICT (sequence) DO NOTHING;
    UPDATE hapax.meta AS m SET logged = greatest(m.logged, of_entry);
    RETURN true;
END $$;

-- Takes over what belongs to the store as a whole, and puts it into use.
CREATE FUNCTION hapax.settle_in(of_copy uuid, of_epoch int8, of_floor int8, of_logged int8, of_now int8) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
    PERFORM hapax.ready();
    PERFORM FROM hapax.standing AS s WHERE s.word = 'arriving' AND s.copy = of_copy FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE hapax.meta AS m SET epoch = greatest(m.epoch, of_epoch), logged = greatest(m.logged, of_logged);
    UPDATE hapax.pace AS p SET floor = greatest(p.floor, of_floor), clock_floor = greatest(p.clock_floor, of_now);
    PERFORM hapax.stand(NULL, NULL, NULL, NULL);
    RETURN true;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA hapax FROM PUBLIC;
