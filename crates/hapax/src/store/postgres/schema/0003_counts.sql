-- How many records there are, and which principals have some: what the limits on new records go by.

-- What was counted. One row for the whole store, written once a second at most and read by each node once a second.
CREATE TABLE hapax.counts (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- When counting last went on.
    counted_at int8 NOT NULL DEFAULT 0,
    -- What the last whole walk through the table found, and how many blocks it had then.
    records int8 NOT NULL DEFAULT 0,
    refused int8 NOT NULL DEFAULT 0,
    blocks int8 NOT NULL DEFAULT 0,
    -- The walk that is under way: the next block, and what was found before it.
    walked_to int8 NOT NULL DEFAULT 0,
    walked_records int8 NOT NULL DEFAULT 0,
    walked_refused int8 NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO hapax.counts DEFAULT VALUES;

-- Principals who have records, by a digest of namespace and name.
CREATE TABLE hapax.principals (
    id bytea PRIMARY KEY,
    known_until int8 NOT NULL
);
CREATE INDEX principals_known_until ON hapax.principals (known_until);

-- Goes on counting, 4,096 blocks at a time: a table of less is counted whole each time. A counter that every claim adds to would be a row that
-- all nodes wait for. One node counts at a time, and one a second is enough. Also removes principals who are no longer known.
CREATE FUNCTION hapax.count_records() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    step constant int8 := 256;
    steps_max constant int4 := 16;
    c hapax.counts;
    moment int8;
    blocks int8;
    part record;
BEGIN
    PERFORM hapax.ready();
    SELECT * INTO c FROM hapax.counts FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    moment := hapax.now();
    IF moment >= c.counted_at AND moment < c.counted_at + 1000000 THEN
        RETURN;
    END IF;
    blocks := pg_relation_size('hapax.heads') / current_setting('block_size')::int8;
    FOR i IN 1 .. steps_max LOOP
        EXIT WHEN c.walked_to >= blocks;
        SELECT count(*) FILTER (WHERE NOT hapax.is_gone(o.state, o.tombstone_until, moment)) AS records,
               -- `Head::is_refused`.
               count(*) FILTER (WHERE o.state = 4 AND o.status IN (401, 403) AND o.tombstone_until > moment
                   AND o.tombstone_until = o.expires_at AND o.expires_at <= o.finished_at + 600000000) AS refused
        INTO part FROM hapax.heads AS o
        WHERE o.ctid >= format('(%s,0)', c.walked_to)::tid AND o.ctid < format('(%s,0)', c.walked_to + step)::tid;
        c.walked_records := c.walked_records + part.records;
        c.walked_refused := c.walked_refused + part.refused;
        c.walked_to := c.walked_to + step;
    END LOOP;
    IF c.walked_to >= blocks THEN
        c.records := c.walked_records;
        c.refused := c.walked_refused;
        c.blocks := blocks;
        c.walked_to := 0;
        c.walked_records := 0;
        c.walked_refused := 0;
    END IF;
    UPDATE hapax.counts SET counted_at = moment, records = c.records, refused = c.refused, blocks = c.blocks, walked_to = c.walked_to,
        walked_records = c.walked_records, walked_refused = c.walked_refused;
    DELETE FROM hapax.principals AS p WHERE p.id = ANY (ARRAY(
        SELECT d.id FROM hapax.principals AS d WHERE d.known_until <= moment ORDER BY d.known_until LIMIT 1000));
END $$;

-- What was counted. While a large table is walked through, it may grow: what it has grown by since the last whole walk is taken to be as full
-- as the rest.
CREATE FUNCTION hapax.read_counts() RETURNS TABLE (records int8, refused int8)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY SELECT CASE WHEN c.blocks < 4096 THEN c.records
        ELSE (c.records::float8 * greatest(1, pg_relation_size('hapax.heads') / current_setting('block_size')::int8 / c.blocks::float8))::int8 END,
        c.refused FROM hapax.counts AS c;
END $$;

-- Remembers principals who have records. Ids are distinct and sorted.
CREATE FUNCTION hapax.remember(ids bytea[], untils int8[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET jit = off AS $$
BEGIN
    PERFORM hapax.ready();
    INSERT INTO hapax.principals AS p (id, known_until) SELECT g.id, g.until FROM unnest(ids, untils) AS g(id, until)
    ON CONFLICT (id) DO UPDATE SET known_until = excluded.known_until WHERE p.known_until < excluded.known_until;
END $$;

CREATE FUNCTION hapax.knows(of_id bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM hapax.not_a_standby();
    RETURN EXISTS (SELECT FROM hapax.principals AS p WHERE p.id = of_id AND p.known_until > hapax.now());
END $$;

-- Whoever may use the store may use these: roles were let in before there were any.
REVOKE ALL ON FUNCTION hapax.count_records, hapax.read_counts, hapax.remember, hapax.knows FROM PUBLIC;
DO $do$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT a.grantee::regrole AS role FROM pg_proc AS p, aclexplode(p.proacl) AS a
        WHERE p.oid = 'hapax.pulse'::regproc AND a.privilege_type = 'EXECUTE' AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION hapax.count_records, hapax.read_counts, hapax.remember, hapax.knows TO %s', granted.role);
    END LOOP;
END $do$;
