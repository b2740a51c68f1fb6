"""Settings: precedence of sources, accepted values, error messages."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.config import KEYS, ConfigError, Settings, control_group_limits, load_settings

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "configuration.md"

GIB = 1024**3
OTHER_VALUES = {  # for every key a value other than the default, as text and parsed
    "host": ("0.0.0.0", "0.0.0.0"),
    "amqp_port": ("5673", 5673),
    "http_port": ("15673", 15673),
    "http_enabled": ("no", False),
    "data_dir": ("/var/lib/leveret", Path("/var/lib/leveret")),
    "memory": ("true", True),
    "node_name": ("hare@burrow", "hare@burrow"),
    "product": ("RabbitMQ", "RabbitMQ"),
    "heartbeat": ("0", 0),
    "frame_max": ("1MiB", 1024**2),
    "channel_max": ("65535", 65535),
    "max_message_size": ("128 MB", 128_000_000),
    "handshake_timeout": ("500ms", 0.5),
    "login_buffer": ("32KiB", 32 * 1024),
    "unauthenticated_max": ("10", 10),
    "unauthenticated_max_per_address": ("5", 5),
    "connection_max": ("0", 0),
    "queue_max": ("1000", 1000),
    "login_tries_per_source": ("5", 5),
    "login_tries_per_user": ("0", 0),
    "http_max_body": ("2MiB", 2 * 1024**2),
    "http_max_import": ("64MiB", 64 * 1024**2),
    "http_bodies_max": ("1GiB", 1024**3),
    "http_realm": ("RabbitMQ Management", "RabbitMQ Management"),
    "http_hosts": ("a.example, b.example", "a.example, b.example"),
    "http_timeout": ("5s", 5.0),
    "http_connection_max": ("100", 100),
    "default_user": ("admin", "admin"),
    "password_hashing": ("rabbitmq", "rabbitmq"),
    "default_password": ("s3cret", "s3cret"),
    "allow_remote_guest": ("on", True),
    "memory_high_watermark": ("2GiB", 2 * GIB),
    "disk_free_limit": ("1.5GiB", 3 * GIB // 2),
    "queue_window": ("1000", 1000),
    "queue_window_bytes": ("1048576", 1024**2),
    "history": ("metadata", "metadata"),
    "history_max_age": ("12h", 43200.0),
    "history_max_bytes": ("0", 0),
    "log_level": ("DEBUG", "debug"),
    "log_format": ("json", "json"),
    "tls_cert": ("/etc/leveret/cert.pem", "/etc/leveret/cert.pem"),
    "tls_key": ("/etc/leveret/key.pem", "/etc/leveret/key.pem"),
    "tls_ca": ("/etc/leveret/ca.pem", "/etc/leveret/ca.pem"),
    "tls_verify": ("required", "required"),
    "tls_login": ("common_name", "common_name"),
    "amqps_port": ("5670", 5670),
    "https_port": ("0", 0),
    "plain_enabled": ("false", False),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "leveret.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(flags=None, env=None, toml_path=None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags, env, toml_path)
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- Sources -------------------------------------------------------------------------------------


def test_defaults():
    settings = load_settings({}, {}, None)
    assert settings == Settings()
    assert (settings.host, settings.amqp_port, settings.http_port) == ("127.0.0.1", 5672, 15672)
    assert settings.data_dir == Path("data")
    assert settings.history_max_age == 7 * 86400


def test_every_key_has_another_value_here():
    assert set(OTHER_VALUES) == set(KEYS)


@pytest.mark.parametrize("name", KEYS)
def test_key_is_read_from_each_source(name, tmp_path):
    text, value = OTHER_VALUES[name]
    assert value != getattr(Settings(), name)
    for settings in (
        load_settings({name: text}, {}, None),
        load_settings({name: value}, {}, None),
        load_settings({}, {KEYS[name].variable: text}, None),
        load_settings({}, {}, write(tmp_path, f'{name} = "{text}"')),
    ):
        assert getattr(settings, name) == value
        assert type(getattr(settings, name)) is type(getattr(Settings(), name))


@pytest.mark.parametrize("name", KEYS)
def test_default_value_is_itself_accepted(name):
    default = getattr(Settings(), name)
    assert KEYS[name].kind.maybe_parse(default) == default


def test_flag_beats_environment_beats_file(tmp_path):
    path = write(tmp_path, "amqp_port = 1\nhttp_port = 2\nheartbeat = 3\n")
    env = {"LEVERET_AMQP_PORT": "11", "LEVERET_HTTP_PORT": "12"}
    settings = load_settings({"amqp_port": 21}, env, path)
    assert (settings.amqp_port, settings.http_port, settings.heartbeat) == (21, 12, 3)


def test_flag_with_none_is_ignored():
    assert load_settings({"amqp_port": None}, {"LEVERET_AMQP_PORT": "7"}, None).amqp_port == 7


def test_environment_names_the_file(tmp_path):
    path = write(tmp_path, "memory = true")
    assert load_settings({}, {"LEVERET_CONFIG": str(path)}, None).memory is True
    assert load_settings({}, {"LEVERET_CONFIG": "/nowhere"}, path).memory is True


def test_other_variables_are_ignored():
    env = {
        "LEVERET_PORT": "tcp://10.0.0.1:5672",
        "LEVERET_PORT_5672_TCP_ADDR": "10.0.0.1",
        "LEVERET_SERVICE_HOST": "10.0.0.1",
        "LEVERET_SPARK_NICE": "0",
        "LEVERET_URL": "amqp://localhost",
        "HOME": "/root",
    }
    assert load_settings({}, env, None) == Settings()


# --- Errors --------------------------------------------------------------------------------------


def test_typo_in_file_key_names_line_and_nearest_key(tmp_path):
    path = write(tmp_path, "# ports\n\namqp_prot = 5673\n")
    expected = f'{path}, line 3: unknown key "amqp_prot"; did you mean amqp_port?'
    assert refusal(toml_path=path) == expected


def test_unknown_key_without_similar_one_lists_all_keys(tmp_path):
    text = refusal(toml_path=write(tmp_path, "zzz = 1"))
    assert all(name in text for name in KEYS)


def test_table_in_file_is_an_unknown_key(tmp_path):
    path = write(tmp_path, "memory = true\n\n[listeners]\ntcp = 5672\n")
    assert f'{path}, line 3: unknown key "listeners"' in refusal(toml_path=path)


def test_typo_in_variable_names_the_nearest(tmp_path):
    text = refusal(env={"LEVERET_HARTBEAT": "5"})
    expected = "unknown environment variable LEVERET_HARTBEAT; did you mean LEVERET_HEARTBEAT?"
    assert text == expected


def test_unknown_flag_names_the_nearest():
    assert refusal({"data_dri": "x"}) == 'unknown setting "data_dri"; did you mean data_dir?'


def test_wrong_value_in_file_names_line_and_allowed(tmp_path):
    path = write(tmp_path, 'memory = true\nhistory = "everything"\n')
    expected = 'history must be one of "full", "metadata", "off", not "everything".'
    assert refusal(toml_path=path) == f"{path}, line 2: {expected}"


def test_wrong_value_in_environment_names_variable():
    expected = (
        "environment variable LEVERET_AMQP_PORT must be a whole number from 0 to 65535, "
        'not "66000".'
    )
    assert refusal(env={"LEVERET_AMQP_PORT": "66000"}) == expected


def test_wrong_value_of_flag_names_flag():
    assert refusal({"http_enabled": "perhaps"}).startswith("http_enabled must be true or false")


def test_error_in_a_weaker_source_is_reported(tmp_path):
    path = write(tmp_path, "amqp_port = -1")
    assert "line 1" in refusal({"amqp_port": 5672}, {}, path)


def test_password_is_never_shown(tmp_path):
    assert "[1, 2]" not in refusal(toml_path=write(tmp_path, "default_password = [1, 2]"))
    assert "s3cret" not in repr(Settings(default_password="s3cret"))


def test_broken_toml_names_file_and_line(tmp_path):
    path = write(tmp_path, "memory = true\nhost = \n")
    text = refusal(toml_path=path)
    assert text.startswith(f"{path} is not valid TOML: ")
    assert "line 2" in text


def test_missing_file_is_one_sentence(tmp_path):
    path = tmp_path / "none.toml"
    assert refusal(toml_path=path) == f"cannot read {path}: No such file or directory."


def test_binary_file_is_one_sentence(tmp_path):
    path = tmp_path / "leveret.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(toml_path=path) == f"{path} is not a UTF-8 text file."


def test_same_port_twice_is_refused_unless_http_is_off_or_free():
    assert "both 5000" in refusal({"amqp_port": 5000, "http_port": 5000})
    assert load_settings({"amqp_port": 0, "http_port": 0}).http_port == 0
    without_http = {"amqp_port": 5000, "http_port": 5000, "http_enabled": False}
    assert load_settings(without_http).http_port == 5000


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("amqp_port", True),
        ("amqp_port", 5672.0),
        ("amqp_port", "9" * 5000),
        ("amqp_port", "0x10"),
        ("channel_max", 0),
        ("host", ""),
        ("host", "a host"),
        ("data_dir", " "),
        ("data_dir", "a\0b"),
        ("data_dir", "~no-such-user-here/x"),
        ("frame_max", "4095"),
        ("frame_max", "1 MiBs"),
        ("frame_max", "-1MiB"),
        ("max_message_size", float("nan")),
        ("max_message_size", 10**400),
        ("handshake_timeout", "0"),
        ("handshake_timeout", "1 fortnight"),
        ("history_max_age", float("inf")),
        ("memory", 2),
        ("node_name", "leveret"),
        ("product", "x" * 256),
        ("log_level", ["info"]),
    ],
)
def test_invalid_value_is_refused(name, raw):
    assert refusal({name: raw}).startswith(f"{name} must be ")


@given(
    st.sampled_from(sorted(KEYS)),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
)
def test_any_value_is_accepted_or_refused_in_one_sentence(name, raw):
    try:
        load_settings({name: raw}, {}, None)
    except ConfigError as error:
        assert str(error)


# --- The rest ------------------------------------------------------------------------------------


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().host = "0.0.0.0"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("group", "files", "limits"),
    [
        ("0::/", {"memory.max": "4096"}, [4096]),  # a container
        ("0::/", {"memory.max": "max"}, []),
        ("0::/", {}, []),  # a machine
        (
            "0::/system.slice/leveret.service",
            {"system.slice/leveret.service/memory.max": "max", "system.slice/memory.max": "8192"},
            [8192],
        ),
        ("0::/../other", {"memory.max": "4096"}, [4096]),
        ("4:memory:/libpod/x", {"memory/memory.limit_in_bytes": "4096"}, [4096]),
        (
            "5:cpu:/a\n4:hugetlb,memory:/a/b\n0::/",
            {"memory/a/b/memory.limit_in_bytes": "1", "memory/memory.limit_in_bytes": str(2**63)},
            [1, 2**63],
        ),
    ],
)
def test_control_group_limits(tmp_path, group, files, limits):
    written = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (written | {"proc/self/cgroup": group}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert control_group_limits(tmp_path) == limits


def test_system_without_control_groups_has_no_limits(tmp_path):
    assert control_group_limits(tmp_path) == []


def test_watermark_default_stays_within_the_machine():
    assert 0 < Settings().memory_high_watermark <= 4 * GIB


def test_reference_page_has_every_key_as_declared():
    rows = "\n".join(
        f"| `{key.name}` | {key.default} | {key.kind.allowed} | {key.help} |"
        for key in KEYS.values()
    )
    page = REFERENCE.read_text(encoding="utf-8")
    assert rows in page, f"the table in {REFERENCE.name} should be:\n{rows}"


def test_import_stays_cheap():
    code = "import sys; had = {*sys.modules}; import leveret.config; print(*{*sys.modules} - had)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.split()
    heavy = {"pydantic", "tomllib", "difflib", "fastapi", "sqlalchemy", "typer", "pyspark"}
    assert not heavy & set(loaded)
