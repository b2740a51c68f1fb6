"""`leveret serve`: flags to settings to the running broker, on the shortest import path.

Invariant: this module imports nothing but the standard library until the command line is known to
be right, then `leveret.config` and `leveret.launch`. A wrong setting is one sentence on standard
error and exit code 1; a wrong flag is argparse's usage message, with the flag that may have been
meant, and exit code 2.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

SUMMARY = "Run the broker: AMQP 0-9-1 on one port, the HTTP API and web UI on another."
_EPILOG = """\
Settings come from flags, the environment (LEVERET_<KEY>) and the TOML file, in that order of
strength; docs/configuration.md lists them all. When the broker accepts connections it prints one
line: leveret ready amqp=HOST:PORT http=HOST:PORT. SIGTERM and SIGINT stop it cleanly.
"""


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key.strip().replace("-", "_"), value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Ends with what may have been meant, if a flag is unknown."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            message = f"unknown: {unknown}{self._hint(unknown.split()[0])}"
        super().error(message)

    def _hint(self, word: str) -> str:
        import difflib

        from leveret.config import KEYS

        flag = word.partition("=")[0]
        setting = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and setting in KEYS:
            return f"; did you mean --set {setting}=...?"
        nearest = difflib.get_close_matches(flag, self._option_string_actions, n=1)
        return f"; did you mean {nearest[0]}?" if nearest else ""


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="leveret serve", description=SUMMARY, epilog=_EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, help="TOML file with settings")
    add("--data-dir", metavar="DIR", help="directory for everything that survives a restart")
    add("--host", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    add("--amqp-port", metavar="PORT", help="port for AMQP (default 5672; 0 picks a free one)")
    add("--http-port", metavar="PORT", help="port for HTTP (default 15672; 0 picks a free one)")
    add(
        "--memory",
        action="store_true",
        default=None,
        help="keep everything in memory and write no file",
    )
    add(
        "--set",
        metavar="KEY=VALUE",
        dest="settings",
        type=_setting,
        action="append",
        default=[],
        help="any setting of docs/configuration.md; may be given several times",
    )
    return parser


def serve(arguments: Sequence[str]) -> int:
    """Run the broker until it is told to stop; return the exit code."""
    try:
        options = vars(build_parser().parse_args(arguments))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    config: Path | None = options.pop("config")
    flags = dict(options.pop("settings"))
    flags |= {key: value for key, value in options.items() if value is not None}

    from leveret.config import ConfigError, load_settings

    try:
        settings = load_settings(flags, os.environ, config)
    except ConfigError as error:
        sys.stderr.write(f"leveret: {error}\n")
        return 1

    _leave_no_core()
    _allow_all_files()
    gc.disable()  # an eighth of the start is the collector walking modules; launch turns it on
    from leveret.launch import serve as run_broker

    return run_broker(settings)


def _leave_no_core() -> None:
    """A core file would hold every password given lately; `prlimit --core` allows one again."""
    with contextlib.suppress(ImportError):  # not on every system
        import resource

        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _allow_all_files() -> None:
    """A connection takes one and a log three; many systems give 1,024 until one asks for more."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
