"""Signing in and out in a browser, and protection against other sites (R-45)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import expect

import leveret
from leveret.http_admin import auth
from tests.browser.conftest import FOREIGN_HOST
from tests.browser.dashboard import BLANK_PAGE, Dashboard
from tests.browser.shop_broker import SHOP, ShopBroker

SESSION = "leveret_session"


def _cookie(tab: Dashboard) -> dict[str, object]:
    cookies = [cookie for cookie in tab.page.context.cookies() if cookie.get("name") == SESSION]
    return dict(cookies[0]) if cookies else {}


def _whoami(broker: ShopBroker, cookie: dict[str, object]) -> int:
    header = {"cookie": f"{SESSION}={cookie['value']}"}
    return httpx.get(f"{broker.url}/api/whoami", headers=header, timeout=30).status_code


def test_sign_in_and_out(signed_out_tab: Dashboard, broker: ShopBroker) -> None:
    signed_out_tab.monitor.allow("401")
    signed_out_tab.sign_in(password="wrong")
    expect(signed_out_tab.test_id("error")).to_contain_text("do not match")
    assert _cookie(signed_out_tab) == {}
    signed_out_tab.page.get_by_label("Password").fill("guest")
    signed_out_tab.page.keyboard.press("Enter")
    expect(signed_out_tab.heading("Overview")).to_be_visible()
    first = _cookie(signed_out_tab)
    assert first["httpOnly"] is True and first["sameSite"] == "Strict" and first["path"] == "/"
    signed_out_tab.page.reload()
    expect(signed_out_tab.heading("Overview")).to_be_visible()
    signed_out_tab.test_id("sign-out").click()
    expect(signed_out_tab.page.get_by_text("You have signed out")).to_be_visible()
    assert _cookie(signed_out_tab) == {} and _whoami(broker, first) == 401
    signed_out_tab.sign_in()
    expect(signed_out_tab.heading("Overview")).to_be_visible()
    assert _cookie(signed_out_tab)["value"] != first["value"]


def test_scripts_cannot_read_secrets(tab: Dashboard) -> None:
    assert tab.page.evaluate("document.cookie") == ""
    stored = tab.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    assert "guest" not in stored and str(_cookie(tab)["value"]) not in stored


def test_page_returns_after_a_lost_session_and_new_sign_in(signed_out_tab: Dashboard) -> None:
    signed_out_tab.monitor.allow("401")
    signed_out_tab.sign_in()
    expect(signed_out_tab.heading("Overview")).to_be_visible()
    signed_out_tab.page.context.clear_cookies()
    signed_out_tab.open("queues")
    expect(signed_out_tab.page.get_by_text("Your session has ended")).to_be_visible()
    signed_out_tab.sign_in()
    expect(signed_out_tab.test_id("queues")).to_be_visible()


@pytest.fixture
def local_tab(signed_out_tab: Dashboard) -> Iterator[Dashboard]:
    """The sign-in page of a broker in this process, whose limits a test can change."""
    settings = leveret.in_process_settings(http_enabled=True, login_tries_per_source=1)
    with leveret.ThreadedBroker(settings) as broker:
        signed_out_tab.visit(broker.http_url)
        yield signed_out_tab
        signed_out_tab.monitor.collect()
        signed_out_tab.page.goto(BLANK_PAGE)


def test_idle_session_ends(local_tab: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    local_tab.monitor.allow("401")
    local_tab.sign_in()
    expect(local_tab.heading("Overview")).to_be_visible()
    monkeypatch.setattr(auth, "IDLE_SECONDS", -1.0)
    local_tab.open("queues")
    expect(local_tab.page.get_by_text("Your session has ended")).to_be_visible()


def test_too_many_failed_logins_show_an_error(local_tab: Dashboard) -> None:
    local_tab.monitor.allow("401|429")
    local_tab.sign_in(password="guess")
    expect(local_tab.test_id("error")).to_contain_text("do not match")
    local_tab.sign_in()
    expect(local_tab.test_id("error")).to_contain_text("Too many failed logins")


def test_monitoring_user_cannot_administer(signed_out_tab: Dashboard) -> None:
    signed_out_tab.sign_in("anna", "anna")
    expect(signed_out_tab.heading("Overview")).to_be_visible()
    menu = signed_out_tab.page.locator("#nav")
    expect(menu).to_contain_text("Settings")
    for hidden in ("Users", "Policies", "Limits", "Definitions"):
        expect(menu).not_to_contain_text(hidden)
    signed_out_tab.open("connections")
    expect(signed_out_tab.test_id("connections")).to_contain_text("shop-web")
    signed_out_tab.monitor.allow("40[13]")
    signed_out_tab.open("users")
    expect(signed_out_tab.test_id("error").first).to_contain_text("Not allowed")
    signed_out_tab.open("connections")
    signed_out_tab.press("Close shop-web")
    signed_out_tab.confirm("shop-web will be disconnected")
    signed_out_tab.expect_toast("Not allowed")


def test_user_without_management_tag_cannot_sign_in(signed_out_tab: Dashboard) -> None:
    signed_out_tab.monitor.allow("403")
    signed_out_tab.sign_in("kiosk", "kiosk")
    expect(signed_out_tab.test_id("error")).to_contain_text("no management tag")
    assert _cookie(signed_out_tab) == {}


ATTACK = """<!doctype html><title>Kittens</title>
<iframe id=frame src="{target}/"></iframe>
<form id=form method=post enctype=text/plain
  action="{target}/api/queues/{vhost}/orders.eu/contents">
