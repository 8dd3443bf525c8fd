//! Streams of real layers: full and incremental, truncated and damaged at many offsets.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::time::Duration;

use bulkhead_core::cow::differing_layers;
use bulkhead_core::model::VolumeFs;
use bulkhead_formats::layer::layer_path;
use bulkhead_formats::staging;
use uuid::Uuid;

use super::*;

const SIZE: u64 = 3 << 20;
const BLOCKS: u64 = SIZE / BLOCK_BYTES;

/// A pool's directory with one volume, `v.img`.
struct Pool {
    dir: tempfile::TempDir,
    /// The layers of its volume, newest first.
    chain: Vec<Uuid>,
    seed: u64,
}

impl Pool {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        File::create_new(dir.path().join("v.img")).unwrap().set_len(SIZE).unwrap();
        Self { dir, chain: vec![], seed }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    /// Writes to random blocks, also zeroes.
    fn write(&mut self, times: u64) {
        for _ in 0..times {
            let (start, len) = (self.random(BLOCKS), self.random(30) + 1);
            let fill = u8::try_from(self.random(4) * 50).unwrap();
            let bytes = vec![fill; usize::try_from(len.min(BLOCKS - start) * BLOCK_BYTES).unwrap()];
            let image = File::options().write(true).open(self.dir.path().join("v.img")).unwrap();
            image.write_all_at(&bytes, start * BLOCK_BYTES).unwrap();
        }
    }

    /// Makes a layer of the volume's content.
    fn snapshot(&mut self) -> Vec<Uuid> {
        let bytes = Uuid::from_u64_pair(self.random(u64::MAX), self.random(u64::MAX)).into_bytes();
        self.snapshot_as(uuid::Builder::from_random_bytes(bytes).into_uuid())
    }

    fn snapshot_as(&mut self, id: Uuid) -> Vec<Uuid> {
        layer::freeze(&self.dir.path().join("v.img"), id, Duration::from_secs(5), || ()).unwrap();
        self.chain.insert(0, id);
        self.chain.clone()
    }

    fn paths(&self, ids: &[Uuid]) -> Vec<PathBuf> {
        ids.iter().map(|id| layer_path(self.dir.path(), *id)).collect()
    }

    fn stream(&self, layers: &[Uuid], base: Option<&[Uuid]>, start: u64) -> Vec<u8> {
        let header = StreamHeader {
            content: layers[0],
            base: base.map(|base| base[0]),
            size_bytes: Bytes(SIZE),
            start_bytes: Bytes(start),
            data_bytes: Bytes(0),
            fs: VolumeFs::Ext4,
            snapshot: "file/s".to_owned(),
        };
        let changed = base.map_or_else(|| layers.to_vec(), |base| differing_layers(layers, base));
        let mut sender = Sender::open(header, self.paths(layers), self.paths(&changed)).unwrap();
        let (mut stream, mut sent) = (Vec::new(), Bytes(0));
        sender.send(&mut stream, |bytes| sent = bytes).unwrap();
        assert_eq!(sent, sender.header().data_bytes);
        stream
    }
}

/// The content of a file and its layers, up to the file's end.
fn content(path: &Path) -> Vec<u8> {
    let mut files = layer::chain(path).unwrap().unwrap_or_default();
    files.insert(0, path.to_owned());
    files.reverse();
    let open = |path: &Path| Ok(open_direct(path, OFlags::RDONLY)?);
    let layers = Layers::open_files(files, open).unwrap();
    let mut bytes = vec![0; usize::try_from(SIZE).unwrap()];
    let mut buffer = Buffer::new();
    for block in 0..BLOCKS {
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        if let Some((_, Source::Layer(layer))) = layers.map.layer_runs(range.clone()).next() {
            layers.file(layer).read_exact_at(buffer.first(ZEROES.len()), range.start).unwrap();
            let at = usize::try_from(range.start).unwrap();
            bytes[at..at + ZEROES.len()].copy_from_slice(buffer.first(ZEROES.len()));
        }
    }
    bytes[to_usize(fs::metadata(path).unwrap().len())..].fill(0);
    bytes
}

