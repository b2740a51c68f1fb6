"""What several of the cases do or look at."""

from __future__ import annotations

from pamqp.commands import Queue


def bodies(contents):
    return [content.body for content in contents]


def lose(channel):
    """Close the channel by an error, which requeues what it had unacked; then reopen it."""
    channel.refused(Queue.Declare(queue="no-such-queue", passive=True), 404)
    channel.open()
