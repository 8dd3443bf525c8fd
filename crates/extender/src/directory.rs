//! Demands and reports as files: `WORKLOAD.json` and `NODE.json`.
//!
//! A file that cannot be used is an item of its own, and hides no other.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bulkhead_core::demand::Demand;
use bulkhead_core::report::{HostReport, MAX_BYTES};

/// Largest file that is read, in bytes.
const LIMIT: u64 = 4 * MAX_BYTES as u64;

/// The demands of workloads, and the files that cannot be used with the reasons.
///
/// # Errors
/// When the directory cannot be listed.
pub fn demands(directory: &Path) -> io::Result<(BTreeMap<String, Demand>, Vec<String>)> {
    read(directory, |text| {
        let demand: Demand = serde_json::from_str(text).map_err(|error| error.to_string())?;
        demand.check().map_err(|error| error.to_string())?;
        Ok(demand)
    })
}

/// The reports of nodes, and the files that cannot be used with the reasons.
///
/// # Errors
/// When the directory cannot be listed.
pub fn reports(directory: &Path) -> io::Result<(BTreeMap<String, HostReport>, Vec<String>)> {
    read(directory, |text| HostReport::parse(text).map_err(|error| error.to_string()))
}

fn read<T>(
    directory: &Path,
    parse: impl Fn(&str) -> Result<T, String>,
) -> io::Result<(BTreeMap<String, T>, Vec<String>)> {
    let (mut found, mut unusable) = (BTreeMap::new(), Vec::new());
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        // Not the `..data` of a mounted ConfigMap.
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".json"));
        let Some(name) = name.filter(|name| !name.starts_with('.') && !name.is_empty()) else { continue };
        match text_of(&path).and_then(|text| parse(&text)) {
            Ok(value) => drop(found.insert(name.to_owned(), value)),
            Err(cause) => unusable.push(format!("{}: {cause}", path.display())),
        }
    }
    unusable.sort();
    Ok((found, unusable))
}

fn text_of(path: &Path) -> Result<String, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > LIMIT {
        return Err(format!("it has {size} bytes, more than {LIMIT}"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("mysql.json", r#"{"clients": 4, "cpu-seconds": 0.001}"#),
            ("idle.json", r#"{"clients": 4, "cpu-seconds": 0}"#),
            ("notes.txt", "x"),
            (".hidden.json", "x"),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let (found, unusable) = demands(dir.path()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["mysql"]);
        assert!(unusable.len() == 1 && unusable[0].contains("idle.json: cpu-seconds: "), "{unusable:?}");
        let (found, unusable) = reports(dir.path()).unwrap();
        assert!(found.is_empty() && unusable.len() == 2, "{unusable:?}");
        assert!(demands(&dir.path().join("none")).is_err());
    }
}
