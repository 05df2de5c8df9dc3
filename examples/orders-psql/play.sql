-- Plays the service by hand, every mistake first. Each transaction that hapax.complete refuses takes its order along, and its message.
--
--   psql --username orders --dbname orders --set operation=… --set fence=… --file play.sql
--
-- with what the request says in Hapax-Operation and Hapax-Fence.

\set QUIET on
\set ON_ERROR_STOP off
\set SHOW_CONTEXT never
\pset tuples_only on
\pset format unaligned

-- What an earlier run has left.
DELETE FROM orders WHERE id LIKE 'by-hand-%';

\echo
\echo '-- an operation that no gateway has made'
BEGIN;
INSERT INTO orders (id, item, quantity) VALUES ('by-hand-1', 'hat', 1);
SELECT hapax.complete(repeat('0', 64), :fence, 201);
COMMIT;
\echo :LAST_ERROR_SQLSTATE

\echo
\echo '-- the fence of another attempt: what one that was taken for lost runs into'
BEGIN;
INSERT INTO orders (id, item, quantity) VALUES ('by-hand-2', 'hat', 1);
SELECT hapax.complete(:'operation', :fence - 1, 201);
COMMIT;
\echo :LAST_ERROR_SQLSTATE

\echo
\echo '-- no status of a final answer'
BEGIN;
INSERT INTO orders (id, item, quantity) VALUES ('by-hand-3', 'hat', 1);
SELECT hapax.complete(:'operation', :fence, 100);
COMMIT;
\echo :LAST_ERROR_SQLSTATE

\echo
\echo '-- a header field that is none'
BEGIN;
INSERT INTO orders (id, item, quantity) VALUES ('by-hand-4', 'hat', 1);
SELECT hapax.complete(:'operation', :fence, 201, '{"not a name": "x"}');
COMMIT;
\echo :LAST_ERROR_SQLSTATE

\echo
\echo '-- rolled back after it was joined: as if it had not been'
BEGIN;
INSERT INTO orders (id, item, quantity) VALUES ('by-hand-5', 'hat', 1);
SELECT hapax.emit('orders', 'by-hand-5', '{"id": "by-hand-5", "item": "hat", "quantity": 1}'::jsonb, headers => '{"ce-type": "order.placed"}',
    operation => :'operation', step => 'placed');
SELECT hapax.complete(:'operation', :fence, 201, '{"content-type": "application/json"}', '{"id": "by-hand-5"}');
ROLLBACK;

\echo
\echo '-- as it should be'
BEGIN;
INSERT INTO orders (id, item, quantity) VALUES ('by-hand-6', 'hat', 1);
SELECT hapax.emit('orders', 'by-hand-6', '{"id": "by-hand-6", "item": "hat", "quantity": 1}'::jsonb, headers => '{"ce-type": "order.placed"}',
    operation => :'operation', step => 'placed');
SELECT hapax.complete(:'operation', :fence, 201, '{"content-type": "application/json", "location": "/orders/by-hand-6"}', '{"id": "by-hand-6"}');
COMMIT;

\echo
\echo '-- a second time'
BEGIN;
INSERT INTO orders (id, item, quantity) VALUES ('by-hand-7', 'hat', 1);
SELECT hapax.emit('orders', 'by-hand-7', '{"id": "by-hand-7", "item": "hat", "quantity": 1}'::jsonb, headers => '{"ce-type": "order.placed"}',
    operation => :'operation', step => 'placed');
SELECT hapax.complete(:'operation', :fence, 201);
COMMIT;
\echo :LAST_ERROR_SQLSTATE

\echo
\echo '-- what there is'
SELECT id FROM orders WHERE id LIKE 'by-hand-%' ORDER BY id;
