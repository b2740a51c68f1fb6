#!/bin/bash
# Builds the image on a temporary copy of this system, and runs container.py to test it.
# Runs inside unshare --mount --pid --fork --kill-child; needs root and a network.
#
#   contain.sh FOLDER CHECKOUT PYTHON BASE    FOLDER has build.sh and run.sh, and gets probe.out
#
# BASE is the name of the base image, which is replaced by Debian with Python in the same place.
set -euo pipefail
shared=$1 checkout=$2 python=$3 base=$4
. "$(dirname "$0")/copy.sh"

mount --rbind /sys "$root/sys"
# crun refuses a system that has control groups of both versions.
if [ -d "$root/sys/fs/cgroup/unified" ]; then umount "$root/sys/fs/cgroup/unified"; fi
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/dev/shm" # where podman keeps its locks
mkdir -p "$shared/storage" "$root/var/lib/containers"
mount --bind "$shared/storage" "$root/var/lib/containers"
mount -o remount,bind,dev,exec,suid "$root/var/lib/containers"
rm -rf "$root$checkout/http_admin/ui/dist" # as in a new checkout: node must build it
cd "$root"
pivot_root . old
cd "$checkout"
umount --lazy /old

# This machine's certificates and package indexes.
trusted=/etc/ssl/certs/ca-certificates.crt
changes=()
for name in PIP_CERT NODE_EXTRA_CA_CERTS; do changes+=(--change "ENV $name=$trusted"); done
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST npm_config_registry; do
    if [ -n "${!name:-}" ]; then changes+=(--change "ENV $name=\"${!name}\""); fi
done
# shellcheck disable=SC2016 # $1 is set by mmdebstrap
mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates \
    --customize-hook='chroot "$1" python3 -m venv /usr/local' \
    --customize-hook="upload $trusted $trusted" trixie - |
    podman import --quiet "${changes[@]}" - "$base"
podman run --rm --network none "$base" python --version >/opt/shared/python

# RUN uses the network of this machine and changes nothing in it.
printf '[containers]\nnetns = "host"\n' >/tmp/build.conf
CONTAINERS_CONF=/tmp/build.conf bash -eux /opt/shared/build.sh
# A separate network namespace: all ports are free, and podman's changes disappear with it.
exec unshare --net bash -eu -c '
    ip link set lo up
    exec "$1" -m tests.packaging.container /opt/shared/run.sh >/opt/shared/probe.out
' bash "$python"
