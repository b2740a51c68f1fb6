"""Five thousand queues: the list is paged, sorted and filtered, and never shows all of them.

A page freezes if it renders all rows, so the test counts the rows in the document at any moment. It
does not measure time, which depends on the machine.
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
  window.maxRows = 0;
  const count = () => {
    window.maxRows = Math.max(window.maxRows, document.querySelectorAll('tbody tr').length);
  };
  new MutationObserver(count).observe(document, { childList: true, subtree: true });
}
"""


@pytest.fixture(scope="module")
def full_broker() -> Iterator[str]:
    """The URL of a broker with all the queues, imported from definitions."""
    plain = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    queues = [plain | {"name": f"queue-{number:05}"} for number in range(QUEUES)]
    with running_leveret("--memory") as target:
        url = f"http://127.0.0.1:{target.http_port}"
        with httpx.Client(base_url=url, auth=("guest", "guest"), timeout=60) as client:
            response = client.post("/api/definitions", json={"queues": queues})
        assert response.status_code == 204
        yield url


def test_long_list_is_paged_sorted_and_filtered(
    full_broker: str, signed_out_tab: Dashboard
) -> None:
    signed_out_tab.visit(full_broker)
    signed_out_tab.sign_in()
    page = signed_out_tab.page
    page.get_by_role("link", name="Queues", exact=True).click()
    status, table = signed_out_tab.test_id("pager-status"), signed_out_tab.test_id("queues")
    expect(status).to_have_text("1–50 of 5,000 queues")
    page.evaluate(PROBE)
    box = signed_out_tab.test_id("filter")
    box.press_sequentially("queue-04", delay=30)
    expect(status).to_have_text("1–50 of 1,000 queues (of 5,000)")
    box.press_sequentially("999", delay=30)
    expect(status).to_have_text("1–1 of 1 queue (of 5,000)")
    expect(table).to_contain_text("queue-04999")
    box.fill("")
    expect(status).to_have_text("1–50 of 5,000 queues")
    signed_out_tab.press("Next")
    expect(status).to_have_text("51–100 of 5,000 queues")
    expect(table).to_contain_text("queue-00099")
    table.get_by_role("button", name="Name").click()
    expect(table.locator("tbody tr").first).to_contain_text("queue-04999")
    assert table.locator("tbody tr").count() == ROWS
    assert page.evaluate("window.maxRows") == ROWS
