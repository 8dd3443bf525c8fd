//! The attribute of images and layers that says what is below (docs/formats/layers.md).

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use bulkhead_formats::layer::{self, LayerError};
use rustix::fs::{XattrFlags, fsetxattr};
use uuid::Uuid;

use crate::input::{Input, scratch};

/// What the attributes of an image and of the layer `…1` say, with a zero between; `@` stands for the inode of the file.
pub fn layers(bytes: &[u8]) {
    let mut input = Input(bytes);
    let dir = scratch();
    let image = dir.path().join("v.img");
    let below = layer::layer_path(dir.path(), Uuid::from_u128(1));
    for path in [&image, &below] {
        let file = File::create(path).expect("a file can be made");
        let inode = file.metadata().expect("it can be looked at").ino().to_string();
        let said: Vec<u8> = input
            .until(0)
            .iter()
            .flat_map(|byte| if *byte == b'@' { inode.as_bytes() } else { std::slice::from_ref(byte) })
            .copied()
            .collect();
        // One that is too long for the file system cannot be met.
        let _ = fsetxattr(&file, "user.bulkhead.below", &said, XattrFlags::empty());
    }
    match layer::chain(&image) {
        Ok(chain) => assert!(chain.is_none_or(|chain| chain.iter().all(|path| *path == below)), "a layer elsewhere"),
        Err(LayerError::File(error)) => panic!("the files are there: {error}"),
        Err(_) => {}
    }
    // What cannot be understood keeps everything that it could need.
    let _ = layer::sweep(dir.path(), &[]);
    assert!(image.is_file(), "the image was swept away");
}
