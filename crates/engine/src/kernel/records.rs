//! State files that have not changed since they were read: a periodic check would read and decode all of them each time.
//!
//! A file is believed to hold what it held only while its number, size and time of change are the same ([`Stamp`]); so this never gives
//! anything else than reading it would.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use bulkhead_core::action::Record;
use bulkhead_core::error::Fault;
use bulkhead_sys::file::Stamp;

use crate::host::Records;

/// The records of one kind in a directory, by their files.
type Known = BTreeMap<PathBuf, (Stamp, Record)>;

/// What was read before, by directory and by how the names of the files end.
#[derive(Debug, Default)]
pub(super) struct KnownRecords(Mutex<BTreeMap<(PathBuf, String), Known>>);

impl KnownRecords {
    /// The records in these files, which are all of their kind in `dir`; `read` reads those that are not known, and gives `None` for one
    /// that is gone. What is damaged is read each time.
    pub(super) fn all(
        &self,
        dir: &Path,
        suffix: &str,
        paths: impl Iterator<Item = PathBuf>,
        read: impl Fn(&Path) -> Option<Result<Record, Fault>>,
    ) -> Records {
        let key = (dir.to_owned(), suffix.to_owned());
        // Not locked meanwhile: who lists the same at the same time reads it all.
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key).unwrap_or_default();
        let (mut known, mut all) = (Known::new(), Records::new());
        let now = SystemTime::now();
        for path in paths {
            // Before it is read: what changes then is seen the next time.
            let stamp = Stamp::of(&path);
            let record = match before.remove(&path) {
                Some((as_before, record)) if stamp == Some(as_before) => Ok(record),
                _ => match read(&path) {
                    None => continue,
                    Some(record) => record,
                },
            };
            if let (Some(stamp), Ok(record)) = (stamp.filter(|stamp| stamp.is_settled(now)), &record) {
                known.insert(path.clone(), (stamp, record.clone()));
            }
            all.push((path, record));
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, known);
        all
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

    /// Lists a directory, and says which files were read.
    fn list(known: &KnownRecords, dir: &Path, names: &[&str]) -> (Records, Vec<String>) {
        let were_read = RefCell::new(Vec::new());
        let all = known.all(dir, "", names.iter().map(|name| dir.join(name)), |path| {
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
        assert_eq!(all, [(path("a"), Ok(record("a"))), (path("b"), Ok(record("b")))]);
        assert_eq!(were_read, names);
        // A change in the same tick of the clock might not be seen.
        assert_eq!(list(&known, dir.path(), &names).1, names);
        settled();
        assert_eq!(list(&known, dir.path(), &names[..2]).1, ["a", "b"]);
        let (again, were_read) = list(&known, dir.path(), &names[..2]);
        assert_eq!((again, were_read), (all, Vec::new()));
        // As long as before, and made to look as old.
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
