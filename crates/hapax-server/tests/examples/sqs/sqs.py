"""Sends one event twice to a queue of SQS, has each message delivered twice, and applies what hapax.receive calls new.

Once with the id of the event as id, and once with the id of the message, in a queue each."""

import json
import os

import boto3
import psycopg
from moto.server import ThreadedMotoServer

# The producer had no answer, and sends again. Both messages say what happened.
EVENT = {"event": "order-17/placed", "item": "hat"}


def main():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    sqs = boto3.client(
        "sqs", endpoint_url=f"http://{host}:{port}", region_name="eu-west-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
        consume(sqs, database, "by-event", lambda message: json.loads(message["Body"])["event"])
        consume(sqs, database, "by-message-id", lambda message: message["MessageId"])
    server.stop()
    print("done", flush=True)


def consume(sqs, database, consumer, id_of):
    queue = sqs.create_queue(QueueName=consumer)["QueueUrl"]
    for _ in range(2):
        sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(EVENT))
    ids, handles = set(), []
    for is_last in (False, False, True, True):
        (message,) = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1, WaitTimeSeconds=20)["Messages"]
        ids.add(message["MessageId"])
        handles.append(message["ReceiptHandle"])
        with database.transaction():
            (is_new,) = database.execute("SELECT hapax.receive(%s, %s)", (consumer, id_of(message))).fetchone()
            if is_new:
                database.execute("INSERT INTO effects VALUES (%s)", (consumer,))
        if is_last:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        elif len(handles) == 2:
            # The consumer dies before it acknowledges: both come again.
            for handle in handles:
                sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    print(f"{consumer}: {len(handles)} deliveries of {len(ids)} messages", flush=True)


if __name__ == "__main__":
    main()
