// The service behind Restate: a handler that does nothing but answer, as the upstream of the others does.
import { randomUUID } from "node:crypto";
import * as restate from "@restatedev/restate-sdk";

// The SDK uses what Node has from version 22 on.
Promise.withResolvers ??= function () {
  const made = {};
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
};

const [port, answerBytes] = process.argv.slice(2).map(Number);

const charges = restate.service({
  name: "charges",
  handlers: {
    charge: async (_, order) => {
      // Different each time, so that a replay can be told from a second run.
      const answer = { id: randomUUID(), status: "succeeded", amount: order.amount, receipt: "" };
      answer.receipt = "7".repeat(answerBytes - JSON.stringify(answer).length);
      return answer;
    },
  },
});

restate.serve({ services: [charges], port });
