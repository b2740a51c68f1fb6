#!/bin/bash
# Boots systemd on a copy of this system that is thrown away, installs Leveret as docs/operations.md
# says, and lets probe.sh look at it. Inside: unshare -m -p -f -C -u -i; as root.
#
#   boot.sh FOLDER    has wheel, leveret.service, leveret.toml and probe.sh; gets probe.out
set -eu
shared=$1
own=$(mktemp -d)
mount -t tmpfs tmpfs "$own"
mkdir "$own/upper" "$own/work" "$own/root"
root=$own/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$own/upper,workdir=$own/work" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/opt/shared" "$root/old"
mount --bind "$shared" "$root/opt/shared"

# A Python below /root would be out of the unit's sight.
chroot "$root" /usr/bin/python3 -m venv /opt/leveret
chroot "$root" sh -c "/opt/leveret/bin/pip install --quiet /opt/shared/*.whl"
install -D -m 644 "$shared/leveret.toml" "$root/etc/leveret/leveret.toml"
echo "LEVERET_DEFAULT_PASSWORD=a long password" |
    install -m 600 /dev/stdin "$root/etc/leveret/leveret.env"
install -m 644 "$shared/leveret.service" "$root/etc/systemd/system/"
cat >"$root/etc/systemd/system/probe.service" <<'UNIT'
[Unit]
After=leveret.service
Wants=leveret.service
[Service]
Type=oneshot
ExecStart=/bin/bash /opt/shared/probe.sh
StandardOutput=append:/opt/shared/probe.out
StandardError=inherit
ExecStopPost=/bin/systemctl poweroff --force --force
UNIT

mount -t tmpfs tmpfs "$root/run"
# A network of its own: the ports are free there.
exec unshare --net bash -eu -c '
    ip link set lo up
    mount -t sysfs sysfs "$1/sys"
    mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
    cd "$1"
    pivot_root . old
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=probe.service --log-target=console --show-status=no
' bash "$root"
