"""Side-by-side benchmark of Leveret, RabbitMQ, NATS and Redis: one table of workloads."""
