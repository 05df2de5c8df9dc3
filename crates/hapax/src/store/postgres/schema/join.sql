-- Joining: an attempt ends inside the transaction of whoever has its effect, so that both commit or neither does. Whatever goes wrong is an error,
-- which takes the transaction with it; none of these functions says no by its result.
--
-- Any isolation level will do: where another one has changed the record since the transaction's snapshot, the server raises 40001.

-- Ends an attempt under `Held`, and returns the store's time. For programs that hold the attempt themselves and make the answer as it is stored: every
-- number as drivers send numbers, of 64 bits.
CREATE FUNCTION hapax.join(of_id bytea, of_fence int8, of_state int8, of_status int8, retention int8, tombstone int8, answer bytea) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    pace hapax.pace;
    moment int8;
    expires int8;
    into_slot int2;
    kept boolean;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT * INTO pace FROM hapax.pace;
    moment := greatest(hapax.clock() + pace.skew, pace.clock_floor);
    expires := moment + retention;
    IF answer IS NOT NULL THEN
        into_slot := hapax.slot_for(expires, moment, pace.hours_width, pace.days_width);
    END IF;
    UPDATE hapax.heads AS o SET
        state = of_state, status = of_status, version = o.version + 1, finished_at = moment, expires_at = expires,
        tombstone_until = expires + tombstone, lost = of_state = 5, slot = into_slot
    WHERE o.id = of_id AND o.fence = of_fence AND o.state IN (1, 5, 13) AND o.fingerprint IS NOT NULL
        AND of_state IN (2, 3, 4, 5) AND retention >= 0 AND tombstone >= 0;
    IF NOT FOUND THEN
        PERFORM hapax.not_joined(of_id, of_fence, of_state IN (2, 3, 4, 5) AND retention >= 0 AND tombstone >= 0);
    END IF;
    IF into_slot IS NOT NULL THEN
        kept := hapax.keep(into_slot, of_fence, expires, of_id, answer);
    END IF;
    RETURN moment;
END $$;

