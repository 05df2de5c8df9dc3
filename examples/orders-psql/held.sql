-- The operation of a route whose mode is not transaction: it has no record that could be completed here.
--
--   psql --username orders --dbname orders --set operation=… --set fence=… --file held.sql

\set QUIET on
\set ON_ERROR_STOP off
\set SHOW_CONTEXT never

BEGIN;
INSERT INTO orders (id, item, quantity) VALUES ('by-hand-8', 'hat', 1);
SELECT hapax.complete(:'operation', :fence, 201);
COMMIT;
\echo :LAST_ERROR_SQLSTATE
