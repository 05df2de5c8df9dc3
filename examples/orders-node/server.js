// A small orders service, to be run behind `hapax serve`.
//
// An order, the message about it and the record of its key commit together: see `POST /orders`. The other routes need no key: see docs/natural.md.

import express from 'express';
import pg from 'pg';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL ?? 'postgresql://orders@127.0.0.1/orders', max: 8 });
// The pool replaces an idle connection that breaks, so this is no reason to exit.
pool.on('error', (error) => console.error(`orders: ${error.message}`));

const app = express();
app.disable('x-powered-by');
app.use(express.json());
if (process.env.ORDERS_MISCHIEF) (await import('./mischief.js')).install(app, { insert, join, send, transaction });

app.post('/orders', async (request, response) => {
  if (!request.get('hapax-operation')) return refuse(response, 403, 'orders are placed through the gateway');
  // Nothing was done, so there is nothing to join: the gateway keeps a 4xx as it is.
  if (!isOrder(request.body)) return refuse(response, 422, 'an order has an item and a quantity of 1 or more');
  const answer = await transaction(async (client) => {
    const answer = await insert(client, request);
    await join(client, request, answer);
    return answer;
  });
  // The answer is sent only after the commit.
  send(response, answer);
});

async function insert(client, request) {
  const { item, quantity } = request.body;
  const { rows } = await client.query('INSERT INTO orders (item, quantity) VALUES ($1, $2) RETURNING *', [item, quantity]);
  await emit(client, request, rows[0]);
  return shown(rows[0], 201, { location: `/orders/${rows[0].id}` });
}

// Writes the message that the order was placed. It is published if and only if the client's transaction commits.
function emit(client, request, { id, item, quantity }) {
  const message = [id, JSON.stringify({ id, item, quantity }), request.get('hapax-operation')];
  return client.query(
    `SELECT hapax.emit('orders', $1, $2::jsonb, headers => '{"ce-type": "order.placed"}', operation => $3, step => 'placed')`,
    message,
  );
}

// Completes the record of this request in the client's transaction. If it throws, the transaction is aborted.
function join(client, request, { status, headers, body }) {
  const sent = [request.get('hapax-operation'), request.get('hapax-fence'), status, JSON.stringify(headers), body];
  return client.query('SELECT hapax.complete($1, $2, $3, $4, $5)', sent);
}

// Needs no key, because the caller chooses the id of the order.
app.put('/orders/:id', async (request, response) => {
  const { id } = request.params;
  if (!isOrder(request.body)) return refuse(response, 422, 'an order has an item and a quantity of 1 or more');
  const { item, quantity } = request.body;
  const made = await one('INSERT INTO orders (id, item, quantity) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING RETURNING *', [id, item, quantity]);
  // A separate statement: only a later one sees an order that a concurrent request has just inserted.
  const order = made ?? (await find(id));
  if (!order) return refuse(response, 409, 'the order was just deleted: send it again if you still want it');
  if (order.item !== item) return refuse(response, 409, 'there is another order of this number');
  send(response, shown(order, made ? 201 : 200));
});

app.get('/orders/:id', async (request, response) => {
  const order = await find(request.params.id);
  order ? send(response, shown(order)) : refuse(response, 404, 'no such order');
});

// A step that is possible from one state only: a second request finds it taken.
app.post('/orders/:id/ship', async (request, response) => {
  const { id } = request.params;
  const shipped = await transaction(async (client) => {
    const { rows } = await client.query(
      "UPDATE orders SET state = 'shipped', version = version + 1 WHERE id = $1 AND state = 'placed' RETURNING *",
      [id],
    );
    // Other effects of the step belong here: only the request that takes the step runs this.
    if (rows.length > 0) await client.query('INSERT INTO parcels (order_id) VALUES ($1)', [id]);
    return rows[0];
  });
  const order = shipped ?? (await find(id));
  order ? send(response, shown(order)) : refuse(response, 404, 'no such order');
});