<input name='{{"x":"' value='"}}'></form>"""


BLIND_POST = """([url, body]) =>
  fetch(url, {method: 'POST', mode: 'no-cors', credentials: 'include', body})
    .catch(() => 'no answer is shown')"""
READ = """([method, url]) =>
  fetch(url, {method, credentials: 'include'}).then((one) => one.text(), () => 'refused')"""


@pytest.fixture
def evil_port(broker: ShopBroker) -> Iterator[int]:
    """The port of another site on this machine."""
    page = ATTACK.format(target=broker.url, vhost=SHOP).encode()

    class Kittens(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Kittens)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def victim(signed_out_tab: Dashboard) -> Dashboard:
    """A signed-in tab that is about to visit other sites, where violations are expected."""
    signed_out_tab.sign_in()
    expect(signed_out_tab.heading("Overview")).to_be_visible()
    signed_out_tab.monitor.assert_clean()
    signed_out_tab.monitor.allow("")
    return signed_out_tab


@pytest.mark.parametrize("host", ["127.0.0.1", FOREIGN_HOST])
def test_other_site_cannot_change_anything(victim: Dashboard, evil_port: int, host: str) -> None:
    """From 127.0.0.1 the browser sends even the strict cookie; from another name it does not."""
    page, target = victim.page, f"{victim.broker.url}/api"
    page.goto(f"http://{host}:{evil_port}/")
    message = {"routing_key": "acme", "payload": "", "payload_encoding": "string", "properties": {}}
    url = f"{target}/exchanges/{SHOP}/amq.default/publish"
    with page.expect_request("**/publish"):
        page.evaluate(BLIND_POST, [url, json.dumps(message)])
    assert page.evaluate(READ, ["PUT", f"{target}/queues/{SHOP}/stolen"]) == "refused"
    assert page.evaluate(READ, ["GET", f"{target}/overview"]) == "refused"
    with page.expect_navigation() as form:
        page.evaluate("document.getElementById('form').submit()")
    assert form.value.status == 403
    assert "stolen" not in victim.api.names("queues", SHOP)
    assert victim.api.get("queues", SHOP, "acme")["messages"] == 0


def test_other_site_cannot_frame_the_ui(victim: Dashboard, evil_port: int) -> None:
    victim.page.goto(f"http://127.0.0.1:{evil_port}/")
    framed = victim.page.frames[1]
    assert framed.url.startswith("chrome-error:")
    assert framed.get_by_label("Password").count() == 0


def test_forged_host_header_is_refused(victim: Dashboard) -> None:
    """DNS rebinding: another name that resolves to this machine."""
    answer = victim.page.goto(f"http://{FOREIGN_HOST}:{victim.broker.target.http_port}/")
    assert answer is not None and answer.status == 400
    assert "does not answer to that host name" in victim.page.inner_text("body")
