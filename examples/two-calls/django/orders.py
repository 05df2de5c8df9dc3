"""A minimal Django service that places orders once. once.py does the guarding."""

import json
import os

import django
from django.conf import settings
from django.core.servers.basehttp import run
from django.core.wsgi import get_wsgi_application
from django.db import IntegrityError, models
from django.http import JsonResponse
from django.urls import path
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import ForeignKeyViolation


def user(request):
    # In real life: request.user, as your authentication has found it; never what the client says.
    return request.headers.get("X-User")


database = conninfo_to_dict(os.environ.get("DATABASE_URL", "postgresql://orders@127.0.0.1/shop"))
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": database["dbname"],
            "OPTIONS": {"connect_timeout": 5, **database},
        }
    },
    MIDDLEWARE=["once.Once"],
    ONCE_NAMESPACE="shop",
    ONCE_PATHS=["/orders"],
    ONCE_PRINCIPAL=user,
    ROOT_URLCONF=__name__,
)
django.setup()


class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
    # A plain column here, a foreign key in schema.sql, which is checked at once. Those that Django
    # makes are checked at COMMIT, too late for a 404: look for the item before you insert.
    item = models.TextField()
    placed_by = models.TextField()

    class Meta:
        app_label = "orders"
        db_table = "orders"
        managed = False


def place(request):
    sent = json.loads(request.body)
    item = sent.get("item") if isinstance(sent, dict) else None
    if not isinstance(item, str):
        return JsonResponse({"error": 'send {"item": "..."}'}, status=400)
    try:
        order = Order.objects.create(item=item, placed_by=user(request))
    except IntegrityError as error:
        if not isinstance(error.__cause__, ForeignKeyViolation):
            raise
        return JsonResponse({"error": "no such item"}, status=404)
    location = {"Location": f"/orders/{order.id}"}
    return JsonResponse({"id": order.id, "item": item}, status=201, headers=location)


urlpatterns = [path("orders", place)]

if __name__ == "__main__":
    # Django's server for development. In production any WSGI server does.
    port = int(os.environ.get("PORT", "8080"))
    ready = lambda port: print(f"listening on {port}", flush=True)
    run("127.0.0.1", port, get_wsgi_application(), threading=True, on_bind=ready)
