"""Where dead letters lie in the tests, and what stands on them."""

from __future__ import annotations


def buried(channel, grave):
    """The one message in the grave, once it is there."""
    channel.wait_ready(grave, 1)
    return channel.get_one(grave)


def death(content):
    return content.headers["x-death"][0]
