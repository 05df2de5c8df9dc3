// An upstream that prints a line for each request it finds in its input.
const http = require("node:http");
const fs = require("node:fs");

const writeDown = (record) => fs.writeSync(1, JSON.stringify(record) + "\n");

function fieldsOf(request) {
  const fields = [];
  for (let i = 0; i < request.rawHeaders.length; i += 2) fields.push([request.rawHeaders[i], request.rawHeaders[i + 1]]);
  return fields;
}

const server = http.createServer((request, response) => {
  const parts = [];
  let noted = false;
  const note = (whole) => {
    if (noted) return;
    noted = true;
    const body = Buffer.concat(parts).toString("latin1");
    writeDown({ method: request.method, target: request.url, body, whole, fields: fieldsOf(request) });
  };
  const answer = () => response.end(`saw ${request.method} ${request.url}\n`);
  if (request.url.startsWith("/early")) {
    note(true);
    request.resume();
    return answer();
  }
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    note(true);
    answer();
  });
  request.on("close", () => note(request.complete));
  request.on("error", () => {});
});

server.on("clientError", (error, socket) => {
  if (error.code !== "ECONNRESET" && error.rawPacket) {
    const line = error.rawPacket.toString("latin1").split("\r\n")[0].split(" ");
    writeDown({ method: line[0], target: line[1] ?? "", body: "", whole: false, refused: 400, fields: [] });
  }
  if (socket.writable) socket.end("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
});

server.listen(0, "127.0.0.1", () => fs.writeSync(1, `listening ${server.address().port}\n`));
