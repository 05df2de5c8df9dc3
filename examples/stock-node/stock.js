// Takes orders from NATS JetStream and reserves stock: once for each order, however often its message is delivered.
import { AckPolicy, connect, nanos } from "nats";
import pg from "pg";

const CONSUMER = "stock";
const TRIES = 5;
const TOO_OLD = "HX007", AHEAD = "HX012", BUSY = "55P03";

const database = new pg.Client({ connectionString: process.env.DATABASE_URL });
await database.connect();
// A message that another member works on right now is delivered again, not waited for.
await database.query("SET lock_timeout = '1s'");
const broker = await connect({ servers: process.env.NATS_URL });
const manager = await broker.jetstreamManager();
const stream = await manager.streams.find("orders");
await manager.consumers.add(stream, { durable_name: CONSUMER, ack_policy: AckPolicy.Explicit, ack_wait: nanos(30_000) });
const orders = await broker.jetstream().consumers.get(stream, CONSUMER);
const messages = await orders.consume({ max_messages: 100 });
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => messages.stop());
console.log("ready");

for await (const message of messages) await take(message);
await broker.close();
await database.end();

// Applies one message. The acknowledgement comes last.
async function take(message) {
  try {
    await database.query("BEGIN");
    if (await isNew(message)) await reserve(JSON.parse(message.string()));
    await database.query("COMMIT");
  } catch (error) {
    await database.query("ROLLBACK");
    if (error.code === TOO_OLD) await park(message, "too-old", error);
    else if (error.code === AHEAD) await park(message, "ahead", error);
    else if (error.code === BUSY || message.info.deliveryCount < TRIES) return message.nak(1000);
    else await park(message, "failed", error);
  }
  await message.ackAck();
}

async function isNew(message) {
  const answer = await database.query("SELECT hapax.receive($1, $2, $3) AS is_new", [CONSUMER, header(message, "ce-id"), header(message, "ce-time")]);
  return answer.rows[0].is_new;
}

async function reserve(order) {
  await database.query(
    "INSERT INTO stock AS s (item, reserved) VALUES ($1, $2) ON CONFLICT (item) DO UPDATE SET reserved = s.reserved + excluded.reserved",
    [order.item, order.quantity],
  );
}

async function park(message, kind, error) {
  const id = header(message, "ce-id");
  await database.query("SELECT hapax.park($1, $2, $3, $4, topic => $5, at => $6, payload => $7)", [
    CONSUMER, id, id === null ? "no-id" : kind, error.message, message.subject, header(message, "ce-time"), Buffer.from(message.data),
  ]);
}

function header(message, name) {
  return message.headers?.get(name) || null;
}
