use super::*;
use crate::error::shown;
use crate::store::format_digest;
use crate::testing::{LAYER, blob, complete, contents, image, index, named, reason};
use bulkhead_core::error::Code;
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

fn options(platform: &str, reference: Option<&str>) -> StageOptions {
    StageOptions { platform: platform.parse().unwrap(), reference: reference.map(str::to_owned), strict: false }
}

fn made(make: impl FnOnce(&Path) -> Vec<Value>) -> (TempDir, Layout) {
    let dir = tempfile::tempdir().unwrap();
    let manifests = make(dir.path());
    complete(dir.path(), &manifests);
    let layout = opened(dir.path()).unwrap();
    (dir, layout)
}

fn opened(path: &Path) -> Result<Layout, Store> {
    Layout::open(Store::open(path, "it").unwrap())
}

/// The contents of the selected layers.
fn chosen(layout: &Layout, options: &StageOptions) -> Vec<String> {
    contents(&layout.store, &layout.layers(options).unwrap())
}

fn refused(layout: &Layout, options: &StageOptions) -> ImageError {
    reason(layout.layers(options))
}

#[test]
fn images_are_selected_by_platform_and_name() {
    let (_dir, layout) = made(|at| {
        let of = |platform: &str, name: &str| {
            image(at, platform, &[blob(at, LAYER, name.as_bytes()), blob(at, LAYER, b"top")])
        };
        let with_platform = |mut image: Value, platform: Value| {
            image["platform"] = platform;
            image
        };
        let attested = json!({"os": "unknown", "architecture": "unknown"});
        let inner = index(at, &[of("linux/arm64", "old arm"), with_platform(of("linux/amd64", "attested"), attested)]);
        let seven =
            with_platform(of("linux/arm", "seven"), json!({"os": "linux", "architecture": "arm", "variant": "v7"}));
        let signature = blob(at, "application/vnd.oci.image.manifest.v1+json", &signature(at));
        vec![
            named(of("linux/amd64", "old"), "1.0"),
            named(inner, "1.0"),
            named(index(at, &[of("linux/amd64", "new"), seven]), "latest"),
            named(signature, "latest"),
        ]
    });
    assert_eq!(chosen(&layout, &options("linux/amd64", Some("1.0"))), ["old", "top"]);
    assert_eq!(chosen(&layout, &options("linux/arm64", None)), ["old arm", "top"]);
    assert_eq!(chosen(&layout, &options("linux/amd64", Some("latest"))), ["new", "top"]);
    assert_eq!(chosen(&layout, &options("linux/arm/v7", None)), ["seven", "top"]);
    match refused(&layout, &options("linux/amd64", None)) {
        ImageError::Ambiguous(found) => {
            assert!(found.contains("1.0 (linux/amd64)") && found.contains("latest (linux/amd64)"), "{found}");
        }
        other => panic!("{other:?}"),
    }
    let none = refused(&layout, &options("linux/riscv64", Some("latest")));
    assert_eq!(
        none,
        ImageError::NoPlatform { wanted: "linux/riscv64".into(), found: "linux/amd64, linux/arm/v7".into() }
    );
    let none = refused(&layout, &options("linux/amd64", Some("2.0")));
    assert_eq!(none, ImageError::NoReference { wanted: "2.0".into(), found: r#""1.0", "latest""#.into() });
}

/// A descriptor with a platform.
fn of(mut image: Value, platform: &str) -> Value {
    let mut parts = platform.split('/');
    image["platform"] = json!({"os": parts.next(), "architecture": parts.next()});
    if let Some(variant) = parts.next() {
        image["platform"]["variant"] = json!(variant);
    }
    image
}

#[test]
fn only_the_selected_image_has_to_exist() {
    let absent = |platform: &str| {
        let digest = format_digest(Sha256::new_with_prefix(platform));
        let kind = "application/vnd.oci.image.manifest.v1+json";
        of(json!({"mediaType": kind, "digest": digest, "size": 400}), platform)
    };
    let (_dir, layout) = made(|at| {
        let there = |name: &str| image(at, "linux/amd64", &[blob(at, LAYER, name.as_bytes())]);
        let mut attestation = there("attestation");
        attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
        let platforms = [
            absent("linux/arm64/v8"),
            of(there("ours"), "linux/amd64"),
            absent("linux/386"),
            absent("linux/riscv64"),
            of(there("mips"), "linux/mips64le"),
            of(there("unknown"), "unknown/unknown"),
            attestation,
        ];
        vec![named(index(at, &[index(at, &platforms)]), "latest")]
    });
    assert_eq!(chosen(&layout, &options("linux/x86_64", None)), ["ours"]);
    assert_eq!(chosen(&layout, &options("linux/amd64", Some("latest"))), ["ours"]);
    // Missing images are not listed as candidates.
    let none = ImageError::NoPlatform { wanted: "linux/arm64".into(), found: "linux/amd64, linux/mips64le".into() };
    assert_eq!(refused(&layout, &options("linux/arm64", None)), none);
    let (_dir, layout) = made(|at| vec![index(at, &[absent("linux/amd64"), absent("linux/arm64")])]);
    let ImageError::Missing(missing) = refused(&layout, &options("linux/amd64", None)) else {
        panic!("something else")
    };
    assert!(missing.starts_with("sha256:"), "{missing}");
    assert_eq!(refused(&layout, &options("linux/s390x", None)), ImageError::Empty);
    // The selected image has to be complete.
    let (dir, layout) = made(|at| vec![of(image(at, "linux/amd64", &[blob(at, LAYER, b"layer")]), "linux/amd64")]);
    let layers = layout.layers(&options("linux/amd64", None)).unwrap();
    fs::remove_file(dir.path().join(&layers[0].path)).unwrap();
    let ExpectedDigest::File(missing) = layers[0].digest.clone() else { panic!("{layers:?}") };
    assert_eq!(refused(&layout, &options("linux/amd64", None)), ImageError::Missing(missing));
}

#[test]
fn the_best_match_of_one_name_is_selected() {
    let (_dir, layout) = made(|at| {
        let of = |platform: &str| of(image(at, "linux/any", &[blob(at, LAYER, platform.as_bytes())]), platform);
        let arm = [of("linux/arm/v5"), of("linux/arm/v7"), of("linux/arm/v6"), of("linux/arm64/v8"), of("linux/386")];
        let rest = [of("linux/amd64"), of("linux/amd64/v2"), of("linux/amd64/v4")];
        vec![index(at, &arm), index(at, &rest)]
    });
    for (platform, best) in [
        ("linux/arm", "linux/arm/v7"),
        ("linux/arm/v6", "linux/arm/v6"),
        ("linux/arm64", "linux/arm64/v8"),
        ("linux/amd64", "linux/amd64"),
        ("linux/amd64/v3", "linux/amd64/v2"),
        ("linux/i386", "linux/386"),
    ] {
        assert_eq!(chosen(&layout, &options(platform, None)), [best], "{platform}");
    }
    // Images with several names are ambiguous.
    let (_dir, layout) = made(|at| {
        let of = |platform: &str| of(image(at, "linux/any", &[blob(at, LAYER, platform.as_bytes())]), platform);
        vec![
            named(of("linux/386"), "old"),
            named(of("linux/amd64"), "new"),
            named(of("linux/arm/v6"), "six"),
            named(of("linux/arm/v7"), "seven"),
        ]
    });
    assert!(matches!(refused(&layout, &options("linux/arm/v7", None)), ImageError::Ambiguous(_)));
    // Another architecture is selected only if there is no alternative.
    assert_eq!(chosen(&layout, &options("linux/amd64", None)), ["linux/amd64"]);
    assert_eq!(chosen(&layout, &options("linux/amd64", Some("old"))), ["linux/386"]);
}

fn signature(at: &Path) -> Vec<u8> {
    let config = blob(at, "application/vnd.oci.empty.v1+json", b"{}");
    json!({"schemaVersion": 2, "config": config, "layers": []}).to_string().into_bytes()
}

#[test]
fn one_image_with_two_names_is_not_ambiguous() {
    let (_dir, layout) = made(|at| {
        let one = image(at, "linux/amd64", &[blob(at, LAYER, b"one")]);
        vec![named(one.clone(), "1.0"), named(one, "latest")]
    });
    assert_eq!(chosen(&layout, &options("linux/amd64", None)), ["one"]);
    let (_dir, layout) = made(|_| Vec::new());
    assert_eq!(refused(&layout, &options("linux/amd64", None)), ImageError::Empty);
    assert!(opened(tempfile::tempdir().unwrap().path()).is_err());
}

#[test]
fn unsupported_layers_are_refused_by_media_type() {
    for (kind, code) in [
        ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", "is encrypted"),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", "is not distributed"),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "is not distributed"),
        ("application/vnd.oci.image.layer.v1.erofs", "is of type"),
        ("", "is of type"),
    ] {
        let (_dir, layout) = made(|at| vec![image(at, "linux/amd64", &[blob(at, kind, b"x")])]);
        let error = layout.layers(&options("linux/amd64", None)).unwrap_err();
        assert!(error.to_string().contains(code) && error.code() == Code::Unsupported, "{error}");
    }
}

