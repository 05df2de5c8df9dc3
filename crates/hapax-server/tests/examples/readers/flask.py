"""Takes orders at one path, and writes each down in a line. Everything else is Flask's own way to read a path."""
import logging

from flask import Flask, request
from werkzeug.serving import make_server

logging.getLogger("werkzeug").disabled = True
app = Flask("orders")


@app.post("/v1/orders")
def order():
    print("order", request.headers["user-agent"], flush=True)
    return "", 201


server = make_server("127.0.0.1", 0, app, threaded=True)
print("listening", server.server_port, flush=True)
server.serve_forever()
