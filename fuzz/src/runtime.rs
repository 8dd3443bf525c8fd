//! What an engine hands to the OCI runtime: arguments, and the configuration of a container.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use bulkhead_core::name::Name;
use bulkhead_runtime::arguments;
use bulkhead_runtime::parent::DefaultParent;
use bulkhead_runtime::spec::Spec;

/// Reads lines of arguments up to an empty one, and the rest as a configuration. A container that is moved is in the slice of its tenant under
/// its own name, and nothing else of its configuration changes.
pub fn runtime(bytes: &[u8]) {
    let split = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
    let (arguments, text) = bytes.split_at(split);
    let words: Vec<OsString> =
        arguments.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec())).collect();
    let Some(container) = arguments::parse(&words).container else { return };
    let Ok(spec) = std::str::from_utf8(text).map(str::trim_start).map(Spec::parse) else { return };
    let Ok(spec) = spec else { return };
    let _ = spec.sources().count();
    let Ok(Some(path)) = spec.cgroups_path() else { return };
    let Some(parent) = container.id.to_str().and_then(|id| DefaultParent::parse(&path, id)) else { return };
    let tenant: Name = "my-db".parse().expect("it is a valid name");
    let moved = parent.in_slice_of(&tenant);
    let is_in_slice = ["bulkhead-my\\x2ddb.slice:", "/bulkhead.slice/bulkhead-my\\x2ddb.slice/"]
        .iter()
        .any(|slice| moved.starts_with(slice));
    let name = |path: &str| path.rsplit([':', '/']).next().map(str::to_owned);
    assert!(is_in_slice && name(&moved) == name(&path), "{path} became {moved}");
    let changed = spec.with_cgroups_path(&moved).expect("it has a path");
    let changed = Spec::parse(&changed).expect("it is a configuration still");
    assert_eq!(changed.cgroups_path().ok().flatten().as_deref(), Some(&*moved));
    assert!(changed.sources().eq(spec.sources()), "its mounts changed");
}
