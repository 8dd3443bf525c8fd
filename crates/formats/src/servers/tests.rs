use bulkhead_core::model::ReadFrom;
use bulkhead_sys::spawn::{SpawnSpec, spawn};
use bulkhead_sys::ublk::State;
use rustix::process::Pid;

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
    assert_eq!(heat(&roots, volume).unwrap(), bulkhead_core::heat::Heat::default());
    let told = dir(&roots).join("heat");
    fs::create_dir_all(&told).unwrap();
    clean_up(&roots, volume).unwrap();
    for name in [volume.to_string(), format!(".{volume}.12.0.tmp"), other.to_string()] {
        fs::write(told.join(name), r#"{"version":1,"counts":[]}"#).unwrap();
    }
    assert_eq!(heat(&roots, volume).unwrap().version, 1);
    fs::write(told.join(volume.to_string()), r#"{"version":2,"counts":[]}"#).unwrap();
    assert!(heat(&roots, volume).is_err());
    clean_up(&roots, volume).unwrap();
    let left: Vec<_> = fs::read_dir(&told).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [std::ffi::OsString::from(other.to_string())]);
}

#[test]
fn what_is_told_of_a_disk_is_not_believed_of_the_next_of_its_name() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let spec = ServeSpec {
        volume: Uuid::from_u64_pair(7, 8),
        image: "/srv/a \n b.img".into(),
        discards: true,
        layered: false,
        below: None,
        flatten: false,
        read_from: ReadFrom::Peers,
        domain: "pool/".to_owned(),
        cgroup: Some("a b/server".parse().unwrap()),
    };
    assert_eq!(all(&roots).unwrap(), []);
    tell(&roots, &device(3), &spec).unwrap_err();
    put(&roots, "block/ublkb3/diskseq", "41\n");
    tell(&roots, &device(3), &spec).unwrap();
    assert_eq!(of(&roots, "ublkb3"), Some(spec.clone()));
    assert_eq!(of_device(&roots, 3), Some(spec.clone()));
    assert_eq!(all(&roots).unwrap(), [(3, spec)]);
    assert_eq!(probable(&roots, 7), Some(3));
    announce(&roots, 8).unwrap();
    assert_eq!((probable(&roots, 8), is_announced(&roots, 8)), (None, true));
    renounce(&roots, 8).unwrap();
    assert!(!is_announced(&roots, 8) && is_announced(&roots, 7));
    let told = dir(&roots).join("ublkb3");
    let content = fs::read(&told).unwrap();
    fs::write(&told, &content[..content.len() / 2]).unwrap();
    assert_eq!(of(&roots, "ublkb3"), None, "cut off");
    fs::write(&told, content).unwrap();
    put(&roots, "block/ublkb3/diskseq", "42\n");
    assert_eq!(of(&roots, "ublkb3"), None, "another disk");
    forget(&roots, &device(3)).unwrap();
    forget(&roots, &device(3)).unwrap();
    assert_eq!((probable(&roots, 7), told.exists()), (None, false));
}

#[test]
fn a_watch_says_which_devices_are_to_be_looked_at() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let watch = Watch::new(&roots).unwrap();
    let now = || watch.wait(Some(Duration::ZERO));
    let at = |ids: &[u32]| Happened { at: ids.iter().copied().collect(), missed: false };
    assert_eq!(now(), at(&[]));
    // What is told of one is put in its place whole; other files are not about devices.
    for (name, to) in
        [(".ublkb3.tmp", "ublkb3"), (".ublkb10.tmp", "ublkb10"), (".owner.tmp", "owner-7"), ("x", "ublkbx")]
    {
        fs::write(dir(&roots).join(name), "{}").unwrap();
        fs::rename(dir(&roots).join(name), dir(&roots).join(to)).unwrap();
    }
    assert_eq!((now(), now()), (at(&[3, 10]), at(&[])));
    fs::remove_file(dir(&roots).join("ublkb10")).unwrap();
    fs::remove_file(dir(&roots).join("owner-7")).unwrap();
    assert_eq!(watch.wait(None), at(&[10]));
    watch.wake();
    watch.wake();
    assert_eq!((watch.wait(None), now()), (at(&[]), at(&[])));
    let sleep = SpawnSpec { program: "sleep".into(), args: vec!["60".into()], ..SpawnSpec::default() };
    let child = spawn(&sleep).unwrap();
    let server = Handle::open(Pid::from_raw(child.pid().try_into().unwrap()).unwrap()).unwrap().unwrap();
    watch.add(7, &server).unwrap();
    assert_eq!(now(), at(&[]));
    // Killed. Until nobody holds it any more, it is said again.
    drop(child);
    assert_eq!((watch.wait(None), now()), (at(&[7]), at(&[7])));
    drop(server);
    assert_eq!(now(), at(&[]));
}

/// A daemon takes over the devices of another version's servers, of a newer one's too after a downgrade.
#[test]
fn what_servers_of_other_versions_told_is_understood() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    put(&roots, "block/ublkb3/diskseq", "41\n");
    let spec = ServeSpec {
        volume: Uuid::from_u64_pair(7, 8),
        image: "/dev/vg/v".into(),
        discards: false,
        layered: false,
        below: Some("/dev/vg/base".into()),
        flatten: false,
        read_from: ReadFrom::HostCache,
        domain: "thin/".to_owned(),
        cgroup: None,
    };
    // As it was written when it was not yet the argument of the server as well.
    let told =
        r#"{"disk_sequence":"41","service":{"volume":"00000000-0000-0007-0000-000000000008","image":"/dev/vg/v","#
            .to_owned()
            + r#""discards":false,"layered":false,"below":"/dev/vg/base","flatten":false,"share":"base","domain":"thin/","#
            + r#""cgroup":null}}"#;
    let path = dir(&roots).join("ublkb3");
    fs::create_dir_all(dir(&roots)).unwrap();
    fs::write(&path, &told).unwrap();
    assert_eq!(of(&roots, "ublkb3"), Some(spec.clone()));
    tell(&roots, &device(3), &spec).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), told, "an older daemon could not read it");
    fs::write(&path, told.replacen(r#""image""#, r#""of_a_later_version":{"a":1},"image""#, 1)).unwrap();
    assert_eq!(of(&roots, "ublkb3"), Some(spec));
}
