"""Django with django-mongodb-backend under gunicorn, loaded once before the workers are forked.

MONGODB_URI=mongodb://localhost:27017 \
gunicorn --preload --workers 2 --config python:django_shop django_shop:application

A project has the settings in settings.py and instrument() there, at its end.
"""

from __future__ import annotations

import os
from typing import Any

import django
from django.conf import settings
from telemetry import export_telemetry

from pymongo_resilience import OperationTimeoutError, instrument

instrument(timeout_ms=20_000)

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={
            "default": {
                "ENGINE": "django_mongodb_backend",
                "NAME": "shop",
                "HOST": os.environ["MONGODB_URI"],
            }
        },
        DEFAULT_AUTO_FIELD="django_mongodb_backend.fields.ObjectIdAutoField",
        ROOT_URLCONF=__name__,
        SECRET_KEY=os.environ.get("SECRET_KEY", "for this example"),
    )
    django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402 - once there are settings
from django.db import DatabaseError, models  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402


class Order(models.Model):
    number = models.IntegerField()

    class Meta:
        app_label = "shop"
        db_table = "orders"


def place(request: HttpRequest, number: int) -> JsonResponse:
    try:
        Order.objects.create(number=number)
        return JsonResponse({"orders": Order.objects.filter(number=number).count()})
    except DatabaseError as error:  # Django wraps the driver's errors
        if not isinstance(error.__cause__, OperationTimeoutError):
            raise
        return JsonResponse({"error": "the database did not answer in time"}, status=504)


urlpatterns = [path("orders/<int:number>", place)]
application = get_wsgi_application()


def post_fork(server: Any, worker: Any) -> None:
    """gunicorn's hook. Django connects when a worker first needs it; the SDK has threads."""
    worker.flush = export_telemetry()


def worker_exit(server: Any, worker: Any) -> None:
    worker.flush()
