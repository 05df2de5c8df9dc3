"""The ways to do it wrong, for whoever wants to see what comes of them. Only with ORDERS_MISCHIEF=1.

A request to place an order says in X-Mischief what goes wrong with it. What it leaves open, POST /mischief/end brings to its end.
"""

import os
import signal

import psycopg
from flask import Response, request

INSERT = "INSERT INTO orders (item, quantity) VALUES (%s, %s) RETURNING *"

# What was left open: called, it ends it.
left_open = []


def install(orders):
    """Puts itself before the routes of the service."""
    ways = {
        "joined-then-500": joined_then_500,
        "joined-then-killed": joined_then_killed,
        "killed-before-commit": killed_before_commit,
        "joined-then-other-answer": joined_then_other_answer,
        "not-joined": not_joined,
        "joined-in-another-transaction": joined_in_another_transaction,
        "error-swallowed": error_swallowed,
        "error-swallowed-in-savepoint": error_swallowed_in_savepoint,
        "committed-after-the-answer": committed_after_the_answer,
        "answered-before-commit": answered_before_commit,
    }

    @orders.app.before_request
    def misbehave():
        if (way := request.headers.get("X-Mischief")) is not None:
            return ways[way](orders)

    @orders.app.post("/mischief/end")
    def end():
        ended = len(left_open)
        while left_open:
            left_open.pop()()
        return str(ended)


def insert(orders, connection):
    """The order with its message, and what to answer. Joins nothing."""
    wanted = orders.sent()
    order = connection.execute(INSERT, (wanted["item"], wanted["quantity"])).fetchone()
    orders.emit(connection, order, request.headers["Hapax-Operation"])
    return orders.shown(order, 201)


def joined_then_500(orders):
    """All is done and committed, and then something goes wrong while the answer is made."""
    orders.place()
    return orders.refusal(500, "mischief")


def joined_then_killed(orders):
    """All is done and committed, and nobody lives to say so."""
    orders.place()
    os.kill(os.getpid(), signal.SIGKILL)


def killed_before_commit(orders):
    """Dies in the middle: the server rolls back."""
    with orders.pool.connection() as connection:
        orders.join(connection, insert(orders, connection))
        os.kill(os.getpid(), signal.SIGKILL)


def joined_then_other_answer(orders):
    """Says one thing to the database and another over HTTP."""
    orders.place()
    return Response("something else", 200)


def not_joined(orders):
    """Forgets to join."""
    with orders.pool.connection() as connection:
        return insert(orders, connection)


def joined_in_another_transaction(orders):
    """Joins on a connection of its own, which has committed when the order is lost: what an ORM with two sessions does."""
    with orders.pool.connection() as connection:
        answer = insert(orders, connection)
        with orders.pool.connection() as other:
            orders.join(other, answer)
        connection.rollback()
    return answer


def error_swallowed(orders):
    """Joins with a fence that is not its own, catches the error and goes on. The transaction is lost all the same: COMMIT rolls it back."""
    with orders.pool.connection() as connection:
        answer = insert(orders, connection)
        try:
            join_wrongly(orders, connection, answer)
        except psycopg.Error:
            pass
    return answer


def error_swallowed_in_savepoint(orders):
    """The same with a savepoint around it, to which the error rolls back: the order is committed, and nothing is joined."""
    with orders.pool.connection() as connection:
        answer = insert(orders, connection)
        try:
            with connection.transaction():
                join_wrongly(orders, connection, answer)
        except psycopg.Error:
            pass
    return answer


def join_wrongly(orders, connection, answer):
    fence = int(request.headers["Hapax-Fence"]) - 1
    connection.execute(
        "SELECT hapax.complete(%s, %s, 201, '{}', %s)", (request.headers["Hapax-Operation"], fence, answer.get_data())
    )


def committed_after_the_answer(orders):
    """What a framework does that commits when the answer has left."""
    connection = orders.pool.getconn()
    answer = insert(orders, connection)
    orders.join(connection, answer)

    def end():
        connection.commit()
        orders.pool.putconn(connection)

    left_open.append(end)
    return answer


def answered_before_commit(orders):
    """Answers first and works later: the answer says of something that it is done which is not, and may never be."""
    sent = request.headers["Hapax-Operation"], int(request.headers["Hapax-Fence"])
    wanted = orders.sent()

    def end():
        with orders.pool.connection() as connection:
            order = connection.execute(INSERT, (wanted["item"], wanted["quantity"])).fetchone()
            orders.emit(connection, order, sent[0])
            connection.execute("SELECT hapax.complete(%s, %s, 201, '{}', 'late')", sent)

    left_open.append(end)
    return Response("soon", 201)
