"""Reads requests as their receiver would: verifies them and parses them. One line of JSON each."""

import base64
import json
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks.webhooks import Webhook, WebhookVerificationError


def verifies(secret, headers, body):
    try:
        Webhook(secret).verify(body, headers, json_parse=False)
        return True
    except WebhookVerificationError:
        return False


def shown(data):
    return {"base64": base64.b64encode(data).decode()} if isinstance(data, bytes) else data


for line in sys.stdin:
    request = json.loads(line)
    headers, body = request["headers"], base64.b64decode(request["body"])
    event = from_http_event(HTTPMessage(headers=headers, body=body))
    attributes = {name: str(value) for name, value in event.get_attributes().items()}
    print(
        json.dumps(
            {
                "verified": [verifies(secret, headers, body) for secret in request["secrets"]],
                "attributes": attributes,
                "data": shown(event.get_data()),
            }
        )
    )
