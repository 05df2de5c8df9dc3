'use strict';

const express = require('express');
const pg = require('pg');
const once = require('./once');

const pool = new pg.Pool({
  connectionString: process.env.DATABASE_URL ?? 'postgresql://orders@127.0.0.1/shop',
  max: 20,
  connectionTimeoutMillis: 5000,
});
// The pool replaces an idle connection that breaks. Without a listener the process would end.
pool.on('error', (error) => console.error(`orders: ${error.message}`));

// In real life: whoever your authentication says it is, never what the client says.
const user = (req) => req.get('X-User');

const app = express();
app.disable('x-powered-by');
// A body that is not JSON gets its 400 here, before a key is claimed.
app.use(express.json({ type: () => true }));

app.post('/orders', once({ pool, namespace: 'shop', principal: user }), async (req, res) => {
  const item = req.body?.item;
  if (typeof item !== 'string') return res.status(400).json({ error: 'send {"item": "..."}' });
  const sql = 'INSERT INTO orders (item, placed_by) VALUES ($1, $2) RETURNING id';
  try {
    const { rows } = await req.tx.query(sql, [item, user(req)]);
    const id = Number(rows[0].id);
    res.status(201).location(`/orders/${id}`).json({ id, item });
  } catch (error) {
    if (error.code !== '23503') throw error;
    res.status(404).json({ error: 'no such item' });
  }
});

// A 5xx of a guarded route rolls everything back.
app.use((error, _req, res, next) => {
  if (res.headersSent) return next(error);
  const status = error.status ?? 503;
  if (status >= 500) console.error(`orders: ${error.code ?? ''} ${error.message}`);
  res.status(status).json({ error: status < 500 ? error.message : 'try again' });
});

const port = Number(process.env.PORT ?? 8080);
app.listen(port, '127.0.0.1', (error) => {
  if (error) throw error;
  console.log(`listening on ${port}`);
});
