"""Side-by-side benchmark of Leveret and RabbitMQ: one load generator, one table of workloads."""
