"""Django saves, updates and deletes an object by update_many and delete_many with its ``_id``."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from trial import FAILURES, Trial, deadline_missed, tried

from pymongo_resilience.testbed import BlackHole, CutAfter, CutBefore

trial = Trial()


def main(proxy: Any) -> None:
    backend = {"ENGINE": "django_mongodb_backend", "NAME": "shop", "HOST": proxy.uri}
    settings.configure(
        DATABASES={"default": backend},
        DEFAULT_AUTO_FIELD="django_mongodb_backend.fields.ObjectIdAutoField",
    )
    django.setup()
    from django.db import DatabaseError, connection, models  # noqa: PLC0415 - once there are settings

    class Order(models.Model):  # type: ignore[misc]  # untyped upstream
        n = models.IntegerField()

        class Meta:
            app_label = "shop"
            db_table = "order"

    proxy.inject(CutBefore("insert", times=FAILURES))
    order = Order.objects.create(n=0)
    trial.check_operation("insert shop.order", commands=1 + FAILURES)

    proxy.inject(CutAfter("update", times=FAILURES))
    order.n = 1
    order.save()
    # Before the first such write to a collection, its kind is asked for.
    trial.check_operation("update shop.order", commands=1 + 1 + FAILURES)

    proxy.inject(CutAfter("update", times=FAILURES))
    changed = Order.objects.filter(pk=order.pk, n__gte=1).update(n=models.F("n") + 1)
    assert changed == 1
    order.refresh_from_db()
    assert order.n == 2, "applied once"

    proxy.inject(CutAfter("delete", times=FAILURES))
    deleted, _ = order.delete()
    assert deleted == 1
    trial.check_operation("delete shop.order", commands=1 + FAILURES)

    proxy.inject(BlackHole(60))
    with deadline_missed():
        try:
            Order.objects.count()
        except DatabaseError as error:
            raise error.__cause__ or error from None
    proxy.clear()
    connection.close()


with trial.deployment() as deployment:
    main(deployment)
tried("django-mongodb-backend")
