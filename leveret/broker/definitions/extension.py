"""The `leveret` section of a definitions file: what RabbitMQ would not accept.

RabbitMQ rejects a whole file because of one unknown policy key, or because of an argument that
belongs to another queue type. It accepts a password hash it cannot check and thereby locks out its
own user of that name. Such values are moved from their rows to a separate section, `leveret`,
which RabbitMQ ignores; importing the file into Leveret puts them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leveret.broker.access.passwords import RABBITMQ
from leveret.broker.policies.keys import LEVERET_KEYS
from leveret.queues.spec import REFUSED_BY_RABBITMQ

Row = dict[str, Any]
Accounts = dict[str, list[Row]]
"""Rows of users, permissions and topic permissions, by section."""
ACCOUNT_SECTIONS = ("users", "permissions", "topic_permissions")
SECTION = "leveret"


def _leveret_arguments(kind: str, arguments: Mapping[str, Any]) -> Row:
    """Return the arguments that RabbitMQ would refuse for a queue of this type."""
    refused = REFUSED_BY_RABBITMQ.get(kind, REFUSED_BY_RABBITMQ["classic"])
    extra = {name: value for name, value in arguments.items() if name in refused}
    if kind == "quorum" and arguments.get("x-overflow") == "reject-publish-dlx":
        extra["x-overflow"] = arguments["x-overflow"]
    return extra


def split_queue(row: Row, kind: str) -> tuple[Row, Row | None]:
    """Return the row for RabbitMQ and the row for the `leveret` section, if any."""
    extra = _leveret_arguments(kind, row["arguments"])
    if not extra:
        return row, None
    return _without(row, "arguments", extra), {
        "vhost": row["vhost"],
        "name": row["name"],
        "arguments": extra,
    }


def split_policy(row: Row, operator: bool) -> tuple[Row | None, Row | None]:
    """Like `split_queue`; there is no row for RabbitMQ if all keys are Leveret's."""
    extra = {key: value for key, value in row["definition"].items() if key in LEVERET_KEYS}
    if not extra:
        return row, None
    rest = _without(row, "definition", extra)
    flag = {"operator": True} if operator else {}
    return rest if rest["definition"] else None, {**row, "definition": extra, **flag}


def split_accounts(accounts: Accounts) -> tuple[Accounts, Accounts]:
    """Return the accounts for RabbitMQ and those for the `leveret` section.

    A permission stays with its user, because RabbitMQ refuses one for a user it does not have.
    """
    in_rabbitmq = {row["name"] for row in accounts["users"] if row["hashing_algorithm"] in RABBITMQ}
    parts: tuple[Accounts, Accounts] = ({}, {})
    for section, rows in accounts.items():
        for part in parts:
            part[section] = []
        for row in rows:
            user = row["name"] if section == "users" else row["user"]
            parts[user not in in_rabbitmq][section].append(row)
    return parts


def _without(row: Row, field: str, names: Row) -> Row:
    return {**row, field: {key: value for key, value in row[field].items() if key not in names}}
