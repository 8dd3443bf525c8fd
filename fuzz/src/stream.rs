//! Streams of `bulkhead volume send` (docs/formats/stream.md).

use bulkhead_blockd::transfer::{Receiver, Target};
use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_formats::staging;
use bulkhead_formats::stream::{ChecksumChain, Record, encode_head};

use crate::input::{Input, scratch};

/// The largest volume that is received: larger ones take more time and find nothing more.
const MAX_SIZE: u64 = 256 * BLOCK_BYTES;

/// The first byte selects whether the rest is a stream, or describes one: the text of its header, a zero byte, and for each record its
/// type, first block, number of blocks and the byte that fills its data.
pub fn stream(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() {
        0 => receive(input.0),
        mode => receive(&described(input, mode & 1 == 0)),
    }
}

fn described(mut input: Input<'_>, is_truncated: bool) -> Vec<u8> {
    let text = input.until(0);
    let mut stream = [&b"BULKHEAD"[..], &1_u32.to_le_bytes()].concat();
    stream.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    stream.extend(text);
    let sum = blake3::hash(&stream);
    stream.extend(sum.as_bytes());
    let mut sums = ChecksumChain::after(&stream);
    while !input.is_empty() {
        let (kind, offset, len) = (input.byte(), input.small() * BLOCK_BYTES, (input.small() & 0xff) * BLOCK_BYTES);
        let head = match kind {
            1 => encode_head(Record::Data { offset, len }),
            2 => encode_head(Record::Zeroes { offset, len }),
            3 => encode_head(Record::End),
            _ => input.array(),
        };
        let data = if kind == 1 { vec![input.byte(); usize::try_from(len).unwrap_or(0)] } else { Vec::new() };
        let sum = sums.next(&head, &data);
        [&head[..], &data, &sum].iter().for_each(|part| stream.extend(*part));
    }
    if is_truncated {
        stream.pop();
    }
    stream
}

fn receive(stream: &[u8]) {
    let Ok(mut receiver) = Receiver::open(stream) else { return };
    let header = receiver.header().clone();
    if header.size_bytes.0 > MAX_SIZE {
        return;
    }
    let dir = scratch();
    let staging = dir.path().join("v.part");
    if staging::create(&staging, header.content, header.base, header.size_bytes).is_err() {
        assert!(header.base.is_some(), "an empty staging file can be created");
        return;
    }
    let target = Target::open(&staging, &header);
    let is_complete = target.and_then(|target| receiver.receive(&target, |_| ())).is_ok();
    let state = staging::state(&staging).expect("the staging file can be read").expect("the staging file exists");
    assert_eq!(
        (state.content, state.size),
        (header.content, header.size_bytes),
        "the staging file belongs to another stream"
    );
    assert_eq!(state.received.is_none(), is_complete, "an incomplete staging file counts as complete");
}
