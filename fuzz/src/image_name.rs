//! Names of images in a container runtime.

use bulkhead_export::{parse, unknown_transport};

/// Interprets its input as the source of an import.
///
/// # Panics
/// If a name has characters that change a request, or is not read again as it is written.
pub fn image_name(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let _ = unknown_transport(source);
    match parse(source) {
        Ok(None) => {}
        Ok(Some(image)) => {
            assert!(!image.name().contains(['?', '#', '%', ' ', '\r', '\n', '\\']), "{image}");
            assert!(!format!("/{}/", image.name()).contains("/../"), "{image}");
            assert_eq!(parse(&image.to_string()), Ok(Some(image.clone())));
            let _ = image.in_namespace(source);
        }
        Err(error) => assert!(error.fault(source).hint.contains("./"), "{error}"),
    }
}
