"""Options and names that do not exist are errors that list what exists."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from leveret.queues.storage import schema
from leveret.spark_sink.arrow.local import LocalSource
from leveret.spark_sink.arrow.selection import Selection
from leveret.spark_sink.datasource import OPTION_NAMES, LeveretDataSource, parse_options
from leveret.spark_sink.errors import SourceError
from tests.spark.generator import FakeBroker


@pytest.fixture
def broker(tmp_path):
    broker = FakeBroker(tmp_path / "data")
    broker.append("clicks-0", 1)
    yield broker
    broker.close()


def test_unknown_option_is_named_with_all_that_exist():
    with pytest.raises(SourceError) as error:
        parse_options({"table": "events", "max_row": "5"})
    assert str(error.value) == (
        f"There is no option 'max_row': the options are {', '.join(OPTION_NAMES)}."
    )


def test_options_are_found_in_any_case():
    assert parse_options({"table": "events", "FAILONDATALOSS": "true"}).table == "events"


@pytest.mark.parametrize("method", ["reader", "streamReader"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "events", "queue": "gone"}, "There is no queue 'gone' in this broker's history: "
         "choose from '123', 'clicks', 'clicks-0', 'mail', 'odd/name %=,é', 'orders'."),
        ({"table": "logs", "queue": "orders"}, "There is no log 'orders' in this broker's history: "
         "choose from 'clicks', 'clicks-0'."),
        ({"table": "events", "vhost": "gone"}, "There is no vhost 'gone' in this broker's history: "
         "choose from '/'."),
    ],
)  # fmt: skip
def test_unknown_names_are_reported_before_anything_is_read(broker, method, options, words):
    from pyspark.sql.types import StructType

    source = LeveretDataSource(options | {"data_dir": str(broker.data_dir)})
    with pytest.raises(SourceError) as error:
        getattr(source, method)(StructType())
    assert str(error.value) == words


def test_names_of_other_vhosts_are_not_listed(broker):
    with broker.engine.begin() as connection:
        changed = update(schema.queues).where(schema.queues.c.name == "mail")
        connection.execute(changed.values(vhost="secret"))
    visible = Selection(queues=("gone",)).within(frozenset({"/"}))
    with LocalSource(broker.data_dir) as source, pytest.raises(SourceError) as error:
        source.check(visible)
    assert "'orders'" in str(error.value) and "'mail'" not in str(error.value)


def test_deleted_queue_has_history_but_a_deleted_log_cannot_be_read(broker):
    with broker.engine.begin() as connection:
        connection.execute(update(schema.queues).values(deleted_ms=broker.time_ms))
    with LocalSource(broker.data_dir) as source:
        source.check(Selection(queues=("orders",)), "events")
        with pytest.raises(SourceError, match=r"There is no log 'clicks' .* there is none"):
            source.check(Selection(queues=("clicks",)), "logs")