/// Receives a stream as `name`; returns the offset reached, and the error.
fn receive(dir: &Path, name: &str, stream: &[u8]) -> (Option<Bytes>, Result<(), TransferError>) {
    let path = dir.join(format!("{name}.part"));
    let received = Receiver::open(stream).and_then(|mut receiver| {
        let header = receiver.header().clone();
        staging::create(&path, header.content, header.base, header.size_bytes)?;
        receiver.receive(&Target::open(&path, &header)?, |_| ())
    });
    (staging::state(&path).unwrap().and_then(|state| state.received), received)
}

#[test]
fn full_and_incremental_streams_reproduce_a_snapshot() {
    for seed in 0..6 {
        let mut here = Pool::new(seed);
        let there = tempfile::tempdir().unwrap();
        let mut before: Option<Vec<Uuid>> = None;
        for step in 0..4 {
            let writes = here.random(12);
            here.write(writes);
            let layers = here.snapshot();
            let stream = here.stream(&layers, before.as_deref(), 0);
            let name = format!("s{step}");
            receive(there.path(), &name, &stream).1.unwrap();
            let (part, image) = (there.path().join(format!("{name}.part")), there.path().join(format!("{name}.img")));
            staging::publish(&part, &image).unwrap();
            staging::remove(&part).unwrap();
            let wanted = content(&here.paths(&layers)[0]);
            assert!(content(&image) == wanted, "seed {seed}, step {step}");
            // A full stream gives the same.
            let all = tempfile::tempdir().unwrap();
            receive(all.path(), "all", &here.stream(&layers, None, 0)).1.unwrap();
            assert!(content(&all.path().join("all.part")) == wanted, "seed {seed}, step {step}");
            before = Some(layers);
        }
    }
}

#[test]
fn a_snapshot_of_one_clone_is_a_base_for_one_of_another() {
    let mut here = Pool::new(7);
    here.write(10);
    let trunk = here.snapshot();
    here.write(10);
    let one = here.snapshot();
    // A second image on the first layer.
    let image = here.dir.path().join("v.img");
    fs::remove_file(&image).unwrap();
    staging::create(&here.dir.path().join("w.part"), Uuid::from_u128(1), Some(trunk[0]), Bytes(SIZE)).unwrap();
    fs::rename(here.dir.path().join("w.part"), &image).unwrap();
    here.chain = trunk;
    here.write(10);
    let two = here.snapshot();
    let there = tempfile::tempdir().unwrap();
    for (name, stream) in [("one", here.stream(&one, None, 0)), ("two", here.stream(&two, Some(&one), 0))] {
        receive(there.path(), name, &stream).1.unwrap();
        let part = there.path().join(format!("{name}.part"));
        staging::publish(&part, &there.path().join(format!("{name}.img"))).unwrap();
    }
    assert!(content(&there.path().join("one.img")) == content(&here.paths(&one)[0]));
    assert!(content(&there.path().join("two.img")) == content(&here.paths(&two)[0]));
}

/// A block of a thin pool.
const THIN: u64 = 256 << 10;

/// A volume on a thin pool: its mapped blocks, and its size.
#[derive(Clone)]
struct Thin {
    id: Uuid,
    blocks: Vec<Option<u64>>,
    size: Bytes,
}

impl Thin {
    /// Its content; each block of the pool is filled with one value, also zero.
    fn content(&self) -> Vec<u8> {
        let fill = |block: &Option<u64>| vec![u8::try_from(block.unwrap_or(0) % 5).unwrap(); to_usize(THIN)];
        let mut bytes: Vec<u8> = self.blocks.iter().flat_map(fill).collect();
        bytes[to_usize(self.size.0)..].fill(0);
        bytes
    }

    fn common(&self, base: &Self) -> Comparison {
        let mut common = Comparison::default();
        for (n, blocks) in (0..).zip(base.blocks.iter().zip(&self.blocks)) {
            let list = match blocks {
                (None, None) => continue,
                (Some(_), None) => &mut common.base_only,
                (left, right) if left == right => &mut common.same,
                _ => &mut common.own,
            };
            list.push(n * THIN..(n + 1) * THIN);
        }
        common
    }

