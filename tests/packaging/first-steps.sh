#!/bin/bash
# Does what README and docs tell someone new, on a copy of this system that is thrown away and in a
# checkout that nobody has used yet. Inside: unshare --mount --pid --fork --kill-child; as root, with
# a network.
#
#   first-steps.sh FOLDER CHECKOUT PYTHON    FOLDER has what first_steps.py wants, and gets probe.out
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
# A network of its own: the ports are free there.
exec unshare --net bash -eu -c '
    ip link set lo up
    exec "$1" -m tests.packaging.first_steps serve >>/opt/shared/probe.out
' bash "$python"
