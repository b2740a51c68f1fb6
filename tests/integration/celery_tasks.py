"""The Celery application of the worker process and the test.

The worker process, started with `-A tests.integration.celery_tasks`, uses `app`, which is built
from environment variables. The test calls `build`.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

from celery import Celery
from celery.exceptions import Reject


def build(broker_url, result_backend, queue):
    """An application and its tasks; a process may have several."""
    app = Celery("leveret-tests", set_as_current=False)
    app.conf.update(
        broker_url=broker_url,
        result_backend=result_backend,
        task_default_queue=queue,
        result_expires=60,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )

    @app.task(name="add", shared=False)
    def add(x, y):
        return x + y

    @app.task(name="total", shared=False)
    def total(numbers):
        return sum(numbers)

    @app.task(name="fail", shared=False)
    def fail(text):
        raise ValueError(text)

    @app.task(name="third_time_lucky", shared=False, bind=True, max_retries=3)
    def third_time_lucky(self):
        if self.request.retries < 2:
            raise self.retry(countdown=0.2)
        return self.request.retries

    @app.task(name="now", shared=False)
    def now():
        return time.time()

    @app.task(name="rejected_once", shared=False, bind=True)
    def rejected_once(self):
        if not self.request.delivery_info["redelivered"]:
            raise Reject("not yet", requeue=True)
        return "second delivery"

    return SimpleNamespace(
        app=app,
        add=add,
        total=total,
        fail=fail,
        third_time_lucky=third_time_lucky,
        now=now,
        rejected_once=rejected_once,
    )


app = build(
    os.environ.get("CELERY_TEST_BROKER", "amqp://"),
    os.environ.get("CELERY_TEST_BACKEND", "rpc://"),
    os.environ.get("CELERY_TEST_QUEUE", "celery-tests"),
).app
