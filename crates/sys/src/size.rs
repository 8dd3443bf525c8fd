//! How large the host is: processors that are online, and memory.

use std::fs;
use std::io;

use bulkhead_core::units::Bytes;
use rustix::system::sysinfo;

use crate::roots::Roots;

/// Number of processors that are online (`/sys/devices/system/cpu/online`), whatever this process may use of them.
///
/// # Errors
/// The operating system's; `InvalidData` for a list that is none.
pub fn cpus(roots: &Roots) -> io::Result<u32> {
    let text = fs::read_to_string(roots.sys.join("devices/system/cpu/online"))?;
    count(text.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no list of numbers")))
}

/// Memory that the kernel manages (sysinfo(2)).
#[must_use]
pub fn memory() -> Bytes {
    let info = sysinfo();
    Bytes(u64::from(info.mem_unit).saturating_mul(info.totalram))
}

/// The number of items of a list like `0-3,8`.
fn count(list: &str) -> Option<u32> {
    let mut n: u32 = 0;
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        n = n.checked_add(to.checked_sub(from)?.checked_add(1)?)?;
    }
    Some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        assert!(cpus(&roots).is_err());
        fs::create_dir_all(roots.sys.join("devices/system/cpu")).unwrap();
        for (list, n) in [("0\n", Some(1)), ("0-3,8\n", Some(5)), ("3-0", None), ("", None), ("0-x", None)] {
            fs::write(roots.sys.join("devices/system/cpu/online"), list).unwrap();
            assert_eq!(cpus(&roots).ok(), n, "{list:?}");
        }
        assert!(memory().0 > 0);
    }
}
