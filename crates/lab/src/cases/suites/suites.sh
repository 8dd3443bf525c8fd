# Runs suites in turn on the file system mounted at /run/suites/PLACE/at, each LENGTH times as long as the shortest useful
# run. Each writes SUITE.log in PLACE, and its duration in seconds to SUITE.passed. After the first failure no place starts
# another suite.
# Usage: suites.sh PLACE SEED LENGTH SUITE...
place=$1 seed=$2 length=$3
shift 3
cd "/run/suites/$place" || exit 1

fsx() {
    command fsx -f ../fsx.toml -N $((1000 * length)) -S "$seed" -P . at/fsx
}

# Writes to an existing file, and so overwrites blocks that it shares with other volumes.
fio() {
    command fio --name=verify --filename=at/fio --size=32m --loops="$length" --rw=randwrite --bsrange=4k-128k --direct=1 \
        --ioengine=libaio --iodepth=8 --fsync=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --randseed="$seed"
}

# Some failures are those of the file system itself: the list is compared with that of a disk.
pjdfstest() {
    command pjdfstest -c ../pjdfstest.toml -p at -s /run/suites $([ "$length" -gt 1 ] || cat ../short)
    awk '$2 == "FAILED" { print $1 }' pjdfstest.log | sort > pjdfstest.failed
    grep -q '^Summary: ' pjdfstest.log
}

stress-ng() {
    mkdir -p at/stress
    command stress-ng --verify --temp-path at/stress --timeout $((10 * length)) $(cat ../stressors) \
        --fallocate-bytes 8m --fpunch-bytes 8m --hdd-bytes 8m --iomix-bytes 8m --mmap-bytes 8m --mmap-file --msync-bytes 8m \
        --revio-bytes 8m --seek-size 8m &&
        grep -q 'skipped: 0' stress-ng.log && grep -q 'failed: 0' stress-ng.log
}

for suite in "$@"; do
    [ ! -e ../failed ] || exit 0
    rm -f "$suite".*
    # For comparison with messages of the kernel.
    echo "$suite starts in $place, seed $seed" > /dev/kmsg
    SECONDS=0
    if "$suite" > "$suite.log" 2>&1; then
        echo "$SECONDS" > "$suite.passed"
        echo "$suite passed in $place" > /dev/kmsg
    else
        echo "$suite in $place, seed $seed" >> ../failed
    fi
    # Later reads come from the volume, and later writes partly go to trimmed blocks.
    fstrim at || echo "fstrim in $place" >> ../failed
    echo 3 > /proc/sys/vm/drop_caches
done
