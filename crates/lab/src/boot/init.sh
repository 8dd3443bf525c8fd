#!/bin/busybox sh
# In the initramfs: mounts the guest's root image and adds the programs of the lab; then starts systemd as process 1, if files for it
# exist, or /main.sh.
busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t devtmpfs dev /dev
for module in /mod/*; do $busybox insmod "$module"; done
# The devices are probed in the background.
devices=/dev/pmem0
[ ! -d /files ] || devices="/dev/pmem0 /dev/pmem1"
for device in $devices; do
    n=0
    until [ -b $device ] || [ $n = 600 ]; do $busybox sleep 0.05; n=$((n + 1)); done
done
$busybox mkdir /state
if [ -d /files ]; then
    $busybox mount -t ext4 /dev/pmem1 /state
else
    $busybox mount -t tmpfs root /state
fi
$busybox mount -t tmpfs image /mnt
$busybox mkdir -p /mnt/image /state/upper /state/work
$busybox mount -t ext4 -o ro,dax=always /dev/pmem0 /mnt/image
$busybox mount -t overlay -o lowerdir=/mnt/image,upperdir=/state/upper,workdir=/state/work overlay /new
for kept in dev proc sys; do $busybox mount --move /$kept /new/$kept; done
if [ ! -d /files ]; then
    $busybox cp -a /lab/. /new/lab/
    $busybox cp /main.sh /new/main.sh
    exec $busybox switch_root /new /bin/bash /main.sh
fi
$busybox mount -t tmpfs lab /new/lab
$busybox cp -a /lab/. /new/lab/
$busybox cp -a /files/. /new/
exec $busybox switch_root /new /usr/lib/systemd/systemd
