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
from tests.browser.dashboard import Dashboard, wait_until
from tests.browser.shop_broker import SHOP


@pytest.fixture
def vhost(tab: Dashboard) -> Iterator[str]:
    with tab.temporary_vhost("admin tests") as name:
        yield name


@pytest.fixture
def user(tab: Dashboard) -> Iterator[str]:
    tab.api.put("users", "bert", body={"password": "first", "tags": "management"})
    yield "bert"
    tab.leave()
    if tab.api.has("users", "bert"):
        tab.api.delete("users", "bert")


def _can_connect(tab: Dashboard, vhost: str, user: str, password: str) -> bool:
    target = tab.broker.target
    credentials = pika.PlainCredentials(user, password)
    try:
        pika.BlockingConnection(
            pika.ConnectionParameters(target.host, target.port, vhost, credentials)
        ).close()
    except (pika.exceptions.AMQPConnectionError, pika.exceptions.ProbableAccessDeniedError):
        return False
    return True


def test_added_user_can_connect_with_permissions(tab: Dashboard, vhost: str) -> None:
    tab.open("users")
    form = tab.test_id("add-user")
    form.get_by_label("Name").fill("carla")
    form.get_by_label("Password").fill("secret")
    form.get_by_label("monitoring").check()
    tab.press("Add user", form)
    expect(tab.test_id("users")).to_contain_text("carla")
    assert tab.api.get("users", "carla")["tags"] == ["monitoring"]
    assert not _can_connect(tab, vhost, "carla", "secret")
    tab.page.get_by_role("link", name="carla").click()
    form = tab.test_id("set-permissions")
    form.get_by_label("Virtual host").select_option(vhost)
    form.get_by_label("Read").fill("^a")
    tab.press("Set permissions", form)
    expect(tab.test_id("permissions")).to_contain_text("^a")
    assert _can_connect(tab, vhost, "carla", "secret")
    assert not _can_connect(tab, vhost, "carla", "wrong")
    tab.press(f"Revoke permissions of carla in {vhost}")
    tab.confirm(f"carla loses access to virtual host {vhost}")
    # The page reads the permissions again after the change, before the user is deleted.
    expect(tab.page.get_by_text("This user has no access to any virtual host.")).to_be_visible()
    assert tab.api.get("users", "carla", "permissions") == []
    tab.press("Delete user")
    expect(tab.test_id("confirm")).to_contain_text("open connections of the user closed")
    tab.confirm("The password, the roles and the permissions in 0 virtual hosts will be lost")
    expect(tab.heading("Users")).to_be_visible()
    assert "carla" not in tab.api.names("users")


def test_existing_user_is_not_overwritten(tab: Dashboard, user: str) -> None:
    tab.open("users")
    expect(tab.test_id("users")).to_contain_text(user)
    form = tab.test_id("add-user")
    form.get_by_label("Name").fill(user)
    form.get_by_label("Password").fill("other")
    tab.press("Add user", form)
    expect(form.get_by_test_id("error")).to_contain_text("User bert already exists")


def test_last_administrator_is_not_deleted(tab: Dashboard) -> None:
    tab.monitor.allow("400")
    tab.open("users", "guest")
    tab.press("Delete user")
    tab.confirm("You are signed in as this user and will be signed out.")
    tab.expect_toast("is the last administrator with a password")
    assert "guest" in tab.api.names("users")


def test_change_role_and_password(tab: Dashboard, user: str) -> None:
    tab.api.put("permissions", SHOP, user, body={"configure": "", "write": "", "read": ""})
    tab.open("users", user)
    form = tab.test_id("edit-user")
    form.get_by_label("policymaker").check()
    tab.press("Save", form)
    wait_until(lambda: "policymaker" in tab.api.get("users", user)["tags"])
    expect(tab.page.locator(".page-sub")).to_contain_text("policymaker")
    assert _can_connect(tab, SHOP, user, "first")
    form.get_by_label("password").first.fill("second")
    tab.press("Save", form)
    wait_until(lambda: _can_connect(tab, SHOP, user, "second"))
    assert not _can_connect(tab, SHOP, user, "first")


def test_password_changed_elsewhere_is_kept(tab: Dashboard, user: str) -> None:
    tab.api.put("permissions", SHOP, user, body={"configure": "", "write": "", "read": ""})
    tab.open("users", user)
    form = tab.test_id("edit-user")
    expect(form).to_be_visible()
    tab.api.put("users", user, body={"password": "newer", "tags": "management"})
    form.get_by_label("monitoring").check()
    tab.press("Save", form)
    tab.expect_toast("User bert saved")
    assert tab.api.get("users", user)["tags"] == ["management", "monitoring"]
    assert _can_connect(tab, SHOP, user, "newer")
    assert not _can_connect(tab, SHOP, user, "first")


