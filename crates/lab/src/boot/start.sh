# The work of an init system, up to device setup.
export PATH=/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=600,ptmxmode=000 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs securityfs /sys/kernel/security
mkdir -p /run/lock /run/udev
ln -s /proc/self/fd /dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${n%:*} /dev/${n#*:}; done
echo bulkhead-lab >/proc/sys/kernel/hostname
ip link set lo up
# Nodes such as /dev/loop-control, which load their module when opened.
kmod static-nodes --format=tmpfiles --output=/run/static-nodes.conf
systemd-tmpfiles --create --boot /run/static-nodes.conf
/usr/lib/systemd/systemd-udevd --daemon >/dev/ttyS0 2>&1
# Half of all devices; no case depends on udev's rules for them.
udevadm trigger --action=add --subsystem-nomatch=tty --subsystem-nomatch=acpi --subsystem-nomatch=memory
udevadm settle
