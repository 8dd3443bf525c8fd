//! On a host whose settings are those in its facts.

use bulkhead_core::facts::{Device, DeviceKind, Image, Mount};
use bulkhead_core::fix::Setting;
use bulkhead_core::units::DevNo;

use super::*;

/// What goes wrong.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Trouble {
    #[default]
    None,
    /// A scheduler cannot be set.
    Refused,
    /// A scheduler is set, and the finding remains.
    Ignored,
    /// Somebody else sets another one before the first change.
    Race,
}

struct FakeHost {
    facts: Facts,
    trouble: Trouble,
    boot: &'static str,
}

impl FakeHost {
    /// A loop device with a scheduler, below a file system that is mounted with `sync`.
    fn new(trouble: Trouble) -> Self {
        let dev = DevNo::new(7, 0);
        let image = Image { path: "/image".to_owned(), direct: Some(true), ..Image::default() };
        let device = Device {
            name: "loop0".to_owned(),
            dev,
            kind: DeviceKind::Loop,
            image: Some(image),
            scheduler: Some("bfq".to_owned()),
            ..Device::default()
        };
        let options = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let mount = Mount {
            dev,
            fs_type: "ext2".to_owned(),
            at: "/mnt".to_owned(),
            root: "/".to_owned(),
            options: options(&["rw", "relatime"]),
            fs_options: options(&["rw", "sync"]),
        };
        Self { facts: Facts { mounts: vec![mount], devices: vec![device], ..Facts::default() }, trouble, boot: "1" }
    }

    fn settings(&self) -> (String, bool) {
        (self.facts.devices[0].scheduler.clone().unwrap(), self.facts.mounts[0].has("sync"))
    }
}

impl Host for FakeHost {
    fn facts(&mut self) -> Facts {
        self.facts.clone()
    }

    fn apply(&mut self, change: &Change) -> Result<bool, FixError> {
        if let Setting::Scheduler { .. } = change.setting {
            let scheduler = self.facts.devices[0].scheduler.as_mut().unwrap();
            match self.trouble {
                Trouble::Refused => return Err(FixError::NotChanged { found: scheduler.clone() }),
                Trouble::Ignored => return Ok(true),
                Trouble::Race => "kyber".clone_into(scheduler),
                Trouble::None => (),
            }
            self.trouble = Trouble::None;
            if *scheduler != change.from {
                return Err(FixError::Changed { found: scheduler.clone(), expected: change.from.clone() });
            }
            scheduler.clone_from(&change.to);
        } else {
            self.facts.mounts[0].fs_options = vec!["rw".to_owned(), change.to.clone()];
        }
        Ok(true)
    }

    fn boot(&self) -> String {
        self.boot.to_owned()
    }
}

fn fix(host: &mut FakeHost, path: &Path) -> Result<usize, String> {
    let record = Record::load(path).unwrap();
    Fixer { host, record, path }.fix().map(|steps| steps.len()).map_err(|fault| fault.cause)
}

fn undo(host: &mut FakeHost, path: &Path) -> Vec<String> {
    let record = Record::load(path).unwrap();
    Fixer { host, record, path }.take_back(0)
}

fn record() -> (tempfile::TempDir, PathBuf) {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("fixes.json");
    (base, path)
}

#[test]
fn what_is_fixed_can_be_undone() {
    let (_base, path) = record();
    let mut host = FakeHost::new(Trouble::None);
    assert_eq!(fix(&mut host, &path), Ok(2));
    assert_eq!(host.settings(), ("none".to_owned(), false));
    assert_eq!(fix(&mut host, &path), Ok(0), "there is nothing left to fix");
    assert_eq!(Record::load(&path).unwrap().made.len(), 2);
    assert_eq!(undo(&mut host, &path), [""; 0]);
    assert_eq!(host.settings(), ("bfq".to_owned(), true));
    assert!(!path.exists());
}

#[test]
fn a_fix_that_fails_or_does_not_help_is_undone_with_the_others() {
    for (trouble, why) in [(Trouble::Refused, "the kernel has not changed it"), (Trouble::Ignored, "still found")] {
        let (_base, path) = record();
        let mut host = FakeHost::new(trouble);
        let cause = fix(&mut host, &path).unwrap_err();
        assert!(cause.contains(why), "{cause}");
        assert_eq!(host.settings(), ("bfq".to_owned(), true), "{cause}");
    }
}

#[test]
fn a_host_that_changes_meanwhile_is_planned_for_again() {
    let (_base, path) = record();
    let mut host = FakeHost::new(Trouble::Race);
    assert_eq!(fix(&mut host, &path), Ok(2));
    assert_eq!(undo(&mut host, &path), [""; 0]);
    assert_eq!(host.settings(), ("kyber".to_owned(), true), "that of the other one is restored");
}

#[test]
fn what_others_or_a_reboot_have_changed_is_not_undone() {
    let (_base, path) = record();
    let mut host = FakeHost::new(Trouble::None);
    fix(&mut host, &path).unwrap();
    host.facts.devices[0].scheduler = Some("mq-deadline".to_owned());
    assert_eq!(undo(&mut host, &path), [""; 0]);
    assert_eq!(host.settings(), ("mq-deadline".to_owned(), true));
    fix(&mut host, &path).unwrap();
    host.boot = "2";
    assert_eq!(undo(&mut host, &path), [""; 0]);
    assert_eq!(host.settings(), ("none".to_owned(), false));
}

#[test]
fn a_record_that_cannot_be_read_is_refused() {
    let (_base, path) = record();
    assert_eq!(Record::load(&path).unwrap(), Record::default());
    for text in ["", "{}", r#"{"format": 2, "made": []}"#] {
        fs::write(&path, text).unwrap();
        assert_eq!(Record::load(&path).unwrap_err().code, Code::Corrupt, "{text}");
    }
}
