"""Lists: pages, filters, sorting, columns, and the queries of real tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from leveret.broker import Broker
from leveret.broker.access.patterns import compile_pattern, pattern
from leveret.broker.runtime import slices
from leveret.http_admin import listing
from leveret.http_admin.json_response import PartsResponse
from leveret.http_admin.listing import ListQuery, list_rows
from leveret.queues.spec import QueueSpec
from tests.http.conftest import Served

COUNTS = ("page", "page_count", "page_size", "item_count", "filtered_count", "total_count")


@pytest.fixture(scope="module", autouse=True)
def queues(broker: Served) -> Iterator[None]:
    def make(hub: Broker) -> None:
        for number in range(25):
            durable = number % 2 == 0
            spec = QueueSpec(f"orders-{number:02}", durable, False, False, {})
            hub.vhosts["/"].declare_queue(spec)
        hub.vhosts["/"].declare_queue(
            QueueSpec("Invoices", True, False, False, {"x-max-length": 9})
        )

    broker.on_loop(make)
    with broker.client() as client:
        for _ in range(3):
            _publish(client, "orders-07")
        _publish(client, "orders-03")
    yield


def _publish(client: httpx.Client, queue: str) -> None:
    body = {"properties": {}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
    answer = client.post("/api/exchanges/%2F/amq.default/publish", json=body)
    assert answer.json() == {"routed": True}


def _names(answer: httpx.Response) -> list[str]:
    rows = answer.json()
    return [row["name"] for row in (rows["items"] if isinstance(rows, dict) else rows)]


def test_list_without_page_is_an_array(api: httpx.Client) -> None:
    assert len(api.get("/api/queues").json()) == 26
    assert len(api.get("/api/queues/%2F?pagination=true").json()) == 26


def test_page_has_counts(api: httpx.Client) -> None:
    page = api.get("/api/queues?page=2&page_size=10").json()
    assert [page[key] for key in COUNTS] == [2, 3, 10, 10, 26, 26]
    last = api.get("/api/queues?page=3&page_size=10&name=orders").json()
    assert [last[key] for key in COUNTS] == [3, 3, 10, 5, 25, 26]


def test_page_out_of_range_is_refused(api: httpx.Client) -> None:
    answer = api.get("/api/queues?page=9&page_size=10")
    assert (answer.status_code, answer.json()["error"]) == (400, "page_out_of_range")
    assert "page out of range" in answer.json()["reason"]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("page=0", "invalid_pagination_parameters"),
        ("page=1&page_size=0", "invalid_pagination_parameters"),
        ("page=1&page_size=501", "invalid_pagination_parameters"),
        ("page=x", "bad_request"),
    ],
)
def test_invalid_page_is_refused(api: httpx.Client, query: str, error: str) -> None:
    answer = api.get(f"/api/queues?{query}")
    assert (answer.status_code, answer.json()["error"]) == (400, error)


def test_sample_age_beyond_the_maximum_is_reduced(api: httpx.Client) -> None:
    day = "msg_rates_age=86400&msg_rates_incr=1800&lengths_age=86400&lengths_incr=1800"
    assert len(api.get(f"/api/queues?{day}").json()) == 26
    assert api.get(f"/api/overview?{day}").status_code == 200


def test_name_filter_ignores_case(api: httpx.Client) -> None:
    assert _names(api.get("/api/queues?name=INV")) == ["Invoices"]
    assert _names(api.get("/api/queues?page=1&name=s-1&page_size=3")) == [
        "orders-10", "orders-11", "orders-12"
    ]  # fmt: skip


def test_regex_filters(api: httpx.Client) -> None:
    params = {"name": "^orders-0[12]$", "use_regex": "true"}
    assert _names(api.get("/api/queues", params=params)) == ["orders-01", "orders-02"]
    answer = api.get("/api/queues", params={"name": "(", "use_regex": "true"})
    assert answer.status_code == 400
    assert "pattern" in answer.json()["reason"]


def test_groups_of_a_pattern_are_not_captured() -> None:
    """A thousand groups took 0.8 s per name, and the groups are not used."""
    assert compile_pattern("(a)(b)").groups == pattern("(a)(b)").groups == 0


def test_pattern_that_takes_long_is_refused(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.http_admin.listing.FILTER_SECONDS", -1)  # all take long
    answer = api.get("/api/queues", params={"name": "^orders", "use_regex": "true"})
    assert (answer.status_code, "too long" in answer.json()["reason"]) == (400, True)


def test_garbage_collection_during_a_search_is_not_the_pattern(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took more than the time for all names, in a process with a large heap."""
    times = iter([0.0])
    clock = SimpleNamespace(thread_time=lambda: next(times, 5.0))
    monkeypatch.setattr("leveret.http_admin.listing.time", clock)
    params = {"name": "^orders-0[12]$", "use_regex": "true"}
    assert _names(api.get("/api/queues", params=params)) == ["orders-01", "orders-02"]


