"""Fields of request bodies in the forms that RabbitMQ's tools write them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from leveret.broker.parameters import check_value
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import check_sayable


def _tags(value: Any) -> Any:
    """`"a,b"` and `["a", "b"]` are the same."""
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    return value


Tags = Annotated[list[str], BeforeValidator(_tags)]


def _no_list(value: Any) -> Any:
    """An empty object that some clients write as an empty array, or as nothing."""
    return {} if value in ([], None) else value


Object = Annotated[dict[str, Any], BeforeValidator(_no_list)]


def _sayable(table: dict[str, Any]) -> dict[str, Any]:
    """As a client could have sent it over AMQP, with numbers that were meant."""
    check_sayable(table)
    try:
        check_value(table)
    except PreconditionFailed as error:
        raise ValueError(error.explanation) from None
    return table


Table = Annotated[Object, AfterValidator(_sayable)]


class LimitBody(BaseModel):
    value: int = Field(ge=-(1 << 31), lt=1 << 31, description="A number; -1 is no limit.")
