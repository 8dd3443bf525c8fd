//! Tags, added and removed in one metadata commit, so that the record which they form changes atomically.

use super::command::check_tag;
use super::{Lvm, LvmError};

impl Lvm {
    /// Adds and removes tags of a volume in one metadata commit. Adding an existing tag or removing a missing one succeeds. Without any
    /// tag LVM is not run, since it would refuse the command.
    ///
    /// # Errors
    /// [`LvmError::BadTag`], [`LvmError::NotFound`], [`LvmError::Other`].
    pub fn change_lv_tags(&self, vg: &str, name: &str, add: &[String], remove: &[String]) -> Result<(), LvmError> {
        let words = words("lvchange", add, remove)?;
        if words.len() == 1 {
            return Ok(());
        }
        self.change("tag", vg, name, &words).map(drop)
    }

    /// Adds and removes tags of a group in one metadata commit. Adding an existing tag or removing a missing one succeeds.
    ///
    /// # Errors
    /// As [`Lvm::change_lv_tags`].
    pub fn change_vg_tags(&self, vg: &str, add: &[String], remove: &[String]) -> Result<(), LvmError> {
        let words = words("vgchange", add, remove)?;
        if words.len() == 1 {
            return Ok(());
        }
        self.change_group("tag", vg, &words)
    }
}

fn words<'a>(command: &'a str, add: &'a [String], remove: &'a [String]) -> Result<Vec<&'a str>, LvmError> {
    let mut words = vec![command];
    for (option, tags) in [("--addtag", add), ("--deltag", remove)] {
        for tag in tags {
            check_tag(tag)?;
            words.extend([option, tag]);
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_carries_all_changes() {
        let (add, remove) = (["a=1".to_owned(), "b".to_owned()], ["c".to_owned()]);
        let words = words("lvchange", &add, &remove).unwrap();
        assert_eq!(words, ["lvchange", "--addtag", "a=1", "--addtag", "b", "--deltag", "c"]);
        // There is no such group: LVM is not run.
        let lvm = Lvm::new(Vec::new);
        assert!(matches!(
            (lvm.change_lv_tags("no-vg", "no-lv", &[], &[]), lvm.change_vg_tags("no-vg", &[], &[])),
            (Ok(()), Ok(()))
        ));
        assert!(matches!(super::words("lvchange", &["-x".to_owned()], &[]), Err(LvmError::BadTag(_))));
    }
}
