//! Devices.

use expect_test::{Expect, expect};

use crate::Daemon;

#[test]
fn a_device_is_calibrated_and_controlled() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["device", "ls"],
        expect![[r#"
        exit 0
        ----- stdout
        NAME  DEV    SIZE   SCHEDULER    POLICY  SHARES WORK  ON
        sda   8:0    1 GiB  mq-deadline  none    no           sda
        dm-0  252:0  1 GiB  -            none    no           sda
    "#]],
    );
    check(
        &["device", "control", "sda", "--policy", "iocost"],
        expect![[r#"
            exit 8
            ----- stderr
            error: device sda: it has no calibration, and io.cost with a guessed model costs throughput
            hint: `bulkhead device calibrate sda` measures a model
        "#]],
    );
    check(
        &["device", "calibrate", "sda", "--model", "ctrl=user model=linear", "--qos", "enable=1 ctrl=user"],
        expect![[r#"
            exit 0
            ----- stderr
            device sda: calibrated
            note: given on the command line, not measured
            warning[no_controller]: device sda: neither io.cost nor bfq is active (scheduler mq-deadline): weights are accepted but have no effect
            hint: enable one: `bulkhead device control sda --policy iocost` (or `bfq`)
        "#]],
    );
    check(
        &["device", "control", "/dev/sda", "--policy", "iocost"],
        expect![[r#"
            exit 0
            ----- stderr
            device /dev/sda: changed
            note: given on the command line, not measured
        "#]],
    );
    check(
        &["device", "inspect", "sda"],
        expect![[r#"
            exit 0
            ----- stdout
            name:             sda
            dev:              8:0
            size:             1 GiB
            rotational:       yes
            scheduler:        mq-deadline
            physical devices: sda
            policy:           iocost
            arbiter:          off
            shares work:      yes: io.cost is enabled with a model set by hand or calibration
            io.cost.model:    ctrl=user model=linear
            io.cost.qos:      enable=1 ctrl=user
            calibrated model: ctrl=user model=linear
            calibrated qos:   enable=1 ctrl=user
            notes:
              - given on the command line, not measured
        "#]],
    );
    check(
        &["device", "control", "sda", "--restore"],
        expect![[r#"
            exit 0
            ----- stderr
            device sda: changed
            note: given on the command line, not measured
            warning[no_controller]: device sda: neither io.cost nor bfq is active (scheduler mq-deadline): weights are accepted but have no effect
            hint: enable one: `bulkhead device control sda --policy iocost` (or `bfq`)
        "#]],
    );
    check(
        &["device", "inspect", "../etc"],
        expect![[r#"
            exit 3
            ----- stderr
            error: device ../etc: there is no block device of that name
            hint: `bulkhead device ls` lists the devices by kernel name
        "#]],
    );
}
