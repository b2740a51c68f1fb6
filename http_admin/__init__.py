"""The HTTP front: an API shaped like RabbitMQ's management API, metrics, and the web UI."""

from http_admin import paths

__all__ = ["paths"]  # routes cannot be declared before its path segments are known
