//! Requests of container engines to the volume plugin.

use bulkhead_docker::options::{self, KNOWN, Source};
use bulkhead_docker::protocol::{Create, Named, Use};

/// Reads a request of each kind. What a volume's options are accepted for is in range, and an error names one of the options.
pub fn docker(bytes: &[u8]) {
    let _ = serde_json::from_slice::<Named>(bytes);
    let _ = serde_json::from_slice::<Use>(bytes);
    let Ok(request) = serde_json::from_slice::<Create>(bytes) else { return };
    match options::parse(&request.opts) {
        Ok(options) => {
            assert!(request.opts.keys().all(|key| KNOWN.contains(&key.as_str())), "an unknown option was accepted");
            if let Source::Empty { size: Some(size), .. } = options.source {
                assert!(size.0 > 0, "a volume of size 0 was accepted");
            }
        }
        Err(fault) => {
            let names = |key: &String| fault.object == format!("option {key:?}");
            assert!(request.opts.keys().any(names), "{fault} names none of the options");
        }
    }
}
