"""A small orders service, to be run behind `hapax serve`.

An order, the message about it and the record of its key commit together: see `place`. The other routes need no key: see docs/natural.md.
"""

import os
import sys

import psycopg
from flask import Flask, Response, json, request
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

app = Flask(__name__)
database = os.environ.get("DATABASE_URL", "postgresql://orders@127.0.0.1/orders")
pool = ConnectionPool(database, kwargs={"row_factory": dict_row}, min_size=1, max_size=8, open=False)


@app.post("/orders")
def place():
    if "Hapax-Operation" not in request.headers:
        return refusal(403, "orders are placed through the gateway")
    wanted = sent()
    if not is_order(wanted):
        # Nothing was done, so there is nothing to join: the gateway keeps a 4xx as it is.
        return refusal(422, "an order has an item and a quantity of 1 or more")
    # One transaction: the block commits at its end, and rolls back when anything in it raises.
    with pool.connection() as connection:
        order = connection.execute(
            "INSERT INTO orders (item, quantity) VALUES (%s, %s) RETURNING *", (wanted["item"], wanted["quantity"])
        ).fetchone()
        answer = shown(order, 201, {"Location": f"/orders/{order['id']}"})
        emit(connection, order, request.headers["Hapax-Operation"])
        join(connection, answer)
    # Committed. Only now is there something to tell.
    return answer


def emit(connection, order, operation):
    """Writes the message that the order was placed. It is published if and only if the transaction commits."""
    connection.execute(
        """SELECT hapax.emit('orders', %s, %s, headers => '{"ce-type": "order.placed"}', operation => %s, step => 'placed')""",
        (order["id"], Jsonb({name: order[name] for name in ("id", "item", "quantity")}), operation),
    )


def join(connection, answer):
    """Completes the record of this request in the transaction that the connection is in, or raises, and the transaction is lost."""
    connection.execute(
        "SELECT hapax.complete(%s, %s, %s, %s, %s)",
        (
            request.headers["Hapax-Operation"],
            int(request.headers["Hapax-Fence"]),
            answer.status_code,
            Jsonb(dict(answer.headers)),
            answer.get_data(),
        ),
    )


@app.put("/orders/<id>")
def put(id):
    """The caller has a number of its own for the order: that is all the key it takes."""
    wanted = sent()
    if not is_order(wanted):
        return refusal(422, "an order has an item and a quantity of 1 or more")
    with pool.connection() as connection:
        made = connection.execute(
            "INSERT INTO orders (id, item, quantity) VALUES (%s, %s, %s) ON CONFLICT (id) DO NOTHING RETURNING *",
            (id, wanted["item"], wanted["quantity"]),
        ).fetchone()
        # A statement of its own: only a later one sees what a concurrent request has just put there.
        order = made or find(connection, id)
    if order is None:
        return refusal(409, "the order was just deleted: send it again if you still want it")
    if order["item"] != wanted["item"]:
        return refusal(409, "there is another order of this number")
    return shown(order, 201 if made else 200)


@app.get("/orders/<id>")
def get(id):
    with pool.connection() as connection:
        order = find(connection, id)
    return shown(order) if order else refusal(404, "no such order")


@app.post("/orders/<id>/ship")
def ship(id):
    """A step that is taken from one state only: whoever comes second finds it taken."""
    with pool.connection() as connection:
        order = connection.execute(
            "UPDATE orders SET state = 'shipped', version = version + 1 WHERE id = %s AND state = 'placed' RETURNING *", (id,)
        ).fetchone()
        if order:
            # Whatever goes with the step belongs here: only the request that has taken it comes by.
            connection.execute("INSERT INTO parcels (order_id) VALUES (%s)", (id,))
        else:
            order = find(connection, id)
    return shown(order) if order else refusal(404, "no such order")


@app.patch("/orders/<id>")
def change(id):
    """Changes what the caller has seen, and nothing that somebody else has changed since."""
    if "If-Match" not in request.headers:
        return refusal(428, "say which version you have seen, in If-Match")
    quantity = sent().get("quantity")
    if not is_count(quantity) or quantity == 0:
        return refusal(422, "a quantity is 1 or more")
    # Weak tags are not among these: they never match here.
    versions = [int(tag) for tag in request.if_match if tag.isdecimal()]
    with pool.connection() as connection:
        order = connection.execute(
            "UPDATE orders SET quantity = %s, version = version + 1 WHERE id = %s AND (version = ANY (%s) OR %s) RETURNING *",
            (quantity, id, versions, request.if_match.star_tag),
        ).fetchone()
        is_there = order or find(connection, id)
    if order:
        return shown(order)
    return refusal(412, "it has changed since: look again") if is_there else refusal(404, "no such order")


@app.delete("/orders/<id>")
def delete(id):
    """204 whether it was there or not: the caller wants it gone, and it is."""
    with pool.connection() as connection:
        connection.execute("DELETE FROM orders WHERE id = %s AND state = 'placed'", (id,))
        left = find(connection, id)
    return refusal(409, "it has been shipped") if left else Response(status=204)


@app.put("/stock/<sku>")
def count(sku):
    """How many there are, not how many more: said twice it is still true."""
    quantity = sent().get("quantity")
    if not is_count(quantity):
        return refusal(422, "a quantity is 0 or more")
    with pool.connection() as connection:
        stock = connection.execute(
            "INSERT INTO stock (sku, quantity) VALUES (%s, %s) ON CONFLICT (sku) DO UPDATE SET quantity = excluded.quantity RETURNING *",
            (sku, quantity),
        ).fetchone()
    return json_answer(stock, 200)


@app.errorhandler(psycopg.Error)
def failed(error):
    """Rolled back, so that 500, which releases the key, is the truth. HX003 and HX005 say that another attempt counts, and not this one."""
    print(f"orders: {error.sqlstate}: {error}", file=sys.stderr, flush=True)
    return refusal(500, "it is not known that anything was done")


def find(connection, id):
    return connection.execute("SELECT * FROM orders WHERE id = %s", (id,)).fetchone()


def sent():
    """What the caller says. Flask answers 400 or 415 by itself to what is no JSON."""
    wanted = request.get_json()
    return wanted if isinstance(wanted, dict) else {}


def is_order(wanted):
    return isinstance(wanted.get("item"), str) and is_count(wanted.get("quantity")) and wanted["quantity"] > 0


def is_count(quantity):
    # A truth value is a number in Python, and none here.
    return isinstance(quantity, int) and not isinstance(quantity, bool) and 0 <= quantity < 2**31


def shown(order, status=200, headers=None):
    """The order and its version, as a strong entity tag."""
    return json_answer(order, status, {"ETag": f'"{order["version"]}"', **(headers or {})})


def refusal(status, error):
    return json_answer({"error": error}, status)


def json_answer(value, status, headers=None):
    return Response(json.dumps(value), status, headers, content_type="application/json")


if os.environ.get("ORDERS_MISCHIEF"):
    import mischief

    mischief.install(sys.modules[__name__])


if __name__ == "__main__":
    from waitress.server import create_server

    pool.open(wait=True)
    server = create_server(app, listen=os.environ.get("LISTEN", "127.0.0.1:3000"), threads=8)
    print(f"orders: listening on {server.effective_host}:{server.effective_port}", flush=True)
    server.run()
