//! Random archives and image layers, with all features of tar. Each is determined by its seed.
//!
//! Owns: the contents of an archive, and a model of the tree that results. Does not: write headers (`encode`).

use std::collections::{BTreeMap, BTreeSet};

use crate::encode::{Content, Entry, Format, Kind, Sparse, end, extended, special};

/// A capability (`cap_net_raw+ep`, revision 2), and an ACL in the kernel's binary format.
const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const ACL: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
    \x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";

/// Components of names.
const PARTS: [&[u8]; 22] = [
    b"a",
    b"b",
    b"c",
    b"bin",
    b"lib",
    b"usr",
    b"etc",
    b"x.y",
    b"with space",
    b"new\nline",
    b"\xff\xfe\x80",
    "größe".as_bytes(),
    b"-dash",
    b"back\\slash",
    b"tab\there",
    b"...",
    b"..b",
    b"\"quoted\"",
    b"*",
    b"%41",
    b"=",
    b"\x01",
];

/// Random numbers (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap()
    }

    pub(crate) fn chance(&mut self, pct: usize) -> bool {
        self.below(100) < pct
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// The type of the file at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Existing {
    Directory,
    /// A symbolic link to a directory, by its real path.
    DirectoryLink(Vec<u8>),
    /// A symbolic link that could lead out of the tree. GNU tar creates it at the very end, and loses track of it if it is replaced or
    /// linked to.
    Delayed,
    Other,
}

/// The reference that unpacks it: neither supports all features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// One archive, for GNU tar.
    Archive,
    /// Layers of an image, for an OCI unpacker.
    Layers,
}

/// Generates entries, and tracks the tree that results.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    pub(crate) random: Random,
    used_for: Purpose,
    /// By real path; the root is empty.
    tree: BTreeMap<Vec<u8>, Existing>,
    pub(crate) n_entries: usize,
    /// The directories with entries.
    explicit: BTreeMap<Vec<u8>, Entry>,
    /// The directories whose first entry follows their contents.
    pub(crate) late: BTreeSet<Vec<u8>>,
    /// The directories in which a directory without an entry was created, or something was replaced or hidden by a whiteout.
    pub(crate) disturbed: BTreeSet<Vec<u8>>,
    /// The directories of the layer without entries.
    implied: BTreeSet<Vec<u8>>,
    /// The directories that the layer replaced with something else, at least temporarily.
    replaced: BTreeSet<Vec<u8>>,
    /// The entries, one per line, for reports.
    pub(crate) log: Vec<String>,
}

