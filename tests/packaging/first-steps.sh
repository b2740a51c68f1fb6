#!/bin/bash
# Follows README and docs as a new user would, on a temporary copy of this system and in a new
# checkout. Runs inside unshare --mount --pid --fork --kill-child; needs root and a network.
#
#   first-steps.sh FOLDER CHECKOUT PYTHON    FOLDER has the files of first_steps.py, and gets probe.out
set -euo pipefail
shared=$1 checkout=$2 python=$3
. "$(dirname "$0")/copy.sh"
cd "$root"
pivot_root . old
cd "$checkout"
umount --lazy /old

mkdir /opt/clone
git -c safe.directory="$checkout" ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory /opt/clone
"$python" -m tests.packaging.first_steps install >/opt/shared/probe.out
# A separate network namespace, in which all ports are free.
exec unshare --net bash -eu -c '
    ip link set lo up
    exec "$1" -m tests.packaging.first_steps serve >>/opt/shared/probe.out
' bash "$python"
