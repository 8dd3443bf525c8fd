//! What requests contain: names, ids, tokens, parameters, capabilities, capacities; and the table of statuses.

use std::collections::HashSet;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FsKind, IoLimit, Provision};
use bulkhead_core::reason::Reason;
use bulkhead_core::units::{Bytes, Share};

use super::{Mode, block, capability, map};
use crate::capability::Content;
use crate::capacity::Range;
use crate::parameters::Mutable;
use crate::proto::{CapacityRange, VolumeCapability};
use crate::{capability as capabilities, names, parameters, status};

#[test]
fn a_requested_name_is_kept_where_a_pool_allows_it() {
    let pvc = "pvc-0b3c8a31-5f54-4d6e-9a6e-2f5f1a9c7d11";
    assert_eq!(names::of_volume(pvc).unwrap().as_str(), pvc);
    assert_eq!(names::of_snapshot("snapshot-1").unwrap().as_str(), "csi-s-snapshot-1");
    for odd in ["snapshot-1", "a/b", "ü", "..", "csi-x", &"n".repeat(58), &"n".repeat(128)] {
        let name = names::of_volume(odd).unwrap();
        assert!(name.as_str().starts_with("csi-v-") && name == names::of_volume(odd).unwrap(), "{odd}: {name}");
    }
    assert_eq!(names::of_volume("").unwrap_err().code, Code::InvalidArgument);
    assert_eq!(names::of_snapshot("").unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn no_two_names_of_volumes_and_snapshots_are_one_in_the_pool() {
    let hashed = names::of_volume("a/b").unwrap();
    let requested = ["a", "snapshot-1", "a/b", "csi-s-a", "csi-v-a", hashed.as_str(), &"n".repeat(57), &"n".repeat(58)];
    let made = requested.iter().flat_map(|name| [names::of_volume(name), names::of_snapshot(name)]);
    let made: HashSet<String> = made.map(|name| name.unwrap().to_string()).collect();
    assert_eq!(made.len(), 2 * requested.len(), "{made:?}");
}

#[test]
fn an_id_that_nothing_has_is_no_error_and_an_empty_one_is() {
    let id = "fast/pvc-1";
    assert_eq!(names::id(&names::parse_id("volume_id", id).unwrap().unwrap()), id);
    for other in ["pvc-1", "/", "fast/", "../x", "a/b/c", "fast/..", "fast/\0"] {
        assert_eq!(names::parse_id("volume_id", other), Ok(None), "{other:?}");
    }
    assert_eq!(names::parse_id("volume_id", "").unwrap_err().object, "volume_id");
}

#[test]
fn a_token_is_read_as_it_was_made_and_another_one_is_refused() {
    let last = "fast/a".parse().unwrap();
    assert_eq!(names::parse_token(&names::token(&last)), Ok(Some(last)));
    assert_eq!(names::parse_token(""), Ok(None));
    for other in ["invalid-token", "after:", "after:fast", "fast/a", "after:../x"] {
        let fault = names::parse_token(other).unwrap_err();
        assert_eq!(status::code(&fault), tonic::Code::Aborted, "{other}");
    }
}

#[test]
fn parameters_are_read_and_those_of_kubernetes_are_ignored() {
    let class = map(&[
        ("pool", "fast"),
        ("share", "300"),
        ("provision", "full"),
        ("suid", "true"),
        ("csi.storage.k8s.io/pvc/name", "data"),
    ]);
    let read = parameters::parse(&class, &map(&[("share", "500")])).unwrap();
    assert_eq!(
        (read.pool.clone(), read.mutable.share),
        (Some("fast".parse().unwrap()), Some("500".parse::<Share>().unwrap()))
    );
    assert_eq!((read.provision, read.mount_options.suid, read.mount_options.dev), (Some(Provision::Full), true, false));
    assert_eq!(
        (read.mount_options_of_new(Content::AnyFs).subdir, read.mount_options.subdir),
        (Some("data".parse().unwrap()), None)
    );
    assert_eq!(parameters::parse_mutable(&map(&[])), Ok(Mutable::default()));
}

#[test]
fn limits_are_for_each_disk_and_unmentioned_ones_stay() {
    let read = |pairs| parameters::parse_mutable(&map(pairs)).unwrap();
    let disks = ["vda".to_owned(), "vdb".to_owned()];
    assert_eq!(read(&[("share", "300")]).limits(&[], &disks), None);
    let both = read(&[("writeBytesPerSecond", "50M"), ("readIops", "100")]).limits(&[], &disks).unwrap();
    let limit = |device: &str| IoLimit {
        device: device.to_owned(),
        write_bytes_per_second: Some(Bytes::mib(50).0),
        read_iops: Some(100),
        ..IoLimit::default()
    };
    assert_eq!(both, [limit("/dev/vda"), limit("/dev/vdb")]);

    let elsewhere = IoLimit { device: "/dev/sdz".to_owned(), write_iops: Some(7), ..IoLimit::default() };
    let existing = [elsewhere.clone(), limit("/dev/vda")];
    let changed = read(&[("readIops", "max"), ("writeIops", "9")]).limits(&existing, &disks[..1]).unwrap();
    let mended = IoLimit { read_iops: None, write_iops: Some(9), ..limit("/dev/vda") };
    assert_eq!(changed, [elsewhere.clone(), mended]);
    let none = read(&[("readIops", "max"), ("writeBytesPerSecond", "max")]).limits(&existing, &disks).unwrap();
    assert_eq!(none, [elsewhere]);
    for (key, value) in [("readIops", "0"), ("writeIops", "-1"), ("readBytesPerSecond", "fast"), ("writeIops", "1.5")] {
        let fault = parameters::parse_mutable(&map(&[(key, value)])).unwrap_err();
        assert_eq!(fault.object, format!("parameter {key:?}"));
    }
}

#[test]
fn an_unknown_parameter_is_refused_with_the_most_similar_one() {
    for (key, hint) in [("journal-size", "did you mean \"journalSize\"?"), ("Pool", "did you mean \"pool\"?")] {
        let fault = parameters::parse(&map(&[(key, "x")]), &map(&[])).unwrap_err();
        assert_eq!(
            (fault.code, fault.object, fault.hint.as_str()),
            (Code::InvalidArgument, format!("parameter {key:?}"), hint)
        );
    }
    let fault = parameters::parse(&map(&[("xyzzy", "x")]), &map(&[])).unwrap_err();
    assert!(fault.hint.starts_with("the parameters are pool, share"), "{}", fault.hint);
    // A class of attributes has fewer.
    assert!(parameters::parse(&map(&[]), &map(&[("pool", "fast")])).is_err());
    assert!(parameters::parse_mutable(&map(&[("tenant", "x")])).is_err());
    for (key, value) in [("share", "0"), ("share", "10001"), ("provision", "later"), ("suid", "yes"), ("pool", "../x")]
    {
        assert_eq!(
            parameters::parse(&map(&[(key, value)]), &map(&[])).unwrap_err().object,
            format!("parameter {key:?}")
        );
    }
}

#[test]
fn capabilities_of_one_node_are_accepted() {
    for mode in
        [Mode::SingleNodeWriter, Mode::SingleNodeReaderOnly, Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter]
    {
        assert_eq!(capabilities::check(&[capability(mode, "")]), Ok(Content::AnyFs));
        assert_eq!(capabilities::check(&[capability(mode, "xfs")]), Ok(Content::Fs(FsKind::Xfs)));
    }
    let writer = |fs: &str| capability(Mode::SingleNodeWriter, fs);
    let raw = || block(Mode::SingleNodeWriter);
    assert_eq!(capabilities::check(&[raw(), block(Mode::SingleNodeSingleWriter)]), Ok(Content::Raw));
    assert_eq!(capabilities::check(&[writer(""), writer("xfs"), writer("")]), Ok(Content::Fs(FsKind::Xfs)));
    let refused: [&[VolumeCapability]; 11] = [
        &[],
        &[capability(Mode::MultiNodeMultiWriter, "")],
        &[capability(Mode::Unknown, "")],
        &[writer("ntfs")],
        // Both at once, in each order.
        &[raw(), writer("")],
        &[writer("ext4"), raw()],
        // A read-only bind mount of a node does not prevent writes.
        &[block(Mode::SingleNodeReaderOnly)],
        &[block(Mode::MultiNodeMultiWriter)],
        &[VolumeCapability { access_type: None, ..writer("") }],
        &[VolumeCapability { access_mode: None, ..writer("") }],
        &[writer("ext4"), writer("xfs")],
    ];
    for given in refused {
        assert_eq!(capabilities::check(given).unwrap_err().code, Code::InvalidArgument, "{given:?}");
    }
}

#[test]
fn ranges_of_capacity() {
    let range = |required_bytes, limit_bytes| Range::parse(Some(&CapacityRange { required_bytes, limit_bytes }));
    let any = Range::parse(None).unwrap();
    let of_new = |range: Range| range.size(Bytes(7), Bytes(3));
    assert_eq!((of_new(any), any.contains(Bytes(1))), (Bytes(7), true));
    assert_eq!([(0, 5), (9, 0), (1, 0), (2, 4)].map(|(a, b)| of_new(range(a, b).unwrap()).0), [5, 9, 3, 3]);
    assert_eq!(range(i64::MAX, 0).unwrap().required, Bytes(i64::MAX as u64));
    let exact = range(4, 6).unwrap();
    assert_eq!([3, 4, 6, 7].map(|size| exact.contains(Bytes(size))), [false, true, true, false]);
    for (required, limit) in [(-1, 0), (0, -1), (6, 4), (i64::MIN, i64::MIN)] {
        assert_eq!(range(required, limit).unwrap_err().code, Code::InvalidArgument, "{required} {limit}");
    }
}

#[test]
fn each_code_of_the_daemon_has_a_status_and_a_wait_that_ended_is_repeated() {
    let of = |code| status::code(&Fault::new(code, "volume p/v", "cause"));
    assert!(Code::ALL.iter().all(|code| !matches!(of(*code), tonic::Code::Ok | tonic::Code::Unknown)));
    let busy = Fault::new(Code::InUse, "volume p/v", "busy");
    assert_eq!(status::code(&busy), tonic::Code::FailedPrecondition);
    assert_eq!(status::code(&busy.reason(Reason::WaitEnded { seconds: 60 })), tonic::Code::Aborted);
    let shown = status::of(&Fault::new(Code::NotFound, "volume p/v", "there is none").hint("look"));
    assert_eq!((shown.code(), shown.message()), (tonic::Code::NotFound, "volume p/v: there is none; look"));
}

/// What the chart does not accept is refused on installation, and not only for the first claim.
#[test]
fn the_chart_accepts_the_parameters_of_the_driver() {
    let schema = include_str!("../../../../contrib/helm/bulkhead-csi/values.schema.json");
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    for (classes, known) in
        [("storageClasses", &parameters::KNOWN[..]), ("volumeAttributesClasses", &parameters::MUTABLE)]
    {
        let accepted = &schema["properties"][classes]["items"]["properties"]["parameters"]["properties"];
        let accepted: HashSet<&str> = accepted.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(accepted, known.iter().copied().collect(), "{classes}");
    }
}
