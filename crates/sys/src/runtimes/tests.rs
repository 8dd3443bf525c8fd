use std::fs;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, mknodat};

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn write(base: &Path, path: &str, text: &str) {
    let path = base.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn state_files_are_found_in_the_default_locations() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    assert_eq!((docker_config(&roots, ID), podman_lists(&roots).len()), (None, 0));
    assert_eq!((containerd_spec(&roots, ID), crio_spec(&roots, ID)), (None, None));
    assert!(pod_log_directories(&roots).is_empty());
    write(base.path(), &format!("var/lib/docker/containers/{ID}/config.v2.json"), "docker");
    write(base.path(), "var/lib/containers/storage/overlay-containers/containers.json", "podman");
    write(base.path(), "run/containers/storage/overlay-containers/volatile-containers.json", "transient");
    write(base.path(), &format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json"), "cri");
    write(base.path(), "run/containerd/io.containerd.runtime.v2.task/a/b/config.json", "other");
    write(base.path(), &format!("run/containers/storage/overlay-containers/{ID}/userdata/config.json"), "crio");
    write(base.path(), "var/log/pods/shop_db-0_123/mariadb/0.log", "");
    let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
    assert_eq!(text(docker_config(&roots, ID)), "docker");
    assert_eq!(podman_lists(&roots), [b"podman".to_vec(), b"transient".to_vec()]);
    assert_eq!([text(containerd_spec(&roots, ID)), text(crio_spec(&roots, ID))], ["cri", "crio"]);
    assert_eq!(pod_log_directories(&roots), ["shop_db-0_123"]);
    assert_eq!(pod_log_containers(&roots, "shop_db-0_123"), ["mariadb"]);
}

#[test]
fn configured_locations_are_used() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    write(base.path(), "etc/docker/daemon.json", r#"{"data-root": "/mnt/big"}"#);
    write(base.path(), &format!("mnt/disk/containers/{ID}/config.v2.json"), "docker");
    // Operators move such directories.
    symlink("disk", base.path().join("mnt/big")).unwrap();
    assert_eq!(docker_config(&roots, ID), Some(b"docker".to_vec()));
    write(base.path(), "etc/containers/storage.conf", "[storage]\ngraphroot = \"/mnt/pods\"\n");
    write(base.path(), "mnt/pods/vfs-containers/containers.json", "podman");
    assert_eq!(podman_lists(&roots), [b"podman".to_vec()]);
    write(base.path(), "etc/docker/daemon.json", r#"{"data-root": "/../mnt/big"}"#);
    assert_eq!(docker_config(&roots, ID), None);
}

#[test]
fn links_fifos_directories_and_large_files_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    write(base.path(), "secret", "secret");
    let directory = base.path().join("var/lib/docker/containers").join(ID);
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("config.v2.json");
    symlink(base.path().join("secret"), &file).unwrap();
    assert_eq!(docker_config(&roots, ID), None, "a link to a file");
    fs::remove_file(&file).unwrap();
    // It has no writer: opening it could block forever.
    mknodat(CWD, &file, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert_eq!(docker_config(&roots, ID), None, "a FIFO");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(docker_config(&roots, ID), None, "a directory");
    fs::remove_dir(&file).unwrap();
    File::create(&file).unwrap().set_len(MAX_FILE + 1).unwrap();
    assert_eq!(docker_config(&roots, ID), None, "a large file");
    File::create(&file).unwrap().set_len(MAX_FILE).unwrap();
    assert_eq!(docker_config(&roots, ID).map(|bytes| bytes.len() as u64), Some(MAX_FILE));
    fs::remove_dir_all(&directory).unwrap();
    write(base.path(), "elsewhere/config.v2.json", "elsewhere");
    symlink(base.path().join("elsewhere"), &directory).unwrap();
    assert_eq!(docker_config(&roots, ID), None, "a link to a directory");
    for id in ["", ".", "..", "../../../elsewhere", "a/b", "a\0b"] {
        assert_eq!(docker_config(&roots, id), None, "{id:?}");
        assert_eq!((containerd_spec(&roots, id), crio_spec(&roots, id)), (None, None), "{id:?}");
        assert!(pod_log_containers(&roots, id).is_empty(), "{id:?}");
    }
}
