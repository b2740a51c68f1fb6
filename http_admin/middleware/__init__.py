"""ASGI middleware: security headers and authentication, concurrency, request limits."""
