//! The extended attributes that a file can keep, and the notes on those that are omitted.
//!
//! Owns: the limits of ext4, which apply whatever file system an image is unpacked on. Does not: set attributes.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_core::base::LeftOut;

use crate::archive::{Kind, Member};
use crate::error::shown;

/// Limit of attributes that are listed by name; the others are counted together.
const MAX_NAMED: usize = 20;

/// The name for all attributes beyond that limit.
const OTHERS: &str = "(others)";

/// Prefix of keywords for ACLs as text, as star and GNU tar write them.
pub(crate) const ACL_TEXT: &[u8] = b"SCHILY.acl.";

/// Limit of a name in a note, in bytes, so that all notes fit into one message of a worker.
const MAX_NOTE_NAME: usize = 80;

/// The namespaces that ext4 supports, and the attributes for ACLs.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Size of an attribute block, and its overhead: the header and the terminator, in bytes.
const BLOCK_BYTES: usize = 4096;
const BLOCK_OVERHEAD: usize = 32 + 4;

/// Overhead of an attribute on ext4, in bytes; name and value are both padded to whole words.
const ENTRY_OVERHEAD: usize = 16;
const WORD: usize = 4;

/// Why an attribute is omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Linux does not have this namespace.
    Foreign,
    /// It cannot be set on files of this type.
    Kind,
    /// It does not fit into the attribute block.
    TooLarge,
    /// It is an ACL as text without numeric IDs, or malformed.
    AclText,
    /// The file system of the staging directory refuses it.
    Staging,
}

impl Reason {
    fn text(self) -> &'static str {
        match self {
            Self::Foreign => "Linux has no such attribute",
            Self::Kind => "files of that kind cannot have it",
            Self::TooLarge => "the attributes of a file must fit into one block of 4 KiB",
            Self::AclText => "not an access list with numeric users and groups",
            Self::Staging => "the file system of the staging directory refuses it",
        }
    }
}

/// The attributes of an entry.
pub(crate) struct Classified<'a> {
    /// Attributes that its file keeps.
    pub(crate) kept: Vec<&'a [u8]>,
    /// Attributes that are omitted, and why.
    pub(crate) left_out: Vec<(&'a [u8], Reason)>,
}

/// Decides which attributes of an entry are kept. Depends on the entry alone.
pub(crate) fn classify(member: &Member) -> Classified<'_> {
    let (mut wanted, mut left_out) = (Vec::new(), Vec::new());
    for (attribute, value) in &member.xattrs {
        match reason(&member.kind, attribute) {
            Some(reason) => left_out.push((&attribute[..], reason)),
            None => wanted.push((size_in_block(attribute, value), &attribute[..])),
        }
    }
    // Smallest first: a capability is worth more than a thumbnail.
    wanted.sort_unstable();
    let mut left = BLOCK_BYTES - BLOCK_OVERHEAD;
    let mut kept = Vec::new();
    for (needed, attribute) in wanted {
        match left.checked_sub(needed) {
            Some(rest) => {
                left = rest;
                kept.push(attribute);
            }
            None => left_out.push((attribute, Reason::TooLarge)),
        }
    }
    Classified { kept, left_out }
}

/// Why files of a type cannot have an attribute, whatever its value.
fn reason(kind: &Kind, attribute: &[u8]) -> Option<Reason> {
    let is_plain = matches!(kind, Kind::File | Kind::Directory);
    match attribute {
        _ if attribute.starts_with(ACL_TEXT) => Some(Reason::AclText),
        ACCESS => matches!(kind, Kind::Symlink(_)).then_some(Reason::Kind),
        DEFAULT => (*kind != Kind::Directory).then_some(Reason::Kind),
        _ if !NAMESPACES.iter().any(|space| attribute.starts_with(space)) => Some(Reason::Foreign),
        _ if attribute.starts_with(b"user.") && !is_plain => Some(Reason::Kind),
        _ => None,
    }
}

/// Bytes that an attribute takes in the block. ext4 stores its namespace as a number.
fn size_in_block(attribute: &[u8], value: &[u8]) -> usize {
    let space = NAMESPACES.iter().chain([&ACCESS, &DEFAULT]).find(|space| attribute.starts_with(space));
    let name = attribute.len() - space.map_or(0, |space| space.len());
    let words = |bytes: usize| bytes.next_multiple_of(WORD);
    ENTRY_OVERHEAD + words(name) + words(value.len())
}

/// The attribute for an ACL as text, by the rest of its keyword.
pub(crate) fn acl_attribute(kind: &[u8]) -> Option<&'static [u8]> {
    match kind {
        b"access" => Some(ACCESS),
        b"default" => Some(DEFAULT),
        _ => None,
    }
}

/// The keyword for an ACL as text.
pub(crate) fn acl_keyword(attribute: &[u8]) -> Option<Vec<u8>> {
    let kind = attribute.strip_prefix(b"system.posix_acl_").filter(|kind| acl_attribute(kind).is_some())?;
    Some([ACL_TEXT, kind].concat())
}

/// The attributes omitted so far.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    named: BTreeMap<(Vec<u8>, Reason), Note>,
    others: BTreeMap<Reason, Note>,
}

