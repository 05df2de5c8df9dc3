// Pays orders through Stripe's unmodified SDK, and prints a line for each with its result.
//
//     charge.mjs ADDRESS ORDERS
//
// The SDK makes its keys and retries itself; only its timeout is short and its number of retries high.

import Stripe from "stripe";

const address = new URL(process.argv[2]);
const orders = Number(process.argv[3]);
const stripe = new Stripe("sk_test_node", {
  protocol: "http",
  host: address.hostname,
  port: address.port,
  maxNetworkRetries: 30,
  timeout: 1000,
});

function pay(number) {
  const bill = { amount: 1000 + number, currency: "usd", metadata: { order: `order-${number}` } };
  return number % 2
    ? stripe.charges.create({ ...bill, source: "tok_visa" })
    : stripe.paymentIntents.create({ ...bill, payment_method: "pm_card_visa", confirm: true });
}

async function line(number) {
  const order = `order-${number}`;
  try {
    const made = await pay(number);
    // This SDK checks for a member `error` and not for the status: it returns any other JSON as if it were the requested object.
    return made.id
      ? { order, id: made.id }
      : { order, error: "not what was asked for", status: made.lastResponse.statusCode, code: made.code };
  } catch (error) {
    return { order, error: error.type ?? String(error), status: error.statusCode, code: error.code };
  }
}

const waiting = Array.from({ length: orders }, (_, number) => number);
async function worker() {
  while (waiting.length > 0) {
    console.log(JSON.stringify(await line(waiting.shift())));
  }
}
await Promise.all(Array.from({ length: 20 }, worker));
