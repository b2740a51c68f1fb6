"""Five thousand queues: the list pages, sorts and filters, and the page never holds them all.

A page freezes when it draws or asks for everything there is; so what is counted is rows in the
document and rows in answers, at any moment. Seconds are not: they are the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.dashboard import Dashboard
from tests.support.brokers import running_leveret

QUEUES = 5_000
ROWS = 50
PROBE = """
() => {
  window.most = 0;
  const count = () => {
    window.most = Math.max(window.most, document.querySelectorAll('tbody tr').length);
  };
  new MutationObserver(count).observe(document, { childList: true, subtree: true });
}
"""


@pytest.fixture(scope="module")
def full_broker() -> Iterator[str]:
    """The URL of a broker with all the queues, declared by a definitions file."""
    plain = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    queues = [plain | {"name": f"queue-{number:05}"} for number in range(QUEUES)]
    with running_leveret("--memory") as target:
        url = f"http://127.0.0.1:{target.http_port}"
        with httpx.Client(base_url=url, auth=("guest", "guest"), timeout=60) as client:
            answer = client.post("/api/definitions", json={"queues": queues})
        assert answer.status_code == 204
        yield url


def test_list_pages_sorts_and_filters_without_freezing(
    full_broker: str, stranger: Dashboard
) -> None:
    stranger.visit(full_broker)
    stranger.sign_in()
    page = stranger.page
    page.get_by_role("link", name="Queues", exact=True).click()
    status, table = stranger.test_id("pager-status"), stranger.test_id("queues")
    expect(status).to_have_text("1–50 of 5,000 queues")
    page.evaluate(PROBE)
    box = stranger.test_id("filter")
    box.press_sequentially("queue-04", delay=30)
    expect(status).to_have_text("1–50 of 1,000 queues (of 5,000)")
    box.press_sequentially("999", delay=30)
    expect(status).to_have_text("1–1 of 1 queue (of 5,000)")
    expect(table).to_contain_text("queue-04999")
    box.fill("")
    expect(status).to_have_text("1–50 of 5,000 queues")
    stranger.press("Next")
    expect(status).to_have_text("51–100 of 5,000 queues")
    expect(table).to_contain_text("queue-00099")
    table.get_by_role("button", name="Name").click()
    expect(table.locator("tbody tr").first).to_contain_text("queue-04999")
    assert table.locator("tbody tr").count() == ROWS
    assert page.evaluate("window.most") == ROWS
