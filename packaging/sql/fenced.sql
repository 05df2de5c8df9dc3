-- For a service behind Hapax that keeps its effects in a Postgres of its own: what the modes `fenced` and `probe` ask of it, as one table and three
-- functions. Run this once in the service's database, in the schema that its connections find first. See docs/modes.md.
--
-- A request carries `Hapax-Operation` and `Hapax-Fence`. In one transaction, in this order:
--
--     BEGIN;
--     SELECT * FROM hapax_fence(operation, fence);      -- `applied`: answer what it has. HX003: answer 409 with `Hapax-Refused: fence`.
--     … the effect …
--     SELECT hapax_applied(operation, fence, 201, '{"content-type": "application/json"}', '{"id": 7}');
--     COMMIT;                                           -- answer only after this
--
-- and a probe (mode `probe` alone), which carries the next fence, in a transaction of its own:
--
--     SELECT * FROM hapax_probe(operation, fence);      -- `done`: answer what it has. `barred`: say so, after this has committed.

-- What is known of each operation. A row is there from the first attempt or probe on that committed.
CREATE TABLE IF NOT EXISTS hapax_operations (
    -- As the field says it: opaque, and the same for every attempt in one life of a key. A key that is used again after its retention and
    -- tombstone are over comes as another operation.
    operation text PRIMARY KEY,
    -- The highest that was seen. Whatever comes with a lower one, and was not applied, is refused.
    fence int8 NOT NULL,
    -- The answer, once the effect is done: these are set in the transaction of the effect, and never again.
    status int4 CHECK (status BETWEEN 200 AND 599),
    headers jsonb,
    body bytea,
    -- When it was begun, for whoever clears up. Keep a row for the retention, tombstone and longest attempt of the route, and for as long as its
    -- key is unknown to Hapax: see docs/modes.md.
    began timestamptz NOT NULL DEFAULT now()
);

-- The first statement of an attempt: `run`, or `applied` with the answer that there is. Raises HX003 where a higher fence was here.
--
-- Holds the row until the transaction ends. So an attempt that follows waits for the one before it, and then sees what became of it: of two that
-- are under way at the same time one is always first. How long it waits is up to `lock_timeout`: whoever gives up has done nothing.
CREATE OR REPLACE FUNCTION hapax_fence(operation text, fence int8)
RETURNS TABLE (verdict text, status int4, headers jsonb, body bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    known hapax_operations;
BEGIN
    INSERT INTO hapax_operations AS o (operation, fence) VALUES (hapax_fence.operation, hapax_fence.fence)
        ON CONFLICT (operation) DO UPDATE SET fence = greatest(o.fence, excluded.fence)
        RETURNING o.* INTO known;
    -- Before the fence is looked at: what is done is done, whoever asks.
    IF known.status IS NOT NULL THEN
        RETURN QUERY SELECT 'applied', known.status, known.headers, known.body;
    ELSIF known.fence > hapax_fence.fence THEN
        RAISE EXCEPTION 'hapax: fenced out: this attempt has fence %, and % was here', hapax_fence.fence, known.fence
            USING ERRCODE = 'HX003', HINT = 'Roll back, and answer with the field Hapax-Refused: fence.';
    ELSE
        RETURN QUERY SELECT 'run', NULL::int4, NULL::jsonb, NULL::bytea;
    END IF;
END
$$;

-- The last statement of an attempt: it was applied, with this answer. A refusal (4xx) is an answer too: without its effect, and committed.
-- Raises HX003 where the fence is not this attempt's, HX005 where it was applied already.
CREATE OR REPLACE FUNCTION hapax_applied(operation text, fence int8, status int4, headers jsonb DEFAULT '{}', body bytea DEFAULT '')
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    known hapax_operations;
BEGIN
    -- Without a status it would not be known as applied, and be done again.
    IF hapax_applied.status IS NULL OR hapax_applied.status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'hapax: an answer has a status from 200 to 599' USING ERRCODE = '22023';
    END IF;
    UPDATE hapax_operations AS o
        SET status = hapax_applied.status, headers = hapax_applied.headers, body = hapax_applied.body
        WHERE o.operation = hapax_applied.operation AND o.fence = hapax_applied.fence AND o.status IS NULL;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT o.* INTO known FROM hapax_operations AS o WHERE o.operation = hapax_applied.operation;
    IF known.status IS NOT NULL THEN
        RAISE EXCEPTION 'hapax: applied already' USING ERRCODE = 'HX005', HINT = 'Ask hapax_fence first: it says so, with the answer.';
    END IF;
    RAISE EXCEPTION 'hapax: fenced out: this attempt has fence %, and the operation has %', hapax_applied.fence, known.fence
        USING ERRCODE = 'HX003', HINT = 'Ask hapax_fence in the same transaction, before the effect.';
END
$$;

-- The same for whoever has text, so that a literal is never read as an escaped bytea.
CREATE OR REPLACE FUNCTION hapax_applied(operation text, fence int8, status int4, headers jsonb, body text)
RETURNS void
LANGUAGE sql AS $$
    SELECT hapax_applied(operation, fence, status, headers, convert_to(body, 'UTF8'))
$$;

-- What became of an operation: `done` with its answer, or `barred`: not done, and from the commit of this on nothing that has a lower fence will be.
--
-- An attempt that is still under way holds the row. It is waited for, shortly: 55P03 means that nobody knows yet, which any answer but the two says.
CREATE OR REPLACE FUNCTION hapax_probe(operation text, fence int8)
RETURNS TABLE (verdict text, status int4, headers jsonb, body bytea)
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    known hapax_operations;
BEGIN
    INSERT INTO hapax_operations AS o (operation, fence) VALUES (hapax_probe.operation, hapax_probe.fence)
        ON CONFLICT (operation) DO UPDATE SET fence = greatest(o.fence, excluded.fence)
        RETURNING o.* INTO known;
    IF known.status IS NOT NULL THEN
        RETURN QUERY SELECT 'done', known.status, known.headers, known.body;
    ELSE
        RETURN QUERY SELECT 'barred', NULL::int4, NULL::jsonb, NULL::bytea;
    END IF;
END
$$;
