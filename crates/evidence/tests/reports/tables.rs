//! Tables for the terminal, with their headlines, word for word.

use bulkhead_evidence::report::GUIDE;
use bulkhead_measure::report::table;
use bulkhead_measure::result::Experiment;
use expect_test::{Expect, expect};

use super::set;
use super::synthetic::{
    synthetic_clone_read, synthetic_dbms, synthetic_disk_model, synthetic_fsync_probe, synthetic_launch_storm,
    synthetic_overhead, synthetic_pair,
};

fn check_table(experiment: &Experiment, expected: Expect) {
    let table = table::render(&GUIDE, experiment);
    assert!(table.lines().all(|line| line.chars().count() <= 100), "wider than 100 columns:\n{table}");
    assert!(!table.contains('\u{1b}'), "colour codes");
    expected.assert_eq(&table);
}

fn headline(experiment: &Experiment) -> String {
    table::render(&GUIDE, experiment).lines().take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[test]
fn table_of_the_probe() {
    check_table(
        &synthetic_fsync_probe("hdd"),
        expect![[r#"
        On a shared file system, a 4 KiB fsync took 17 ms alone and 1759 ms beside 8 buffered writers: 102x.
        With Bulkhead: 24 ms, 1.6x; the neighbour kept 98 % of its throughput. Its hardest case is 8 writers
        that fsync every 16 KiB: 2.7x, and 2.3x without: it made things worse.

                                   alone   loaded  loaded       loaded/alone       loaded/alone  neighbour
        configuration            mean ms  mean ms  p99 ms               mean                p99   of alone
        --------------------------------------------------------------------------------------------------
        beside 8 buffered writers
          shared/none               17.2     1759    3357    102x (99.2-106)     122x (118-127)      100 %
          shared/bfq                19.7      156     747     7.9x (7.7-8.2)    23.7x (23-24.6)       93 %
          shared/iocost             15.3     23.3    75.0     1.5x (1.5-1.6)       3.1x (3-3.2)       77 %
          own/bfq                   18.5      290    1486  15.7x (15.2-16.3)  50.2x (48.7-52.2)       95 %
        * own+accounting/iocost     15.1     23.9    58.0     1.6x (1.5-1.6)     2.4x (2.3-2.5)       98 %
        beside 8 writers that fsync every 16 KiB
          shared/none               17.2     40.1    92.0     2.3x (2.3-2.4)     3.3x (3.2-3.5)       90 %
          shared/iocost             15.3     33.7    80.0     2.2x (2.1-2.3)     3.3x (3.2-3.4)       86 %
          own/bfq                   18.5     46.5     110     2.5x (2.4-2.6)     3.7x (3.6-3.9)       88 %
        * own+accounting/iocost     16.0     43.2     101     2.7x (2.6-2.8)     3.9x (3.8-4.1)       84 %
        beside a storm of file creations and deletions
          shared/none               17.2      210     640  12.2x (11.8-12.7)  23.3x (22.6-24.2)      100 %
          shared/bfq                19.7     88.0     402     4.5x (4.3-4.6)  12.8x (12.4-13.3)       95 %
        * own+accounting/iocost     15.1     22.0    44.0     1.5x (1.4-1.5)     1.8x (1.8-1.9)       93 %
        * Bulkhead's configuration. Middle of the rounds; in brackets the smallest and the largest.

        No paper has this probe. A public report (Containarium issue 1206) saw 17 ms alone, 11 885 ms beside
        neighbours on one file system, and 21 to 165 ms after each tenant got a file system of its own.
        Note: SYNTHETIC: invented for tests of the reports, not a measurement.
        Emulated processor (QEMU TCG), 2 CPUs, Linux 6.12.43+deb13-amd64. Disk: hdd (one arm, seek model, 30
        MB/s). 3 rounds.
    "#]],
    );
}

#[test]
fn table_of_the_database() {
    check_table(
        &synthetic_dbms(),
        expect![[r#"
            Beside a neighbour with few fsyncs, the database with a shared journal had 33 inserts/s, 158 ms for
            an fsync, 25.0 % of the disk's bytes (70 % promised).
            With Bulkhead: 121 inserts/s, 24 ms for an fsync, 70.2 % of the disk's bytes (70 % promised): 3.7x
            the throughput, fsync in 1/6.4 of the time. It gains least beside a neighbour with many fsyncs: 2.5x
            the throughput, fsync in 1/3.9 of the time.

                                      database       of shared             fsync   paper's  share A  paper's
            configuration            inserts/s         journal           mean ms  fsync ms  of 70 %  share A
            ------------------------------------------------------------------------------------------------
            no neighbour
              shared/iocost                151     1x (0.97-1)  14.0 (13.6-14.6)         -   98.0 %        -
            * own+accounting/iocost        149  0.99x (0.96-1)  13.9 (13.5-14.5)         -   98.0 %        -
            beside a neighbour without fsync
              shared/iocost               41.0     1x (0.97-1)     131 (127-136)       120   27.0 %        -
              own/iocost                  52.0  1.3x (1.2-1.3)   98.0 (95.1-102)       104   33.0 %     25 %
            * own+accounting/iocost        148  3.6x (3.5-3.8)  22.0 (21.3-22.9)      24.2   69.7 %     70 %
            beside a neighbour with few fsyncs
              shared/iocost               33.0     1x (0.97-1)     158 (153-164)       161   25.0 %        -
              own/iocost                  44.0  1.3x (1.3-1.4)  95.0 (92.1-98.8)      92.7   36.0 %     30 %
            * own+accounting/iocost        121  3.7x (3.6-3.8)  24.5 (23.8-25.5)      25.4   70.2 %     70 %
            beside a neighbour with many fsyncs
              shared/iocost               47.0     1x (0.97-1)    101 (98.0-105)      96.2   20.0 %     20 %
              own/iocost                  55.0  1.2x (1.1-1.2)  91.0 (88.3-94.6)      90.5   41.0 %        -
            * own+accounting/iocost        119  2.5x (2.5-2.6)  26.0 (25.2-27.0)      24.8   66.0 %     70 %
            * Bulkhead's configuration. Middle of the rounds; in brackets the smallest and the largest.

            Mardan & Kono 2021, Table 1, mean fsync latency of MySQL beside a neighbour with no, low and high
            fsync load: shared journal 120 / 161 / 96 ms; own journal 104 / 93 / 91 ms; own journal with
            accounting 24 / 25 / 25 ms.
            Its throughput gain is "up to 3.4x" in the abstract and 2.8x in the text; MySQL's share of the disk
            went from 20 % to the promised 70 % (figures 4 and 9). The figures of throughput are only plotted,
            so they are not repeated here.
            Note: SYNTHETIC: invented for tests of the reports, not a measurement.
            Emulated processor (QEMU TCG), 2 CPUs, Linux 6.12.43+deb13-amd64. Disk: hdd (one arm, seek model, 30
            MB/s). 3 rounds.
        "#]],
    );
}

#[test]
fn table_of_two_tenants() {
    check_table(
        &synthetic_pair(),
        expect![[r#"
        Two tenants with shares of 70 and 30 that both call fsync often: own journals alone gave 52 ms in A
        and 51 ms in B, 1 to 0.98.
        With Bulkhead: 37 ms in A and 85 ms in B, 1 to 2.27; the shares ask for 1 to 2.33.

                                          fsync A           fsync B  fsync   paper's             share A
        configuration                     mean ms           mean ms    B/A  A / B ms             of 70 %
        ------------------------------------------------------------------------------------------------
        beside a neighbour with many fsyncs
          shared/iocost          61.0 (59.2-63.4)  62.0 (60.1-64.5)     1x         -  49.0 % (48.9-49.2)
          own/iocost             52.0 (50.4-54.1)  51.0 (49.5-53.0)  0.98x   55 / 53  51.0 % (50.9-51.2)
        * own+accounting/iocost  37.0 (35.9-38.5)  85.1 (81.4-87.0)   2.3x   45 / 86  69.0 % (68.8-69.2)
        * Bulkhead's configuration. Middle of the rounds; in brackets the smallest and the largest.

        Mardan & Kono 2021, Table 2, two tenants with high fsync load and shares of 70 and 30: 55 / 53 ms
        without accounting, 45 / 86 ms with it. Shares of 70 to 30 would make the latencies 1 to 2.33;
        theirs came to 1 to 1.9.
        Note: SYNTHETIC: invented for tests of the reports, not a measurement.
        Emulated processor (QEMU TCG), 2 CPUs, Linux 6.12.43+deb13-amd64. Disk: hdd (one arm, seek model, 30
        MB/s). 3 rounds.
    "#]],
    );
}

#[test]
fn table_of_the_volumes() {
    check_table(
        &synthetic_overhead("hdd"),
        expect![[r#"
            A loop device gives 36 % of the raw device's small synced writes and 91 % of its bandwidth, 1.98
            host commits per fsync.
            A logical volume gives 99 % of the raw device's small synced writes and 100 % of its bandwidth, 0
            host commits per fsync; blockd gives 97 % of the raw device's small synced writes and 98 % of its
            bandwidth, 0.0020 host commits per fsync.

                           4K + fsync  4K + fsync  32 threads  128K seq.  128K seq.  host commits         CPU
            configuration        IOPS      of raw      of raw       MB/s     of raw     per fsync  us per I/O
            -------------------------------------------------------------------------------------------------
            no neighbour
              raw/none            118     100.0 %     100.0 %       29.8    100.0 %             0        61.0
              lv/none             117      99.2 %      99.2 %       29.7     99.7 %             0        62.0
              blockd/none         114      96.6 %      96.6 %       29.1     97.7 %        0.0020         118
              loop/none          43.0      36.4 %      36.4 %       27.0     90.6 %          1.98         143
            Middle of the rounds; in brackets the smallest and the largest.

            No paper has these figures. By hand (docs, kernel 6.12): 100 fsyncs in a guest file system on a loop
            device cost 198 commits of the host's journal; on a logical volume none.
            Note: SYNTHETIC: invented for tests of the reports, not a measurement.
            Emulated processor (QEMU TCG), 2 CPUs, Linux 6.12.43+deb13-amd64. Disk: hdd (one arm, seek model, 30
            MB/s). 3 rounds.
        "#]],
    );
}

#[test]
fn a_table_of_unknown_figures_lists_them() {
    let mut experiment = synthetic_overhead("hdd");
    experiment.name = "something-else".into();
    for round in experiment.cells.iter_mut().flat_map(|cell| &mut cell.rounds) {
        round.figures = [("launch_ms".to_owned(), 12.0)].into();
    }
    experiment.cells.truncate(1);
    check_table(
        &experiment,
        expect![[r#"
        something-else: nothing to compare.
        No figure that this report knows was measured; see the notes and the raw figures.

        raw/none/
          launch_ms                                 12

        Note: SYNTHETIC: invented for tests of the reports, not a measurement.
        Emulated processor (QEMU TCG), 2 CPUs, Linux 6.12.43+deb13-amd64. Disk: hdd (one arm, seek model, 30
        MB/s). 3 rounds.
    "#]],
    );
}

#[test]
fn headline_when_nothing_slows_down() {
    let mut experiment = synthetic_fsync_probe("hdd");
    experiment.cells.retain(|cell| cell.neighbour == "streams");
    set(&mut experiment, "shared/none/streams", "fsync_loaded_mean_ms", 18.0);
    set(&mut experiment, "own+accounting/iocost/streams", "fsync_loaded_mean_ms", 16.0);
    expect![[r#"
        On a shared file system, a 4 KiB fsync took 17 ms alone and 18 ms beside 8 buffered writers: no
        slowdown to speak of here.
        With Bulkhead: 16 ms, 1.1x: as without it; the neighbour kept 98 % of its throughput."#]]
    .assert_eq(&headline(&experiment));
}

#[test]
fn headline_when_bulkhead_does_not_help() {
    let mut experiment = synthetic_fsync_probe("hdd");
    experiment.cells.retain(|cell| cell.neighbour == "fsyncs");
    expect![[r#"
        On a shared file system, a 4 KiB fsync took 17 ms alone and 40 ms beside 8 writers that fsync every
        16 KiB: 2.3x.
        With Bulkhead: 43 ms, 2.7x: it made things worse; and the neighbour kept only 84 % of its
        throughput."#]]
    .assert_eq(&headline(&experiment));
}

#[test]
fn headline_when_bulkhead_makes_it_worse_and_the_neighbour_pays() {
    let mut experiment = synthetic_fsync_probe("hdd");
    experiment.cells.retain(|cell| cell.neighbour == "streams");
    set(&mut experiment, "own+accounting/iocost/streams", "fsync_loaded_mean_ms", 4000.0);
    set(&mut experiment, "own+accounting/iocost/streams", "neighbour_bytes_per_s", 20e6);
    expect![[r#"
        On a shared file system, a 4 KiB fsync took 17 ms alone and 1759 ms beside 8 buffered writers: 102x.
        With Bulkhead: 4000 ms, 265x: it made things worse; and the neighbour kept only 38 % of its
        throughput."#]]
    .assert_eq(&headline(&experiment));
}

#[test]
fn headline_when_bulkhead_was_not_measured() {
    let mut experiment = synthetic_fsync_probe("hdd");
    experiment.cells.retain(|cell| cell.layout == "shared");
    expect![[r#"
        On a shared file system, a 4 KiB fsync took 17 ms alone and 1759 ms beside 8 buffered writers: 102x.
        Bulkhead's own configuration was not measured."#]]
    .assert_eq(&headline(&experiment));
}

#[test]
fn headline_when_the_database_gains_nothing() {
    let mut experiment = synthetic_dbms();
    experiment.cells.retain(|cell| cell.neighbour == "low-fsync");
    set(&mut experiment, "own+accounting/iocost/low-fsync", "inserts_per_s", 31.0);
    set(&mut experiment, "own+accounting/iocost/low-fsync", "fsync_mean_ms", 190.0);
    expect![[r#"
        Beside a neighbour with few fsyncs, the database with a shared journal had 33 inserts/s, 158 ms for
        an fsync, 25.0 % of the disk's bytes (70 % promised).
        With Bulkhead: 31 inserts/s, 190 ms for an fsync, 70.2 % of the disk's bytes (70 % promised): no
        change in throughput (0.94x), but fsync takes longer (1.2x)."#]]
    .assert_eq(&headline(&experiment));
}

#[test]
fn headline_says_beside_whom_the_database_gains_least() {
    let mut experiment = synthetic_dbms();
    experiment.cells.retain(|cell| ["low-fsync", "high-fsync"].contains(&cell.neighbour.as_str()));
    set(&mut experiment, "own+accounting/iocost/low-fsync", "inserts_per_s", 99.0);
    set(&mut experiment, "own+accounting/iocost/high-fsync", "inserts_per_s", 66.0);
    expect![[r#"
        Beside a neighbour with few fsyncs, the database with a shared journal had 33 inserts/s, 158 ms for
        an fsync, 25.0 % of the disk's bytes (70 % promised).
        With Bulkhead: 99 inserts/s, 24 ms for an fsync, 70.2 % of the disk's bytes (70 % promised): 3x the
        throughput, fsync in 1/6.4 of the time. It gains least beside a neighbour with many fsyncs: 1.4x the
        throughput, fsync in 1/3.9 of the time."#]]
    .assert_eq(&headline(&experiment));
}

#[test]
fn tables_of_clones() {
    check_table(
        &synthetic_clone_read("hdd-slow"),
        expect![[r#"
            A second clone reads what the first one has read. Nothing shared: 30.1 MB/s: 1x as fast as the first
            one, 5 % of a hit in its own cache, 512 reads of the disk.
            Through the host's cache: 390 MB/s: 13.1x as fast as the first one, 65 % of a hit in its own cache,
            0 reads of the disk. From peers' caches: 310 MB/s: 10.5x as fast as the first one, 52 % of a hit in
            its own cache, 0 reads of the disk.

                                      first            second    second  second   disk  md5sum   miss     copies
            configuration              MB/s              MB/s  of first  of hit  reads       s  costs  in memory
            ----------------------------------------------------------------------------------------------------
            no neighbour
              off          30.0 (29.1-31.2)  30.1 (29.2-31.3)        1x     5 %    512    0.90      -          3
            * base         29.8 (28.9-31.0)     390 (378-406)     13.1x    65 %      0    0.90  1.0 %          4
              drr          29.6 (28.7-30.8)     310 (301-322)     10.5x    52 %      0    0.90  2.0 %          3
              both         29.5 (28.6-30.7)     320 (310-333)     10.8x    53 %      0    0.90  2.0 %          4
            * Bulkhead's configuration. Middle of the rounds; in brackets the smallest and the largest.

            Zhao, Xu and Shain, "Improving Copy-on-Write Performance in Container Storage Drivers" (SNIA SDC
            2016; Docker 1.10, dm-thin with their module): the second container reads a large file at 1.2 GB/s
            where the disk gives 120 MB/s (10x, SATA disk), 2.0 GB/s where it gives 840 MB/s (2.4x, PCIe SSD); a
            hit in the container's own cache gives 2.5 and 3.9 GB/s, so 48 and 51 % of that. md5sum of the file:
            2.7 times as fast on the SATA disk.
            Where nothing is found, reading is 2.5 % (SATA disk) to 6.7 % (PCIe SSD) slower with their module.
            Note: SYNTHETIC: invented for tests of the reports, not a measurement.
            Emulated processor (QEMU TCG), 2 CPUs, Linux 6.12.43+deb13-amd64. Disk: hdd-slow (250 MB/s, 90 us a
            request). 3 rounds.
        "#]],
    );
    check_table(
        &synthetic_launch_storm(),
        expect![[r#"
            Ten clones of one image start a service at once. Nothing shared: 60 s, 687 MiB read from the disk.
            Through the host's cache: 15 s, 72.5 MiB read from the disk. From peers' caches: 21 s, 85.8 MiB read
            from the disk.

                                all ready   time              disk              disk            copies   index
            configuration               s  saved             reads                MB         in memory  of hot
            --------------------------------------------------------------------------------------------------
            memory not bounded
              off          60 (58.2-62.4)      -  6400 (6208-6656)     720 (698-749)  10.5 (10.2-10.9)       -
            * base         15 (14.5-15.6)   75 %     700 (679-728)  76.0 (73.7-79.0)  10.5 (10.2-10.9)       -
              drr          21 (20.4-21.8)   65 %     900 (873-936)  90.0 (87.3-93.6)  10.5 (10.2-10.9)   0.4 %
            memory bounded
              off          64 (62.1-66.6)      -  6500 (6305-6760)     730 (708-759)  10.5 (10.2-10.9)       -
            * base         19 (18.4-19.8)   70 %  1300 (1261-1352)     140 (136-146)  10.5 (10.2-10.9)       -
              drr            24 (23.3-25)   62 %  1200 (1164-1248)     130 (126-135)  10.5 (10.2-10.9)   0.4 %
            * Bulkhead's configuration. Middle of the rounds; in brackets the smallest and the largest.

            Zhao, Xu and Shain (SNIA SDC 2016): TensorFlow containers, each of which loads about 104 MB of model
            and parameters, start in up to 47 % less time on a SATA disk, with two thirds fewer reads of the
            disk; on a PCIe SSD slightly faster.
            They estimate 100 to 400 MB of memory for the records of a 50 GB image with 10 % hot data: 2 to 8 %
            of that.
            Note: SYNTHETIC: invented for tests of the reports, not a measurement.
            Emulated processor (QEMU TCG), 2 CPUs, Linux 6.12.43+deb13-amd64. Disk: hdd-slow (250 MB/s, 90 us a
            request). 3 rounds.
        "#]],
    );
}

#[test]
fn table_of_a_disk_model() {
    check_table(
        &synthetic_disk_model("ssd"),
        expect![[r#"
            The lab's ssd: Samsung 870 EVO 1 TB SATA, 5 times slower.
            Measured in the guest: 11 of 11 published figures within 10 %, worst sequential-write-4k at depth
            32: -5.4 %.

                                                                  mean    p99   published,        off
            configuration                            IOPS  MB/s     us     us         by k  published
            -----------------------------------------------------------------------------------------
            depth 1
              random-read                2580 (2503-2683)  10.6    388    775         2600     -0.8 %
              random-write               7100 (6887-7384)  29.1    141    282         7200     -1.4 %
              sequential-read               816 (792-849)   107   1225   2450     107 MB/s     +0.2 %
              sequential-write              748 (725-778)  98.0   1337   2675     102 MB/s     -4.3 %
              sequential-write-flush      98.0 (95.1-102)  0.40  10204  20408           98     +0.0 %
            depth 8
              sequential-read               847 (821-881)   111   9447  18893            -          -
            depth 32
              random-read             19300 (18721-20072)  79.1   1658   3316  18801-19684     +0.0 %
              random-write            17500 (16975-18200)  71.7   1829   3657        17600     -0.6 %
              sequential-read               854 (829-889)   112  37449  74898     112 MB/s     +0.0 %
              sequential-write              809 (784-841)   106  39569  79138     106 MB/s     +0.0 %
              sequential-read-4k      19500 (18915-20280)  79.9   1641   3282        19626     -0.6 %
              sequential-write-4k     17600 (17072-18304)  72.1   1818   3636        18600     -5.4 %
            Middle of the rounds; in brackets the smallest and the largest.

            Published figures are of the drives' data sheets and of measurements by others; those marked d are
            derived from them, not published. No drive has all depths published in one place: Exos X24, Exos M
            and WD DC HC580 stand in for the spinning disk at depths 16 and 32, the 860 EVO for the flushes of
            the 870 EVO, the 850 EVO for its sequential rates at depth 1.
            The spinning disk's sequential rate is recalled from its data sheet, which was not at hand.
            Note: SYNTHETIC: invented for tests of the reports, not a measurement.
            Emulated processor (QEMU TCG), 2 CPUs, Linux 6.12.43+deb13-amd64. Disk: ssd (250 MB/s, 90 us a
            request). 3 rounds.
        "#]],
    );
}
