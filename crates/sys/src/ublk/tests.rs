use bulkhead_core::model::Sharing;
use uuid::Uuid;

use super::service::Service;
use super::*;

fn device(id: u32) -> DeviceInfo {
    DeviceInfo { id, state: State::Live, server_pid: None, owner: 7, queues: 1, depth: 64, max_io_bytes: 1 << 17 }
}

fn put(roots: &Roots, path: &str, text: &str) {
    let path = roots.sys.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn what_a_server_told_of_its_reads_goes_with_it() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let (volume, other) = (Uuid::from_u128(7), Uuid::from_u128(8));
    assert_eq!(service::heat(&roots, volume).unwrap(), bulkhead_core::heat::Heat::default());
    let heat = service::dir(&roots).join("heat");
    fs::create_dir_all(&heat).unwrap();
    service::clean_up(&roots, volume).unwrap();
    for name in [volume.to_string(), format!(".{volume}.12.0.tmp"), other.to_string()] {
        fs::write(heat.join(name), r#"{"version":1,"counts":[]}"#).unwrap();
    }
    assert_eq!(service::heat(&roots, volume).unwrap().version, 1);
    fs::write(heat.join(volume.to_string()), r#"{"version":2,"counts":[]}"#).unwrap();
    assert!(service::heat(&roots, volume).is_err());
    service::clean_up(&roots, volume).unwrap();
    let left: Vec<_> = fs::read_dir(&heat).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [std::ffi::OsString::from(other.to_string())]);
}

#[test]
fn what_is_told_of_a_disk_is_not_believed_of_the_next_of_its_name() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let service = Service {
        volume: Uuid::from_u64_pair(7, 8),
        image: "/srv/a \n b.img".into(),
        discards: true,
        layered: false,
        below: None,
        flatten: false,
        share: Sharing::Drr,
        domain: "pool/".to_owned(),
        cgroup: Some("a b/server".to_owned()),
    };
    assert_eq!(service::all(&roots).unwrap(), []);
    service::tell(&roots, &device(3), &service).unwrap_err();
    put(&roots, "block/ublkb3/diskseq", "41\n");
    service::tell(&roots, &device(3), &service).unwrap();
    assert_eq!(service::of(&roots, "ublkb3"), Some(service.clone()));
    assert_eq!(service::all(&roots).unwrap(), [(3, service.clone())]);
    assert_eq!(service::probable(&roots, 7), Some(3));
    let told = service::dir(&roots).join("ublkb3");
    let content = fs::read(&told).unwrap();
    fs::write(&told, &content[..content.len() / 2]).unwrap();
    assert_eq!(service::of(&roots, "ublkb3"), None, "cut off");
    fs::write(&told, content).unwrap();
    put(&roots, "block/ublkb3/diskseq", "42\n");
    assert_eq!(service::of(&roots, "ublkb3"), None, "another disk");
    service::forget(&roots, &device(3)).unwrap();
    service::forget(&roots, &device(3)).unwrap();
    assert_eq!((service::probable(&roots, 7), told.exists()), (None, false));
}

#[test]
fn a_volume_is_its_disk_or_the_first_partition_of_one_that_is_too_large() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let (exact, large) = (device(0), device(1));
    assert_eq!(sized::size(&roots, &exact), None, "not started");
    put(&roots, "class/block/ublkb0/size", "2048\n");
    assert_eq!(sized::size(&roots, &exact), Some(Bytes::mib(1)));
    assert_eq!(sized::node(&roots, &exact), roots.dev.join("ublkb0"));
    let disk = sized::disk_size(Features(0), Bytes::mib(1));
    put(&roots, "class/block/ublkb1/size", &format!("{}\n", disk.0 / 512));
    assert_eq!(sized::size(&roots, &large), None, "not exposed");
    put(&roots, "class/block/ublkb1p1/size", "4096\n");
    assert_eq!(sized::size(&roots, &large), Some(Bytes::mib(2)));
    assert_eq!(sized::node(&roots, &large), roots.dev.join("ublkb1p1"));
    assert_eq!(sized::disk_size(Features(uapi::F_UPDATE_SIZE), Bytes::mib(1)), Bytes::mib(1));
}

#[test]
fn without_the_driver_it_says_so() {
    let base = tempfile::tempdir().unwrap();
    let error = Control::open(&Roots::under(base.path())).unwrap_err();
    assert!(matches!(&error, UblkError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("ublk-control"), "{error}");
}
