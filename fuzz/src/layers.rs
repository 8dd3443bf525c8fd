//! The attribute of images and layers that names the backing layer (docs/formats/layers.md).

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use bulkhead_formats::layer::{self, LayerError};
use rustix::fs::{XattrFlags, fsetxattr};
use uuid::Uuid;

use crate::input::{Input, scratch};

/// The attributes of an image and of layer `…1`, separated by a zero byte; `@` is replaced by the inode of the file.
pub fn layers(bytes: &[u8]) {
    let mut input = Input(bytes);
    let dir = scratch();
    let image = dir.path().join("v.img");
    let below = layer::layer_path(dir.path(), Uuid::from_u128(1));
    for path in [&image, &below] {
        let file = File::create(path).expect("a file can be created");
        let inode = file.metadata().expect("a file can be examined").ino().to_string();
        let attribute: Vec<u8> = input
            .until(0)
            .iter()
            .flat_map(|byte| if *byte == b'@' { inode.as_bytes() } else { std::slice::from_ref(byte) })
            .copied()
            .collect();
        // Fails for a value that is too long for the file system.
        let _ = fsetxattr(&file, "user.bulkhead.below", &attribute, XattrFlags::empty());
    }
    match layer::chain(&image) {
        Ok(chain) => {
            assert!(chain.is_none_or(|chain| chain.iter().all(|path| *path == below)), "a layer in another place")
        }
        Err(LayerError::File(error)) => panic!("the files exist: {error}"),
        Err(_) => {}
    }
    // An invalid attribute keeps all files.
    let _ = layer::sweep(dir.path(), &[]);
    assert!(image.is_file(), "the image was removed");
}
