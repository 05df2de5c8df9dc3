"""Takes orders from NATS JetStream and reserves stock: once for each order, however often its message is delivered."""

import asyncio
import json
import os
import signal

import nats
import psycopg

CONSUMER = "stock"
ACK_WAIT = 30
TRIES = 5
TOO_OLD, AHEAD, BUSY = "HX007", "HX012", "55P03"


async def main():
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    database = await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"], autocommit=True)
    # A message that another member works on right now is delivered again, not waited for.
    await database.execute("SET lock_timeout = '1s'")
    broker = await nats.connect(os.environ["NATS_URL"])
    config = nats.js.api.ConsumerConfig(ack_wait=ACK_WAIT)
    orders = await broker.jetstream().pull_subscribe("orders", durable=CONSUMER, config=config)
    print("ready", flush=True)
    while not stop.is_set():
        try:
            messages = await orders.fetch(100, timeout=1)
        # The error of this name that the client has is one of these, and now and then it raises a plain one.
        except asyncio.TimeoutError:
            continue
        for message in messages:
            await take(database, message)
    await broker.close()
    await database.close()


async def take(database, message):
    """Applies one message. The acknowledgement comes last."""
    try:
        async with database.transaction():
            if await is_new(database, message):
                await reserve(database, json.loads(message.data))
    except (psycopg.Error, ValueError, KeyError) as error:
        code = getattr(error, "sqlstate", None)
        if database.broken:
            raise
        if code in (TOO_OLD, AHEAD):
            await park(database, message, "too-old" if code == TOO_OLD else "ahead", error)
        elif code == BUSY or message.metadata.num_delivered < TRIES:
            await message.nak(delay=1)
            return
        else:
            await park(database, message, "failed", error)
    await message.ack_sync()


async def is_new(database, message):
    headers = message.headers or {}
    asked = await database.execute(
        "SELECT hapax.receive(%s, %s, %s::timestamptz)", (CONSUMER, headers.get("ce-id"), headers.get("ce-time"))
    )
    return (await asked.fetchone())[0]


async def reserve(database, order):
    await database.execute(
        "INSERT INTO stock AS s (item, reserved) VALUES (%(item)s, %(quantity)s)"
        " ON CONFLICT (item) DO UPDATE SET reserved = s.reserved + excluded.reserved",
        order,
    )


async def park(database, message, kind, error):
    headers = message.headers or {}
    kind = kind if "ce-id" in headers else "no-id"
    await database.execute(
        "SELECT hapax.park(%s, %s, %s, %s, topic => %s, at => %s, headers => %s, payload => %s)",
        (CONSUMER, headers.get("ce-id"), kind, str(error), message.subject, headers.get("ce-time"), json.dumps(dict(headers)), message.data),
    )


if __name__ == "__main__":
    asyncio.run(main())
