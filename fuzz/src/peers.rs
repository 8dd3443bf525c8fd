//! What block servers, the daemon and the process that reads peers say to each other.

use bulkhead_formats::index::FileId;
use bulkhead_formats::peers::{Answer, Found, Hello, Read};

/// A packet.
pub fn peers(bytes: &[u8]) {
    if let Some(read) = Read::decode(bytes) {
        assert_eq!(read.encode(), *bytes, "a read says more than it says");
        assert!(read.block.checked_add(u64::from(read.count)).and_then(|end| end.checked_mul(4096)).is_some());
    }
    if let Some(found) = Found::decode(bytes) {
        assert_eq!(Found::decode(&found.encode()), Some(found));
    }
    if let Ok(hello) = serde_json::from_slice::<Hello>(bytes) {
        let text = serde_json::to_vec(&hello).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<Hello>(&text).ok(), Some(hello));
    }
    let _ = serde_json::from_slice::<Answer>(bytes);
    for kind in [1, 0x81] {
        if let Some(file) = FileId::from_handle(kind, bytes) {
            assert_eq!(file.handle(kind).as_deref(), Some(bytes));
        }
    }
}
