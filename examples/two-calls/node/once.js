'use strict';

// A middleware that lets each request it guards take effect once per Idempotency-Key.
//
// The handler runs in a transaction that also holds the record of the key. `req.tx` is its client.
//
// - 2xx, 3xx: the handler's work and its answer are committed. A repeat gets the answer again.
// - 4xx: the handler's work is rolled back, and the answer is kept. A repeat gets it again.
// - 5xx, which is also what an error becomes: everything is rolled back, and nothing is kept.
//   A repeat runs the handler.
//
// The handler answers with res.json, res.send or res.end. The answer is sent after the commit.

// What hapax.start refuses, by SQLSTATE.
const REFUSALS = { HX409: 409, HX410: 410, HX418: 409, HX419: 409, HX422: 422 };
// Postgres rolled the transaction back, and asks for another attempt.
const RUN_AGAIN = ['40001', '40P01'];
const ATTEMPTS_MAX = 3;
const WAIT_SECONDS_MAX = 30;

// `principal` is a function of the request: who sends it, as text. Comes after express.json().
module.exports = function once({ pool, namespace, principal }) {
  return async (req, res, next) => {
    const who = principal(req);
    if (!who) return res.status(401).json({ error: 'who are you?' });
    const key = req.get('Idempotency-Key');
    if (!key) return res.status(400).json({ error: 'send an Idempotency-Key' });
    const [, seconds] = /\bwait=(\d{1,4})/.exec(req.get('Prefer')) ?? [];
    const wait = seconds && `${Math.min(seconds, WAIT_SECONDS_MAX)} seconds`;
    const operation = `${req.method} ${req.baseUrl}${req.path}`;
    const claim = [namespace, who, operation, key, JSON.stringify(req.body), wait];
    // What other middleware has set. It goes with every answer.
    const before = { ...res.getHeaders() };
    let tx, begun;
    try {
      tx = await open(pool);
      begun = await begin(tx.client, claim);
    } catch (error) {
      await tx?.rollBack();
      return send(res, before, refusal(error));
    }
    if (!begun.run) {
      await tx.rollBack();
      begun.headers['idempotent-replayed'] = 'true';
      return send(res, before, begun);
    }
    req.tx = tx.client;
    intercept(res, async (answer, restore) => {
      const settled = await settle(tx, begun, answer);
      restore();
      send(res, before, settled);
    });
    next();
  };
};

// A client of the pool, until it is committed or rolled back.
async function open(pool) {
  const client = await pool.connect();
  // Without a listener, a connection that breaks between two queries would end the process.
  const broken = () => {};
  client.on('error', broken);
  const release = (error) => client.off('error', broken).release(error);
  return {
    client,
    commit: () => client.query('COMMIT').then(() => release()),
    // A connection that cannot do this is closed: then the server rolls back.
    rollBack: () => client.query('ROLLBACK').then(() => release(), release),
  };
}

async function begin(client, claim) {
  const sql = 'SELECT * FROM hapax.start($1, $2, $3, $4, hapax.fingerprint($5::jsonb), $6)';
  for (let attempt = 1; ; attempt++) {
    await client.query('BEGIN');
    try {
      const { rows } = await client.query(sql, claim);
      // To which the handler's work is undone. The key stays claimed.
      await client.query('SAVEPOINT claimed');
      return rows[0];
    } catch (error) {
      error.isOfBegin = true;
      if (!RUN_AGAIN.includes(error.code) || attempt === ATTEMPTS_MAX) throw error;
      await client.query('ROLLBACK');
    }
  }
}

// Takes the answer instead of sending it. Express ends every answer with res.end, also those of
// error handlers. Only the first answer counts.
function intercept(res, take) {
  const { end, write, writeHead } = res;
  res.write = res.writeHead = () => {
    throw new Error('a guarded handler answers with res.json, res.send or res.end');
  };
  res.end = (chunk, encoding) => {
    res.end = () => res;
    const body = Buffer.from(chunk ?? '', encoding ?? 'utf8');
    const answer = { status: res.statusCode, headers: { ...res.getHeaders() }, body };
    take(answer, () => Object.assign(res, { end, write, writeHead }));
    return res;
  };
}

// What to send, once the transaction has ended.
async function settle(tx, { operation_id, fence }, answer) {
  const { status, headers, body } = answer;
  if (status >= 500) {
    await tx.rollBack();
    return answer;
  }
  try {
    if (status >= 400) await tx.client.query('ROLLBACK TO SAVEPOINT claimed');
    const sql = 'SELECT hapax.complete($1, $2, $3, $4::jsonb, $5::bytea)';
    await tx.client.query(sql, [operation_id, fence, status, JSON.stringify(headers), body]);
    await tx.commit();
    return answer;
  } catch (error) {
    await tx.rollBack();
    return refusal(error);
  }
}

function send(res, before, { status, headers, body }) {
  for (const name of res.getHeaderNames()) res.removeHeader(name);
  for (const [name, value] of Object.entries({ ...before, ...headers })) res.setHeader(name, value);
  res.statusCode = status;
  res.end(body);
}

function refusal({ isOfBegin, code, message }) {
  if (isOfBegin && code in REFUSALS) {
    const headers = code === 'HX409' ? { 'retry-after': '1' } : {};
    return json(REFUSALS[code], message.split(':')[0], headers);
  }
  // A key or a body that Postgres does not take.
  if (isOfBegin && code?.startsWith('22')) return json(400, message);
  // Nothing was kept, or the reply to COMMIT was lost: the key may be sent again.
  console.error(`once: ${code ?? ''} ${message}`);
  return json(503, 'try again');
}

function json(status, error, headers = {}) {
  const body = Buffer.from(JSON.stringify({ error }));
  const own = { 'content-type': 'application/json', 'content-length': body.length };
  return { status, headers: { ...own, ...headers }, body };
}
