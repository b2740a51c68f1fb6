"""Settings: where a broker listens, where it keeps its data, and its limits.

`Settings` is the one frozen value that the rest of the program sees. Every field is declared by
`_key`, which combines its default, the values it accepts and a description; the table in
docs/configuration.md is checked against these declarations.

Sources, strongest first: flags, environment (`LEVERET_<KEY>`), TOML file, defaults. All sources
are checked, even if a stronger one wins, so a flag never hides a mistake.

Invariant: a `Settings` made by `load_settings` holds only accepted values. Anything else raises
`ConfigError` with one sentence that says where the mistake is and what is allowed.

Runs once, before the event loop; reads at most one file and writes nothing. Imports are part of the
broker's start-up time, so modules needed only for a TOML file or an error are imported there.
"""

# ruff: noqa: RUF009 - `_key` and `_computed` are to this dataclass what `field` is to any other

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from leveret.model.quantities import format_duration, format_size, maybe_duration, maybe_size

T = TypeVar("T")

KIB, MIB, GIB, TIB, PIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40, 1 << 50

HistoryMode = Literal["full", "metadata", "off"]
PasswordHashing = Literal["argon2id", "rabbitmq"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
TlsVerify = Literal["none", "optional", "required"]
TlsLogin = Literal["off", "common_name", "distinguished_name"]

ENVIRONMENT_PREFIX = "LEVERET_"
CONFIG_VARIABLE = "LEVERET_CONFIG"


class ConfigError(Exception):
    """A setting is wrong; the text is one sentence that names the place and the remedy."""


# --- Kinds of values -----------------------------------------------------------------------------

_CENTURY_SECONDS = 100 * 365 * 86400.0
_MAX_DIGITS = 20  # int() raises for texts of thousands of digits
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of a setting are parsed, described and written.

    `maybe_parse` takes text from the environment, a TOML value or a Python object; it returns a
    value or None and never raises. `allowed` completes the sentence "it must be ...".
    """

    maybe_parse: Callable[[object], object | None]
    allowed: str
    written: Callable[[Any], str] = str


def _integer(low: int, high: int) -> Kind:
    def maybe_parse(raw: object) -> int | None:
        if isinstance(raw, str) and raw.strip().isdecimal() and len(raw) <= _MAX_DIGITS:
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool):
            return None
        return raw if low <= raw <= high else None

    return Kind(maybe_parse, f"a whole number from {low} to {high}")


def _size(low: int, high: int) -> Kind:
    def maybe_parse(raw: object) -> int | None:
        value = maybe_size(raw)
        return int(value) if value is not None and low <= value <= high else None

    start = f'a size such as 1048576, "256MiB" or "1GB", from {format_size(low)}'
    return Kind(maybe_parse, f"{start} to {format_size(high)}", format_size)


def _duration(low: float, high: float) -> Kind:
    def maybe_parse(raw: object) -> float | None:
        value = maybe_duration(raw)
        return float(value) if value is not None and low <= value <= high else None

    start = f'a duration such as 10, "500ms", "12h" or "7d", from {format_duration(low)}'
    return Kind(maybe_parse, f"{start} to {format_duration(high)}", format_duration)


def _choice(*allowed: str) -> Kind:
    def maybe_parse(raw: object) -> str | None:
        value = raw.strip().lower() if isinstance(raw, str) else None
        return value if value in allowed else None

    return Kind(maybe_parse, "one of " + ", ".join(f'"{value}"' for value in allowed))


def _text(pattern: str, allowed: str) -> Kind:
    def maybe_parse(raw: object) -> str | None:
        return raw if isinstance(raw, str) and re.fullmatch(pattern, raw) else None

    return Kind(maybe_parse, allowed)


def _maybe_bool(raw: object) -> bool | None:
    if isinstance(raw, bool):
        return raw
    word = raw.strip().lower() if isinstance(raw, str) else None
    return True if word in _TRUE else False if word in _FALSE else None


def _maybe_path(raw: object) -> Path | None:
    if not isinstance(raw, str | Path) or not str(raw).strip() or "\0" in str(raw):
        return None
    try:
        return Path(raw).expanduser()
    except RuntimeError:  # "~name" without such a user
        return None


_BOOL = Kind(_maybe_bool, "true or false", lambda value: str(value).lower())
_DIRECTORY = Kind(_maybe_path, "the path of a directory")
_FILE = _text(r"[^\0]*", "the path of a file, or empty")
_NOT_EMPTY = _text(r"(?s).+", "text that is not empty")
_SHORT = _text(r"(?s).{1,255}", "text of 1 to 255 characters")
_HOST = _text(r"[A-Za-z0-9._:%-]+", 'a host name or address such as "127.0.0.1" or "0.0.0.0"')
_HOSTS = _text(
    r"[A-Za-z0-9._:, -]*", 'host names separated by commas, such as "broker.example.com"'
)
_REALM = _text(r"[ !#-\[\]-~]{1,255}", "printable ASCII text without quotes and backslashes")
_NODE = _text(r"[\w.-]+@[\w.-]+", 'a name such as "leveret@localhost"')
_PORT = _integer(0, 65535)


@dataclass(frozen=True, slots=True)
class Key:
    """The declaration of one setting, used for validation and documentation."""

    name: str
    kind: Kind
    help: str
    default: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


# --- Defaults that depend on the machine ---------------------------------------------------------

_UNSET = -1
"""Replaced by a default that depends on other settings."""


def machine_memory() -> int:
    """Return the machine's memory in bytes, or its control group's limit if that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 10 * GIB
    return min([total, *control_group_limits(Path("/"))])


def control_group_limits(system: Path) -> list[int]:
    """Return the visible memory limits of this process' control group and its parents.

    In a container the path of its own group does not exist, and its group is the root group.
    """
    try:
        lines = (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = system / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            root, name = system / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        files += [root / parent / name for parent in (group, *group.parents)]
    return [limit for file in dict.fromkeys(files) if (limit := _maybe_limit(file)) is not None]


def _maybe_limit(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _default_watermark() -> int:
    return min(machine_memory() * 2 // 5, 4 * GIB)


def default_history_bytes(data_dir: Path, disk_free_limit: int) -> int:
    """Return half of what the volume has beyond the disk alarm's limit, at most 1 GiB.

    The other half is for messages, logs and the write-ahead log.
    """
    existing = next(path for path in (data_dir, *data_dir.absolute().parents) if path.exists())
    try:
        status = os.statvfs(existing)
    except (AttributeError, OSError):
        return GIB
    total = status.f_frsize * status.f_blocks
    return min(max(0, total - disk_free_limit) // 2, GIB)


def _default_node() -> str:
    name = re.sub(r"[^\w.-]", "-", socket.gethostname().split(".")[0])
    return f"leveret@{name or 'localhost'}"


# --- The settings --------------------------------------------------------------------------------


def _key(
    default: T, kind: Kind, help_text: str, *, shown: str | None = None, secret: bool = False
) -> T:
    """Declare a setting; `shown` is the default as the documentation writes it."""
    metadata = {"kind": kind, "help": help_text, "shown": shown}
    return field(default=default, metadata=metadata, repr=not secret)


def _computed(make: Callable[[], T], kind: Kind, help_text: str, *, shown: str) -> T:
    """Declare a setting whose default depends on the machine."""
    metadata = {"kind": kind, "help": help_text, "shown": shown}
    return field(default_factory=make, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings with their defaults; see docs/configuration.md."""

    host: str = _key("127.0.0.1", _HOST, "Address to listen on for AMQP and HTTP.")
    amqp_port: int = _key(5672, _PORT, "Port for AMQP 0-9-1; 0 chooses a free port.")
    http_port: int = _key(
        15672, _PORT, "Port for the HTTP API and the web UI; 0 chooses a free port."
    )
    http_enabled: bool = _key(True, _BOOL, "Whether to serve the HTTP API and the web UI.")
    data_dir: Path = _key(
        Path("./data"),
        _DIRECTORY,
        "Directory for all persistent data; created if it does not exist.",
    )
    memory: bool = _key(
        False, _BOOL, "Keep everything in memory and write no files; `data_dir` is not used."
    )
    node_name: str = _computed(
        _default_node, _NODE, "Node name of this broker in the API.", shown="leveret@HOSTNAME"
    )
    product: str = _key("Leveret", _SHORT, "Product name sent to clients in the server properties.")
    heartbeat: int = _key(
        60, _integer(0, 65535), "Heartbeat interval offered to clients in seconds; 0 disables it."
    )
    frame_max: int = _key(
        128 * KIB, _size(4096, 16 * MIB), "Maximum frame size offered to clients.", shown="128KiB"
    )
    channel_max: int = _key(2047, _integer(1, 65535), "Maximum number of channels per connection.")
    max_message_size: int = _key(
        128 * MIB, _size(1, 512 * MIB), "Maximum size of a message body.", shown="128MiB"
    )
    handshake_timeout: float = _key(
        10.0,
        _duration(0.1, 3600),
        "Time a client has to log in; then its connection is closed.",
        shown="10s",
    )
    login_buffer: int = _key(
        64 * KIB,
        _size(8 * KIB, 16 * MIB),
        "Maximum bytes buffered for a connection that has not logged in; larger input closes the "
        "connection.",
        shown="64KiB",
    )
    unauthenticated_max: int = _key(
        1_000,
        _integer(1, 1_000_000),
        "Maximum number of connections that have not logged in, for AMQP and HTTP separately; "
        "beyond it, connections from the address with the most of them are closed.",
    )
    unauthenticated_max_per_address: int = _key(
        256, _integer(1, 1_000_000), "The same limit for one address (IPv6: one /64 network)."
    )
    connection_max: int = _key(
        65_536, _integer(0, 10_000_000), "Maximum number of AMQP connections; 0 means no limit."
    )
    queue_max: int = _key(
        100_000,
        _integer(0, 100_000_000),
        "Maximum number of queues in a virtual host without a limit of its own; 0 means no limit.",
    )
    login_tries_per_source: int = _key(
        30,
        _integer(0, 1_000_000),
        "Wrong passwords allowed per minute from one address, over AMQP and HTTP together; 0 "
        "means no limit.",
    )
    login_tries_per_user: int = _key(
        100,
        _integer(0, 1_000_000),
        "Wrong passwords allowed per minute for one user, from addresses it has not logged in from "
        "within the last hour; 0 means no limit.",
    )
    http_max_body: int = _key(
        MIB, _size(KIB, 512 * MIB), "Maximum size of an HTTP request body.", shown="1MiB"
    )
    http_max_import: int = _key(
        20 * MIB,
        _size(KIB, 512 * MIB),
        "The same limit for definitions and for messages to publish.",
        shown="20MiB",
    )
    http_bodies_max: int = _key(
        64 * MIB,
        _size(MIB, TIB),
        "Maximum bytes of HTTP request bodies in memory; requests beyond it wait.",
        shown="64MiB",
    )
    http_hosts: str = _key(
        "",
        _HOSTS,
        "Host names, separated by commas, that a reverse proxy serves this broker under; requests "
        "from this machine may use no host names other than these and its own.",
        shown="none",
    )
    http_realm: str = _key(
        "Leveret",
        _REALM,
        'Realm of HTTP basic authentication. Some tools expect "RabbitMQ Management".',
    )
    http_timeout: float = _key(
        30.0,
        _duration(0.1, 3600),
        "Time an HTTP request has to arrive completely; then its connection is closed.",
        shown="30s",
    )
    http_connection_max: int = _key(
        1_000,
        _integer(1, 1_000_000),
        "Maximum number of HTTP connections; connections beyond it are closed.",
    )
    default_user: str = _key(
        "guest", _SHORT, "User created when a broker starts without any users."
    )
    default_password: str = _key("guest", _NOT_EMPTY, "Password of the default user.", secret=True)
    password_hashing: PasswordHashing = _key(
        "argon2id",
        _choice(*get_args(PasswordHashing)),
        "How passwords are stored; `rabbitmq` is its salted SHA-256, so that users can move back "
        "to RabbitMQ, but stolen hashes can be guessed fast.",
    )
    allow_remote_guest: bool = _key(
        False, _BOOL, "Whether the user `guest` may log in from other machines."
    )
    memory_high_watermark: int = _computed(
        _default_watermark,
        _size(16 * MIB, PIB),
        "Memory use above which publishers are paused.",
        shown="40 % of the memory, at most 4GiB",
    )
    disk_free_limit: int = _key(
        256 * MIB,
        _size(0, PIB),
        "Free disk space below which publishers are paused.",
        shown="256MiB",
    )
    queue_window: int = _key(
        20_000,
        _integer(1, 10_000_000),
        "Number of messages a queue keeps in memory; the others stay on disk. A queue that is not "
        "durable keeps eight times as many.",
    )
    queue_window_bytes: int = _key(
        64 * MIB, _size(64 * KIB, TIB), "The same limit in bytes of content.", shown="64MiB"
    )
    history: HistoryMode = _key(
        "full",
        _choice(*get_args(HistoryMode)),
        "What durable queues keep of settled messages, unless a policy says otherwise.",
    )
    history_max_age: float = _key(
        7 * 86400.0, _duration(1, _CENTURY_SECONDS), "How long history is kept.", shown="7d"
    )
    history_max_bytes: int = _key(
        _UNSET,
        _size(0, PIB),
        "Maximum size of the history; the oldest part is deleted first. History is also deleted "
        "before `disk_free_limit` pauses publishers.",
        shown="1GiB, or half of the volume without `disk_free_limit` if that is less",
    )
    log_level: LogLevel = _key(
        "info", _choice(*get_args(LogLevel)), "Lowest severity of messages that are logged."
    )
    log_format: LogFormat = _key(
        "text",
        _choice(*get_args(LogFormat)),
        "Format of log lines: text for people, or JSON objects for programs.",
    )
    tls_cert: str = _key(
        "",
        _FILE,
        "Certificate (and chain) in PEM format; setting it opens the TLS ports.",
        shown="none",
    )
    tls_key: str = _key(
        "", _FILE, "Private key of the certificate in PEM format, unencrypted.", shown="none"
    )
    tls_ca: str = _key(
        "", _FILE, "Certificate authorities that may sign client certificates.", shown="none"
    )
    tls_verify: TlsVerify = _key(
        "none", _choice(*get_args(TlsVerify)), "Whether clients must present a certificate."
    )
    tls_login: TlsLogin = _key(
        "off",
        _choice(*get_args(TlsLogin)),
        "Part of a client certificate used as the user name (mechanism EXTERNAL).",
    )
    amqps_port: int = _key(5671, _PORT, "Port for AMQP over TLS; 0 chooses a free port.")
    https_port: int = _key(15671, _PORT, "Port for the HTTP API over TLS; 0 chooses a free port.")
    plain_enabled: bool = _key(True, _BOOL, "Whether to listen on the ports without TLS as well.")

    def __post_init__(self) -> None:
        """Compute the default that depends on other settings."""
        if self.history_max_bytes == _UNSET:
            default = default_history_bytes(self.data_dir, self.disk_free_limit)
            object.__setattr__(self, "history_max_bytes", default)


def _declared() -> Iterator[Key]:
    for item in fields(Settings):
        shown = item.metadata["shown"] or str(item.default)
        shown = shown.lower() if isinstance(item.default, bool) else shown
        yield Key(item.name, item.metadata["kind"], item.metadata["help"], shown)


KEYS: Mapping[str, Key] = {key.name: key for key in _declared()}


# --- Loading -------------------------------------------------------------------------------------

# Variables with our prefix that are not settings: those of the command line and of the tests, and
# those that Kubernetes and container links define for a service named "leveret".
_OTHER_VARIABLE = (
    r"LEVERET_(COMPILED|CONFIG|BROKER|URL|USER|USERNAME|PASSWORD|VHOST|PORT|NAME|PORT_\d+_.*"
    r"|(TEST|BENCH|SPARK|SERVICE|ENV)_.*)"
)


def load_settings(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    toml_path: Path | None = None,
) -> Settings:
    """Merge flags over environment over TOML file over defaults; raise `ConfigError`.

    A flag with the value None was not given. Without `toml_path`, `LEVERET_CONFIG` may name a file.
    """
    variables = env or {}
    if toml_path is None and variables.get(CONFIG_VARIABLE):
        toml_path = Path(variables[CONFIG_VARIABLE])
    values: dict[str, object] = {}
    if toml_path is not None:
        values |= _read_toml(toml_path)
    values |= _read_environment(variables)
    values |= _read_flags(flags or {})
    settings = Settings(**values)  # type: ignore[arg-type]
    _check_together(settings)
    return settings


def _read_toml(path: Path) -> dict[str, object]:
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a UTF-8 text file.") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    values = {}
    for name, raw in table.items():
        place = f"{path}, line {_line_of(name, text)}"
        if name not in KEYS:
            raise ConfigError(f'{place}: unknown key "{name}"; {_hint(name, KEYS)}')
        values[name] = _checked(KEYS[name], raw, f"{place}: {name}")
    return values


def _read_environment(env: Mapping[str, str]) -> dict[str, object]:
    known = {key.variable: key for key in KEYS.values()}
    values = {}
    for variable in sorted(env):
        if variable in known:
            place = f"environment variable {variable}"
            values[known[variable].name] = _checked(known[variable], env[variable], place)
        elif variable.startswith(ENVIRONMENT_PREFIX) and not re.fullmatch(
            _OTHER_VARIABLE, variable
        ):
            raise ConfigError(f"unknown environment variable {variable}; {_hint(variable, known)}")
    return values


def _read_flags(flags: Mapping[str, object]) -> dict[str, object]:
    values = {}
    for name, raw in flags.items():
        if name not in KEYS:
            raise ConfigError(f'unknown setting "{name}"; {_hint(name, KEYS)}')
        if raw is not None:
            values[name] = _checked(
                KEYS[name], raw, name
            )  # most settings have no flag of their own
    return values


def _checked(key: Key, raw: object, place: str) -> object:
    value = key.kind.maybe_parse(raw)
    if value is None:
        given = "the given value" if key.name == "default_password" else _shown(raw)
        raise ConfigError(f"{place} must be {key.kind.allowed}, not {given}.")
    return value


def _shown(raw: object) -> str:
    text = f'"{raw}"' if isinstance(raw, str) else str(raw)
    text = text.lower() if isinstance(raw, bool) else text
    return text if len(text) <= 60 else text[:57] + "..."


def _hint(name: str, known: Mapping[str, object]) -> str:
    import difflib

    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        return f"did you mean {nearest[0]}?"
    return f"allowed are {', '.join(known)}."


def _line_of(name: str, text: str) -> int:
    """Return the line that sets a top-level name, because tomllib reports no positions."""
    setting = re.compile(rf"""\s*\[*\s*(["']?){re.escape(name)}\1\s*[=.\]]""")
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if setting.match(line)), 1)


def _check_together(settings: Settings) -> None:
    is_shared = settings.amqp_port == settings.http_port != 0
    if settings.http_enabled and is_shared:
        raise ConfigError(
            f"amqp_port and http_port are both {settings.amqp_port}; they must differ, or be 0."
        )
