//! POSIX access control lists, as text in archives (`SCHILY.acl.access`, `SCHILY.acl.default`), and in the kernel's binary format, which is the
//! value of an extended attribute (`posix_acl_xattr.h`).
//!
//! Owns: both formats. Does not: resolve user names, because an archive's names mean nothing on this host.

/// The version of the binary format, and the sizes of its header and of an entry, in bytes.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// The ID in entries without one (`ACL_UNDEFINED_ID`).
const NO_ID: u32 = u32::MAX;

/// Tags of entries (`ACL_USER_OBJ` and so on), in the order that the kernel requires.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The entries of an ACL, sorted by tag and ID, as the kernel requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    kind: u16,
    id: u32,
    permissions: u16,
}

impl Acl {
    /// Parses the text format of star and GNU tar: entries `TAG:NAME:PERMISSIONS`, separated by commas or line ends, with the numeric ID of
    /// the name as an optional fourth field. `None` if it is malformed, or has a name without an ID.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let entries = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|entry| !entry.is_empty());
        Self::new(entries.map(parse_entry).collect::<Option<_>>()?)
    }

    /// Decodes the kernel's binary format.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let (version, rest) = value.split_first_chunk::<HEADER_BYTES>()?;
        let (entries, left) = rest.as_chunks::<ENTRY_BYTES>();
        if u32::from_le_bytes(*version) != VERSION || !left.is_empty() {
            return None;
        }
        let entry = |[k0, k1, p0, p1, id @ ..]: &[u8; ENTRY_BYTES]| Entry {
            kind: u16::from_le_bytes([*k0, *k1]),
            id: u32::from_le_bytes(*id),
            permissions: u16::from_le_bytes([*p0, *p1]),
        };
        Self::new(entries.iter().map(entry).collect())
    }

    /// Accepts what the kernel accepts: one entry each for owner, group and others, no duplicate ID, and a mask if there are IDs.
    fn new(mut entries: Vec<Entry>) -> Option<Self> {
        entries.sort_unstable();
        let count = |kind| entries.iter().filter(|entry| entry.kind == kind).count();
        let has_ids = count(USER) + count(GROUP) > 0;
        let is_whole = [OWNER, OWNING_GROUP, OTHER].iter().all(|kind| count(*kind) == 1);
        let is_known = |entry: &Entry| matches!(entry.kind, OWNER | USER | OWNING_GROUP | GROUP | MASK | OTHER);
        let is_twice = entries.windows(2).any(|pair| (pair[0].kind, pair[0].id) == (pair[1].kind, pair[1].id));
        let has_mask = count(MASK) > 0;
        let is_valid = is_whole && (has_mask || !has_ids) && !is_twice && entries.iter().all(is_known);
        (is_valid && entries.iter().all(|entry| entry.permissions <= 7)).then_some(Self(entries))
    }

    /// The equivalent permission bits; `None` if the ACL has more than a mode can express.
    pub(crate) fn mode(&self) -> Option<u32> {
        match self.0[..] {
            [owner, group, other] => {
                let bits = |entry: Entry| u32::from(entry.permissions);
                Some(bits(owner) << 6 | bits(group) << 3 | bits(other))
            }
            _ => None,
        }
    }

    /// Encodes the kernel's binary format.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for Entry { kind, id, permissions } in &self.0 {
            value.extend(kind.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// Formats it as text, with numeric IDs.
    pub(crate) fn to_text(&self) -> String {
        let entries = self.0.iter().map(|Entry { kind, id, permissions }| {
            let tag = match *kind {
                OWNER | USER => "user",
                OWNING_GROUP | GROUP => "group",
                MASK => "mask",
                _ => "other",
            };
            let id = if *id == NO_ID { String::new() } else { id.to_string() };
            let letter = |bit: u16, letter| if permissions & bit != 0 { letter } else { '-' };
            format!("{tag}:{id}:{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x'))
        });
        entries.collect::<Vec<_>>().join(",")
    }
}

/// Parses one entry of the text format.
fn parse_entry(text: &str) -> Option<Entry> {
    let fields: Vec<&str> = text.split(':').map(str::trim).collect();
    let (tag, name, permissions, number) = match fields[..] {
        [tag @ ("o" | "other" | "m" | "mask"), permissions] => (tag, "", permissions, ""),
        [tag, name, permissions] => (tag, name, permissions, ""),
        [tag, name, permissions, number] => (tag, name, permissions, number),
        _ => return None,
    };
    let kind = match (tag, name.is_empty()) {
        ("u" | "user", true) => OWNER,
        ("u" | "user", false) => USER,
        ("g" | "group", true) => OWNING_GROUP,
        ("g" | "group", false) => GROUP,
        ("m" | "mask", true) => MASK,
        ("o" | "other", true) => OTHER,
        _ => return None,
    };
    let id = match kind {
        USER | GROUP => [number, name].iter().find_map(|text| text.parse().ok()).filter(|id| *id != NO_ID)?,
        _ => NO_ID,
    };
    let bit = |letter| match letter {
        'r' => Some(4),
        'w' => Some(2),
        'x' => Some(1),
        '-' => Some(0),
        _ => None,
    };
    let permissions = permissions.chars().try_fold(0, |bits, letter| Some(bits | bit(letter)?))?;
    Some(Entry { kind, id, permissions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_binary_formats_are_equivalent() {
        let value = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
            \x10\0\x05\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
        let text = "user::rw-,user:1000:r--,group::r--,mask::r-x,other::---";
        assert_eq!(Acl::decode(value).unwrap().to_text(), text);
        for same in [
            text,
            "# file: a\nuser::rw-\nuser:joe:r--:1000\nmask::r-x\ngroup::r--\t#effective:r--\nother::---\n",
            "u::wr, u:1000:r, g::r--, m:rx, o:",
        ] {
            assert_eq!(Acl::parse(same.as_bytes()).unwrap().encode(), value, "{same:?}");
        }
    }

    #[test]
    fn an_acl_without_ids_is_a_mode() {
        for acl in
            ["user::rw-,group::r--,other::---", "u::rw-\ng::r--\no::---\n", "# file\nuser::rw\ngroup::r\nother:\n"]
        {
            assert_eq!(Acl::parse(acl.as_bytes()).and_then(|acl| acl.mode()), Some(0o640), "{acl:?}");
        }
        let with_mask = Acl::parse(b"user::rw-,group::r--,mask::rwx,other::r--").unwrap();
        assert_eq!((with_mask.mode(), with_mask.encode().len()), (None, HEADER_BYTES + 4 * ENTRY_BYTES));
    }

    #[test]
    fn malformed_acls_are_refused() {
        for text in [
            "",
            "user::rw-",
            "user::rw-,user:joe:rw-,group::r--,mask::rwx,other::r--",
            "user::rw-,user:1:r--,group::r--,other::r--",
            "user::rwz,group::r--,other::r--",
            "user::rw-,user::r--,group::r--,other::r--",
            "default:user::rwx",
            "user:1:rw-:2:3",
            "user::rw-,user:4294967295:r--,group::r--,mask::rwx,other::r--",
            "user::rw-,user:1:r,user:1:w,group::r--,mask::rwx,other::r--",
        ] {
            assert_eq!(Acl::parse(text.as_bytes()), None, "{text:?}");
        }
        for value in [&b""[..], b"\x02\0\0\0", b"\x01\0\0\0", &[2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 9]] {
            assert_eq!(Acl::decode(value), None, "{value:?}");
        }
    }
}
