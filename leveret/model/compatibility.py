"""The version of RabbitMQ that Leveret is compatible with."""

RABBITMQ_VERSION = "3.10.8"
"""All comparison tests run against this version. It is announced everywhere: over AMQP, by the HTTP
API, in metrics and in exported definitions. Tools adapt to it."""
