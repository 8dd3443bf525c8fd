//! Parser of tar archives: v7, ustar, GNU (long names, sparse files, labels, incremental backups) and POSIX extended headers. The input is
//! untrusted; memory per header is bounded.
//!
//! Owns: the format. Does not: trust a name, or create files.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::mem;

use bulkhead_core::units::Bytes;
use tar::{EntryType, Header};

use crate::acl::Acl;
use crate::attributes::{self, ACL_TEXT};
use crate::error::{ArchiveError, EntryError, ImportError, reading, shown};

mod number;
mod records;
mod sparse;
#[cfg(test)]
mod tests;

use number::{number, unsigned};
pub(crate) use records::escape_name;
use records::{Records, seconds};
use sparse::MapError;
pub(crate) use sparse::{Content, MAX_SEGMENTS, Segment, keyword as sparse_keyword};

/// Size of a block, bytes.
const BLOCK: u64 = 512;

/// GNU tar's entry types for the label of an archive, and for a directory with the list of its names in an incremental backup.
const LABEL: u8 = b'V';
const DUMP_DIR: u8 = b'D';

/// Limit of a long name or extended header, and of all extended headers of one entry together, in bytes.
const MAX_EXTENDED: u64 = 1 << 20;

/// Limit of keywords in all extended headers of one entry.
const MAX_KEYWORDS: usize = 4096;

/// Limit of all global extended headers together, in bytes. Lower, because they count towards each entry.
const MAX_GLOBAL: u64 = 1 << 16;

/// Limit of keywords in all global extended headers.
const MAX_GLOBAL_KEYWORDS: usize = 256;

/// Size limit of a file on ext4: 2^32 - 1 blocks of 4 KiB.
const MAX_FILE: u64 = ((1 << 32) - 1) << 12;

/// Position of the checksum in a header.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Prefix of keywords for extended attributes, as GNU tar, bsdtar and Go write them.
pub(crate) const XATTR: &[u8] = b"SCHILY.xattr.";

/// An entry without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its name, unchanged from the archive.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds since 1970.
    pub(crate) mtime: i64,
    /// Extended attributes. An ACL that cannot be parsed is stored under its keyword in the archive.
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// For a file, its length and the segments that its data consists of; empty for other types.
    pub(crate) content: Content,
}

/// The type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Char(u32, u32),
    Block(u32, u32),
    Fifo,
}

/// Reads an archive sequentially.
pub(crate) struct Archive<R> {
    input: R,
    name: String,
    /// Whether the input is verified otherwise, so that a missing end-of-archive marker is no truncation.
    is_verified: bool,
    /// Unread bytes of the current entry's data, and the padding of its last block.
    left: u64,
    padding: u64,
    /// Records of global extended headers, which apply to all entries that follow.
    global: Records,
    is_started: bool,
    has_entries: bool,
}

impl<R: Read> Archive<R> {
    /// Errors call the archive `name`.
    pub(crate) fn new(input: R, name: &str, is_verified: bool) -> Self {
        let (left, padding, global) = (0, 0, Records::new());
        Self { input, name: name.to_owned(), is_verified, left, padding, global, is_started: false, has_entries: false }
    }