impl Generator {
    pub(crate) fn new(seed: u64, used_for: Purpose) -> Self {
        let tree = BTreeMap::from([(Vec::new(), Existing::Directory)]);
        Self {
            random: Random(seed),
            used_for,
            tree,
            n_entries: 0,
            explicit: BTreeMap::new(),
            late: BTreeSet::new(),
            disturbed: BTreeSet::new(),
            implied: BTreeSet::new(),
            replaced: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    /// One archive.
    pub(crate) fn archive(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.random.chance(10) {
            extended(b'g', &[(b"comment".to_vec(), b"for all that follows".to_vec())], &mut out);
        }
        if self.random.chance(5) {
            special(b'V', b"label", b"", &mut out);
        }
        for _ in 0..1 + self.random.below(40) {
            let entry = self.entry();
            self.append(&entry, &mut out);
        }
        end(&mut out);
        out
    }

    /// The next layer of an image: whiteouts and entries, in random order.
    pub(crate) fn layer(&mut self) -> Vec<u8> {
        self.implied.clear();
        self.replaced.clear();
        let mut whiteouts = Vec::new();
        for _ in 0..self.random.below(6) {
            whiteouts.extend(self.whiteout());
        }
        let mut entries: Vec<Entry> = (0..1 + self.random.below(25)).map(|_| self.entry()).collect();
        for (parent, written, name) in whiteouts {
            if let Some(what) = self.tree.get(&parent).cloned() {
                let mut entry = self
                    .plain(join(&written, &name), Kind::File(Content { len: 0, segments: Vec::new(), sparse: None }));
                entry.mtime = (1, 0);
                // The whiteout of a file comes before the names in a directory that replaces it, unless that directory has an entry; a whiteout
                // behind a link comes before the link is replaced.
                let hidden = join(&parent, name.strip_prefix(b".wh.").unwrap_or_default());
                let is_opaque = name == b".wh..wh..opq";
                let is_hidden = |path: &Vec<u8>| *path == hidden || is_opaque && is_below(path, &parent);
                let is_first = what != Existing::Directory
                    || written != parent
                    || self.replaced.iter().any(|path| *path == parent || is_below(&parent, path))
                    || self.implied.iter().any(is_hidden);
                let at = if is_first { 0 } else { self.random.below(entries.len() + 1) };
                entries.insert(at, entry);
            }
        }
        let mut out = Vec::new();
        for entry in &entries {
            self.append(entry, &mut out);
        }
        end(&mut out);
        self.log.push("-- end of layer".to_owned());
        out
    }

    fn append(&mut self, entry: &Entry, out: &mut Vec<u8>) {
        entry.encode(out);
        self.n_entries += 1;
        let kind = format!("{:?}", entry.kind);
        let kind: String = kind.chars().take(70).collect();
        let words: Vec<String> = entry
            .records
            .iter()
            .map(|(word, value)| format!("{}={}", word.escape_ascii(), value.escape_ascii()))
            .collect();
        self.log.push(format!(
            "{:?} \"{}\" {kind} {:o} {}:{} {:?} {}",
            entry.format,
            entry.name.escape_ascii(),
            entry.mode,
            entry.uid,
            entry.gid,
            entry.mtime,
            words.join(" ")
        ));
    }

    /// The real path of the directory, its path as it is written, and the name of a whiteout.
    fn whiteout(&mut self) -> Option<(Vec<u8>, Vec<u8>, Vec<u8>)> {
        let paths: Vec<Vec<u8>> = self.tree.keys().filter(|path| !path.is_empty()).cloned().collect();
        if self.random.chance(25) {
            let (written, parent) = self.directory();
            if !parent.is_empty() && self.tree.contains_key(&parent) {
                self.remove_below(&parent);
                return Some((parent, written, b".wh..wh..opq".to_vec()));
            }
            return None;
        }
        if paths.is_empty() {
            return None;
        }
        let path = self.random.pick(&paths);
        let (parent, name) = split(&path);
        self.remove_below(&path);
        self.tree.remove(&path);
        let written = self.by_link(&parent);
        Some((parent, written, [b".wh.", &name[..]].concat()))
    }

    fn entry(&mut self) -> Entry {
        // GNU tar sets modes of directories and creates links at the end, by name: the components of these names must stay.
        let is_archive = self.used_for == Purpose::Archive;
        let must_stay =
            |what: &Existing| *what == Existing::Delayed || is_archive && matches!(what, Existing::DirectoryLink(_));
        let again: Vec<Vec<u8>> = self.paths(|what| !must_stay(what));
        let (written, path) = loop {
            let (written, path) = if self.random.chance(5) {
                (Vec::new(), Vec::new())
            } else if self.random.chance(15) {
                let path = self.random.pick(&again);
                let (parent, name) = split(&path);
                (join(&self.by_link(&parent), &name), path)
            } else {
                let (written, parent) = self.directory();
                let name = self.component();
                (join(&written, &name), join(&parent, &name))
            };
            if !self.tree.get(&path).is_some_and(must_stay) {
                break (written, path);
            }
        };
        let mut kind = self.kind(&path);
        // GNU tar applies the mode of a directory to its replacement.
        if (is_archive || path.is_empty()) && self.tree.get(&path) == Some(&Existing::Directory) {
            kind = Kind::Directory;
        }
        if kind == Kind::Directory && self.tree.contains_key(&path) && !self.explicit.contains_key(&path) {
            self.late.insert(path.clone());
        }
        self.record(&path, &kind);
        let mut entry = self.plain(written, kind);
        self.add_attributes(&mut entry);
        self.explicit.retain(|path, _| self.tree.get(path) == Some(&Existing::Directory));
        if self.used_for == Purpose::Archive && entry.kind == Kind::Directory {
            // Of several, GNU tar uses the last one, or the first one with `--delay-directory-restore`.
            let name = entry.name.clone();
            entry = Entry { name, ..self.explicit.entry(path).or_insert(entry).clone() };
        }
        entry.name = self.decorated(&entry.name, entry.kind == Kind::Directory);
        if entry.name == b"." && entry.format == Format::V7 {
            entry.name = b"./".to_vec();
        }
        if let Kind::HardLink(target) = &entry.kind {
            let target = self.decorated(&target.clone(), false);
            entry.kind = Kind::HardLink(target);
        }
        entry
    }

    /// Records the new file at a path, and the directories above it.
    fn record(&mut self, path: &[u8], kind: &Kind) {
        let mut above = path.to_vec();
        while !above.is_empty() {
            above = split(&above).0;
            if self.tree.insert(above.clone(), Existing::Directory).is_none() {
                self.disturbed.insert(split(&above).0);
                self.implied.insert(above.clone());
            }
        }
        let what = match kind {
            Kind::Directory => Existing::Directory,
            Kind::Symlink(target) if self.used_for == Purpose::Archive && could_lead_out(target) => Existing::Delayed,
            Kind::Symlink(target) => match self.resolved(path, target) {
                Some(to)
                    if self.tree.get(&to) == Some(&Existing::Directory)
                        && !is_below(path, &to)
                        && !is_below(&to, path) =>
                {
                    Existing::DirectoryLink(to)
                }
                _ => Existing::Other,
            },
            Kind::HardLink(target) => match self.tree.get(&target[..]) {
                Some(Existing::DirectoryLink(to)) if split(target).0 == split(path).0 => {
                    Existing::DirectoryLink(to.clone())
                }
                _ => Existing::Other,
            },
            _ => Existing::Other,
        };
        if what != Existing::Directory {
            self.replaced.insert(path.to_vec());
            self.remove_below(path);
        }
        self.tree.insert(path.to_vec(), what);
    }

    /// The target of a symbolic link, if no other link is on its path; `None` if unknown.
    fn resolved(&self, path: &[u8], target: &[u8]) -> Option<Vec<u8>> {
        let mut at = if target.starts_with(b"/") { Vec::new() } else { split(path).0 };
        for part in target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            at = if part == b".." { split(&at).0 } else { join(&at, part) };
            if self.tree.get(&at) != Some(&Existing::Directory) {
                return None;
            }
        }
        (!at.is_empty()).then_some(at)
    }

    fn remove_below(&mut self, path: &[u8]) {
        let removed = self.tree.keys().filter(|other| is_below(other, path)).map(|other| split(other).0);
        self.disturbed.extend(removed.chain([split(path).0]).collect::<Vec<_>>());
        self.tree.retain(|other, _| !is_below(other, path));
    }

    /// A directory: its path as written, and its real path. It may not exist.
    fn directory(&mut self) -> (Vec<u8>, Vec<u8>) {
        let directories: Vec<Vec<u8>> = self.paths(|what| *what == Existing::Directory);
        let mut real = self.random.pick(&directories);
        let depth = real.iter().filter(|byte| **byte == b'/').count();
        let mut written = self.by_link(&real);
        if depth < 8 && self.random.chance(8) {
            let part = self.component();
            let below = join(&real, &part);
            // An existing file that is not a directory is in the way.
            if matches!(self.tree.get(&below), None | Some(Existing::Directory)) {
                (real, written) = (below, join(&written, &part));
            }
        }
        (written, real)
    }

    /// A directory by its path, or by one through a symbolic link.
    fn by_link(&mut self, real: &[u8]) -> Vec<u8> {
        let links: Vec<Vec<u8>> = self.paths(|what| *what == Existing::DirectoryLink(real.to_vec()));
        if !links.is_empty() && self.random.chance(60) { self.random.pick(&links) } else { real.to_vec() }
    }

    fn paths(&self, is_it: impl Fn(&Existing) -> bool) -> Vec<Vec<u8>> {
        self.tree.iter().filter(|(_, what)| is_it(what)).map(|(path, _)| path.clone()).collect()
    }

    fn component(&mut self) -> Vec<u8> {
        match self.random.below(20) {
            0 => vec![b'n'; 90 + self.random.below(160)],
            1 if self.used_for == Purpose::Archive => b".wh.plain".to_vec(),
            2..=9 => self.random.pick(&PARTS[..7]).to_vec(),
            _ => self.random.pick(&PARTS).to_vec(),
        }
    }

    fn kind(&mut self, path: &[u8]) -> Kind {
        match self.random.below(20) {
            0..=4 => Kind::Directory,
            5..=10 => Kind::File(self.content()),
            11..=13 => self.symlink(path),
            14..=16 => {
                let targets = self.paths(|what| !matches!(what, Existing::Directory | Existing::Delayed));
                let targets: Vec<_> =
                    targets.into_iter().filter(|target| target != path && !is_below(target, path)).collect();
                if targets.is_empty() {
                    return Kind::File(self.content());
                }
                Kind::HardLink(self.random.pick(&targets))
            }
            17 => Kind::Fifo,
            18 => {
                Kind::Char(self.random.pick(&[1, 5, 259, 4095]), self.random.pick(&[0, 3, 255, 256, 65_535, 1_048_575]))
            }
            _ => Kind::Block(self.random.pick(&[8, 253, 4095]), self.random.pick(&[0, 1, 300, 1_048_575])),
        }
    }

    fn symlink(&mut self, path: &[u8]) -> Kind {
        let directories = self.paths(|what| *what == Existing::Directory);
        let to = self.random.pick(&directories);
        let (parent, _) = split(path);
        if self.random.chance(30) || to.is_empty() {
            let targets: [&[u8]; 7] = [b"nowhere", b"a", b"/etc/passwd", b"../../../..", b"./x", b"..", &[b't'; 150]];
            return Kind::Symlink(self.random.pick(&targets).to_vec());
        }
        // GNU tar does not follow links that could lead out until the end.
        if self.used_for == Purpose::Archive {
            return match to.strip_prefix(&parent[..]) {
                Some(below) if parent.is_empty() => Kind::Symlink(below.to_vec()),
                Some([b'/', below @ ..]) if !below.is_empty() => Kind::Symlink(below.to_vec()),
                _ => Kind::Symlink([b"/", &to[..]].concat()),
            };
        }
        let depth = if parent.is_empty() { 0 } else { 1 + parent.iter().filter(|byte| **byte == b'/').count() };
        Kind::Symlink(match self.random.below(3) {
            0 => [b"/", &to[..]].concat(),
            1 => [&b"../".repeat(depth), &to[..]].concat(),
            // Above the root.
            _ => [&b"../".repeat(depth + 3), &to[..]].concat(),
        })
    }

    fn content(&mut self) -> Content {
        if !self.random.chance(25) {
            let len = self.random.pick(&[0, 1, 511, 512, 513, 4096, 10_000, 70_000]);
            let data = self.data(len);
            return Content { len: len as u64, segments: vec![(0, data)], sparse: None };
        }
        let formats = [None, Some(Sparse::Pax00), Some(Sparse::Pax01), Some(Sparse::Pax10), Some(Sparse::OldGnu)];
        // Neither umoci nor containerd supports the old format.
        let sparse = self.random.pick(if self.used_for == Purpose::Archive { &formats } else { &formats[..4] });
        let (mut at, mut segments) = (0, Vec::new());
        for _ in 0..self.random.pick(&[1, 1, 2, 4, 5, 26, 60]) {
            at += self.random.pick(&[0, 512, 4096, 65_536, 102_400]);
            // Whole blocks, as GNU tar writes them.
            let len = self.random.pick(&[512, 1024, 4096, 5120]);
            segments.push((at, self.data(len)));
            at += len as u64;
        }
        let hole = self.random.pick(&[0, 1, 4096, 300_000]);
        if let Some((_, last)) = segments.last_mut()
            && hole == 0
        {
            last.truncate(last.len() - 100);
            at -= 100;
        }
        if hole > 0 && sparse.is_some() {
            // GNU tar marks a hole at the end like this.
            segments.push((at + hole, Vec::new()));
        }
        Content { len: at + hole, segments, sparse }
    }

    fn data(&mut self, len: usize) -> Vec<u8> {
        let is_zero = self.random.chance(10);
        (0..len).map(|_| if is_zero { 0 } else { self.random.next().to_le_bytes()[0] }).collect()
    }

    fn plain(&mut self, name: Vec<u8>, kind: Kind) -> Entry {
        let mode =
            self.random.pick(&[0o644, 0o755, 0o600, 0o444, 0o000, 0o4755, 0o2755, 0o6711, 0o1777, 0o2775, 0o7777]);
        let ids = [0, 1, 1000, 65_534, 70_000, 2_097_151, 2_097_152, 3_000_000_000];
        // Both exceed eleven octal digits; Go's nanoseconds end in 2262.
        let latest = if self.used_for == Purpose::Archive { 10_000_000_000 } else { 8_700_000_000 };
        let seconds = self.random.pick(&[1, 86_400, 999_999_999, 1_700_000_000, 1_700_000_001, -1, -1_000_000, latest]);
        let formats = [Format::Ustar, Format::Gnu, Format::Pax, Format::Pax, Format::V7];
        let mut format = self.random.pick(&formats);
        if format == Format::V7 && matches!(kind, Kind::Char(..) | Kind::Block(..) | Kind::Fifo) {
            format = Format::Ustar;
        }
        let nanoseconds = self.random.pick(&[0, 1, 500_000_000, 999_999_999]);
        let mtime = (seconds, if format == Format::Pax { nanoseconds } else { 0 });
        let (uid, gid) = (self.random.pick(&ids), self.random.pick(&ids));
        Entry {
            name,
            kind,
            mode,
            uid,
            gid,
            mtime,
            records: Vec::new(),
            format,
            is_blank_padded: self.random.chance(20),
        }
    }

    /// Adds attributes and ACLs.
    fn add_attributes(&mut self, entry: &mut Entry) {
        let is_file = matches!(entry.kind, Kind::File(_));
        let is_directory = entry.kind == Kind::Directory;
        if matches!(entry.kind, Kind::HardLink(_)) || !self.random.chance(30) {
            return;
        }
        // Go ignores a record without a value.
        let nothing: &[u8] = if self.used_for == Purpose::Archive { b"" } else { b"-" };
        let mut add = |word: &[u8], value: &[u8]| entry.records.push((word.to_vec(), value.to_vec()));
        if self.random.chance(50) {
            add(b"SCHILY.xattr.trusted.test", self.random.pick(&[nothing, b"text", b"\0\n=\xff", &[b'v'; 600]]));
        }
        if self.used_for == Purpose::Archive && self.random.chance(10) {
            add(b"SCHILY.xattr.trusted.50%25 a%3Db%41", b"escaped");
        }
        if (is_file || is_directory) && self.random.chance(50) {
            add(b"SCHILY.xattr.user.note", self.random.pick(&[b"x", nothing, b"12 user.note=\n"]));
        }
        if is_file && self.random.chance(40) {
            add(b"SCHILY.xattr.security.capability", CAPABILITY);
        }
        let may_have_acl = !matches!(entry.kind, Kind::Symlink(_));
        match self.used_for {
            Purpose::Archive if may_have_acl && self.random.chance(50) => {
                add(b"SCHILY.acl.access", self.acl().as_bytes());
                if is_directory && self.random.chance(60) {
                    add(b"SCHILY.acl.default", self.acl().as_bytes());
                }
            }
            Purpose::Layers if may_have_acl && self.random.chance(40) => {
                add(b"SCHILY.xattr.system.posix_acl_access", ACL);
                if is_directory && self.random.chance(60) {
                    add(b"SCHILY.xattr.system.posix_acl_default", ACL);
                }
            }
            _ => {}
        }
    }

    /// An ACL as text, with numeric IDs.
    fn acl(&mut self) -> String {
        let permissions = ["rwx", "r-x", "rw-", "r--", "---", "-w-"];
        let mut entries = Vec::new();
        for who in ["user", "group"] {
            entries.push(format!("{who}::{}", self.random.pick(&permissions)));
            for id in self.random.pick(&[&[][..], &[1000], &[7, 3_000_000_000_u32]]) {
                entries.push(format!("{who}:{id}:{}", self.random.pick(&permissions)));
            }
        }
        if entries.len() > 2 || self.random.chance(20) {
            entries.push(format!("mask::{}", self.random.pick(&permissions)));
        }
        entries.push(format!("other::{}", self.random.pick(&permissions)));
        let (separator, end) = self.random.pick(&[(",", ""), ("\n", "\n")]);
        entries.join(separator) + end
    }

    /// An equivalent spelling of a name.
    fn decorated(&mut self, name: &[u8], is_directory: bool) -> Vec<u8> {
        let start: &[u8] = self.random.pick(&[&b""[..], b"", b"./", b"./", b"/", b"//", b".//./"]);
        let mut written = start.to_vec();
        for byte in name {
            written.push(*byte);
            if *byte == b'/' && self.random.chance(5) {
                written.extend(self.random.pick(&[&b"/"[..], b"./"]));
            }
        }
        if name.is_empty() {
            return self.random.pick(&[&b"."[..], b"./"]).to_vec();
        }
        // The oldest format marks a directory like this.
        if is_directory {
            written.push(b'/');
        }
        written
    }
}

/// Whether GNU tar assumes that a symbolic link could lead out.
pub(crate) fn could_lead_out(target: &[u8]) -> bool {
    target.starts_with(b"/") || target.split(|byte| *byte == b'/').any(|part| part == b"..")
}

fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

fn split(path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (path[..at].to_vec(), path[at + 1..].to_vec()),
        None => (Vec::new(), path.to_vec()),
    }
}

fn is_below(path: &[u8], above: &[u8]) -> bool {
    match above {
        [] => !path.is_empty(),
        _ => path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/")),
    }
}
