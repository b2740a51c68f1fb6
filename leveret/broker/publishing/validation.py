"""Checks of a published message before it is routed, for AMQP and HTTP.

Plain functions. A user-id must be the sender's, unless the sender may impersonate others; an
expiration must be a number, the additional routing keys in CC and BCC must be arrays, and records
of a compacted log need keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.broker.access.users import User
from leveret.config import Settings
from leveret.model.errors import PreconditionFailed
from leveret.model.message import DIRECT_REPLY_TO, FRAME_OVERHEAD, Message, Scan, edit_headers
from leveret.model.tables import Table
from leveret.queues.log.log_queue import maybe_log
from leveret.queues.port import Target

MAX_TTL_MS = 315_360_000_000
MAX_COPY_KEYS = 1_000
"""Each key is matched at every exchange a message passes."""
IMPERSONATOR = "impersonator"
"""The tag of users who may publish messages with the user-id of another user."""
_BCC = frozenset({"BCC"})


def check_size(message: Message, settings: Settings) -> None:
    """The limits that frames set for AMQP clients: properties must fit into one frame."""
    size, max_size = message.body_size, settings.max_message_size
    if size > max_size:
        raise PreconditionFailed(f"message size {size} is larger than max size {max_size}")
    header, frame_max = message.header_size + FRAME_OVERHEAD, settings.frame_max
    if header > frame_max:
        raise PreconditionFailed(
            f"properties and headers make a frame of {header} bytes, larger than {frame_max}"
        )


def check_user_id_and_expiration(scan: Scan, user: User) -> None:
    if scan.user_id is not None and scan.user_id != user.name and IMPERSONATOR not in user.tags:
        raise PreconditionFailed(
            f"user_id property set to '{scan.user_id}' but authenticated user was '{user.name}'"
        )
    text = scan.expiration
    if text is not None and not (text.isascii() and text.isdigit() and int(text) <= MAX_TTL_MS):
        raise PreconditionFailed(f"invalid expiration '{text}'")


def validate_without_channel(message: Message, settings: Settings, user: User) -> None:
    """All checks for a message that was not published on a channel, so gets no direct reply."""
    check_size(message, settings)
    check_user_id_and_expiration(message.scan, user)
    if message.scan.reply_to == DIRECT_REPLY_TO:
        raise PreconditionFailed("fast reply consumer does not exist")


def cc_and_bcc_keys(headers: Table) -> list[str]:
    """The additional routing keys of a message that is being published."""
    keys: list[str] = []
    for name in ("CC", "BCC"):
        values = headers.get(name)
        if values is None:
            continue
        if not isinstance(values, list):
            raise PreconditionFailed(f"invalid {name} header: not an array")
        keys += [key for key in values if isinstance(key, str)]
    if len(keys) > MAX_COPY_KEYS:
        raise PreconditionFailed(f"CC and BCC have {len(keys)} keys, more than {MAX_COPY_KEYS}")
    return keys


def cc_keys(headers: Table) -> list[str]:
    """The CC keys of a message that was validated when it was published."""
    values = headers.get("CC")
    return [key for key in values if isinstance(key, str)] if isinstance(values, list) else []


def require_record_keys(exchange: str, targets: Iterable[Target]) -> None:
    """Refuse to write to a compacted log through the default exchange.

    The routing key is the name of the log there, so it would be the key of every record, and
    compaction would keep only the newest one.
    """
    if exchange:
        return
    for target in targets:
        log = maybe_log(target)
        if log is not None and log.log_spec.compacted:
            parent = log if log.is_partitioned else log.partition_of
            through = f"exchange '{parent.name}'" if parent else "an exchange that is bound to it"
            raise PreconditionFailed(
                f"{log.full_name} is a compacted log, and through the default exchange all records "
                f"would have one key: publish to {through}, with the key as routing key"
            )


def without_bcc(message: Message, headers: Table) -> Message:
    """The message as its receivers see it."""
    if "BCC" not in headers:
        return message
    return message.with_properties(edit_headers(message.properties, _BCC, {}))
