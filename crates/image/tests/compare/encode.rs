//! Encodes entries of a tar archive, in each historical format.
//!
//! Owns: headers, numbers, long names, extended records, sparse maps. Does not: choose the contents of an archive.

/// Size of a block, bytes.
const BLOCK: usize = 512;

/// The format of an entry's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Before POSIX: no devices, short names, small numbers.
    V7,
    Ustar,
    /// GNU's long names and numbers in base 256.
    Gnu,
    /// POSIX's extended headers.
    Pax,
}

/// How a file with holes is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sparse {
    OldGnu,
    Pax00,
    Pax01,
    Pax10,
}

/// The type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File(Content),
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Char(u32, u32),
    Block(u32, u32),
    Fifo,
}

/// The content of a file: zeroes except for the segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) len: u64,
    pub(crate) segments: Vec<(u64, Vec<u8>)>,
    pub(crate) sparse: Option<Sparse>,
}

/// An entry of an archive.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub(crate) mtime: (i64, u32),
    /// Additional extended records: attributes, ACLs.
    pub(crate) records: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) format: Format,
    /// Whether numbers are padded with blanks instead of zeroes.
    pub(crate) is_blank_padded: bool,
}

type Header = [u8; BLOCK];
type Record = (Vec<u8>, Vec<u8>);

/// Positions of the fields of a header.
const NAME: std::ops::Range<usize> = 0..100;
const LINK: std::ops::Range<usize> = 157..257;
const PREFIX: std::ops::Range<usize> = 345..500;

impl Entry {
    /// An entry with nothing special.
    pub(crate) fn plain(name: &[u8], kind: Kind) -> Self {
        let (name, format) = (name.to_vec(), Format::Ustar);
        Self {
            name,
            kind,
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: (1, 0),
            records: Vec::new(),
            format,
            is_blank_padded: false,
        }
    }

