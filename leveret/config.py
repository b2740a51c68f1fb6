"""Settings: where a broker listens, where it keeps its data, and its limits.

Parts. `Settings` is the one frozen value the rest of the program sees. Every field is declared by
`_key`, which ties together its default, what it accepts and one sentence for people; the table in
docs/configuration.md is checked against these declarations.

Sources, strongest first: flags, environment (`LEVERET_<KEY>`), TOML file, defaults. All sources
are checked, also where a stronger one wins: a mistake never hides behind a flag.

Invariant: a `Settings` made by `load_settings` holds only accepted values. Anything else is one
`ConfigError` of one sentence that says where the mistake is and what would be right.

Runs once, before the event loop; reads at most one file and writes nothing. Imports are part of the
broker's start-up time, so what only a TOML file or a mistake needs is imported there.
"""

# ruff: noqa: RUF009 - `_key` and `_computed` are what `field` is to any dataclass

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, TypeVar, get_args

from leveret import config_kinds as kinds
from leveret.config_kinds import GIB, KIB, MIB, PIB, TIB

T = TypeVar("T")

HistoryMode = Literal["full", "metadata", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
TlsVerify = Literal["none", "optional", "required"]
TlsLogin = Literal["off", "common_name", "distinguished_name"]

ENVIRONMENT_PREFIX = "LEVERET_"
CONFIG_VARIABLE = "LEVERET_CONFIG"


class ConfigError(Exception):
    """A setting is wrong; the text is one sentence that names the place and the remedy."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting as declared: what documentation and validation both go by."""

    name: str
    kind: kinds.Kind
    help: str
    default: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


# --- Defaults that depend on the machine ---------------------------------------------------------


def _machine_memory() -> int:
    """Bytes this process may use: the machine's memory, or its control group's if that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 10 * GIB
    return min([total, *control_group_limits(Path("/"))])


def control_group_limits(system: Path) -> list[int]:
    """Limits of memory of this process' control group and of those above it, as far as visible.

    In a container the path of its own group leads nowhere, and the group is the topmost one.
    """
    try:
        lines = (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = system / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = system / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        found += [top / above / name for above in (group, *group.parents)]
    return [limit for file in dict.fromkeys(found) if (limit := _maybe_limit(file)) is not None]


def _maybe_limit(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _default_watermark() -> int:
    return min(_machine_memory() * 2 // 5, 4 * GIB)


def _default_node() -> str:
    name = re.sub(r"[^\w.-]", "-", socket.gethostname().split(".")[0])
    return f"leveret@{name or 'localhost'}"


# --- The settings --------------------------------------------------------------------------------


def _key(
    default: T, kind: kinds.Kind, help_text: str, *, shown: str | None = None, secret: bool = False
) -> T:
    """Declare a setting; `shown` is the default as documentation writes it."""
    metadata = {"kind": kind, "help": help_text, "shown": shown}
    return field(default=default, metadata=metadata, repr=not secret)


def _computed(make: Callable[[], T], kind: kinds.Kind, help_text: str, *, shown: str) -> T:
    """Declare a setting whose default depends on the machine."""
    metadata = {"kind": kind, "help": help_text, "shown": shown}
    return field(default_factory=make, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, with its defaults; see docs/configuration.md."""

    host: str = _key("127.0.0.1", kinds.HOST, "Address to listen on, for AMQP and HTTP.")
    amqp_port: int = _key(5672, kinds.whole(0, 65535), "Port for AMQP 0-9-1; 0 picks a free one.")
    http_port: int = _key(
        15672, kinds.whole(0, 65535), "Port for the HTTP API and the web UI; 0 picks a free one."
    )
    http_enabled: bool = _key(
        True, kinds.SWITCH, "Whether to serve the HTTP API and the web UI at all."
    )
    data_dir: Path = _key(
        Path("./data"),
        kinds.PATH,
        "Directory for everything that survives a restart; made if missing.",
    )
    memory: bool = _key(
        False, kinds.SWITCH, "Keep everything in memory, write no file: `data_dir` is not used."
    )
    node_name: str = _computed(
        _default_node, kinds.NODE, "Name of this broker in the API.", shown="leveret@HOSTNAME"
    )
    product: str = _key(
        "Leveret", kinds.SHORT, "Product name told to clients in the server properties."
    )
    heartbeat: int = _key(
        60, kinds.whole(0, 65535), "Heartbeat offered to clients, in seconds; 0 offers none."
    )
    frame_max: int = _key(
        128 * KIB, kinds.size(4096, 16 * MIB), "Largest frame offered to clients.", shown="128KiB"
    )
    channel_max: int = _key(2047, kinds.whole(1, 65535), "Most channels one connection may open.")
    max_message_size: int = _key(
        16 * MIB, kinds.size(1, 512 * MIB), "Largest message body accepted.", shown="16MiB"
    )
    handshake_timeout: float = _key(
        10.0,
        kinds.seconds(0.1, 3600),
        "Time a client has to log in before it is cut off.",
        shown="10s",
    )
    login_buffer: int = _key(
        64 * KIB,
        kinds.size(8 * KIB, 16 * MIB),
        "Most octets kept of a client that has not logged in; who sends more is cut off.",
        shown="64KiB",
    )
    unauthenticated_max: int = _key(
        1_000,
        kinds.whole(1, 1_000_000),
        "Most connections that have not logged in yet, of AMQP and of HTTP each; of more, those of "
        "the address with most of them are cut off.",
    )
    unauthenticated_max_per_address: int = _key(
        256, kinds.whole(1, 1_000_000), "The same limit for one address (IPv6: one /64 network)."
    )
    connection_max: int = _key(
        65_536, kinds.whole(0, 10_000_000), "Most AMQP connections in all; 0 is no limit."
    )
    queue_max: int = _key(
        100_000,
        kinds.whole(0, 100_000_000),
        "Most queues in a virtual host that has no limit of its own; 0 is no limit.",
    )
    login_tries_per_source: int = _key(
        30,
        kinds.whole(0, 1_000_000),
        "Wrong passwords a minute from one address, AMQP and HTTP together; 0 is no limit.",
    )
    login_tries_per_user: int = _key(
        100,
        kinds.whole(0, 1_000_000),
        "Wrong passwords a minute for one user, from addresses it has not logged in from lately; "
        "0 is no limit.",
    )
    http_max_body: int = _key(
        MIB, kinds.size(KIB, 512 * MIB), "Largest body of an HTTP request.", shown="1MiB"
    )
    http_max_import: int = _key(
        20 * MIB,
        kinds.size(KIB, 512 * MIB),
        "The same for definitions and for messages to publish.",
        shown="20MiB",
    )
    http_bodies_max: int = _key(
        64 * MIB,
        kinds.size(MIB, TIB),
        "Most octets of HTTP bodies held at a time; requests beyond it wait their turn.",
        shown="64MiB",
    )
    http_hosts: str = _key(
        "",
        kinds.HOSTS,
        "Names under which a reverse proxy is asked for this broker, with commas between them; "
        "who comes from this machine may use no other names but its own.",
        shown="none",
    )
    http_timeout: float = _key(
        30.0,
        kinds.seconds(0.1, 3600),
        "Time an HTTP request has to arrive whole before it is cut off.",
        shown="30s",
    )
    http_connection_max: int = _key(
        1_000, kinds.whole(1, 1_000_000), "Most HTTP connections at a time; more are cut off."
    )
    default_user: str = _key("guest", kinds.SHORT, "User made when a broker starts without any.")
    default_password: str = _key("guest", kinds.NONEMPTY, "Password of that user.", secret=True)
    allow_remote_guest: bool = _key(
        False, kinds.SWITCH, "Let the user `guest` log in from other machines, too."
    )
    memory_high_watermark: int = _computed(
        _default_watermark,
        kinds.size(16 * MIB, PIB),
        "Above this much memory in use, publishers are no longer read.",
        shown="40 % of the memory, 4GiB at most",
    )
    disk_free_limit: int = _key(
        256 * MIB,
        kinds.size(0, PIB),
        "Below this much free disk space, publishers are no longer read.",
        shown="256MiB",
    )
    queue_window: int = _key(
        20_000, kinds.whole(1, 10_000_000), "Messages a queue keeps in memory; the rest is on disk."
    )
    queue_window_bytes: int = _key(
        64 * MIB, kinds.size(64 * KIB, TIB), "The same limit in bytes of content.", shown="64MiB"
    )
    history: HistoryMode = _key(
        "full",
        kinds.choice(*get_args(HistoryMode)),
        "What durable queues remember of settled messages, unless a policy says otherwise.",
    )
    history_max_age: float = _key(
        7 * 86400.0, kinds.seconds(1, kinds.CENTURY), "How long history is kept.", shown="7d"
    )
    history_max_bytes: int = _key(
        GIB, kinds.size(0, PIB), "How much history is kept; the oldest goes first.", shown="1GiB"
    )
    log_level: LogLevel = _key(
        "info", kinds.choice(*get_args(LogLevel)), "Least severe messages that are logged."
    )
    log_format: LogFormat = _key(
        "text",
        kinds.choice(*get_args(LogFormat)),
        "Lines of the log: for people, or JSON objects for programs.",
    )
    tls_cert: str = _key(
        "",
        kinds.FILE,
        "Certificate (and chain) in PEM; with it the TLS ports are opened.",
        shown="none",
    )
    tls_key: str = _key(
        "", kinds.FILE, "Its private key in PEM, without a passphrase.", shown="none"
    )
    tls_ca: str = _key(
        "", kinds.FILE, "Authorities that may sign certificates of clients.", shown="none"
    )
    tls_verify: TlsVerify = _key(
        "none", kinds.choice(*get_args(TlsVerify)), "Whether clients must show a certificate."
    )
    tls_login: TlsLogin = _key(
        "off",
        kinds.choice(*get_args(TlsLogin)),
        "Which part of a client's certificate is its user name (mechanism EXTERNAL).",
    )
    amqps_port: int = _key(
        5671, kinds.whole(0, 65535), "Port for AMQP over TLS; 0 picks a free one."
    )
    https_port: int = _key(
        15671, kinds.whole(0, 65535), "Port for the HTTP API over TLS; 0 picks a free one."
    )
    plain_enabled: bool = _key(
        True, kinds.SWITCH, "Whether to listen on the ports without TLS, too."
    )


def _declared() -> Iterator[Key]:
    for item in fields(Settings):
        shown = item.metadata["shown"] or str(item.default)
        shown = shown.lower() if isinstance(item.default, bool) else shown
        yield Key(item.name, item.metadata["kind"], item.metadata["help"], shown)


KEYS: Mapping[str, Key] = {key.name: key for key in _declared()}


# --- Loading -------------------------------------------------------------------------------------

# Variables with our prefix that are no settings: the command line's own, our tests', and those
# that Kubernetes and container links make up for a service that happens to be named "leveret".
_FOREIGN_VARIABLE = (
    r"LEVERET_(CONFIG|BROKER|URL|USER|USERNAME|PASSWORD|VHOST|PORT|NAME|PORT_\d+_.*"
    r"|(TEST|BENCH|SPARK|SERVICE|ENV)_.*)"
)


def load_settings(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    toml_path: Path | None = None,
) -> Settings:
    """Merge flags over environment over TOML file over defaults; raise `ConfigError`.

    A flag whose value is None was not given. Without `toml_path`, `LEVERET_CONFIG` may name one.
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
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
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
            _FOREIGN_VARIABLE, variable
        ):
            raise ConfigError(f"unknown environment variable {variable}; {_hint(variable, known)}")
    return values


def _read_flags(flags: Mapping[str, object]) -> dict[str, object]:
    values = {}
    for name, raw in flags.items():
        if name not in KEYS:
            raise ConfigError(f'unknown setting "{name}"; {_hint(name, KEYS)}')
        if raw is not None:
            values[name] = _checked(KEYS[name], raw, name)  # few of them are flags of their own
    return values


def _checked(key: Key, raw: object, place: str) -> object:
    value = key.kind.maybe_parse(raw)
    if value is None:
        given = "what was given" if key.name == "default_password" else _shown(raw)
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
    return f"the allowed ones are {', '.join(known)}."


def _line_of(name: str, text: str) -> int:
    """The line that sets a top-level name; tomllib keeps no positions of what it accepts."""
    setting = re.compile(rf"""\s*\[*\s*(["']?){re.escape(name)}\1\s*[=.\]]""")
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if setting.match(line)), 1)


def _check_together(settings: Settings) -> None:
    is_shared = settings.amqp_port == settings.http_port != 0
    if settings.http_enabled and is_shared:
        raise ConfigError(
            f"amqp_port and http_port are both {settings.amqp_port}; they must differ (or be 0)."
        )
