use bulkhead_core::model::ReadFrom;
use bulkhead_sys::process::Handle;
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
fn an_entry_is_ignored_for_a_later_disk_of_the_same_name() {
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
    assert_eq!(list(&roots).unwrap(), []);
    register(&roots, &device(3), &spec).unwrap_err();
    put(&roots, "block/ublkb3/diskseq", "41\n");
    register(&roots, &device(3), &spec).unwrap();
    assert_eq!(spec_of_disk(&roots, "ublkb3"), Some(spec.clone()));
    assert_eq!(spec_of_device(&roots, 3), Some(spec.clone()));
    assert_eq!(list(&roots).unwrap(), [(3, spec)]);
    assert_eq!(registered_device(&roots, 7), Some(3));
    announce(&roots, 8).unwrap();
    assert_eq!((registered_device(&roots, 8), is_announced(&roots, 8)), (None, true));
    renounce(&roots, 8).unwrap();
    assert!(!is_announced(&roots, 8) && is_announced(&roots, 7));
    let entry = dir(&roots).join("ublkb3");
    let content = fs::read(&entry).unwrap();
    fs::write(&entry, &content[..content.len() / 2]).unwrap();
    assert_eq!(spec_of_disk(&roots, "ublkb3"), None, "truncated");
    fs::write(&entry, content).unwrap();
    put(&roots, "block/ublkb3/diskseq", "42\n");
    assert_eq!(spec_of_disk(&roots, "ublkb3"), None, "another disk");
    let mark = dir(&roots).join("unprobed/ublkb3");
    mark_unprobed(&roots, &device(3)).unwrap();
    assert!(mark.exists());
    for _ in 0..2 {
        unregister(&roots, &device(3)).unwrap();
        assert!(!entry.exists() && !mark.exists());
    }
    assert_eq!(registered_device(&roots, 7), Some(3), "who repeats the removal finds the device");
}

#[test]
fn a_watcher_reports_devices_whose_entries_or_servers_change() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let watcher = RegistryWatcher::new(&roots).unwrap();
    let now = || watcher.wait(Some(Duration::ZERO));
    let changed = |ids: &[u32]| RegistryChanges { devices: ids.iter().copied().collect(), overflowed: false };
    assert_eq!(now(), changed(&[]));
    // Entries are renamed into place; other files belong to no device.
    for (name, to) in
        [(".ublkb3.tmp", "ublkb3"), (".ublkb10.tmp", "ublkb10"), (".owner.tmp", "owner-7"), ("x", "ublkbx")]
    {
        fs::write(dir(&roots).join(name), "{}").unwrap();
        fs::rename(dir(&roots).join(name), dir(&roots).join(to)).unwrap();
    }
    assert_eq!((now(), now()), (changed(&[3, 10]), changed(&[])));
    fs::remove_file(dir(&roots).join("ublkb10")).unwrap();
    fs::remove_file(dir(&roots).join("owner-7")).unwrap();
    assert_eq!(watcher.wait(None), changed(&[10]));
    watcher.wake();
    watcher.wake();
    assert_eq!((watcher.wait(None), now()), (changed(&[]), changed(&[])));
    let sleep = SpawnSpec { program: "sleep".into(), args: vec!["60".into()], ..SpawnSpec::default() };
    let child = spawn(&sleep).unwrap();
    let server = Handle::open(Pid::from_raw(child.pid().try_into().unwrap()).unwrap()).unwrap().unwrap();
    watcher.add(7, &server).unwrap();
    assert_eq!(now(), changed(&[]));
    // Killed; reported until the handle is dropped.
    drop(child);
    assert_eq!((watcher.wait(None), now()), (changed(&[7]), changed(&[7])));
    drop(server);
    assert_eq!(now(), changed(&[]));
}

/// A daemon takes over the devices of servers of other versions: of earlier ones after an upgrade, of later ones after a downgrade.
#[test]
fn entries_of_other_versions_are_read() {
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
    // Written when the specification was not yet an argument of the server.
    let entry =
        r#"{"disk_sequence":"41","service":{"volume":"00000000-0000-0007-0000-000000000008","image":"/dev/vg/v","#
            .to_owned()
            + r#""discards":false,"layered":false,"below":"/dev/vg/base","flatten":false,"share":"base","domain":"thin/","#
            + r#""cgroup":null}}"#;
    let path = dir(&roots).join("ublkb3");
    fs::create_dir_all(dir(&roots)).unwrap();
    fs::write(&path, &entry).unwrap();
    assert_eq!(spec_of_disk(&roots, "ublkb3"), Some(spec.clone()));
    register(&roots, &device(3), &spec).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), entry, "an earlier daemon could not read it");
    fs::write(&path, entry.replacen(r#""image""#, r#""of_a_later_version":{"a":1},"image""#, 1)).unwrap();
    assert_eq!(spec_of_disk(&roots, "ublkb3"), Some(spec));
}
