//! Whether the kernel uses SELinux. Does not: read or load policies, or labels of files.

use std::fs;
use std::io;

use crate::probe::lists_file_system;
use crate::roots::Roots;

/// The mount option that gives all files of a file system one context (kernel `CONTEXT_STR`).
pub const CONTEXT_OPTION: &str = "context";

/// Whether SELinux was enabled at the boot, by its file system, which is registered only then (kernel `init_sel_fs`). A policy need not be
/// loaded.
///
/// # Errors
/// When `/proc/filesystems` cannot be read.
pub fn is_enabled(roots: &Roots) -> io::Result<bool> {
    fs::read_to_string(roots.proc.join("filesystems")).map(|text| lists_file_system(&text, "selinuxfs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_enabled_where_its_file_system_is_registered() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::host() };
        assert!(is_enabled(&roots).is_err());
        for (text, enabled) in [("nodev\tselinuxfs\n\text4\n", true), ("nodev\tproc\n\text4\n", false), ("", false)] {
            fs::write(dir.path().join("filesystems"), text).unwrap();
            assert_eq!(is_enabled(&roots).unwrap(), enabled, "{text:?}");
        }
    }
}
