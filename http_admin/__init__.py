"""The HTTP front: an API shaped like RabbitMQ's management API, and the web UI."""
