"""Field types of request bodies and rows that need more than a plain type."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer

from leveret.broker.policies.parameters import check_value
from leveret.http_admin.json_response import json_safe
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import require_encodable

JsonTable = Annotated[dict[str, Any], PlainSerializer(json_safe, return_type=dict[str, Any])]
"""An AMQP table in a response. Clients may have put bytes, times and decimals into it."""


def _split_tags(value: Any) -> Any:
    """Accept `"a,b"` for `["a", "b"]`."""
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    return value


Tags = Annotated[list[str], BeforeValidator(_split_tags)]


def _empty_object(value: Any) -> Any:
    """Accept `[]` and null for `{}`: some clients write an empty object like that."""
    return {} if value in ([], None) else value


Object = Annotated[dict[str, Any], BeforeValidator(_empty_object)]


def _check_amqp_table(table: dict[str, Any]) -> dict[str, Any]:
    """Refuse what no client could send over AMQP, and numbers that are out of range."""
    require_encodable(table)
    try:
        check_value(table)
    except PreconditionFailed as error:
        raise ValueError(error.explanation) from None
    return table


Table = Annotated[Object, AfterValidator(_check_amqp_table)]


class LimitBody(BaseModel):
    value: int = Field(ge=-(1 << 31), lt=1 << 31, description="The limit; -1 means no limit.")