    fn stream(&self, dir: &Path, base: Option<&Self>, start: Bytes) -> Vec<u8> {
        let header = StreamHeader {
            content: self.id,
            base: base.map(|base| base.id),
            size_bytes: self.size,
            start_bytes: start,
            data_bytes: Bytes(0),
            fs: VolumeFs::Ext4,
            snapshot: "thin/s".to_owned(),
        };
        // Unmapped blocks must not be read.
        let mut bytes = self.content();
        for (n, _) in self.blocks.iter().enumerate().filter(|(_, block)| block.is_none()) {
            bytes[n * to_usize(THIN)..][..to_usize(THIN)].fill(0xee);
        }
        let path = dir.join("device");
        fs::write(&path, bytes).unwrap();
        let file = open_direct(&path, OFlags::RDONLY).unwrap();
        let common = self.common(base.unwrap_or(self));
        let mut sender = Sender::of_thin(header, &path, file, &common, base.map(|base| base.size));
        let (mut stream, mut sent) = (Vec::new(), Bytes(0));
        sender.send(&mut stream, |bytes| sent = bytes).unwrap();
        assert_eq!(sent, sender.header().data_bytes);
        stream
    }
}

#[test]
fn a_thin_pool_sends_mapped_and_unmapped_blocks() {
    for seed in 0..20 {
        let mut random = Pool::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut before: Option<Thin> = None;
        let mut blocks = vec![None; to_usize(SIZE / THIN)];
        for step in 0..4 {
            // The volume is written to, trimmed, shrunk and grown; a shrink leaves mapped blocks beyond its end.
            for n in 0..4 {
                let at = to_usize(random.random(SIZE / THIN));
                blocks[at] = (random.random(3) > 0).then_some(step * 10 + n);
            }
            let size = Bytes((1 + random.random(BLOCKS)) * BLOCK_BYTES);
            let now = Thin { id: Uuid::from_u128(u128::from(step) + 1), blocks: blocks.clone(), size };
            let whole = now.stream(dir.path(), before.as_ref(), Bytes(0));
            let (reached, _) = receive(dir.path(), "v", &whole[..to_usize(random.random(whole.len() as u64))]);
            let rest = now.stream(dir.path(), before.as_ref(), reached.unwrap_or(Bytes(0)));
            receive(dir.path(), "v", &rest).1.unwrap();
            let (part, image) = (dir.path().join("v.part"), dir.path().join(format!("v{step}.img")));
            staging::publish(&part, &image).unwrap();
            staging::remove(&part).unwrap();
            assert!(content(&image) == now.content(), "seed {seed}, step {step}");
            before = Some(now);
        }
    }
}

#[test]
fn an_interrupted_transfer_resumes_from_any_offset() {
    let mut here = Pool::new(3);
    here.write(8);
    let base = here.snapshot();
    here.write(8);
    let layers = here.snapshot();
    let there = tempfile::tempdir().unwrap();
    receive(there.path(), "base", &here.stream(&base, None, 0)).1.unwrap();
    staging::publish(&there.path().join("base.part"), &there.path().join("base.img")).unwrap();
    let whole = here.stream(&layers, Some(&base), 0);
    let wanted = content(&here.paths(&layers)[0]);
    let mut offsets = BTreeSet::new();
    for cut in (0..whole.len()).step_by(whole.len() / 97) {
        let (reached, truncated) = receive(there.path(), "v", &whole[..cut]);
        assert!(matches!(truncated, Err(TransferError::Truncated)), "{cut}: {truncated:?}");
        // There is no staging file if the header is incomplete.
        let reached = reached.unwrap_or(Bytes(0));
        offsets.insert(reached);
        let (rest, done) = receive(there.path(), "v", &here.stream(&layers, Some(&base), reached.0));
        done.unwrap();
        let part = there.path().join("v.part");
        assert!(rest.is_none() && content(&part) == wanted, "cut at {cut}");
        staging::remove(&part).unwrap();
    }
    assert!(offsets.len() > 5, "{offsets:?}");
}

