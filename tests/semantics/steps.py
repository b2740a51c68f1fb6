"""Steps shared by several tests."""

from __future__ import annotations

from pamqp.commands import Queue


def bodies(contents):
    return [content.body for content in contents]


def lose(channel):
    """Close the channel by an error, which requeues its unacked messages; then reopen it."""
    channel.refused(Queue.Declare(queue="no-such-queue", passive=True), 404)
    channel.open()


def get_dead_letter(channel, queue):
    """Wait for the only message in the queue, and get it."""
    channel.wait_ready(queue, 1)
    return channel.get_one(queue)


def newest_death(content):
    return content.headers["x-death"][0]