    /// Skips unread data, and returns the next entry; `None` at the end, after all input has been read.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, ImportError> {
        let (mut local, mut long_name, mut long_link) = (self.global.clone(), None, None);
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return self.end() };
            self.has_entries = true;
            let size = unsigned(&header.as_old().size).ok_or_else(|| self.damaged("a size is not a number"))?;
            match header.entry_type() {
                EntryType::GNULongName => long_name = Some(self.text(size)?),
                EntryType::GNULongLink => long_link = Some(self.text(size)?),
                EntryType::XHeader => {
                    local.extend(self.records(size)?);
                    self.check_limits(&local, MAX_EXTENDED, MAX_KEYWORDS)?;
                }
                EntryType::XGlobalHeader => {
                    let records = self.records(size)?;
                    self.global.extend(records.clone());
                    self.check_limits(&self.global, MAX_GLOBAL, MAX_GLOBAL_KEYWORDS)?;
                    local.extend(records);
                    self.check_limits(&local, MAX_EXTENDED, MAX_KEYWORDS)?;
                }
                // The label of an archive (GNU tar).
                kind if kind.as_byte() == LABEL => {
                    (local, long_name, long_link) = (self.global.clone(), None, None);
                    self.expect(size);
                }
                kind => {
                    // An empty value deletes a keyword, but is a valid value of an attribute.
                    local.retain(|keyword, value| !value.is_empty() || keyword.starts_with(XATTR));
                    let stated = local.remove(&b"path"[..]);
                    let path = sparse::take_name(&mut local).or(stated).or(long_name);
                    let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
                    let link = local.remove(&b"linkpath"[..]).or(long_link);
                    let link = link.or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
                    return self.member(&header, kind, path, link.unwrap_or_default(), size, local).map(Some);
                }
            }
        }
    }

    /// Builds an entry from its headers.
    fn member(
        &mut self,
        header: &Header,
        kind: EntryType,
        path: Vec<u8>,
        link: Vec<u8>,
        size: u64,
        records: Records,
    ) -> Result<Member, ImportError> {
        let refused = |reason| ImportError::Entry { archive: self.name.clone(), entry: shown(&path), reason };
        let wrong = |what| refused(EntryError::Number(what));
        let stated = |keyword: &str| records.get(keyword.as_bytes()).and_then(|value| std::str::from_utf8(value).ok());
        let value_of = |keyword: &str, found: Option<u64>, what| match stated(keyword) {
            Some(text) => text.parse::<u64>().map_err(|_| wrong(what)),
            None => found.ok_or_else(|| wrong(what)),
        };
        // The highest ID means "unchanged" to chown(2).
        let id = |keyword: &str, field: &[u8], what| {
            let id = u32::try_from(value_of(keyword, unsigned(field), what)?).ok().filter(|id| *id != u32::MAX);
            id.ok_or_else(|| wrong(what))
        };
        let fields = header.as_old();
        // Before POSIX, there was no type for directories: a file with a trailing slash is one.
        let is_directory = matches!(kind.as_byte(), b'5' | DUMP_DIR) || is_regular(kind) && path.ends_with(b"/");
        let member_kind = match kind {
            _ if is_directory => Kind::Directory,
            _ if is_regular(kind) => Kind::File,
            EntryType::Symlink => Kind::Symlink(link),
            EntryType::Link => Kind::HardLink(link),
            EntryType::Char | EntryType::Block => {
                let (major, minor) = devices(header).ok_or_else(|| wrong("a device number"))?;
                if kind == EntryType::Char { Kind::Char(major, minor) } else { Kind::Block(major, minor) }
            }
            EntryType::Fifo => Kind::Fifo,
            other => return Err(refused(EntryError::Type(char::from(other.as_byte())))),
        };
        let mtime = match stated("mtime") {
            Some(text) => seconds(text),
            None => number(&fields.mtime),
        };
        let mode = number(&fields.mode).and_then(|mode| u32::try_from(mode & 0o7777).ok());
        let mut mode = mode.ok_or_else(|| wrong("a mode"))?;
        let mut xattrs = BTreeMap::new();
        for (keyword, value) in &records {
            if let Some(name) = keyword.strip_prefix(XATTR).filter(|name| !name.is_empty()) {
                xattrs.entry(records::unescape_name(name)).or_insert_with(|| value.clone());
            }
            let Some(kind) = keyword.strip_prefix(ACL_TEXT) else { continue };
            match (Acl::parse(value), attributes::acl_attribute(kind)) {
                (Some(acl), Some(attributes::ACCESS)) if acl.mode().is_some() => {
                    mode = mode & !0o777 | acl.mode().unwrap_or_default();
                }
                (Some(acl), Some(name)) => drop(xattrs.insert(name.to_vec(), acl.encode())),
                // Kept under its keyword, to be reported as omitted.
                _ => drop(xattrs.insert(keyword.clone(), value.clone())),
            }
        }
        let mut member = Member {
            kind: member_kind,
            mode,
            uid: id("uid", &fields.uid, "an owner")?,
            gid: id("gid", &fields.gid, "a group")?,
            mtime: mtime.ok_or_else(|| wrong("a time"))?,
            xattrs,
            path: path.clone(),
            content: Content::default(),
        };
        let size = value_of("size", Some(size), "a size")?;
        // Other types have no data, even if their header has a size.
        self.expect(if is_regular(kind) || kind.as_byte() == DUMP_DIR { size } else { 0 });
        if member.kind == Kind::File {
            member.content = self.content(header, size, &records, &path)?;
        }
        Ok(member)
    }

    /// The segments of a file, of which `stored` bytes of data follow.
    fn content(
        &mut self,
        header: &Header,
        stored: u64,
        records: &Records,
        path: &[u8],
    ) -> Result<Content, ImportError> {
        let content = if header.entry_type() == EntryType::GNUSparse {
            sparse::from_header(header, stored, &mut self.input)
        } else {
            let stated = sparse::from_records(records, stored, &mut self.data());
            stated.map(|content| content.unwrap_or_else(|| Content::whole(stored)))
        };
        let refused = |reason| ImportError::Entry { archive: self.name.clone(), entry: shown(path), reason };
        match content {
            Ok(content) if content.len > MAX_FILE => Err(refused(EntryError::Number("a size"))),
            Ok(content) => Ok(content),
            Err(MapError::Invalid) => Err(refused(EntryError::Sparse)),
            Err(MapError::Input(error)) => Err(reading(&self.name, error)),
        }
    }

    /// The data of the current entry.
    pub(crate) fn data(&mut self) -> Data<'_, R> {
        Data { archive: self }
    }

    fn expect(&mut self, size: u64) {
        (self.left, self.padding) = (size, (BLOCK - size % BLOCK) % BLOCK);
    }

    /// Skips to the next header.
    fn skip(&mut self) -> Result<(), ImportError> {
        let unread = self.left.saturating_add(self.padding);
        (self.left, self.padding) = (0, 0);
        let skipped = io::copy(&mut self.input.by_ref().take(unread), &mut io::sink());
        match skipped.map_err(|error| reading(&self.name, error))? {
            skipped if skipped == unread => Ok(()),
            _ => Err(self.wrong(ArchiveError::CutOff)),
        }
    }

    /// Reads the next header; `None` at the end.
    fn header(&mut self) -> Result<Option<Header>, ImportError> {
        let mut header = Header::new_old();
        let read = read_full(&mut self.input, header.as_mut_bytes()).map_err(|error| reading(&self.name, error))?;
        let is_first = !mem::replace(&mut self.is_started, true);
        match read {
            0 if is_first => return Err(self.wrong(ArchiveError::Unknown)),
            0 if self.is_verified => return Ok(None),
            512 => {}
            _ if is_first => return Err(self.wrong(ArchiveError::Unknown)),
            _ => return Err(self.wrong(ArchiveError::CutOff)),
        }
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        match number(&header.as_old().cksum) {
            Some(stated) if checksums(&header).contains(&stated) => Ok(Some(header)),
            _ if is_first => Err(self.wrong(ArchiveError::Unknown)),
            _ => Err(self.damaged("the checksum of a header is wrong")),
        }
    }

    /// Reads the rest of the input, so that a decompressor verifies all of it.
    fn end(&mut self) -> Result<Option<Member>, ImportError> {
        let mut buffer = [0; 1 << 14];
        loop {
            match read_full(&mut self.input, &mut buffer).map_err(|error| reading(&self.name, error))? {
                0 => return Ok(None),
                // A disk image can begin with the blocks of zeroes that end an archive.
                n if !self.has_entries && buffer[..n].iter().any(|byte| *byte != 0) => {
                    return Err(self.wrong(ArchiveError::Unknown));
                }
                _ => {}
            }
        }
    }

    /// Reads the data of an extended header or long name.
    fn extended(&mut self, size: u64) -> Result<Vec<u8>, ImportError> {
        if size > MAX_EXTENDED {
            return Err(self.damaged("a name or its attributes are longer than 1 MiB"));
        }
        self.expect(size);
        let mut bytes = Vec::new();
        self.data().read_to_end(&mut bytes).map_err(|error| reading(&self.name, error))?;
        Ok(bytes)
    }

    fn text(&mut self, size: u64) -> Result<Vec<u8>, ImportError> {
        let mut text = self.extended(size)?;
        if text.last() == Some(&0) {
            text.pop();
        }
        Ok(text)
    }

    /// Reads the records of an extended header.
    fn records(&mut self, size: u64) -> Result<Records, ImportError> {
        let bytes = self.extended(size)?;
        records::parse(&bytes).ok_or_else(|| self.damaged("an extended header cannot be read"))
    }

    /// Checks extended headers against their limits.
    fn check_limits(&self, records: &Records, most: u64, keywords: usize) -> Result<(), ImportError> {
        let sum = || records.iter().map(|(keyword, value)| keyword.len() + value.len()).sum::<usize>();
        if records.len() > keywords || sum() as u64 > most {
            let most = Bytes(most);
            let what = format!("extended headers exceed {keywords} keywords or {most} in total");
            return Err(self.damaged(&what));
        }
        Ok(())
    }

    fn wrong(&self, reason: ArchiveError) -> ImportError {
        ImportError::Archive { archive: self.name.clone(), reason }
    }

    fn damaged(&self, what: &str) -> ImportError {
        self.wrong(ArchiveError::Damaged(what.to_owned()))
    }
}

