"""A middleware that lets each guarded POST take effect once per Idempotency-Key.

The view runs in a transaction that also holds the record of the key:

- 2xx, 3xx: the view's work and its answer are committed. A repeat gets the answer again.
- 4xx: the view's work is rolled back, and the answer is kept. A repeat gets it again.
- 5xx, or an exception: everything is rolled back, and nothing is kept. A repeat runs the view.

Put it last in MIDDLEWARE, after authentication. The view may run more than once before one of its
runs commits, so what it does outside the database belongs into transaction.on_commit. Settings:

ONCE_NAMESPACE  the namespace that `hapax migrate --namespace` has set up
ONCE_PATHS      the paths whose POSTs are guarded
ONCE_PRINCIPAL  a function of the request: who sends it, as text; None if nobody knows
"""

import json
import logging
import re

from django.conf import settings
from django.db import Error, connection, transaction
from django.http import HttpResponse, JsonResponse

# What hapax.start refuses, by SQLSTATE.
REFUSALS = {"HX409": 409, "HX410": 410, "HX418": 409, "HX419": 409, "HX422": 422}
# Postgres rolled the transaction back, and asks for another attempt.
RUN_AGAIN = ("40001", "40P01")
ATTEMPTS_MAX = 3
WAIT_SECONDS_MAX = 30


class Once:
    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        if request.method != "POST" or request.path not in settings.ONCE_PATHS:
            return self.get_response(request)
        principal = settings.ONCE_PRINCIPAL(request)
        if not principal:
            return refusal(401, "who are you?")
        key = request.headers.get("Idempotency-Key")
        if not key:
            return refusal(400, "send an Idempotency-Key")
        try:
            body = request.body.decode()
            json.loads(body)
        except (ValueError, RecursionError):
            return refusal(400, "send JSON")
        wait = re.search(r"\bwait=(\d{1,4})", request.headers.get("Prefer", ""))
        wait = f"{min(int(wait[1]), WAIT_SECONDS_MAX)} seconds" if wait else None
        claim = (settings.ONCE_NAMESPACE, principal, f"POST {request.path}", key, body, wait)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                # Durable: the commit happens at the end of this block, before the answer is sent.
                with transaction.atomic(durable=True):
                    return self.run_or_replay(request, claim)
            except Refused as refused:
                return refused.response
            except Error as error:
                if sqlstate(error) in RUN_AGAIN and attempt < ATTEMPTS_MAX:
                    continue
                # Nothing was kept, or the reply to COMMIT was lost: the key may be sent again.
                logging.getLogger(__name__).exception("POST %s", request.path)
                return refusal(503, "try again")

    def run_or_replay(self, request, claim):
        run, operation, fence, status, headers, body = begin(claim)
        if not run:
            headers = {**json.loads(headers), "Idempotent-Replayed": "true"}
            return HttpResponse(bytes(body), status=status, headers=headers)
        # A savepoint: the key stays claimed if the view's work is undone.
        with transaction.atomic():
            request.once_error = None
            response = self.get_response(request)
            if request.once_error:
                raise request.once_error
            if response.status_code >= 400:
                transaction.set_rollback(True)
        if response.status_code >= 500:
            transaction.set_rollback(True)
            return response
        headers = json.dumps(dict(response.items()))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT hapax.complete(%s, %s, %s, %s::jsonb, %s)",
                (operation, fence, response.status_code, headers, response.content),
            )
        return response

    def process_exception(self, request, exception):
        """Takes errors of the database out of the view. Other exceptions become 500, as always."""
        if isinstance(exception, Error) and hasattr(request, "once_error"):
            request.once_error = exception
            return HttpResponse(status=503)


class Refused(Exception):
    def __init__(self, response):
        self.response = response


def begin(claim):
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT * FROM hapax.start(%s, %s, %s, %s, hapax.fingerprint(%s::jsonb), %s)", claim
            )
            return cursor.fetchone()
    except Error as error:
        code = sqlstate(error)
        if code in REFUSALS:
            response = refusal(REFUSALS[code], str(error).split(":")[0])
            if code == "HX409":
                response["Retry-After"] = "1"
            raise Refused(response) from error
        if code.startswith("22"):  # A key or a body that Postgres does not take.
            raise Refused(refusal(400, str(error).splitlines()[0])) from error
        raise


def sqlstate(error):
    return getattr(error.__cause__, "sqlstate", None) or ""


def refusal(status, error):
    return JsonResponse({"error": error}, status=status)