def test_sort_by_a_very_deep_column_is_refused(api: httpx.Client) -> None:
    answer = api.get("/api/queues", params={"sort": ".".join(["name"] * 5000)})
    assert answer.status_code == 400
    assert "8 levels deep" in answer.json()["reason"]


def test_keda_regex_query_returns_a_page(api: httpx.Client) -> None:
    query = "page=1&use_regex=true&pagination=false&name=%5Eorders-07%24&page_size=100"
    answer = api.get(f"/api/queues/%2F?{query}")
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert (page["page_count"], len(page["items"])) == (1, 1)
    assert page["items"][0]["messages"] == 3


def test_keda_single_queue(api: httpx.Client) -> None:
    queue = api.get("/api/queues/%2F/orders-07").json()
    assert (queue["messages"], queue["messages_ready"], queue["messages_unacknowledged"]) == (
        3, 3, 0
    )  # fmt: skip
    assert queue["message_stats"]["publish"] == 3
    assert queue["message_stats"]["publish_details"]["rate"] >= 0
    assert queue["oldest_ready_age_ms"] >= 0


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("messages", "orders-07"),
        ("messages_ready", "orders-07"),
        ("message_stats.publish", "orders-07"),
        ("name", "orders-24"),
        ("oldest_ready_age_ms", "orders-07"),
        ("message_bytes", "orders-07"),
        ("arguments.x-max-length", "Invoices"),
    ],
)
def test_sort_reverse(api: httpx.Client, sort: str, first: str) -> None:
    page = api.get(f"/api/queues?page=1&page_size=2&sort={sort}&sort_reverse=true")
    assert _names(page)[0] == first


def test_sortable_columns_agree_with_row_values(broker: Served, api: httpx.Client) -> None:
    from leveret.http_admin.rows.queues import sortable_queue_columns

    rows = {row["name"]: row for row in api.get("/api/queues").json()}
    for column in sortable_queue_columns(broker.hub):
        if column.endswith(("rate", "age_ms")):
            continue
        names = _names(api.get(f"/api/queues?sort={column}"))
        values = [rows[name][column] for name in names]
        assert values == sorted(values), column


def test_columns_select_fields_and_nested_fields(api: httpx.Client) -> None:
    query = "page=1&name=orders-07&columns=name,message_stats.publish,nothing"
    assert api.get(f"/api/queues?{query}").json()["items"] == [
        {"name": "orders-07", "message_stats": {"publish": 3}}
    ]


@pytest.mark.parametrize(
    "path", ["exchanges", "bindings", "connections", "channels", "consumers", "vhosts", "users"]
)
def test_every_list_can_be_paged(api: httpx.Client, path: str) -> None:
    page = api.get(f"/api/{path}?page=1&page_size=5").json()
    assert page.keys() == {"items", *COUNTS}
    assert page["total_count"] == len(api.get(f"/api/{path}").json())


@pytest.mark.parametrize("sort", ["", "name", "number"])
async def test_other_work_runs_while_rows_are_built_and_selected(
    sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred deep columns of 10,000 queues once blocked the loop for 3.8 s."""
    done: list[str] = []
    select = listing._select

    def make(number: int) -> dict[str, Any]:
        done.append("made")
        return {"number": number, "deep": {"er": -number}}

    def cutting(*given: Any) -> Any:
        done.append("cut")
        return select(*given)

    async def other() -> None:
        while True:
            done.append("other")
            await asyncio.sleep(0)

    monkeypatch.setattr(listing, "ROWS_PER_STEP", 3)
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(slices, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(listing, "_select", cutting)
    beside = asyncio.create_task(other())
    query = ListQuery(sort=sort, columns=("number", "deep.er"))
    response = await list_rows(range(20), query, make, lambda number: f"{number:02}")
    beside.cancel()
    whole = b",".join(b'{"number":%d,"deep":{"er":%d}}' % (n, -n) for n in range(20))
    assert isinstance(response, PartsResponse)
    assert b"".join(response.parts) == b"[" + whole + b"]"
    assert done.count("cut") == done.count("made") == 20
    runs = [
        list(run) for is_other, run in groupby(done, lambda one: one == "other") if not is_other
    ]
    assert max(run.count("cut") for run in runs) == 3
    assert max(run.count("made") for run in runs) == 3