/// Reads the data of an entry; truncation is an error.
pub(crate) struct Data<'a, R> {
    archive: &'a mut Archive<R>,
}

impl<R: Read> Read for Data<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.archive.input.by_ref().take(self.archive.left).read(buffer)?;
        if read == 0 && !buffer.is_empty() && self.archive.left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.archive.left -= read as u64;
        Ok(read)
    }
}

/// Whether an entry is a file, in any of its types.
fn is_regular(kind: EntryType) -> bool {
    matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse)
}

/// The numbers of a device; headers before POSIX have none.
fn devices(header: &Header) -> Option<(u32, u32)> {
    let (major, minor) = match (header.as_ustar(), header.as_gnu()) {
        (Some(ustar), _) => (&ustar.dev_major, &ustar.dev_minor),
        (None, Some(gnu)) => (&gnu.dev_major, &gnu.dev_minor),
        (None, None) => return None,
    };
    let number = |field: &[u8]| u32::try_from(unsigned(field)?).ok();
    Some((number(major)?, number(minor)?))
}

/// The valid checksums of a header: the sum of its bytes, with blanks in place of the checksum itself. Some programs sum signed bytes.
fn checksums(header: &Header) -> [i64; 2] {
    let bytes = header.as_bytes().iter().enumerate();
    let bytes = bytes.map(|(at, byte)| if CHECKSUM.contains(&at) { b' ' } else { *byte });
    bytes.fold([0, 0], |[unsigned, signed], byte| [unsigned + i64::from(byte), signed + i64::from(byte.cast_signed())])
}

fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match input.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
