"""Pays orders through Stripe's SDK as it comes, and says of each on a line of its own how it ended.

    charge.py ADDRESS ORDERS

Keys are the SDK's own affair, and so are retries: it is only told to be impatient and not to give up soon.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import stripe

address, orders = sys.argv[1], int(sys.argv[2])
client = stripe.StripeClient(
    "sk_test_python",
    base_addresses={"api": address},
    max_network_retries=30,
    http_client=stripe.RequestsClient(timeout=1),
)


def pay(number):
    bill = {"amount": 1000 + number, "currency": "usd", "metadata": {"order": f"order-{number}"}}
    if number % 2:
        return client.v1.charges.create({**bill, "source": "tok_visa"})
    return client.v1.payment_intents.create({**bill, "payment_method": "pm_card_visa", "confirm": True})


def line(number):
    told = {"order": f"order-{number}"}
    try:
        told["id"] = pay(number).id
    except stripe.StripeError as error:
        problem = error.json_body if isinstance(error.json_body, dict) else {}
        told |= {"error": type(error).__name__, "status": error.http_status, "code": problem.get("code")}
    return json.dumps(told)


with ThreadPoolExecutor(20) as pool:
    for told in pool.map(line, range(orders)):
        print(told)
