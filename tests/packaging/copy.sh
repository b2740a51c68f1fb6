# Makes a temporary copy of this system in $root, with the checkout in the same place (it may be on
# another disk) and $shared as /opt/shared.
# Must be sourced as root inside unshare --mount --pid.
# shellcheck shell=bash
own=$shared/copy
mkdir "$own"
mount -t tmpfs tmpfs "$own"
mkdir "$own/upper" "$own/work" "$own/root" "$own/upper-checkout" "$own/work-checkout"
root=$own/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$own/upper,workdir=$own/work" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/opt/shared" "$root/old"
mount --bind "$shared" "$root/opt/shared"
mkdir -p "$root$checkout"
layers="lowerdir=$checkout,upperdir=$own/upper-checkout,workdir=$own/work-checkout"
mount -t overlay overlay -o "$layers" "$root$checkout"
# These may be links or mounts that lead out of the copy.
for file in /etc/resolv.conf /etc/hosts; do
    rm -f "$root$file"
    cat "$file" >"$root$file"
done
