-- A next version of the schema, as one may come: a column, a function, and every function of the version before in a new edition with the
-- same signature. Programs of the version before go on working on it.

ALTER TABLE hapax.heads ADD COLUMN origin bytea NOT NULL DEFAULT ''::bytea;

CREATE FUNCTION hapax.census() RETURNS int8
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT count(*) FROM hapax.heads $$;
REVOKE ALL ON FUNCTION hapax.census() FROM PUBLIC;

DO $do$
DECLARE
    edition record;
BEGIN
    FOR edition IN
        SELECT p.oid, pg_get_functiondef(p.oid) AS definition FROM pg_proc AS p
        WHERE p.pronamespace = 'hapax'::regnamespace AND p.proname <> 'census' AND p.prokind = 'f'
    LOOP
        -- The body begins after the first quote that follows AS; a comment there changes nothing and makes it another function.
        EXECUTE regexp_replace(edition.definition, '(AS \$[a-z]*\$)', E'\\1 -- second edition\n');
    END LOOP;
END $do$;
