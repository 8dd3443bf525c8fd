//! Tests of records that earlier versions wrote, and of references.

use super::*;

#[test]
fn calibrations_without_isolation_are_read_and_written_unchanged() {
    let old = r#"{"model":"ctrl=user","qos":"enable=1","measured":["one"]}"#;
    let read: Calibration = serde_json::from_str(old).unwrap();
    assert_eq!((read.isolation, serde_json::to_string(&read).unwrap().as_str()), (None, old));
    let new = Calibration { isolation: Some(Isolation { alone_us: 1, beside_us: 2 }), ..read };
    assert_eq!(serde_json::from_str::<Calibration>(&serde_json::to_string(&new).unwrap()).unwrap(), new);
}

#[test]
fn volume_references_are_validated() {
    assert_eq!("fast/db".parse::<VolumeRef>().map(|r| r.to_string()), Ok("fast/db".to_owned()));
    for bad in ["db", "", "a/b/c", "/db", "a/..", "a/"] {
        assert!(bad.parse::<VolumeRef>().is_err(), "{bad}");
    }
}
