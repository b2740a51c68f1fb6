"""`leveret serve`: runs the broker with settings from flags, with as few imports as possible.

Invariant: this module imports only the standard library until the command line is known to be
valid, then `leveret.config` and `leveret.launch`. A wrong setting gives one sentence on standard
error and exit code 1; a wrong flag gives argparse's usage message, with a suggestion, and exit code
2.
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
EPILOG = """\
Settings come from flags, the environment (such as LEVERET_HOST) and the TOML file, in that order of
precedence; docs/configuration.md lists them all. When the broker accepts connections, it prints
a line for programs (leveret ready amqp=HOST:PORT http=HOST:PORT) and then, for people, the data
directory, the dashboard's URL and, on the first start, the user. SIGTERM and SIGINT stop it
cleanly.
"""
_MIN_SIMILARITY = 0.7
"""Of a suggested flag: --port suggests --http-port, but --daemon does not suggest --memory."""


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key.strip().replace("-", "_"), value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Add a suggestion to the error for an unknown flag."""
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
        flags = self._option_string_actions
        nearest = difflib.get_close_matches(flag, flags, n=1, cutoff=_MIN_SIMILARITY)
        return f"; did you mean {nearest[0]}?" if nearest else ""


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="leveret serve", description=SUMMARY, epilog=EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, help="TOML file with settings.")
    add("--data-dir", metavar="DIR", help="Directory for all persistent data.")
    add("--host", metavar="ADDRESS", help="Address to listen on (default 127.0.0.1).")
    add("--amqp-port", metavar="PORT", help="Port for AMQP (default 5672; 0 chooses a free port).")
    add("--http-port", metavar="PORT", help="Port for HTTP (default 15672; 0 chooses a free port).")
    add(
        "--memory",
        action="store_true",
        default=None,
        help="Keep everything in memory and write no files.",
    )
    add(
        "--set",
        metavar="KEY=VALUE",
        dest="settings",
        type=_setting,
        action="append",
        default=[],
        help="Any setting in docs/configuration.md; may be repeated.",
    )
    return parser


def serve_flags() -> list[argparse.Action]:
    """The flags, without --help."""
    return [action for action in build_parser()._actions if action.dest != "help"]


def wants_help(arguments: Sequence[str]) -> bool:
    return bool({"-h", "--help"} & set(arguments))


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

    _disable_core_dumps()
    _raise_file_limit()
    gc.disable()  # collecting modules takes an eighth of the start; launch enables it again
    from leveret.launch import serve as run_broker

    return run_broker(settings)


def _disable_core_dumps() -> None:
    """A core dump would contain recent passwords; `prlimit --core` can allow it again."""
    with contextlib.suppress(ImportError):  # not on every system
        import resource

        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _raise_file_limit() -> None:
    """Raise the soft limit on open files, which is often 1,024, to the hard limit.

    A connection needs one file and a log needs three.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