def test_topic_permission(tab: Dashboard, user: str) -> None:
    tab.open("users", user)
    form = tab.page.get_by_role("form", name="Set topic permission")
    form.get_by_label("Virtual host").select_option(SHOP)
    buttons = tab.page.get_by_role("button", name="Revoke topic permission")
    form.get_by_label("Write").fill("^order")
    for number, exchange in enumerate(("orders", "amq.topic"), 1):
        form.get_by_label("Exchange").fill(exchange)
        tab.press("Set topic permission", form)
        expect(buttons).to_have_count(number)
    permissions = tab.api.get("topic-permissions", SHOP, user)
    assert {(row["exchange"], row["write"]) for row in permissions} == {
        ("orders", "^order"), ("amq.topic", "^order"),
    }  # fmt: skip
    tab.press(f"Revoke topic permission on orders in {SHOP}")
    tab.confirm(f"{user} will be able to use every routing key with orders in {SHOP}")
    tab.expect_toast("Topic permission revoked")
    expect(buttons).to_have_count(1)
    (remaining,) = tab.api.get("users", user, "topic-permissions")
    assert remaining["exchange"] == "amq.topic"


def test_add_trace_and_delete_vhost(tab: Dashboard) -> None:
    tab.open("vhosts")
    form = tab.test_id("add-vhost")
    form.get_by_label("Name").fill("for a while")
    form.get_by_label("Description").fill("soon gone")
    form.get_by_label("Default queue type").select_option("Quorum")
    tab.press("Add virtual host", form)
    expect(tab.test_id("vhosts")).to_contain_text("soon gone")
    assert tab.api.get("vhosts", "for a while")["default_queue_type"] == "quorum"
    form.get_by_label("Name").fill("for a while")
    form.get_by_label("Description").fill("another")
    tab.press("Add virtual host", form)
    expect(form.get_by_test_id("error")).to_contain_text("Virtual host for a while already exists")
    assert tab.api.get("vhosts", "for a while")["description"] == "soon gone"
    tab.page.get_by_role("link", name="for a while").click()
    expect(tab.test_id("permissions")).to_contain_text("guest")
    tab.page.get_by_label("Copy every message").check()
    tab.expect_toast("Tracing is on.")
    assert tab.api.get("vhosts", "for a while")["tracing"]
    tab.api.put("queues", "for a while", "q")
    tab.test_id("delete").click()
    tab.confirm("1 queue with 0 messages, and all exchanges, bindings")
    expect(tab.heading("Virtual hosts")).to_be_visible()
    assert "for a while" not in tab.api.names("vhosts")


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_policy_takes_effect_and_is_deleted(tab: Dashboard, vhost: str, kind: str) -> None:
    tab.api.put("queues", vhost, "short queue")
    tab.select_vhost(vhost)
    tab.open("policies")
    card = tab.test_id(kind)
    expect(card.get_by_test_id("empty")).to_be_visible()
    card.locator("summary").click()
    form = tab.test_id(f"add-{kind}")
    form.get_by_label("Name required").fill("short")
    form.get_by_label("Pattern").fill("^short")
    form.get_by_label("Definition: name 1").fill("max-length")
    form.get_by_label("Definition: value 1").fill("2")
    tab.press("Save policy", form)
    expect(card).to_contain_text("max-length: 2")
    for _ in range(3):
        message = {"properties": {}, "routing_key": "short queue", "payload": ""}
        message["payload_encoding"] = "string"
        tab.api.post("exchanges", vhost, "amq.default", "publish", body=message)
    assert tab.api.get("queues", vhost, "short queue")["messages"] == 2
    tab.press("Delete policy short", card)
    tab.confirm("the matching policy with the next lower priority, or none")
    expect(card.get_by_test_id("empty")).to_be_visible()
    assert tab.api.get(kind, vhost) == []


def test_invalid_policy_shows_an_error(tab: Dashboard, vhost: str) -> None:
    tab.monitor.allow("400")
    tab.select_vhost(vhost)
    tab.open("policies")
    card = tab.test_id("policies")
    card.locator("summary").click()
    form = tab.test_id("add-policies")
    form.get_by_label("Name required").fill("wrong")
    form.get_by_label("Pattern").fill("(")
    form.get_by_label("Definition: name 1").fill("max-length")
    form.get_by_label("Definition: value 1").fill("2")
    tab.press("Save policy", form)
    expect(form.get_by_test_id("error")).not_to_be_empty()
    assert tab.api.get("policies", vhost) == []


@pytest.fixture
def phone(tab: Dashboard) -> Iterator[Dashboard]:
    tab.page.set_viewport_size(PHONE)
    yield tab
    tab.page.set_viewport_size(DESKTOP)


def _assert_reachable(tab: Dashboard, button: str) -> None:
    """The button is visible, and its table is not wider than the screen."""
    element = tab.page.get_by_role("button", name=button, exact=True)
    expect(element).to_be_visible()
    hidden = "({scrollWidth, clientWidth}) => scrollWidth - clientWidth"
    assert element.locator("xpath=ancestor::section[@aria-label]").evaluate(hidden) <= 0, button


