use super::*;
use crate::testing::{contents, hex, reason, save, saved_image};
use bulkhead_core::error::Code;
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

fn options(platform: &str, reference: Option<&str>) -> StageOptions {
    StageOptions { platform: platform.parse().unwrap(), reference: reference.map(str::to_owned), strict: false }
}

fn open(path: &Path) -> Option<DockerArchive> {
    DockerArchive::open(Store::open(path, "it").unwrap()).unwrap().ok()
}

fn made(make: impl FnOnce(&Path) -> Vec<Value>) -> (TempDir, DockerArchive) {
    let dir = tempfile::tempdir().unwrap();
    let images = make(dir.path());
    save(dir.path(), &images);
    let saved = open(dir.path()).unwrap();
    (dir, saved)
}

/// The contents of the selected layers.
fn chosen(saved: &DockerArchive, options: &StageOptions) -> Vec<String> {
    contents(&saved.store, &saved.layers(options).unwrap())
}

fn refused(saved: &DockerArchive, options: &StageOptions) -> ImageError {
    reason(saved.layers(options))
}

#[test]
fn images_are_selected_by_name_with_layers_in_order() {
    let (_dir, saved) = made(|at| {
        vec![
            saved_image(at, &["alpine:3.20", "alpine:latest"], "linux/amd64", &[b"zz", b"aa", b"zz"]),
            saved_image(at, &["quay.io/some/app:1"], "linux/amd64", &[b"app"]),
            saved_image(at, &[], "linux/amd64", &[b"no name"]),
            saved_image(at, &["arm:latest"], "linux/arm64", &[b"arm"]),
        ]
    });
    for name in ["alpine", "alpine:latest", "docker.io/library/alpine:3.20", "3.20"] {
        assert_eq!(chosen(&saved, &options("linux/amd64", Some(name))), ["zz", "aa", "zz"], "{name}");
    }
    assert_eq!(chosen(&saved, &options("linux/x86_64", Some("quay.io/some/app:1"))), ["app"]);
    assert_eq!(chosen(&saved, &options("linux/arm64/v8", None)), ["arm"]);
    let config = saved.images[2].config.strip_suffix(".json").unwrap();
    assert_eq!(chosen(&saved, &options("linux/amd64", Some(&format!("sha256:{config}")))), ["no name"]);
    assert_eq!(chosen(&saved, &options("linux/amd64", Some(config))), ["no name"]);
    match refused(&saved, &options("linux/amd64", None)) {
        ImageError::Ambiguous(found) => {
            for name in ["alpine:3.20 (linux/amd64)", "quay.io/some/app:1 (linux/amd64)", config] {
                assert!(found.contains(name), "{name}: {found}");
            }
        }
        other => panic!("{other:?}"),
    }
    match refused(&saved, &options("linux/amd64", Some("debian"))) {
        ImageError::NoReference { wanted, found } => {
            assert!(wanted == "debian" && found.contains("\"alpine:3.20\", \"arm:latest\""), "{found}");
        }
        other => panic!("{other:?}"),
    }
    let none = refused(&saved, &options("linux/s390x", None));
    assert_eq!(none, ImageError::NoPlatform { wanted: "linux/s390x".into(), found: "linux/amd64, linux/arm64".into() });
}

#[test]
fn only_the_selected_image_has_to_exist_and_is_verified() {
    let any = options("linux/amd64", None);
    let (dir, saved) = made(|at| {
        vec![saved_image(at, &["one"], "linux/amd64", &[b"one"]), saved_image(at, &["two"], "linux/amd64", &[b"two"])]
    });
    let layers = saved.images[0].layers.clone().unwrap();
    fs::remove_file(dir.path().join(&layers[0])).unwrap();
    assert_eq!(chosen(&saved, &options("linux/amd64", Some("two"))), ["two"]);
    assert!(matches!(refused(&saved, &options("linux/amd64", Some("one"))), ImageError::Missing(_)));
    fs::remove_file(dir.path().join(&saved.images[0].config)).unwrap();
    assert_eq!(chosen(&saved, &any), ["two"]);
    let path = dir.path().join(&saved.images[1].config);
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("amd64", "amd65")).unwrap();
    assert!(matches!(refused(&saved, &any), ImageError::WrongDigest { .. }));
    // A name without a digest cannot be verified.
    let (_dir, saved) = made(|at| {
        fs::write(at.join("config.json"), r#"{"rootfs": {"diff_ids": ["sha256:00", "sha256:01"]}}"#).unwrap();
        fs::write(at.join("layer.tar"), "x").unwrap();
        vec![json!({"Config": "config.json", "RepoTags": null, "Layers": ["layer.tar"]})]
    });
    assert!(matches!(refused(&saved, &any), ImageError::Document { .. }));
    for path in ["../../etc/passwd", "/etc/passwd", "..", "", "layer.tar\0", "layer.tar/x"] {
        let (_dir, saved) = made(|at| {
            fs::write(at.join("config.json"), r#"{"os": "linux", "architecture": "amd64"}"#).unwrap();
            fs::write(at.join("layer.tar"), "x").unwrap();
            vec![json!({"Config": "config.json", "Layers": [path]})]
        });
        assert!(matches!(refused(&saved, &any), ImageError::Missing(_)), "{path:?}");
    }
}

#[test]
fn another_file_named_manifest_json_is_part_of_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    assert!(open(dir.path()).is_none());
    let path = dir.path().join("manifest.json");
    for text in ["", "{}", "[]", "[{}]", r#"{"name": "app", "icons": []}"#, r#"[{"Config": 7, "Layers": []}]"#] {
        fs::write(&path, text).unwrap();
        assert!(open(dir.path()).is_none(), "{text}");
    }
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(open(dir.path()).is_none());
    let images = vec![json!({"Config": "x", "Layers": []}); MAX_IMAGES + 1];
    save(dir.path(), &images);
    let error = DockerArchive::open(Store::open(dir.path(), "it").unwrap()).unwrap_err();
    assert_eq!(error.code(), Code::Corrupt, "{error}");
}

#[test]
fn a_configuration_has_its_digest_in_its_name() {
    let hex = hex(b"x");
    for name in [format!("{hex}.json"), format!("sha256:{hex}"), format!("blobs/sha256/{hex}")] {
        assert_eq!(digest_in_name(&name), Some(format!("sha256:{hex}")), "{name}");
    }
    assert_eq!((digest_in_name("config.json"), digest_in_name("")), (None, None));
}