#[test]
fn blobs_that_do_not_match_their_descriptor_are_refused() {
    let any = options("linux/amd64", None);
    let good = |at: &Path| image(at, "linux/amd64", &[blob(at, LAYER, b"x")]);
    let path_of = |at: &Path, found: &Value| {
        at.join("blobs/sha256").join(found["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap())
    };
    let (_dir, layout) = made(|at| {
        let found = good(at);
        let path = path_of(at, &found);
        // The length is unchanged.
        let other = fs::read_to_string(&path).unwrap().replace("schemaVersion\":2", "schemaVersion\":3");
        fs::write(path, other).unwrap();
        vec![found]
    });
    assert!(matches!(refused(&layout, &any), ImageError::WrongDigest { .. }));
    let (_dir, layout) = made(|at| {
        let mut found = good(at);
        found["size"] = json!(7);
        vec![found]
    });
    assert!(matches!(refused(&layout, &any), ImageError::WrongSize { wanted: 7, .. }));
    for make in [
        (|path: &Path| fs::remove_file(path).unwrap()) as fn(&Path),
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
        |path| {
            // Must not block.
            fs::remove_file(path).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        },
        |path| {
            // Must not be opened: opening a socket fails.
            fs::remove_file(path).unwrap();
            std::os::unix::net::UnixListener::bind(path).unwrap();
        },
    ] {
        let (_dir, layout) = made(|at| {
            let found = good(at);
            make(&path_of(at, &found));
            vec![found]
        });
        assert!(matches!(refused(&layout, &any), ImageError::Missing(_)));
    }
    for digest in ["sha256:abc", "../../etc/passwd", "sha256:../../../../etc/passwd", "sha512:00", "md5:\x1b"] {
        let (_dir, layout) = made(|_| vec![json!({"mediaType": "x", "digest": digest, "size": 1})]);
        assert_eq!(refused(&layout, &any), ImageError::BadDigest(shown(digest.as_bytes())));
    }
}

#[test]
fn documents_are_bounded_in_size_and_depth() {
    let any = options("linux/amd64", None);
    let (_dir, layout) = made(|at| {
        let mut found = image(at, "linux/amd64", &[blob(at, LAYER, b"x")]);
        for _ in 0..6 {
            found = index(at, &[found]);
        }
        vec![found]
    });
    assert_eq!(refused(&layout, &any), ImageError::Depth);
    // Repeated references are read once.
    let (_dir, layout) = made(|at| {
        let mut found = image(at, "linux/amd64", &[blob(at, LAYER, b"x")]);
        for _ in 0..3 {
            found = index(at, &vec![found; 1000]);
        }
        vec![found]
    });
    assert_eq!(chosen(&layout, &any), ["x"]);
    // Each is within the limit, but not all together.
    let (_dir, layout) = made(|at| {
        let other = |n: u32| {
            let text = format!("{{\"n\": \"{n}{}\"}}", "x".repeat(7 << 20));
            blob(at, "application/vnd.oci.image.manifest.v1+json", text.as_bytes())
        };
        vec![index(at, &(0..10).map(other).collect::<Vec<_>>())]
    });
    assert_eq!(refused(&layout, &any), ImageError::TooMany);
    let (_dir, layout) = made(|at| vec![image(at, "linux/amd64", &vec![blob(at, LAYER, b"x"); 1025])]);
    assert_eq!(refused(&layout, &any), ImageError::Layers { found: 1025, most: 1024 });
    let (_dir, layout) = made(|at| {
        let of = |n: u32| image(at, "linux/amd64", &[blob(at, LAYER, n.to_string().as_bytes())]);
        (0..30).map(of).collect()
    });
    match refused(&layout, &any) {
        ImageError::Ambiguous(found) => assert!(found.ends_with(" and 10 more"), "{found}"),
        other => panic!("{other:?}"),
    }
    let (dir, layout) = made(|_| Vec::new());
    fs::File::create(dir.path().join("index.json")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(refused(&layout, &any), ImageError::TooLarge("index.json".to_owned()));
    for text in ["", "{", "[]", "\u{1b}", &"[".repeat(100_000)] {
        fs::write(dir.path().join("index.json"), text).unwrap();
        match refused(&layout, &any) {
            ImageError::Document { document, cause } => {
                assert!(document == "index.json" && !cause.contains('\u{1b}'), "{cause}");
            }
            other => panic!("{other:?}"),
        }
    }
}
