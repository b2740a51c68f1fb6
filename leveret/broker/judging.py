"""What every message is asked before it is routed, whichever front it came in by.

Plain functions. What a message says of its sender and its time must be true; further routing keys
(CC and BCC) must be arrays.
"""

from __future__ import annotations

from leveret.config import Settings
from leveret.model.errors import PreconditionFailed
from leveret.model.message import FRAME_OVERHEAD, Message
from leveret.model.properties import DIRECT_REPLY_TO, Scan, edit_headers
from leveret.model.tables import Table

LONGEST_TTL_MS = 315_360_000_000
MOST_COPIES = 1_000
"""Each key is matched at every exchange on the way."""
_BLIND = frozenset({"BCC"})


def check_size(message: Message, settings: Settings) -> None:
    """What frames hold an AMQP client to, whose properties come in one and leave in one."""
    size, most = message.body_size, settings.max_message_size
    if size > most:
        raise PreconditionFailed(f"message size {size} is larger than max size {most}")
    header, frame_max = message.header_size + FRAME_OVERHEAD, settings.frame_max
    if header > frame_max:
        raise PreconditionFailed(
            f"properties and headers make a frame of {header} octets, larger than {frame_max}"
        )


def check_claims(scan: Scan, user: str) -> None:
    """A user-id must be the sender's own, an expiration a number of milliseconds."""
    if scan.user_id is not None and scan.user_id != user:
        raise PreconditionFailed(
            f"user_id property set to '{scan.user_id}' but authenticated user was '{user}'"
        )
    text = scan.expiration
    if text is not None and not (text.isascii() and text.isdigit() and int(text) <= LONGEST_TTL_MS):
        raise PreconditionFailed(f"invalid expiration '{text}'")


def check_without_channel(message: Message, settings: Settings, user: str) -> None:
    """All of that for a front that is not AMQP, where nobody waits for a fast reply."""
    check_size(message, settings)
    check_claims(message.scan, user)
    if message.scan.reply_to == DIRECT_REPLY_TO:
        raise PreconditionFailed("fast reply consumer does not exist")


def copy_keys(headers: Table) -> list[str]:
    """Further routing keys: the arrays CC and BCC."""
    keys: list[str] = []
    for name in ("CC", "BCC"):
        found = headers.get(name)
        if found is None:
            continue
        if not isinstance(found, list):
            raise PreconditionFailed(f"invalid {name} header: not an array")
        keys += [key for key in found if isinstance(key, str)]
    if len(keys) > MOST_COPIES:
        raise PreconditionFailed(f"CC and BCC have {len(keys)} keys, more than {MOST_COPIES}")
    return keys


def open_copies(headers: Table) -> list[str]:
    """The keys of CC as far as they are keys: for what was judged when it was published."""
    found = headers.get("CC")
    return [key for key in found if isinstance(key, str)] if isinstance(found, list) else []


def without_blind_copies(message: Message, headers: Table) -> Message:
    """The message as its receivers see it."""
    if "BCC" not in headers:
        return message
    return message.with_properties(edit_headers(message.properties, _BLIND, {}))