def test_policy_definition_is_visible_on_a_phone(phone: Dashboard, vhost: str) -> None:
    body = {"pattern": "^a", "definition": {"max-length": 5, "expires": 99_000}, "priority": 7}
    phone.api.put("policies", vhost, "short", body=body | {"apply-to": "quorum_queues"})
    phone.open("policies")
    row = phone.test_id("policies").locator("tbody tr", has_text="^a")
    for words in ("max-length: 5", "expires: 99000", "quorum queues", "7"):
        expect(row.get_by_text(words, exact=True)).to_be_visible()
    _assert_reachable(phone, "Delete policy short")


def test_table_buttons_are_reachable_on_a_phone(phone: Dashboard, vhost: str, user: str) -> None:
    phone.api.put("vhost-limits", vhost, "max-connections", body={"value": 1_000_000})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    phone.api.put("permissions", vhost, user, body=everything)
    keys = {"exchange": "amq.topic", "write": "^orders\\.created\\.", "read": "^orders"}
    phone.api.put("topic-permissions", vhost, user, body=keys)
    phone.open("limits")
    _assert_reachable(phone, f"Remove max-connections of {vhost}")
    phone.open("users")
    _assert_reachable(phone, f"Delete {user}")
    phone.open("users", user)
    _assert_reachable(phone, f"Revoke permissions of {user} in {vhost}")
    _assert_reachable(phone, f"Revoke topic permission on amq.topic in {vhost}")


@pytest.mark.parametrize("kind", ["vhost-limits", "user-limits"])
def test_limit_takes_effect_and_is_removed(
    tab: Dashboard, vhost: str, user: str, kind: str
) -> None:
    owner, label = (vhost, "Virtual host") if kind == "vhost-limits" else (user, "User")
    full = {"configure": ".*", "write": ".*", "read": ".*"}
    tab.api.put("permissions", vhost, user, body=full)
    tab.open("limits")
    form = tab.test_id(f"add-{kind}")
    form.get_by_label(label).select_option(owner)
    form.get_by_label("Maximum").fill("0")
    tab.press("Set limit", form)
    card = tab.test_id(kind)
    expect(card.locator("tbody tr")).to_have_count(1)
    assert not _can_connect(tab, vhost, user, "first")
    tab.press(f"Remove max-connections of {owner}", card)
    tab.confirm(f"max-connections of {owner} will be unlimited")
    expect(card).to_contain_text("No limits set")
    assert _can_connect(tab, vhost, user, "first")


def test_export_definitions(tab: Dashboard, tmp_path: Path) -> None:
    tab.open("definitions")
    with tab.page.expect_download() as download:
        tab.press("Download definitions")
    assert download.value.suggested_filename.startswith("leveret-definitions-")
    download.value.save_as(tmp_path / "all.json")
    saved = json.loads((tmp_path / "all.json").read_text())
    assert {row["name"] for row in saved["vhosts"]} == tab.api.names("vhosts")
    assert "orders.eu" in {row["name"] for row in saved["queues"]}
    tab.expect_toast("Exported")


def test_import_definitions(tab: Dashboard, vhost: str, tmp_path: Path) -> None:
    queue = {"name": "imported", "vhost": vhost, "durable": True, "auto_delete": False}
    document = {"queues": [queue | {"arguments": {}}], "odd": []}
    (tmp_path / "some.json").write_text(json.dumps(document))
    tab.open("definitions")
    tab.press("Import definitions")
    expect(tab.test_id("error")).to_contain_text("Choose a file first")
    tab.page.get_by_label("File").set_input_files(tmp_path / "some.json")
    expect(tab.test_id("import-summary")).to_contain_text("some.json contains 1 queue")
    tab.press("Import definitions")
    tab.expect_toast("Imported 1 queue")
    expect(tab.test_id("import-warnings")).to_contain_text("section 'odd' is not known")
    assert tab.api.names("queues", vhost) == {"imported"}


def test_import_of_a_non_json_file_shows_an_error(tab: Dashboard, tmp_path: Path) -> None:
    (tmp_path / "letter.json").write_text("Dear broker")
    tab.open("definitions")
    tab.page.get_by_label("File").set_input_files(tmp_path / "letter.json")
    expect(tab.test_id("error")).to_contain_text("letter.json is not a JSON file")
    tab.press("Import definitions")
    expect(tab.test_id("error")).to_have_text("letter.json is not a JSON file.")  # no second error


def test_settings_are_listed_with_their_source(tab: Dashboard) -> None:
    tab.open("settings")
    for row in tab.api.get("settings"):
        expect(tab.test_id("settings")).to_contain_text(row["key"])
    expect(tab.test_id("settings")).to_contain_text("128KiB")
    tab.test_id("filter").fill("amqp_port")
    expect(tab.test_id("settings").locator("tbody tr")).to_have_count(1)
    expect(tab.test_id("settings")).not_to_contain_text("default")
