// Takes orders at one path, and prints a line for each. Express's defaults decide how a path is read.
const fs = require("node:fs");
const express = require("express");

const app = express();
app.post("/v1/orders", (request, response) => {
  fs.writeSync(1, `order ${request.headers["user-agent"]}\n`);
  response.sendStatus(201);
});
const server = app.listen(0, "127.0.0.1", () => fs.writeSync(1, `listening ${server.address().port}\n`));
