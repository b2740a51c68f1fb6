"""The HTTP server: an API like RabbitMQ's management API, Prometheus metrics, and the web UI."""

from leveret.http_admin.middleware import raw_path

__all__ = ["raw_path"]  # registers the path convertor that routes are declared with

if __name__ != "leveret.http_admin":  # the folder of a checkout whose root is on sys.path
    raise ImportError("import leveret.http_admin instead of http_admin", name=__name__)
