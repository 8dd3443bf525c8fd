# In the root of a sealed machine, as its process 1: what an init system does, then the disk, the command and the results.
exec </dev/null >/dev/ttyS1 2>&1
export PATH=/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=600,ptmxmode=000 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs securityfs /sys/kernel/security
mkdir -p /run/lock /run/udev /lab/out
ip link set lo up
@STATIC_NODES@
/usr/lib/systemd/systemd-udevd --daemon >/dev/ttyS0 2>&1
udevadm trigger --action=add
udevadm settle

modprobe ublk_drv
mkfifo /run/disk
{
    bulkhead-lab-disk @DISK@ >/run/disk
    echo "@OWN@@LOST@"
} &
read -r disk </run/disk
read -r boot _ </proc/uptime
echo "@OWN@booted $(uname -r) in $boot s of its time; disk $disk"

# Through a pipe: programs draw on a terminal.
@COMMAND@ 2>&1 | cat
code=${PIPESTATUS[0]}
echo "@OWN@disk served $(bulkhead-lab-disk tell @NAME@ stats)"
tar --create --directory /lab/out --file /run/out.tar .
cat /run/out.tar >/dev/virtio-ports/out
echo "@OWN@@ENDED@$code"
sync
echo o >/proc/sysrq-trigger
sleep 60