-- Says why an attempt could not end.
CREATE FUNCTION hapax.not_joined(of_id bytea, of_fence int8, is_end boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF is_end IS NOT TRUE THEN
        RAISE EXCEPTION 'no attempt can end so' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM FROM hapax.heads AS o WHERE o.id = of_id AND o.fence = of_fence AND o.state IN (2, 3);
    IF FOUND THEN
        RAISE EXCEPTION 'this attempt has completed its record already, or answered a refusal that was kept; what this transaction has done must not be committed'
            USING ERRCODE = 'HX005', HINT = 'roll back: whoever asks again gets the answer that is stored';
    END IF;
    PERFORM hapax.fenced_out((SELECT o.fence FROM hapax.heads AS o WHERE o.id = of_id), of_fence);
END $$;

CREATE FUNCTION hapax.fenced_out(seen int8, given int8) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    -- A snapshot from before the claim shows no record, or the fence of an attempt before this one: it may own its record all the same.
    -- But only one that was taken before its fence was minted: if it is gone, it is gone for every transaction after this one.
    IF current_setting('transaction_isolation') <> 'read committed' AND (seen IS NULL OR seen < given)
        AND (SELECT extract(epoch FROM transaction_timestamp()) * 1000000 + p.skew <= given FROM hapax.pace AS p)
    THEN
        RAISE EXCEPTION 'the snapshot of this transaction is older than its attempt' USING ERRCODE = 'serialization_failure', HINT = 'run the transaction again';
    END IF;
    RAISE EXCEPTION 'fenced out: this attempt no longer owns its record, and what this transaction has done must not be committed'
        USING ERRCODE = 'HX003', HINT = 'roll back: another attempt has the record, or somebody has settled it';
END $$;

-- Header fields as people write them: an object of names with a value or an array of values each, or an array of pairs, which keeps the order
-- of names too. Without a name: what is none of these.
CREATE FUNCTION hapax.fields_of(headers jsonb) RETURNS TABLE (name text, value jsonb)
LANGUAGE sql IMMUTABLE AS $$
    SELECT lower(o.name COLLATE "C"), v.value
    FROM jsonb_each(CASE jsonb_typeof(headers) WHEN 'object' THEN headers ELSE '{}' END) AS o(name, value),
        LATERAL jsonb_array_elements(CASE jsonb_typeof(o.value) WHEN 'array' THEN o.value ELSE jsonb_build_array(o.value) END) AS v(value)
    UNION ALL
    SELECT CASE WHEN jsonb_typeof(p.pair) = 'array' AND jsonb_typeof(p.pair -> 0) = 'string' AND p.pair -> 2 IS NULL
            THEN lower((p.pair ->> 0) COLLATE "C") END, p.pair -> 1
    FROM jsonb_array_elements(CASE jsonb_typeof(headers) WHEN 'object' THEN '[]' WHEN 'array' THEN headers ELSE jsonb_build_array(headers) END) AS p(pair)
$$;

-- The fields of an answer as they are stored: `put_fields` of core/src/answer.rs, without those that are never kept. Null: they ask for the answer
-- not to be kept. docs/http.md has the list of what is left out.
CREATE FUNCTION hapax.kept_fields(headers jsonb, cookies boolean, version bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    fields_max constant int4 := 100;
    bytes_max constant int4 := 65536;
    never constant text[] := '{connection,keep-alive,proxy-authenticate,proxy-authorization,te,trailer,transfer-encoding,upgrade,date,age,'
        'content-length,idempotent-replayed,idempotency-expires}';
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

-- An answer as it is stored: `Answer::encode` of core/src/answer.rs, without trailers.
CREATE FUNCTION hapax.encoded(of_id bytea, status int4, fields bytea, body bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    content bytea := int2send(status::int2) || fields || int4send(0) || body;
BEGIN
    RETURN decode('01', 'hex') || substr(sha256(of_id || content), 1, 16) || content;
END $$;

-- Completes the record of an operation by the terms of its route, within one of the functions below.
CREATE FUNCTION hapax.complete_here(operation text, of_fence int8, status int8, headers jsonb, body bytea) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- What the record is found by: `OperationId::of` of core/src/operation.rs.
    found_by bytea;
    h record;
    fields bytea;
    answer bytea;
BEGIN
    IF octet_length(operation) = 64 AND operation !~ '[^0-9a-f]' THEN
        found_by := decode(substr(operation, 33), 'hex');
        PERFORM FROM hapax.meta AS m WHERE decode(substr(operation, 1, 32), 'hex') = substr(sha256(
            int8send(17) || 'hapax operation 2' || int8send(32) || m.secret || int8send(16) || found_by), 1, 16);
    END IF;
    IF found_by IS NULL OR NOT FOUND THEN
        RAISE EXCEPTION 'this is no operation of this store'
            USING ERRCODE = 'HX006', HINT = 'pass on what came in the field Hapax-Operation, to the database that the gateway keeps its records in';
    END IF;
    IF of_fence IS NULL OR status IS NULL OR status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'an answer has a fence, and a status from 200 to 599' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT o.id, o.fence, o.terms, t.retention, t.tombstone, t.keep, t.bytes_max, t.cookies, t.version INTO h
    FROM hapax.heads AS o LEFT JOIN hapax.terms AS t ON t.id = o.terms
    WHERE o.id >= found_by AND o.id <= found_by || decode('ffffffffffffffffffffffffffffffff', 'hex') LIMIT 1;
    IF h.fence IS DISTINCT FROM of_fence THEN
        PERFORM hapax.fenced_out(h.fence, of_fence);
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

-- For any language: what came in the fields Hapax-Operation and Hapax-Fence, and the answer that everybody is to get who sends the same key. A
-- text goes without escapes and is stored as UTF-8. There is one function for each number of arguments and type of body, and none has a default for
-- the body: a literal whose type is not said is a text and never bytes.
CREATE FUNCTION hapax.complete(operation text, fence int8, status int8, headers jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    PERFORM hapax.complete_here(operation, fence, status, headers, '');
END $$;

CREATE FUNCTION hapax.complete(operation text, fence int8, status int8, headers jsonb, body bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    PERFORM hapax.complete_here(operation, fence, status, headers, body);
END $$;

CREATE FUNCTION hapax.complete(operation text, fence int8, status int8, headers jsonb, body text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    PERFORM hapax.complete_here(operation, fence, status, headers, convert_to(body, 'UTF8'));
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA hapax FROM PUBLIC;
