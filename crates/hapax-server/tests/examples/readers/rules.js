// Takes orders at one path, and prints a line for each. Paths are read by the rules of a server that is not available here; a variable names it.
const http = require("node:http");
const fs = require("node:fs");

function withoutDots(path) {
  const kept = [];
  for (const segment of path.split("/").slice(1)) {
    if (segment === "..") kept.pop();
    else if (segment !== ".") kept.push(segment);
  }
  return "/" + kept.join("/");
}

const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

const rules = {
  // ASP.NET Core on Kestrel: decodes all but %2F, removes dots, ignores letter case and a trailing slash.
  aspnet: (path) => withoutDots(path.split(/(%2f)/i).map((part) => (/^%2f$/i.test(part) ? part : decoded(part))).join("")).replace(/\/$/, "").toLowerCase(),
  // IIS: decodes everything and reads \ as /.
  iis: (path) => withoutDots(decoded(path).replaceAll("\\", "/")).replace(/[/. ]+$/, "").toLowerCase(),
  // Spring on Tomcat: drops parameters, decodes, folds slashes, removes dots, ignores a trailing slash.
  tomcat: (path) => withoutDots(decoded(path.replace(/;[^/]*/g, "")).replace(/\/+/g, "/")).replace(/\/$/, ""),
  // Rails: folds slashes, ignores a trailing slash, takes an extension for the format.
  rails: (path) => decoded(path).replace(/\/+/g, "/").replace(/\/$/, "").replace(/\.[^/.]+$/, ""),
  // Django with re_path("^v1/orders$"): decodes everything, and $ matches before a line end.
  django: (path) => decoded(path).replace(/\n$/, ""),
};

const read = rules[process.env.RULES];
const server = http.createServer((request, response) => {
  const isOrder = request.method === "POST" && read(request.url.split("?")[0]) === "/v1/orders";
  if (isOrder) fs.writeSync(1, `order ${request.headers["user-agent"]}\n`);
  response.writeHead(isOrder ? 201 : 404).end();
});
server.listen(0, "127.0.0.1", () => fs.writeSync(1, `listening ${server.address().port}\n`));
