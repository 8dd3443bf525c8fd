# Directories of the host: /lab, with the programs of the initramfs, and /opt of the guest root, to which packages may be added while
# the machine runs.
mkdir /run/lab-bin
mount --bind /lab/bin /run/lab-bin
mount -t 9p -o trans=virtio,version=9p2000.L,access=any,msize=524288 lab /lab
mount -t 9p -o ro,trans=virtio,version=9p2000.L,access=any,msize=524288,cache=loose opt /opt
mount --bind /run/lab-bin /lab/bin
