// Takes orders at one path, and writes each down in a line. Everything else is Express's own way to read a path.
const fs = require("node:fs");
const express = require("express");

const app = express();
app.post("/v1/orders", (request, response) => {
  fs.writeSync(1, `order ${request.headers["user-agent"]}\n`);
  response.sendStatus(201);
});
const server = app.listen(0, "127.0.0.1", () => fs.writeSync(1, `listening ${server.address().port}\n`));
