"""What of the definitions RabbitMQ does not know, kept apart so that it imports the rest.

RabbitMQ refuses a whole file for one policy key it has never heard of, and for an argument that
belongs to queues of another type. A password hash it does not know it takes, and locks out its own
user of that name. Such values leave their rows and go to a section of their own, `leveret`, which
RabbitMQ passes over; importing here puts them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leveret.broker.access.passwords import RABBITMQ
from leveret.broker.policy_keys import OWN_KEYS
from queues.kinds import REFUSED_BY_RABBITMQ

Row = dict[str, Any]
Accounts = dict[str, list[Row]]
ACCOUNTS = ("users", "permissions", "topic_permissions")
SECTION = "leveret"


def own_arguments(kind: str, arguments: Mapping[str, Any]) -> Row:
    """Arguments that RabbitMQ would refuse for a queue of this type."""
    foreign = REFUSED_BY_RABBITMQ.get(kind, REFUSED_BY_RABBITMQ["classic"])
    own = {name: value for name, value in arguments.items() if name in foreign}
    if kind == "quorum" and arguments.get("x-overflow") == "reject-publish-dlx":
        own["x-overflow"] = arguments["x-overflow"]
    return own


def split_queue(row: Row, kind: str) -> tuple[Row, Row | None]:
    """The row for RabbitMQ, and what is only ours."""
    own = own_arguments(kind, row["arguments"])
    if not own:
        return row, None
    return _without(row, "arguments", own), {
        "vhost": row["vhost"],
        "name": row["name"],
        "arguments": own,
    }


def split_policy(row: Row, operator: bool) -> tuple[Row | None, Row | None]:
    """The same for a policy; RabbitMQ gets none where it knows nothing of what one asks for."""
    own = {key: value for key, value in row["definition"].items() if key in OWN_KEYS}
    if not own:
        return row, None
    rest = _without(row, "definition", own)
    mark = {"operator": True} if operator else {}
    return rest if rest["definition"] else None, {**row, "definition": own, **mark}


def split_accounts(accounts: Accounts) -> tuple[Accounts, Accounts]:
    """Users, permissions and topic permissions: those for RabbitMQ, and those that are ours.

    A permission goes with its user: RabbitMQ refuses one for a user that is not there.
    """
    theirs = {row["name"] for row in accounts["users"] if row["hashing_algorithm"] in RABBITMQ}
    parts: tuple[Accounts, Accounts] = ({}, {})
    for section, rows in accounts.items():
        for part in parts:
            part[section] = []
        for row in rows:
            who = row["name"] if section == "users" else row["user"]
            parts[who not in theirs][section].append(row)
    return parts


def _without(row: Row, field: str, names: Row) -> Row:
    return {**row, field: {key: value for key, value in row[field].items() if key not in names}}
