#!/bin/busybox sh
# In the initramfs: the guest's root from its image, with the programs of the lab; then /main.sh as process 1.
busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t devtmpfs dev /dev
for module in /mod/*; do $busybox insmod "$module"; done
# It is probed in the background.
n=0
until [ -b /dev/pmem0 ] || [ $n = 600 ]; do $busybox sleep 0.05; n=$((n + 1)); done
$busybox mount -t tmpfs root /mnt
$busybox mkdir /mnt/image /mnt/upper /mnt/work
$busybox mount -t ext4 -o ro,dax=always /dev/pmem0 /mnt/image
$busybox mount -t overlay -o lowerdir=/mnt/image,upperdir=/mnt/upper,workdir=/mnt/work overlay /new
for kept in dev proc sys; do $busybox mount --move /$kept /new/$kept; done
$busybox cp -a /lab/. /new/lab/
$busybox cp /main.sh /new/main.sh
exec $busybox switch_root /new /bin/bash /main.sh
