//! A cache of state files that have not changed: without it, a periodic check would read and decode all of them each time.
//!
//! An entry is valid only while the file's inode number, size and change time are the same ([`Stamp`]); so the result is always that of
//! reading the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bulkhead_core::action::Record;
use bulkhead_core::error::Fault;
use bulkhead_sys::file::Stamp;

use crate::host::Records;

/// The records of one kind in a directory, as last listed, with their stamps.
#[derive(Debug, Default)]
struct Known {
    /// `None` if a change might go undetected: the record is read again.
    stamps: Vec<Option<Stamp>>,
    all: Records,
}

/// Cached records, by directory and file suffix.
#[derive(Debug, Default)]
pub(super) struct KnownRecords(Mutex<BTreeMap<(PathBuf, String), Arc<Known>>>);

impl KnownRecords {
    /// The records in these files, which are all of their kind in `dir`, sorted by name. `read` reads those that are not cached; it returns
    /// `None` for a file that is gone. Damaged files are read each time. While nothing changes, the same `Arc` is returned.
    pub(super) fn list(
        &self,
        dir: &Path,
        suffix: &str,
        paths: impl Iterator<Item = PathBuf>,
        read: impl Fn(&Path) -> Option<Result<Record, Fault>>,
    ) -> Records {
        let key = (dir.to_owned(), suffix.to_owned());
        // Not locked meanwhile: concurrent listings work independently.
        let before = self.cache().get(&key).cloned().unwrap_or_default();
        // Before the files are read, so that a later change is detected by the next listing.
        let stamped = |path: PathBuf| {
            let stamp = Stamp::read(&path);
            (path, stamp)
        };
        let files: Vec<(PathBuf, Option<Stamp>)> = paths.map(stamped).collect();
        let mut known_before = before.all.iter().zip(&before.stamps).peekable();
        let is_as_before = |(path, stamp): &(PathBuf, Option<Stamp>), known: &PathBuf, as_before: &Option<Stamp>| {
            known == path && as_before.is_some() && as_before == stamp
        };
        let mut pairs = files.iter().zip(known_before.clone());
        if files.len() == before.all.len() && pairs.all(|(file, ((known, _), stamp))| is_as_before(file, known, stamp))
        {
            return Arc::clone(&before.all);
        }
        let (mut stamps, mut all, now) = (Vec::new(), Vec::new(), SystemTime::now());
        for file in files {
            while known_before.next_if(|((known, _), _)| known.as_os_str() < file.0.as_os_str()).is_some() {}
            let known = known_before.next_if(|((known, _), _)| *known == file.0);
            let as_before = known.filter(|((known, _), stamp)| is_as_before(&file, known, stamp));
            let (path, stamp) = file;
            let record = match as_before {
                Some(((_, record), _)) => record.clone(),
                None => match read(&path) {
                    None => continue,
                    Some(record) => record,
                },
            };
            stamps.push(stamp.filter(|stamp| record.is_ok() && stamp.is_settled(now)));
            all.push((path, record));
        }
        let all = Arc::new(all);
        self.cache().insert(key, Arc::new(Known { stamps, all: Arc::clone(&all) }));
        all
    }

    fn cache(&self) -> MutexGuard<'_, BTreeMap<(PathBuf, String), Arc<Known>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::{self, File, FileTimes};
    use std::time::Duration;

    use bulkhead_core::error::Code;
    use bulkhead_core::model::{Pool, PoolSource, Server};
    use bulkhead_sys::process;
    use uuid::Uuid;

    use super::*;
    use crate::store;

    fn record(name: &str) -> Record {
        Record::Pool(Pool {
            name: name.parse().unwrap(),
            uuid: Uuid::from_u128(7),
            source: PoolSource::File { directory: "/srv".into(), server: Server::Auto },
        })
    }

    /// Lists a directory; returns the files that were read, too.
    fn list(known: &KnownRecords, dir: &Path, names: &[&str]) -> (Records, Vec<String>) {
        let were_read = RefCell::new(Vec::new());
        let all = known.list(dir, "", names.iter().map(|name| dir.join(name)), |path| {
            were_read.borrow_mut().push(path.file_name()?.to_str()?.to_owned());
            Some(store::decode(path, &fs::read(path).ok()?))
        });
        (all, were_read.into_inner())
    }

    fn settled() {
        process::pause(Duration::from_millis(1100));
    }

    #[test]
    fn a_record_is_read_again_only_when_it_has_changed() {
        let (dir, known) = (tempfile::tempdir().unwrap(), KnownRecords::default());
        let path = |name: &str| dir.path().join(name);
        for name in ["a", "b"] {
            fs::write(path(name), store::encode(&record(name))).unwrap();
        }
        let names = ["a", "b", "gone"];
        let (all, were_read) = list(&known, dir.path(), &names);
        assert_eq!(*all, [(path("a"), Ok(record("a"))), (path("b"), Ok(record("b")))]);
        assert_eq!(were_read, names);
        // A change in the same tick of the clock might go undetected.
        assert_eq!(list(&known, dir.path(), &names).1, names);
        settled();
        assert_eq!(list(&known, dir.path(), &names[..2]).1, ["a", "b"]);
        let (settled_all, were_read) = list(&known, dir.path(), &names[..2]);
        assert_eq!((&settled_all, were_read), (&all, Vec::new()));
        assert!(Arc::ptr_eq(&settled_all, &list(&known, dir.path(), &names[..2]).0), "nothing has changed");
        // A file that appears before, between or after the others, and disappears, changes none of them.
        for name in ["0", "aa", "z"] {
            fs::write(path(name), store::encode(&record(name))).unwrap();
            let mut with = vec![name, "a", "b"];
            with.sort_unstable();
            assert_eq!(list(&known, dir.path(), &with).1, [name]);
            assert_eq!(list(&known, dir.path(), &names[..2]), (Arc::clone(&all), Vec::new()));
        }
        // Same size and modification time.
        let old = fs::metadata(path("a")).unwrap().modified().unwrap();
        fs::write(path("a"), store::encode(&record("c"))).unwrap();
        File::options().write(true).open(path("a")).unwrap().set_times(FileTimes::new().set_modified(old)).unwrap();
        let (changed, were_read) = list(&known, dir.path(), &names[..2]);
        assert_eq!((&changed[0], were_read), (&(path("a"), Ok(record("c"))), vec!["a".to_owned()]));
        fs::write(path("b"), "damaged").unwrap();
        settled();
        for _ in 0..2 {
            let (damaged, were_read) = list(&known, dir.path(), &["b"]);
            assert_eq!(damaged[0].1.as_ref().map_err(|fault| fault.code), Err(Code::Corrupt));
            assert_eq!(were_read, ["b"]);
        }
    }
}