    /// Appends an entry to an archive.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut records = self.records.clone();
        let (mut name, data, is_old_sparse) = (self.name.clone(), self.data(&mut records), self.is_old_sparse());
        let link = match &self.kind {
            Kind::Symlink(target) | Kind::HardLink(target) => &target[..],
            _ => b"",
        };
        if records.iter().any(|(word, _)| word == b"GNU.sparse.name") {
            name = b"GNUSparseFile.1/made-up".to_vec();
        }
        let mut header = [0; BLOCK];
        let format = match &self.kind {
            _ if is_old_sparse => Format::Gnu,
            // GNU tar looks for a map in records only if the header is POSIX's.
            Kind::File(Content { sparse: Some(_), .. }) => Format::Pax,
            _ => self.format,
        };
        let is_pax = format == Format::Pax;
        match format {
            Format::V7 => {}
            Format::Gnu => header[257..265].copy_from_slice(b"ustar  \0"),
            Format::Ustar | Format::Pax => header[257..265].copy_from_slice(b"ustar\x0000"),
        }
        // Names.
        match (name.len() <= NAME.len(), split_name(&name)) {
            (true, _) => put(&mut header, NAME, &name),
            (false, Some((prefix, rest))) if format == Format::Ustar => {
                put(&mut header, PREFIX, prefix);
                put(&mut header, NAME, rest);
            }
            (false, _) if format == Format::Gnu => long(b'L', &name, out),
            (false, _) => {
                put(&mut header, NAME, &name[..NAME.len()]);
                records.push((b"path".to_vec(), name.clone()));
            }
        }
        match link.len() <= LINK.len() {
            true => put(&mut header, LINK, link),
            false if format == Format::Gnu => long(b'K', link, out),
            false => records.push((b"linkpath".to_vec(), link.to_vec())),
        }
        // Numbers.
        let mut number = |word: &str, range: std::ops::Range<usize>, value: i64| {
            let octal = u64::try_from(value).ok().filter(|value| *value < 8_u64.pow(digits(&range)));
            match octal {
                Some(value) => self.octal(&mut header, range, value),
                None if format == Format::Gnu => base_256(&mut header, range, value),
                None => records.push((word.as_bytes().to_vec(), value.to_string().into_bytes())),
            }
        };
        number("mode", 100..108, i64::from(self.mode));
        number("uid", 108..116, i64::from(self.uid));
        number("gid", 116..124, i64::from(self.gid));
        number("size", 124..136, i64::try_from(data.len()).unwrap());
        match self.mtime {
            (seconds, nanoseconds) if is_pax && nanoseconds > 0 => {
                self.octal(&mut header, 136..148, u64::try_from(seconds).unwrap_or(0) & 0o777_7777);
                records.push((b"mtime".to_vec(), decimal(seconds, nanoseconds).into_bytes()));
            }
            (seconds, _) => {
                let range = 136..148;
                match u64::try_from(seconds).ok().filter(|value| *value < 8_u64.pow(digits(&range))) {
                    Some(value) => self.octal(&mut header, range, value),
                    None if format == Format::Gnu => base_256(&mut header, range, seconds),
                    None => records.push((b"mtime".to_vec(), seconds.to_string().into_bytes())),
                }
            }
        }
        if let Kind::Char(major, minor) | Kind::Block(major, minor) = self.kind {
            self.octal(&mut header, 329..337, major.into());
            self.octal(&mut header, 337..345, minor.into());
        }
        header[156] = match &self.kind {
            Kind::File(_) if is_old_sparse => b'S',
            Kind::File(_) | Kind::Directory if format == Format::V7 => 0,
            Kind::File(_) => b'0',
            Kind::HardLink(_) => b'1',
            Kind::Symlink(_) => b'2',
            Kind::Char(..) => b'3',
            Kind::Block(..) => b'4',
            Kind::Directory => b'5',
            Kind::Fifo => b'6',
        };
        let mut more = Vec::new();
        if let Kind::File(content) = &self.kind
            && is_old_sparse
        {
            more = old_sparse_map(&mut header, content);
        }
        if !records.is_empty() {
            extended(b'x', &records, out);
        }
        checksum(&mut header);
        out.extend(header);
        out.extend(more);
        out.extend(&data);
        pad(out);
    }

    fn is_old_sparse(&self) -> bool {
        matches!(&self.kind, Kind::File(Content { sparse: Some(Sparse::OldGnu), .. }))
    }

    /// The bytes that follow the header; adds the records that explain them.
    fn data(&self, records: &mut Vec<Record>) -> Vec<u8> {
        let Kind::File(content) = &self.kind else { return Vec::new() };
        let stored: Vec<u8> = content.segments.iter().flat_map(|(_, data)| data.iter().copied()).collect();
        let mut say = |word: &str, value: String| {
            records.push((format!("GNU.sparse.{word}").into_bytes(), value.into_bytes()));
        };
        let segments = || content.segments.iter().map(|(at, data)| (*at, data.len()));
        match content.sparse {
            None => {
                let mut whole = vec![0; usize::try_from(content.len).unwrap()];
                for (at, data) in &content.segments {
                    let at = usize::try_from(*at).unwrap();
                    whole[at..at + data.len()].copy_from_slice(data);
                }
                return whole;
            }
            Some(Sparse::OldGnu) => {}
            Some(Sparse::Pax00) => {
                say("size", content.len.to_string());
                say("numblocks", content.segments.len().to_string());
                for (at, len) in segments() {
                    say("offset", at.to_string());
                    say("numbytes", len.to_string());
                }
            }
            Some(Sparse::Pax01) => {
                say("size", content.len.to_string());
                say("numblocks", content.segments.len().to_string());
                let map: Vec<String> = segments().map(|(at, len)| format!("{at},{len}")).collect();
                say("map", map.join(","));
                records.push((b"GNU.sparse.name".to_vec(), self.name.clone()));
            }
            Some(Sparse::Pax10) => {
                say("major", "1".to_owned());
                say("minor", "0".to_owned());
                say("realsize", content.len.to_string());
                records.push((b"GNU.sparse.name".to_vec(), self.name.clone()));
                let mut map = format!("{}\n", content.segments.len()).into_bytes();
                map.extend(segments().flat_map(|(at, len)| format!("{at}\n{len}\n").into_bytes()));
                pad(&mut map);
                map.extend(stored);
                return map;
            }
        }
        stored
    }

    fn octal(&self, header: &mut Header, range: std::ops::Range<usize>, value: u64) {
        let width = range.len() - 1;
        let text = if self.is_blank_padded { format!("{value:>width$o} ") } else { format!("{value:0>width$o}\0") };
        put(header, range, text.as_bytes());
    }
}

