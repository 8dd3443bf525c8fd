//! The protocol of the peer reader with block servers and the daemon.

use bulkhead_formats::index::FileId;
use bulkhead_formats::peers::{Answer, Found, Hello, Read};

/// A packet.
pub fn peers(bytes: &[u8]) {
    if let Some(read) = Read::decode(bytes) {
        assert_eq!(read.encode(), *bytes, "a read has bytes that are not decoded");
        assert!(read.block.checked_add(u64::from(read.count)).and_then(|end| end.checked_mul(4096)).is_some());
    }
    if let Some(found) = Found::decode(bytes) {
        assert_eq!(Found::decode(&found.encode()), Some(found));
    }
    if let Ok(hello) = serde_json::from_slice::<Hello>(bytes) {
        let text = serde_json::to_vec(&hello).expect("a decoded message can be encoded");
        assert_eq!(serde_json::from_slice::<Hello>(&text).ok(), Some(hello));
    }
    let _ = serde_json::from_slice::<Answer>(bytes);
    for kind in [1, 0x81] {
        if let Some(file) = FileId::from_handle(kind, bytes) {
            assert_eq!(file.handle(kind).as_deref(), Some(bytes));
        }
    }
}
