-- Places an order once. Run it twice: the second run shows the answer of the first.
--
--   psql 'postgresql://orders@127.0.0.1/shop' -v key=order-17 -v item=hat -f orders.sql

\set QUIET on
-- An error of hapax.start, such as `in-flight`, ends psql with exit code 3: nothing was done.
\set ON_ERROR_STOP on
\set SHOW_CONTEXT never

BEGIN;

SELECT * FROM hapax.start('shop', :'USER', 'POST /orders', :'key',
    hapax.fingerprint(jsonb_build_object('item', :'item')))
\gset

\if :run
    WITH placed AS (
        INSERT INTO orders (item, placed_by)
        SELECT name, :'USER' FROM items WHERE name = :'item' RETURNING id, item
    )
    SELECT 201 AS status,
        jsonb_build_object('Content-Type', 'application/json', 'Location', '/orders/' || id)
            AS headers,
        jsonb_build_object('id', id, 'item', item) AS body
    FROM placed
    UNION ALL
    -- This answer is kept too: a repeat gets it again.
    SELECT 404, '{"Content-Type": "application/json"}', '{"error": "no such item"}'
    WHERE NOT EXISTS (SELECT FROM placed)
    \gset
    SELECT hapax.complete(:'operation_id', :fence, :status, :'headers'::jsonb, :'body'::text)
    \gset
\else
    SELECT convert_from(:'body', 'UTF8') AS body
    \gset
\endif

COMMIT;

\echo :status
\echo :headers
\if :run
\else
    \echo 'Idempotent-Replayed: true'
\endif
\echo :body
