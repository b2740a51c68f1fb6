#!/bin/bash
# Uses the broker as an administrator does, and prints a line for each result.
as_admin() { /opt/leveret/bin/leveret --quiet "$@" --user admin --password "a long password"; }
main_pid() { systemctl show --property MainPID --value leveret; }

bash -eu /opt/shared/start.sh
echo "started: $(systemctl is-active leveret)" # it is also ready: no wait is needed
as_admin declare_queue kept
as_admin publish --routing-key kept "x"
echo "user: $(as_admin list_users --silent)"
echo "capabilities: $(sed -n 's/^CapBnd:\t//p' "/proc/$(main_pid)/status")"
echo "directory: $(stat --format %a /var/lib/private/leveret)"
systemctl restart leveret
echo "restarted: $(as_admin list_queues --silent | tr '\t' ' ')"
kill -KILL "$(main_pid)"
for _ in $(seq 600); do
    [ "$(systemctl show --property NRestarts --value leveret)" = 1 ] &&
        systemctl is-active --quiet leveret && break
    sleep 0.1
done
echo "killed: $(as_admin list_queues --silent | tr '\t' ' ')"
systemctl stop leveret
echo "stopped: $(systemctl show --property Result --value leveret)"
journalctl --unit leveret --no-pager