/// An extended header of a type, with records.
pub(crate) fn extended(kind: u8, records: &[Record], out: &mut Vec<u8>) {
    let mut data = Vec::new();
    for (word, value) in records {
        let rest = word.len() + value.len() + 3;
        let len = (1..8).map(|digits| rest + digits).find(|len| len.to_string().len() + rest == *len).unwrap();
        data.extend([format!("{len} ").as_bytes(), word, b"=", value, b"\n"].concat());
    }
    special(kind, b"extended", &data, out);
}

/// An entry that is not a file, such as the label of an archive.
pub(crate) fn special(kind: u8, name: &[u8], data: &[u8], out: &mut Vec<u8>) {
    let mut header = [0; BLOCK];
    put(&mut header, NAME, name);
    header[257..265].copy_from_slice(b"ustar\x0000");
    put(&mut header, 100..108, b"0000644\0");
    put(&mut header, 124..136, format!("{:011o}\0", data.len()).as_bytes());
    header[156] = kind;
    checksum(&mut header);
    out.extend(header);
    out.extend(data);
    pad(out);
}

/// The end of an archive.
pub(crate) fn end(out: &mut Vec<u8>) {
    out.resize(out.len() + 2 * BLOCK, 0);
}

fn long(kind: u8, name: &[u8], out: &mut Vec<u8>) {
    special(kind, b"././@LongLink", &[name, b"\0"].concat(), out);
    // GNU's, not POSIX's.
    let header = out.len() - BLOCK - (name.len() + 1).next_multiple_of(BLOCK);
    out[header + 257..header + 265].copy_from_slice(b"ustar  \0");
    let mut bytes: Header = out[header..header + BLOCK].try_into().unwrap();
    checksum(&mut bytes);
    out[header..header + BLOCK].copy_from_slice(&bytes);
}

fn old_sparse_map(header: &mut Header, content: &Content) -> Vec<u8> {
    let segments: Vec<[u8; 24]> = content
        .segments
        .iter()
        .map(|(at, data)| {
            let mut segment = [0; 24];
            segment[..12].copy_from_slice(format!("{at:011o}\0").as_bytes());
            segment[12..].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
            segment
        })
        .collect();
    let (first, rest) = segments.split_at(segments.len().min(4));
    put(header, 386..482, &first.concat());
    header[482] = u8::from(!rest.is_empty());
    put(header, 483..495, format!("{:011o}\0", content.len).as_bytes());
    let mut more = Vec::new();
    let chunks = rest.chunks(21);
    let n_chunks = chunks.len();
    for (n, chunk) in chunks.enumerate() {
        let mut block = chunk.concat();
        block.resize(BLOCK, 0);
        block[504] = u8::from(n + 1 < n_chunks);
        more.extend(block);
    }
    more
}

/// Splits a long name at a slash into prefix and name (ustar).
fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = (1..name.len().saturating_sub(1)).rev().find(|at| name[*at] == b'/' && *at <= PREFIX.len())?;
    let (prefix, rest) = (&name[..at], &name[at + 1..]);
    (rest.len() <= NAME.len()).then_some((prefix, rest))
}

/// Seconds with a fraction; a time before 1970 is lower by the fraction.
fn decimal(seconds: i64, nanoseconds: u32) -> String {
    if seconds < 0 {
        let (whole, fraction) = (seconds + 1, 1_000_000_000 - nanoseconds);
        return format!("-{}.{fraction:09}", whole.unsigned_abs());
    }
    format!("{seconds}.{nanoseconds:09}")
}

fn digits(range: &std::ops::Range<usize>) -> u32 {
    u32::try_from(range.len() - 1).unwrap()
}

fn base_256(header: &mut Header, range: std::ops::Range<usize>, value: i64) {
    let field = &mut header[range];
    let (first, last) = (field.len() - 8, if value < 0 { 0xff } else { 0 });
    field.fill(last);
    let bytes = value.to_be_bytes();
    let from = 8_usize.saturating_sub(field.len());
    field[first..].copy_from_slice(&bytes[from..]);
    field[0] |= 0x80;
}

fn put(header: &mut Header, range: std::ops::Range<usize>, bytes: &[u8]) {
    header[range][..bytes.len()].copy_from_slice(bytes);
}

fn checksum(header: &mut Header) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    put(header, 148..156, format!("{sum:06o}\0 ").as_bytes());
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}