// Changes the order only if it is still in a version that the caller has seen.
app.patch('/orders/:id', async (request, response) => {
  const { id } = request.params;
  const ifMatch = request.get('if-match');
  if (ifMatch === undefined) return refuse(response, 428, 'say which version you have seen, in If-Match');
  const quantity = request.body?.quantity;
  if (!isCount(quantity) || quantity === 0) return refuse(response, 422, 'a quantity is 1 or more');
  const changed = await one(
    'UPDATE orders SET quantity = $1, version = version + 1 WHERE id = $2 AND (version = ANY ($3) OR $4) RETURNING *',
    [quantity, id, versions(ifMatch), ifMatch.trim() === '*'],
  );
  if (changed) return send(response, shown(changed));
  const isThere = (await find(id)) !== undefined;
  isThere ? refuse(response, 412, 'it has changed since: look again') : refuse(response, 404, 'no such order');
});

// The versions in a list of entity tags. Tags of another form and weak tags match nothing.
function versions(ifMatch) {
  const tags = ifMatch.split(',').map((tag) => tag.trim().match(/^"(\d{1,9})"$/));
  return tags.filter((tag) => tag !== null).map((tag) => Number(tag[1]));
}

// 204 whether it existed or not: the caller wants it gone, and it is.
app.delete('/orders/:id', async (request, response) => {
  const { id } = request.params;
  await pool.query("DELETE FROM orders WHERE id = $1 AND state = 'placed'", [id]);
  (await find(id)) ? refuse(response, 409, 'it has been shipped') : response.status(204).end();
});

// Sets the quantity and does not add to it, so that repeating the request changes nothing.
app.put('/stock/:sku', async (request, response) => {
  const quantity = request.body?.quantity;
  if (!isCount(quantity)) return refuse(response, 422, 'a quantity is 0 or more');
  const stock = await one(
    'INSERT INTO stock (sku, quantity) VALUES ($1, $2) ON CONFLICT (sku) DO UPDATE SET quantity = excluded.quantity RETURNING *',
    [request.params.sku, quantity],
  );
  send(response, json(stock, 200));
});

// After an error of the database the transaction was rolled back, so 500, which releases the key, is correct. HX003 and HX005 mean that
// another attempt counts, and not this one. Requests that express itself refuses, such as a body that is not JSON, have their own status.
app.use((error, _request, response, _next) => {
  console.error(`orders: ${error.code ?? error.type ?? ''}: ${error.message}${error.hint ? ` (${error.hint})` : ''}`);
  refuse(response, error.statusCode ?? 500, error.statusCode ? error.message : 'it is not known that anything was done');
});

// Runs the work in one transaction and returns when it is committed. If it throws, nothing was committed, unless the reply to
// the commit itself was lost.
async function transaction(work) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const result = await work(client);
    await client.query('COMMIT');
    client.release();
    return result;
  } catch (error) {
    // Closes the connection, so that the server rolls back the transaction.
    client.release(error);
    throw error;
  }
}

async function one(sql, values) {
  return (await pool.query(sql, values)).rows[0];
}

function find(id) {
  return one('SELECT * FROM orders WHERE id = $1', [id]);
}

function isOrder(wanted) {
  return typeof wanted?.item === 'string' && isCount(wanted.quantity) && wanted.quantity > 0;
}

function isCount(quantity) {
  return Number.isInteger(quantity) && quantity >= 0 && quantity < 2 ** 31;
}

// The order and its version, as a strong entity tag.
function shown(order, status = 200, headers = {}) {
  return json(order, status, { etag: `"${order.version}"`, ...headers });
}

function json(value, status, headers = {}) {
  return { status, headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(value) };
}

function refuse(response, status, error) {
  send(response, json({ error }, status));
}

function send(response, { status, headers, body }) {
  // Not with express, which would add fields: the answer must be sent as it was stored.
  response.writeHead(status, { ...headers, 'content-length': Buffer.byteLength(body) }).end(body);
}

const [host, port] = (process.env.LISTEN ?? '127.0.0.1:3000').split(':');
const server = app.listen(Number(port), host, (error) => {
  if (error) throw error;
  console.log(`orders: listening on ${host}:${server.address().port}`);
});
