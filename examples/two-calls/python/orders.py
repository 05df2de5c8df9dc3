"""Orders that are placed once: the order and the record of its key commit together."""

import json
import os
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg.types.json import Jsonb

DATABASE = os.environ.get("DATABASE_URL", "postgresql://orders@127.0.0.1/shop")
BODY_BYTES_MAX = 1024 * 1024
# What hapax.start refuses, by SQLSTATE.
REFUSALS = {"HX409": 409, "HX410": 410, "HX418": 409, "HX419": 409, "HX422": 422}


def place(user, key, text, item, wait):
    """Places the order, or finds the answer that an earlier request with this key got."""
    # One connection, one transaction: commits at the end of the block, rolls back on an exception.
    with psycopg.connect(DATABASE, connect_timeout=5) as db:
        run, operation, fence, status, headers, body = db.execute(
            "SELECT * FROM"
            " hapax.start('shop', %s, 'POST /orders', %s, hapax.fingerprint(%s::jsonb), %s)",
            (user, key, text, wait),
        ).fetchone()
        if not run:
            return status, headers | {"Idempotent-Replayed": "true"}, body
        try:
            with db.transaction():  # A savepoint: the key stays claimed if the insert fails.
                insert = "INSERT INTO orders (item, placed_by) VALUES (%s, %s) RETURNING id"
                (order,) = db.execute(insert, (item, user)).fetchone()
            location = {"Location": f"/orders/{order}"}
            status, headers, body = answer(201, {"id": order, "item": item}, location)
        except psycopg.errors.ForeignKeyViolation:
            status, headers, body = answer(404, {"error": "no such item"})
        db.execute(
            "SELECT hapax.complete(%s, %s, %s, %s, %s)",
            (operation, fence, status, Jsonb(headers), body),
        )
    # Committed. Only now is there something to tell.
    return status, headers, body


def place_or_refuse(*order):
    for attempts_left in (2, 1, 0):
        try:
            return place(*order)
        except psycopg.Error as error:
            code = error.sqlstate or ""
            if code in ("40001", "40P01") and attempts_left:
                continue  # The server rolled it back, and asks for another attempt.
            if code in REFUSALS:
                word = error.diag.message_primary.split(":")[0]
                headers = {"Retry-After": "1"} if code == "HX409" else {}
                return answer(REFUSALS[code], {"error": word}, headers)
            if code.startswith("22"):  # A value that Postgres or hapax.start does not take.
                return answer(400, {"error": error.diag.message_primary})
            # Nothing was kept, or the reply to COMMIT was lost: the key may be sent again.
            print(f"orders: {code} {error}", flush=True)
            return answer(503, {"error": "try again"})


def answer(status, content, headers={}):
    return status, {"Content-Type": "application/json", **headers}, json.dumps(content).encode()


class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        status, headers, body = self.respond()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def respond(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True  # The body is left unread.
            return answer(413, {"error": "a body has a Content-Length, of 1 MiB at most"})
        sent = self.rfile.read(int(length))
        if self.path != "/orders":
            return answer(404, {"error": "no such page"})
        # In real life: whoever your authentication says it is, never what the client says.
        user = self.headers.get("X-User")
        if not user:
            return answer(401, {"error": "who are you?"})
        key = self.headers.get("Idempotency-Key")
        if not key:
            return answer(400, {"error": "send an Idempotency-Key"})
        try:
            text = sent.decode()
            item = json.loads(text)["item"]
        except (ValueError, LookupError, TypeError, RecursionError):
            item = None
        if not isinstance(item, str):
            return answer(400, {"error": 'send {"item": "..."}'})
        wait = re.search(r"\bwait=(\d{1,4})", self.headers.get("Prefer", ""))
        wait = f"{min(int(wait[1]), 30)} seconds" if wait else None
        return place_or_refuse(user, key, text, item, wait)


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "8080"))
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("127.0.0.1", port), Orders)
    print(f"listening on {port}", flush=True)
    server.serve_forever()
