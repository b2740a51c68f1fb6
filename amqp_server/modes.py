"""The modes of a channel: confirms or transactions, never both, and flow, which is always on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp_server.codec import Method, commands
from amqp_server.confirms import Confirms
from amqp_server.transaction import Transaction
from leveret.model.errors import NotImplementedHere, PreconditionFailed
from leveret.model.store import StoreState

if TYPE_CHECKING:
    from amqp_server.channel import Channel


def confirm_select(channel: Channel, method: Any) -> None:
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.number, partial(_await_commit, channel))
    if not method.nowait:
        channel.reply(commands.Confirm.SelectOk())


def _await_commit(channel: Channel, mark: int) -> None:
    channel.broker.commits.after(
        mark,
        lambda: _confirms_decided(channel, mark, True),
        lambda: _confirms_decided(channel, mark, False),
    )


def _confirms_decided(channel: Channel, mark: int, durable: bool) -> None:
    if channel.confirms is not None and not channel.closed:
        (channel.confirms.release if durable else channel.confirms.fail)(mark)
        channel.session.confirm(channel)


def tx_select(channel: Channel, method: Any) -> None:
    if channel.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel.broker)
    channel.reply(commands.Tx.SelectOk())


def tx_commit(channel: Channel, method: Any) -> None:
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    if channel.broker.store.state is StoreState.FAILED:
        channel.give_up()
    channel.transaction.commit(channel)
    channel.reply(commands.Tx.CommitOk(), durable=True)


def tx_rollback(channel: Channel, method: Any) -> None:
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    channel.transaction.rollback(channel)
    channel.reply(commands.Tx.RollbackOk())


def flow(channel: Channel, method: Any) -> None:
    if not method.active:
        raise NotImplementedHere("active=false is not implemented")
    channel.reply(commands.Channel.FlowOk(True))


HANDLERS: dict[type[Method], Callable[[Channel, Any], None]] = {
    commands.Confirm.Select: confirm_select,
    commands.Tx.Select: tx_select,
    commands.Tx.Commit: tx_commit,
    commands.Tx.Rollback: tx_rollback,
    commands.Channel.Flow: flow,
    commands.Channel.FlowOk: lambda channel, method: None,
}
