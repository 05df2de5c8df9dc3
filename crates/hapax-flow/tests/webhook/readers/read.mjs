// Reads requests as their receiver would: verifies them and parses them. One line of JSON each.

import { createPublicKey, verify } from "node:crypto";
import { createInterface } from "node:readline";
import { HTTP } from "cloudevents";
import { Webhook } from "standardwebhooks";

function verifies(secret, headers, body) {
  if (secret.startsWith("whpk_")) {
    return verifiesByPublicKey(secret, headers, body);
  }
  try {
    new Webhook(secret).verify(body, headers);
    return true;
  } catch (error) {
    if (error.name === "SyntaxError") {
      // It is verified before it is parsed, and not all bodies are JSON.
      return true;
    }
    return false;
  }
}

// The library knows shared secrets only.
function verifiesByPublicKey(key, headers, body) {
  const spki = Buffer.from("302a300506032b6570032100", "hex");
  const raw = Buffer.from(key.slice("whpk_".length), "base64");
  const publicKey = createPublicKey({ key: Buffer.concat([spki, raw]), format: "der", type: "spki" });
  const head = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.`;
  const signed = Buffer.concat([Buffer.from(head), body]);
  return headers["webhook-signature"]
    .split(" ")
    .filter((one) => one.startsWith("v1a,"))
    .some((one) => verify(null, signed, publicKey, Buffer.from(one.slice("v1a,".length), "base64")));
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  const body = Buffer.from(request.body, "base64");
  const event = HTTP.toEvent({ headers: request.headers, body: body.toString() });
  const { data, data_base64: _, ...attributes } = event.toJSON();
  const verified = request.secrets.map((secret) => verifies(secret, request.headers, body));
  console.log(JSON.stringify({ verified, attributes, data }));
}