#[test]
fn a_changed_byte_is_detected_at_any_offset() {
    let mut here = Pool::new(5);
    here.write(6);
    let layers = here.snapshot();
    let stream = here.stream(&layers, None, 0);
    let wanted = content(&here.paths(&layers)[0]);
    let there = tempfile::tempdir().unwrap();
    let near_ends = (0..300).chain(stream.len() - 100..stream.len());
    for at in near_ends.chain((0..stream.len()).step_by(stream.len() / 61)) {
        let mut damaged = stream.clone();
        damaged[at] ^= 0x10;
        let (reached, error) = receive(there.path(), "v", &damaged);
        assert!(error.is_err(), "byte {at}");
        let part = there.path().join("v.part");
        if part.exists() {
            // The received part is correct.
            let upto = usize::try_from(reached.unwrap().0).unwrap();
            assert!(content(&part)[..upto] == wanted[..upto], "byte {at}");
            staging::remove(&part).unwrap();
        }
    }
    let longer = [&stream[..], b"x"].concat();
    assert!(matches!(receive(there.path(), "v", &longer).1, Err(TransferError::TooLong)));
}

#[test]
fn a_stream_that_claims_to_be_an_imported_base_is_refused() {
    let mut here = Pool::new(6);
    here.write(6);
    let layers = here.snapshot_as(bulkhead_core::base::ContentHasher::new(Bytes(SIZE)).name());
    let stream = here.stream(&layers, None, 0);
    assert!(matches!(Receiver::open(&stream[..]), Err(TransferError::Base(content)) if content == layers[0]));
}

#[test]
fn received_data_is_not_written_again() {
    let mut here = Pool::new(9);
    here.write(12);
    let layers = here.snapshot();
    let stream = here.stream(&layers, None, 0);
    let there = tempfile::tempdir().unwrap();
    let path = there.path().join("v.part");
    receive(there.path(), "v", &stream).1.unwrap();
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    // Complete: it stays the same, whether the stream is complete or truncated.
    for end in [stream.len(), stream.len() / 2] {
        let (reached, _) = receive(there.path(), "v", &stream[..end]);
        assert_eq!(reached, None);
    }
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
    assert!(content(&path) == content(&here.paths(&layers)[0]));
    // Partial: the rest is written, from the middle of a record on.
    staging::remove(&path).unwrap();
    receive(there.path(), "v", &stream[..stream.len() / 2]).1.unwrap_err();
    let reached = staging::state(&path).unwrap().unwrap().received.unwrap();
    let middle = reached.0 - BLOCK_BYTES;
    StagingFile::open(&path).unwrap().checkpoint(layers[0], Some(Bytes(middle))).unwrap();
    receive(there.path(), "v", &stream).1.unwrap();
    assert!(content(&path) == content(&here.paths(&layers)[0]));
}

#[test]
fn a_staging_file_that_was_discarded_meanwhile_is_not_resumed() {
    let mut here = Pool::new(8);
    here.write(6);
    let layers = here.snapshot();
    let stream = here.stream(&layers, None, 0);
    let there = tempfile::tempdir().unwrap();
    let path = there.path().join("v.part");
    receive(there.path(), "v", &stream[..stream.len() / 2]).1.unwrap_err();
    let reached = staging::state(&path).unwrap().unwrap().received.unwrap();
    assert!(reached > Bytes(0));
    let rest = here.stream(&layers, None, reached.0);
    let mut receiver = Receiver::open(&rest[..]).unwrap();
    staging::remove(&path).unwrap();
    staging::create(&path, layers[0], None, Bytes(SIZE)).unwrap();
    let header = receiver.header().clone();
    let error = Target::open(&path, &header).and_then(|target| receiver.receive(&target, |_| ()));
    assert!(matches!(error, Err(TransferError::Staging(LayerError::Discarded { .. }))), "{error:?}");
    // Progress is kept if a stream from an earlier offset is truncated.
    receive(there.path(), "v", &stream[..stream.len() / 2]).1.unwrap_err();
    receive(there.path(), "v", &stream[..stream.len() / 4]).1.unwrap_err();
    assert_eq!(staging::state(&path).unwrap().unwrap().received, Some(reached));
}
