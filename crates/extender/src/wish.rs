//! What a pod says of its workload, in a label and annotations.

use std::collections::BTreeMap;
use std::fmt;

use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, Latency, Share};

use crate::protocol::Metadata;

/// The label that names a pod's workload.
pub const WORKLOAD: &str = "bulkhead.dev/workload";
/// The annotations.
pub const SHARE: &str = "bulkhead.dev/share";
/// See [`SHARE`].
pub const FLOOR: &str = "bulkhead.dev/floor";
/// See [`SHARE`].
pub const FSYNC_P99: &str = "bulkhead.dev/fsync-p99";
/// See [`SHARE`].
pub const SPACE: &str = "bulkhead.dev/space";
/// See [`SHARE`].
pub const POOL: &str = "bulkhead.dev/pool";

/// What a pod asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// The workload that it is a copy of.
    pub workload: String,
    /// Its share of a device, in the unit of `io.weight`.
    pub share: f64,
    /// Lowest normalised throughput, 0 to 1; `None`: the cluster's.
    pub floor: Option<f64>,
    /// Highest 99th percentile of its fsyncs, seconds.
    pub fsync_p99: Option<f64>,
    /// Space of its volumes.
    pub space: Bytes,
    /// The pool that its volumes are in.
    pub pool: Option<Name>,
}

/// An annotation that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAnnotation {
    /// Its key.
    pub key: &'static str,
    /// What is wrong.
    pub cause: String,
    /// What can stand there.
    pub hint: &'static str,
}

impl fmt::Display for BadAnnotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "annotation {}: {} ({})", self.key, self.cause, self.hint)
    }
}

impl Wish {
    /// What a pod asks for; `None` without the label.
    ///
    /// # Errors
    /// The first annotation that cannot be used.
    pub fn of(metadata: &Metadata) -> Result<Option<Self>, BadAnnotation> {
        let Some(workload) = metadata.labels.get(WORKLOAD) else { return Ok(None) };
        let of = &metadata.annotations;
        let floor = parsed(of, FLOOR, "a number from 0 to 1", |text| {
            text.parse().ok().filter(|floor| (0.0..=1.0).contains(floor)).ok_or_else(|| format!("{text:?} is none"))
        })?;
        let latency = |text: &str| text.parse().map(|latency: Latency| latency.us() as f64 / 1e6);
        Ok(Some(Self {
            workload: workload.clone(),
            share: parsed(of, SHARE, "a number from 1 to 10000", |text| text.parse::<Share>())?
                .map_or(100.0, |share| f64::from(u32::from(share))),
            floor,
            fsync_p99: parsed(of, FSYNC_P99, "a time like 20ms", latency)?,
            space: parsed(of, SPACE, "a size like 100G", |text| text.parse())?.unwrap_or(Bytes(0)),
            pool: parsed(of, POOL, "the name of a pool", |text| text.parse())?,
        }))
    }
}

fn parsed<T, E: fmt::Display>(
    annotations: &BTreeMap<String, String>,
    key: &'static str,
    hint: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, BadAnnotation> {
    let Some(text) = annotations.get(key) else { return Ok(None) };
    parse(text.trim()).map(Some).map_err(|error| BadAnnotation { key, cause: error.to_string(), hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(annotations: &[(&str, &str)]) -> Result<Option<Wish>, String> {
        let pairs = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let labels = [(WORKLOAD.to_owned(), "mysql".to_owned())].into();
        Wish::of(&Metadata { labels, annotations: pairs.collect(), ..Metadata::default() })
            .map_err(|bad| bad.to_string())
    }

    #[test]
    fn a_pods_wishes_are_its_label_and_annotations() {
        assert_eq!(Wish::of(&Metadata::default()), Ok(None));
        let plain = wish(&[]).unwrap().unwrap();
        assert_eq!((plain.workload.as_str(), plain.share, plain.floor, plain.space), ("mysql", 100.0, None, Bytes(0)));
        let all = [(SHARE, "300"), (FLOOR, "0.5"), (FSYNC_P99, "20ms"), (SPACE, "1G"), (POOL, "fast"), ("other", "x")];
        let all = wish(&all).unwrap().unwrap();
        assert_eq!((all.share, all.floor, all.fsync_p99), (300.0, Some(0.5), Some(0.02)));
        assert_eq!((all.space, all.pool.unwrap().as_str()), (Bytes::mib(1024), "fast"));
    }

    #[test]
    fn what_cannot_be_used_is_named_with_key_and_hint() {
        for (key, value, message) in [
            (FLOOR, "2", "annotation bulkhead.dev/floor: \"2\" is none (a number from 0 to 1)"),
            (FLOOR, "nan", "annotation bulkhead.dev/floor: \"nan\" is none (a number from 0 to 1)"),
            (SHARE, "0", "annotation bulkhead.dev/share: "),
            (FSYNC_P99, "soon", "annotation bulkhead.dev/fsync-p99: "),
            (SPACE, "1X", "annotation bulkhead.dev/space: "),
            (POOL, "../x", "annotation bulkhead.dev/pool: "),
        ] {
            let found = wish(&[(key, value)]).unwrap_err();
            assert!(found.starts_with(message), "{found}");
        }
    }
}
