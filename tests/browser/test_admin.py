"""Users, permissions, virtual hosts, policies, limits, definitions, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import DESKTOP, PHONE
from tests.browser.dashboard import Dashboard, until
from tests.browser.world import SHOP


@pytest.fixture
def vhost(tab: Dashboard) -> Iterator[str]:
    with tab.own_vhost("admin tests") as name:
        yield name


@pytest.fixture
def user(tab: Dashboard) -> Iterator[str]:
    tab.api.put("users", "bert", body={"password": "first", "tags": "management"})
    yield "bert"
    tab.leave()
    if tab.api.has("users", "bert"):
        tab.api.delete("users", "bert")


def _may_connect(tab: Dashboard, vhost: str, user: str, password: str) -> bool:
    target = tab.world.target
    credentials = pika.PlainCredentials(user, password)
    try:
        pika.BlockingConnection(
            pika.ConnectionParameters(target.host, target.port, vhost, credentials)
        ).close()
    except (pika.exceptions.AMQPConnectionError, pika.exceptions.ProbableAccessDeniedError):
        return False
    return True


def test_add_a_user_who_then_connects(tab: Dashboard, vhost: str) -> None:
    tab.open("users")
    form = tab.test_id("add-user")
    form.get_by_label("Name").fill("carla")
    form.get_by_label("Password").fill("secret")
    form.get_by_label("monitoring").check()
    tab.press("Add user", form)
    expect(tab.test_id("users")).to_contain_text("carla")
    assert tab.api.get("users", "carla")["tags"] == ["monitoring"]
    assert not _may_connect(tab, vhost, "carla", "secret")
    tab.page.get_by_role("link", name="carla").click()
    form = tab.test_id("set-permissions")
    form.get_by_label("Virtual host").select_option(vhost)
    form.get_by_label("Read").fill("^a")
    tab.press("Set permissions", form)
    expect(tab.test_id("permissions")).to_contain_text("^a")
    assert _may_connect(tab, vhost, "carla", "secret")
    assert not _may_connect(tab, vhost, "carla", "wrong")
    tab.press(f"Take away permissions of carla in {vhost}")
    tab.confirm(f"carla may no longer enter {vhost}")
    # The page, not the broker: it asks once more when it is told, and carla must be there still.
    expect(tab.page.get_by_text("This user may not enter any virtual host yet.")).to_be_visible()
    assert tab.api.get("users", "carla", "permissions") == []
    tab.press("Delete user")
    expect(tab.test_id("confirm")).to_contain_text("its open connections are closed")
    tab.confirm("Its password, role and permissions in 0 virtual hosts will be lost")
    expect(tab.heading("Users")).to_be_visible()
    assert "carla" not in tab.api.names("users")


def test_a_user_that_is_there_is_not_overwritten(tab: Dashboard, user: str) -> None:
    tab.open("users")
    expect(tab.test_id("users")).to_contain_text(user)
    form = tab.test_id("add-user")
    form.get_by_label("Name").fill(user)
    form.get_by_label("Password").fill("other")
    tab.press("Add user", form)
    expect(form.get_by_test_id("error")).to_contain_text("There is a user bert already")


def test_the_last_administrator_is_not_deleted(tab: Dashboard) -> None:
    tab.watch.expect("400")
    tab.open("users", "guest")
    tab.press("Delete user")
    tab.confirm("You are signed in as this user and will be signed out.")
    tab.says("o administrator with a password would be left")
    assert "guest" in tab.api.names("users")


def test_change_a_users_role_and_password(tab: Dashboard, user: str) -> None:
    tab.api.put("permissions", SHOP, user, body={"configure": "", "write": "", "read": ""})
    tab.open("users", user)
    form = tab.test_id("edit-user")
    form.get_by_label("policymaker").check()
    tab.press("Save", form)
    until(lambda: "policymaker" in tab.api.get("users", user)["tags"])
    expect(tab.page.locator(".page-sub")).to_contain_text("policymaker")
    assert _may_connect(tab, SHOP, user, "first")
    form.get_by_label("password").first.fill("second")
    tab.press("Save", form)
    until(lambda: _may_connect(tab, SHOP, user, "second"))
    assert not _may_connect(tab, SHOP, user, "first")


def test_a_password_changed_meanwhile_stays(tab: Dashboard, user: str) -> None:
    tab.api.put("permissions", SHOP, user, body={"configure": "", "write": "", "read": ""})
    tab.open("users", user)
    form = tab.test_id("edit-user")
    expect(form).to_be_visible()
    tab.api.put("users", user, body={"password": "newer", "tags": "management"})
    form.get_by_label("monitoring").check()
    tab.press("Save", form)
    tab.says("User bert is changed")
    assert tab.api.get("users", user)["tags"] == ["management", "monitoring"]
    assert _may_connect(tab, SHOP, user, "newer")
    assert not _may_connect(tab, SHOP, user, "first")


def test_topic_permission(tab: Dashboard, user: str) -> None:
    tab.open("users", user)
    form = tab.page.get_by_role("form", name="Set topic permission")
    form.get_by_label("Virtual host").select_option(SHOP)
    buttons = tab.page.get_by_role("button", name="Take away topic permission")
    form.get_by_label("Publish keys").fill("^order")
    for number, exchange in enumerate(("orders", "amq.topic"), 1):
        form.get_by_label("Exchange").fill(exchange)
        tab.press("Set topic permission", form)
        expect(buttons).to_have_count(number)
    found = tab.api.get("topic-permissions", SHOP, user)
    assert {(one["exchange"], one["write"]) for one in found} == {
        ("orders", "^order"), ("amq.topic", "^order"),
    }  # fmt: skip
    tab.press(f"Take away topic permission on orders in {SHOP}")
    tab.confirm(f"{user} may then use every routing key with orders in {SHOP}")
    tab.says("Topic permission taken away")
    expect(buttons).to_have_count(1)
    (left,) = tab.api.get("users", user, "topic-permissions")
    assert left["exchange"] == "amq.topic"


def test_add_trace_and_delete_a_vhost(tab: Dashboard) -> None:
    tab.open("vhosts")
    form = tab.test_id("add-vhost")
    form.get_by_label("Name").fill("for a while")
    form.get_by_label("Description").fill("soon gone")
    form.get_by_label("Type of new queues").select_option("Quorum")
    tab.press("Add virtual host", form)
    expect(tab.test_id("vhosts")).to_contain_text("soon gone")
    assert tab.api.get("vhosts", "for a while")["default_queue_type"] == "quorum"
    form.get_by_label("Name").fill("for a while")
    form.get_by_label("Description").fill("another")
    tab.press("Add virtual host", form)
    expect(form.get_by_test_id("error")).to_contain_text("There is a virtual host for a while")
    assert tab.api.get("vhosts", "for a while")["description"] == "soon gone"
    tab.page.get_by_role("link", name="for a while").click()
    expect(tab.test_id("permissions")).to_contain_text("guest")
    tab.page.get_by_label("Copy every message").check()
    tab.says("Tracing is on.")
    assert tab.api.get("vhosts", "for a while")["tracing"]
    tab.api.put("queues", "for a while", "q")
    tab.test_id("delete").click()
    tab.confirm("1 queue with 0 messages, all exchanges, bindings")
    expect(tab.heading("Virtual hosts")).to_be_visible()
    assert "for a while" not in tab.api.names("vhosts")


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_policy_takes_effect_and_goes(tab: Dashboard, vhost: str, kind: str) -> None:
    tab.api.put("queues", vhost, "short queue")
    tab.enter(vhost)
    tab.open("policies")
    card = tab.test_id(kind)
    expect(card.get_by_test_id("empty")).to_be_visible()
    card.locator("summary").click()
    form = tab.test_id(f"add-{kind}")
    form.get_by_label("Name required").fill("short")
    form.get_by_label("Pattern").fill("^short")
    form.get_by_label("Definition: name 1").fill("max-length")
    form.get_by_label("Definition: value 1").fill("2")
    tab.press("Set policy", form)
    expect(card).to_contain_text("max-length: 2")
    for _ in range(3):
        message = {"properties": {}, "routing_key": "short queue", "payload": ""}
        message["payload_encoding"] = "string"
        tab.api.post("exchanges", vhost, "amq.default", "publish", body=message)
    assert tab.api.get("queues", vhost, "short queue")["messages"] == 2
    tab.press("Delete policy short", card)
    tab.confirm("goes back to the next policy, or to none")
    expect(card.get_by_test_id("empty")).to_be_visible()
    assert tab.api.get(kind, vhost) == []


def test_a_senseless_policy_is_refused_in_words(tab: Dashboard, vhost: str) -> None:
    tab.watch.expect("400")
    tab.enter(vhost)
    tab.open("policies")
    card = tab.test_id("policies")
    card.locator("summary").click()
    form = tab.test_id("add-policies")
    form.get_by_label("Name required").fill("wrong")
    form.get_by_label("Pattern").fill("(")
    form.get_by_label("Definition: name 1").fill("max-length")
    form.get_by_label("Definition: value 1").fill("2")
    tab.press("Set policy", form)
    expect(form.get_by_test_id("error")).not_to_be_empty()
    assert tab.api.get("policies", vhost) == []


@pytest.fixture
def phone(tab: Dashboard) -> Iterator[Dashboard]:
    tab.page.set_viewport_size(PHONE)
    yield tab
    tab.page.set_viewport_size(DESKTOP)


def _is_in_sight(tab: Dashboard, button: str) -> None:
    """Its table is as narrow as the screen: nobody has to find out that it moves sideways."""
    found = tab.page.get_by_role("button", name=button, exact=True)
    expect(found).to_be_visible()
    hidden = "({scrollWidth, clientWidth}) => scrollWidth - clientWidth"
    assert found.locator("xpath=ancestor::div[@role='region']").evaluate(hidden) <= 0, button


def test_a_phone_shows_what_a_policy_sets(phone: Dashboard, vhost: str) -> None:
    body = {"pattern": "^a", "definition": {"max-length": 5, "expires": 99_000}, "priority": 7}
    phone.api.put("policies", vhost, "short", body=body | {"apply-to": "quorum_queues"})
    phone.open("policies")
    row = phone.test_id("policies").locator("tbody tr", has_text="^a")
    for words in ("max-length: 5", "expires: 99000", "quorum queues", "7"):
        expect(row.get_by_text(words, exact=True)).to_be_visible()
    _is_in_sight(phone, "Delete policy short")


def test_buttons_in_tables_are_in_sight_on_a_phone(phone: Dashboard, vhost: str, user: str) -> None:
    phone.api.put("vhost-limits", vhost, "max-connections", body={"value": 1_000_000})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    phone.api.put("permissions", vhost, user, body=everything)
    keys = {"exchange": "amq.topic", "write": "^orders\\.created\\.", "read": "^orders"}
    phone.api.put("topic-permissions", vhost, user, body=keys)
    phone.open("limits")
    _is_in_sight(phone, f"Remove max-connections of {vhost}")
    phone.open("users")
    _is_in_sight(phone, f"Delete {user}")
    phone.open("users", user)
    _is_in_sight(phone, f"Take away permissions of {user} in {vhost}")
    _is_in_sight(phone, f"Take away topic permission on amq.topic in {vhost}")


@pytest.mark.parametrize("kind", ["vhost-limits", "user-limits"])
def test_limit_holds_and_goes(tab: Dashboard, vhost: str, user: str, kind: str) -> None:
    owner, label = (vhost, "Virtual host") if kind == "vhost-limits" else (user, "User")
    full = {"configure": ".*", "write": ".*", "read": ".*"}
    tab.api.put("permissions", vhost, user, body=full)
    tab.open("limits")
    form = tab.test_id(f"add-{kind}")
    form.get_by_label(label).select_option(owner)
    form.get_by_label("At most").fill("0")
    tab.press("Set limit", form)
    card = tab.test_id(kind)
    expect(card.locator("tbody tr")).to_have_count(1)
    assert not _may_connect(tab, vhost, user, "first")
    tab.press(f"Remove max-connections of {owner}", card)
    tab.confirm(f"{owner} may then have any number")
    expect(card).to_contain_text("No limits set")
    assert _may_connect(tab, vhost, user, "first")


def test_export_definitions(tab: Dashboard, tmp_path: Path) -> None:
    tab.open("definitions")
    with tab.page.expect_download() as download:
        tab.press("Download definitions")
    assert download.value.suggested_filename.startswith("leveret-definitions-")
    download.value.save_as(tmp_path / "all.json")
    saved = json.loads((tmp_path / "all.json").read_text())
    assert {one["name"] for one in saved["vhosts"]} == tab.api.names("vhosts")
    assert "orders.eu" in {one["name"] for one in saved["queues"]}
    tab.says("Saved:")


def test_import_definitions(tab: Dashboard, vhost: str, tmp_path: Path) -> None:
    queue = {"name": "imported", "vhost": vhost, "durable": True, "auto_delete": False}
    (tmp_path / "some.json").write_text(json.dumps({"queues": [queue | {"arguments": {}}]}))
    tab.open("definitions")
    tab.press("Import definitions")
    expect(tab.test_id("error")).to_contain_text("Choose a file first")
    tab.page.get_by_label("File").set_input_files(tmp_path / "some.json")
    expect(tab.test_id("import-summary")).to_contain_text("some.json holds 1 queue")
    tab.press("Import definitions")
    tab.says("Imported: 1 queue")
    assert tab.api.names("queues", vhost) == {"imported"}


def test_import_of_something_else_is_refused_in_words(tab: Dashboard, tmp_path: Path) -> None:
    (tmp_path / "letter.json").write_text("Dear broker")
    tab.open("definitions")
    tab.page.get_by_label("File").set_input_files(tmp_path / "letter.json")
    expect(tab.test_id("error")).to_contain_text("letter.json is not a JSON file")
    tab.press("Import definitions")
    expect(tab.test_id("error")).to_have_text("letter.json is not a JSON file.")  # it alone


def test_settings_in_force_are_shown_with_their_source(tab: Dashboard) -> None:
    tab.open("settings")
    for one in tab.api.get("settings"):
        expect(tab.test_id("settings")).to_contain_text(one["key"])
    expect(tab.test_id("settings")).to_contain_text("128KiB")
    tab.test_id("filter").fill("amqp_port")
    expect(tab.test_id("settings").locator("tbody tr")).to_have_count(1)
    expect(tab.test_id("settings")).not_to_contain_text("default")
