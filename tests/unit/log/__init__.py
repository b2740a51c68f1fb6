"""Tests of log mode, below AMQP."""
