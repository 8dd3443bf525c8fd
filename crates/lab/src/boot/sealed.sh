mkdir -p /lab/out
modprobe ublk_drv
mkfifo /run/disk
{
    bulkhead-lab-disk @DISK@ >/run/disk
    echo "@OWN@@LOST@"
} &
read -r disk </run/disk
read -r boot _ </proc/uptime
echo "@OWN@booted $(uname -r) in $boot s of its time; disk $disk"

# Through a pipe, because programs draw on a terminal.
@COMMAND@ 2>&1 | cat
code=${PIPESTATUS[0]}
echo "@OWN@disk served $(bulkhead-lab-disk send @NAME@ stats)"
tar --create --directory /lab/out --file /run/out.tar .
cat /run/out.tar >/dev/virtio-ports/out
echo "@OWN@@ENDED@$code"
sync