#[derive(Debug)]
struct Note {
    entries: u64,
    example: Vec<u8>,
}

impl Notes {
    /// Notes that an attribute of an entry is omitted.
    pub(crate) fn add(&mut self, attribute: &[u8], reason: Reason, entry: &[u8]) {
        let note = || Note { entries: 0, example: entry.to_vec() };
        let key = (attribute.to_vec(), reason);
        let note = if self.named.len() < MAX_NAMED || self.named.contains_key(&key) {
            self.named.entry(key).or_insert_with(note)
        } else {
            self.others.entry(reason).or_insert_with(note)
        };
        note.entries += 1;
    }

    /// The notes: one for each attribute and reason.
    pub(crate) fn finish(self) -> Vec<LeftOut> {
        let named = self.named.into_iter().map(|((attribute, reason), note)| (abbreviate(&attribute), reason, note));
        let others = self.others.into_iter().map(|(reason, note)| (OTHERS.to_owned(), reason, note));
        let line = |(attribute, reason, note): (String, Reason, Note)| LeftOut {
            attribute,
            reason: reason.text().to_owned(),
            entries: note.entries,
            example: abbreviate(&note.example),
        };
        named.chain(others).map(line).collect()
    }
}

/// The beginning of a name, with control characters escaped.
fn abbreviate(name: &[u8]) -> String {
    match name.get(..MAX_NOTE_NAME) {
        Some(start) if name.len() > MAX_NOTE_NAME => format!("{}…", shown(start)),
        _ => shown(name),
    }
}

/// The omitted attributes, for an error.
pub(crate) fn join(left_out: &[LeftOut]) -> String {
    let attributes: BTreeSet<String> = left_out.iter().map(ToString::to_string).collect();
    attributes.into_iter().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Content;

    fn member(kind: Kind, xattrs: &[(&str, usize)]) -> Member {
        let xattrs = xattrs.iter().map(|(name, len)| (name.as_bytes().to_vec(), vec![b'x'; *len])).collect();
        let (path, content) = (b"a".to_vec(), Content::default());
        Member { path, kind, mode: 0o644, uid: 0, gid: 0, mtime: 0, xattrs, content }
    }

    fn left_out(kind: Kind, xattrs: &[(&str, usize)]) -> Vec<(String, Reason)> {
        let member = member(kind, xattrs);
        let text = |(name, reason): &(&[u8], Reason)| (String::from_utf8(name.to_vec()).unwrap(), *reason);
        classify(&member).left_out.iter().map(text).collect()
    }

    #[test]
    fn attributes_are_omitted_by_namespace_and_file_type() {
        let all = [
            ("com.apple.quarantine", 4),
            ("security.capability", 20),
            ("system.nfs4_acl", 4),
            ("system.posix_acl_access", 28),
            ("system.posix_acl_default", 28),
            ("trusted.overlay.opaque", 1),
            ("user.note", 0),
        ];
        let names = |kind| left_out(kind, &all).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let foreign = ["com.apple.quarantine", "system.nfs4_acl"];
        assert_eq!(names(Kind::Directory), foreign);
        assert_eq!(names(Kind::File), [foreign[0], foreign[1], "system.posix_acl_default"]);
        assert_eq!(names(Kind::Fifo), [foreign[0], foreign[1], "system.posix_acl_default", "user.note"]);
        assert_eq!(names(Kind::Symlink(Vec::new())).len(), 5);
    }

    #[test]
    fn attributes_fill_one_block_smallest_first() {
        let most = BLOCK_BYTES - BLOCK_OVERHEAD - ENTRY_OVERHEAD - WORD;
        assert_eq!(left_out(Kind::File, &[("user.a", most)]), []);
        let too_large = |name: &str| (name.to_owned(), Reason::TooLarge);
        assert_eq!(left_out(Kind::File, &[("user.a", most + 1)]), [too_large("user.a")]);
        let some = [("security.capability", 20), ("user.a", 60_000), ("user.b", 2000), ("user.c", 2000)];
        assert_eq!(left_out(Kind::File, &some), [too_large("user.c"), too_large("user.a")]);
    }

    #[test]
    fn notes_count_and_are_bounded() {
        let mut notes = Notes::default();
        for n in 0..100 {
            notes.add(b"com.apple.a", Reason::Foreign, format!("file-{n}").as_bytes());
            notes.add(format!("com.apple.{n}\n").as_bytes(), Reason::Foreign, b"a");
        }
        let listed = notes.finish();
        assert_eq!((listed.len(), listed.iter().map(|left_out| left_out.entries).sum::<u64>()), (21, 200));
        let of = |name: &str| listed.iter().find(|left_out| left_out.attribute == name).unwrap();
        assert_eq!((of("com.apple.a").entries, of("com.apple.a").example.as_str()), (100, "file-0"));
        assert_eq!(of(OTHERS).entries, 81);
        assert_eq!(
            of(r"com.apple.0\n").to_string(),
            r#"com.apple.0\n of 1 entry such as "a": Linux has no such attribute"#
        );
    }
}
