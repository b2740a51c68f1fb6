"""Signing in and out in a real browser, and what other sites can do to it (R-45): nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import expect

import http_admin.auth
import leveret
from tests.browser.conftest import FOREIGN_HOST
from tests.browser.dashboard import NOWHERE, Dashboard
from tests.browser.world import SHOP, World

SESSION = "leveret_session"


def _cookie(tab: Dashboard) -> dict[str, object]:
    found = [one for one in tab.page.context.cookies() if one.get("name") == SESSION]
    return dict(found[0]) if found else {}


def _whoami(world: World, cookie: dict[str, object]) -> int:
    header = {"cookie": f"{SESSION}={cookie['value']}"}
    return httpx.get(f"{world.url}/api/whoami", headers=header, timeout=30).status_code


def test_sign_in_and_out(stranger: Dashboard, world: World) -> None:
    stranger.watch.expect("401")
    stranger.sign_in(password="wrong")
    expect(stranger.test_id("error")).to_contain_text("do not match")
    assert _cookie(stranger) == {}
    stranger.page.get_by_label("Password").fill("guest")
    stranger.page.keyboard.press("Enter")
    expect(stranger.heading("Overview")).to_be_visible()
    first = _cookie(stranger)
    assert first["httpOnly"] is True and first["sameSite"] == "Strict" and first["path"] == "/"
    stranger.page.reload()
    expect(stranger.heading("Overview")).to_be_visible()
    stranger.test_id("sign-out").click()
    expect(stranger.page.get_by_text("You have signed out")).to_be_visible()
    assert _cookie(stranger) == {} and _whoami(world, first) == 401
    stranger.sign_in()
    expect(stranger.heading("Overview")).to_be_visible()
    assert _cookie(stranger)["value"] != first["value"]


def test_no_secret_is_within_reach_of_scripts(tab: Dashboard) -> None:
    assert tab.page.evaluate("document.cookie") == ""
    kept = tab.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    assert "guest" not in kept and str(_cookie(tab)["value"]) not in kept


def test_a_lost_session_leads_to_the_form_and_back_to_the_page(stranger: Dashboard) -> None:
    stranger.watch.expect("401")
    stranger.sign_in()
    expect(stranger.heading("Overview")).to_be_visible()
    stranger.page.context.clear_cookies()
    stranger.open("queues")
    expect(stranger.page.get_by_text("Your session has ended")).to_be_visible()
    stranger.sign_in()
    expect(stranger.test_id("queues")).to_be_visible()


@pytest.fixture
def near(stranger: Dashboard) -> Iterator[Dashboard]:
    """The sign-in page of a broker inside this process, whose rules a test can bend."""
    settings = leveret.in_process_settings(http_enabled=True, login_tries_per_source=1)
    with leveret.ThreadedBroker(settings) as broker:
        stranger.visit(broker.http_url)
        yield stranger
        stranger.watch.collect()
        stranger.page.goto(NOWHERE)


def test_silence_ends_the_session(near: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    near.watch.expect("401")
    near.sign_in()
    expect(near.heading("Overview")).to_be_visible()
    monkeypatch.setattr(http_admin.auth, "IDLE_SECONDS", -1.0)
    near.open("queues")
    expect(near.page.get_by_text("Your session has ended")).to_be_visible()


def test_guessing_is_slowed_down_in_words(near: Dashboard) -> None:
    near.watch.expect("401|429")
    near.sign_in(password="guess")
    expect(near.test_id("error")).to_contain_text("do not match")
    near.sign_in()
    expect(near.test_id("error")).to_contain_text("Too many failed log-ins")


def test_a_monitor_sees_much_and_changes_little(stranger: Dashboard) -> None:
    stranger.sign_in("anna", "anna")
    expect(stranger.heading("Overview")).to_be_visible()
    menu = stranger.page.locator("#nav")
    expect(menu).to_contain_text("Settings")
    for hidden in ("Users", "Policies", "Limits", "Definitions"):
        expect(menu).not_to_contain_text(hidden)
    stranger.open("connections")
    expect(stranger.test_id("connections")).to_contain_text("shop-web")
    stranger.watch.expect("40[13]")
    stranger.open("users")
    expect(stranger.test_id("error").first).to_contain_text("Not allowed")
    stranger.open("connections")
    stranger.press("Close shop-web")
    stranger.confirm("shop-web is cut off")
    stranger.says("Not allowed")


def test_who_has_no_role_is_not_let_in(stranger: Dashboard) -> None:
    stranger.watch.expect("403")
    stranger.sign_in("kiosk", "kiosk")
    expect(stranger.test_id("error")).to_contain_text("no management tag")
    assert _cookie(stranger) == {}


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
def evil_port(world: World) -> Iterator[int]:
    """Another site, on another port of this machine."""
    page = ATTACK.format(target=world.url, vhost=SHOP).encode()

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
def victim(stranger: Dashboard) -> Dashboard:
    """Signed in, and about to visit places where much happens that the watch is not there for."""
    stranger.sign_in()
    expect(stranger.heading("Overview")).to_be_visible()
    stranger.watch.must_be_clean()
    stranger.watch.expect("")
    return stranger


@pytest.mark.parametrize("host", ["127.0.0.1", FOREIGN_HOST])
def test_another_site_changes_nothing(victim: Dashboard, evil_port: int, host: str) -> None:
    """From 127.0.0.1 even the strict cookie comes along; from a foreign name it does not."""
    page, target = victim.page, f"{victim.world.url}/api"
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


def test_no_other_site_may_frame_the_dashboard(victim: Dashboard, evil_port: int) -> None:
    victim.page.goto(f"http://127.0.0.1:{evil_port}/")
    framed = victim.page.frames[1]
    assert framed.url.startswith("chrome-error:")
    assert framed.get_by_label("Password").count() == 0


def test_a_forged_host_gets_nothing(victim: Dashboard) -> None:
    """DNS rebinding: a foreign name that leads here."""
    answer = victim.page.goto(f"http://{FOREIGN_HOST}:{victim.world.target.http_port}/")
    assert answer is not None and answer.status == 400
    assert "does not answer to that host name" in victim.page.inner_text("body")
