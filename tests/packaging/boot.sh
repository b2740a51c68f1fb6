#!/bin/bash
# Installs Leveret on a temporary copy of this system, boots systemd there and runs probe.sh.
# Runs inside unshare -m -p -f -C -u -i; needs root and a network.
#
#   boot.sh FOLDER CHECKOUT    FOLDER has install.sh, start.sh and probe.sh, and gets probe.out
set -eu
shared=$1
checkout=$2
. "$(dirname "$0")/copy.sh"

chroot "$root" bash -euc "cd '$checkout' && . /opt/shared/install.sh"
cat >"$root/etc/systemd/system/probe.service" <<'UNIT'
[Service]
Type=oneshot
ExecStart=/bin/bash /opt/shared/probe.sh
StandardOutput=append:/opt/shared/probe.out
StandardError=inherit
ExecStopPost=/bin/systemctl poweroff --force --force
UNIT

mount -t tmpfs tmpfs "$root/run"
# A separate network namespace, in which all ports are free.
exec unshare --net bash -eu -c '
    ip link set lo up
    mount -t sysfs sysfs "$1/sys"
    mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
    cd "$1"
    pivot_root . old
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=probe.service --log-target=console --show-status=no
' bash "$root"
