"""A Celery application on quorum queues: countdowns wait in the broker, not in the worker.

Native delayed delivery declares 28 topic exchanges and 28 queues. Each queue has twice the TTL of
the queue below it, and dead-letters to the exchange of the next level.
"""

from __future__ import annotations

import os
import time

from celery import Celery
from kombu.entity import Exchange, Queue


def build(broker_url, backend, queue):
    app = Celery("leveret-delayed", set_as_current=False)
    app.conf.update(
        broker_url=broker_url,
        result_backend=backend,
        task_default_queue=queue,
        task_default_queue_type="quorum",
        task_default_exchange_type="topic",
        task_queues=[
            Queue(
                queue,
                exchange=Exchange(queue, type="topic"),
                routing_key=queue,
                queue_arguments={"x-queue-type": "quorum"},
            )
        ],
        task_default_exchange=queue,
        task_default_routing_key=queue,
        broker_native_delayed_delivery_queue_type="quorum",
        broker_transport_options={"confirm_publish": True},
        worker_detect_quorum_queues=True,
        worker_prefetch_multiplier=1,
        result_expires=60,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )

    @app.task(name="arrived", shared=False)
    def arrived():
        return time.time()

    app.arrived = arrived
    return app


app = build(
    os.environ.get("CELERY_TEST_BROKER", "amqp://"),
    os.environ.get("CELERY_TEST_BACKEND", "rpc://"),
    os.environ.get("CELERY_TEST_QUEUE", "delayed-tests"),
)
