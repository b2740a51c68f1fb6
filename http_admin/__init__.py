"""The HTTP front: an API shaped like RabbitMQ's management API, metrics, and the web UI."""
