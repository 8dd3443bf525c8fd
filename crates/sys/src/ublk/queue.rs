//! The requests of one queue of a ublk device, served by one thread with one `io_uring`.
//!
//! Each tag is a task of its own: it fetches a request, has a [`Target`] serve it, commits it and fetches the next in one
//! command. Buffers belong to the queue, one for each tag, so that nothing which the kernel still writes to can be freed.
//! There is no executor: whatever a task waits for is an entry of the ring that carries its tag.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::mm::ProtFlags;
use slab::Slab;

use super::{DeviceInfo, UblkError, uapi};
use crate::mapping::Mapping;
use crate::shared::Shared;

/// Bits of a completion's user data that say which tag it is for.
const TAG_BITS: u32 = 16;

/// User data of completions that nobody waits for.
const IGNORED: u64 = u64::MAX;

/// A sync that takes less is made by the queue's own thread where nothing else is under way: `io_uring` hands every one to a worker,
/// which on a fast disk costs as much as the sync. A request that comes meanwhile waits for as long.
const SHORT_SYNC: Duration = Duration::from_millis(1);

/// What is asked for (`UBLK_IO_OP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read from the device into the buffer.
    Read,
    /// Write the buffer to the device.
    Write,
    /// Make everything durable that was completed before.
    Flush,
    /// The range is not needed any more.
    Discard,
    /// The range is to read as zeroes.
    WriteZeroes,
    /// Something else, by its number.
    Other(u8),
}

/// Serves requests. All requests of a queue are served on the queue's thread, many at a time.
pub trait Target {
    /// Serves a request: all of it, or none that counts.
    fn serve(&self, request: &Request<'_>) -> impl Future<Output = io::Result<()>>;

    /// Called before each wait of the queue, for targets whose requests end at a time of their own: pushes the tags whose requests
    /// are to be polled again, and returns how long to wait for other things at most.
    fn turn(&self, _ready: &mut Vec<u16>) -> Option<Duration> {
        None
    }
}

/// One queue.
pub struct Queue<'d> {
    device: &'d File,
    idx: u16,
    depth: u16,
    max_io_bytes: usize,
    // Dropped before the memory that its entries may refer to.
    ring: RefCell<IoUring>,
    /// Results of the entries that were submitted, by their key.
    results: RefCell<Slab<Option<i32>>>,
    /// How many requests are being served.
    served: Cell<u16>,
    /// How long the last sync took.
    last_sync: Cell<Duration>,
    descriptors: Mapping,
    buffers: Mapping,
}

impl std::fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("device", &self.device).field("idx", &self.idx).finish_non_exhaustive()
    }
}

/// A request with its buffer.
#[derive(Debug)]
pub struct Request<'q> {
    queue: &'q Queue<'q>,
    tag: u16,
    /// What is asked for.
    pub op: Op,
    /// Where on the device, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u64,
    /// A write that is to be durable when it is completed (`UBLK_IO_F_FUA`).
    pub fua: bool,
    /// Zeroes that are to keep their space (`UBLK_IO_F_NOUNMAP`).
    pub keeps_space: bool,
}

/// How long something may take.
#[derive(Debug)]
pub struct Limit(types::Timespec);

impl Limit {
    /// So many milliseconds.
    #[must_use]
    pub const fn milliseconds(n: u32) -> Self {
        Self(types::Timespec::new().sec((n / 1000) as u64).nsec(n % 1000 * 1_000_000))
    }
}

/// What a queue needs of this process. A device is not touched before all its queues have that: one whose server ends with some of
/// its queues mapped or fetching cannot be taken over on every kernel.
pub struct Prepared {
    ring: IoUring,
    buffers: Mapping,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
    }
}

impl Prepared {
    /// For a queue of this device. Call it on the thread that will serve.
    ///
    /// # Errors
    /// [`UblkError::Ring`], [`UblkError::Node`].
    pub fn new(info: &DeviceInfo) -> Result<Self, UblkError> {
        let failed = |source| UblkError::Ring { operation: "make", source };
        // A tag has a command of the driver's and one of its own under way, and seldom more.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build((u32::from(info.depth) * 2).next_power_of_two())
            .map_err(failed)?;
        let buffers = Mapping::anonymous(usize::from(info.depth) * info.max_io_bytes as usize);
        Ok(Self { ring, buffers: buffers.map_err(unmapped(info))? })
    }

    /// Makes it a queue of a device that this process added or takes over.
    ///
    /// # Errors
    /// [`UblkError::Node`].
    pub fn attach<'d>(self, device: &'d File, info: &DeviceInfo, idx: u16) -> Result<Queue<'d>, UblkError> {
        let stride = uapi::MAX_QUEUE_DEPTH * uapi::DESCRIPTOR_BYTES as u64;
        // What the driver writes there is read with volatile reads only.
        let descriptors = Mapping::of(
            device,
            usize::from(info.depth) * uapi::DESCRIPTOR_BYTES,
            u64::from(idx) * stride.next_multiple_of(rustix::param::page_size() as u64),
            ProtFlags::READ,
        )
        .map_err(unmapped(info))?;
        Ok(Queue {
            device,
            idx,
            depth: info.depth,
            max_io_bytes: info.max_io_bytes as usize,
            ring: RefCell::new(self.ring),
            results: RefCell::default(),
            served: Cell::new(0),
            last_sync: Cell::new(Duration::MAX),
            descriptors,
            buffers: self.buffers,
        })
    }
}

fn unmapped(info: &DeviceInfo) -> impl Fn(Errno) -> UblkError {
    let path = format!("/dev/ublkc{}", info.id);
    move |errno| UblkError::node("map", &path, errno)
}

impl Queue<'_> {
    /// Serves requests until the device is stopped.
    ///
    /// Where the ring itself fails, the process is ended: memory that the kernel may still write to must not be freed, and the
    /// device waits for another server just as after any other death of this one.
    pub fn run<T: Target>(&self, target: &T) {
        let mut tasks: Vec<Option<Pin<Box<dyn Future<Output = ()> + '_>>>> =
            (0..self.depth).map(|tag| Some(Box::pin(self.serve_tag(tag, target)) as Pin<Box<_>>)).collect();
        let mut ready: Vec<usize> = (0..tasks.len()).collect();
        let mut due = Vec::new();
        let mut living = tasks.len();
        let mut context = Context::from_waker(Waker::noop());
        while living > 0 {
            for tag in ready.drain(..) {
                if tasks[tag].as_mut().is_some_and(|task| task.as_mut().poll(&mut context).is_ready()) {
                    tasks[tag] = None;
                    living -= 1;
                }
            }
            if living == 0 {
                break;
            }
            let limit = target.turn(&mut due);
            ready.extend(due.drain(..).map(usize::from));
            if let Err(error) = self.submit_and_wait(if ready.is_empty() { limit } else { Some(Duration::ZERO) }) {
                // EBUSY and EAGAIN: completions have to be taken first. ETIME: the limit has passed.
                let harmless = [Errno::INTR, Errno::BUSY, Errno::AGAIN, Errno::TIME];
                if !Errno::from_io_error(&error).is_some_and(|errno| harmless.contains(&errno)) {
                    self.die(&error);
                }
            }
            let mut ring = self.ring.borrow_mut();
            let mut results = self.results.borrow_mut();
            for entry in ring.completion() {
                let data = entry.user_data();
                if data == IGNORED {
                    continue;
                }
                // Both parts were made from numbers of these sizes in `submit`.
                let (key, tag) = ((data >> TAG_BITS) as usize, (data & ((1 << TAG_BITS) - 1)) as usize);
                if let Some(result) = results.get_mut(key) {
                    *result = Some(entry.result());
                }
                ready.push(tag);
            }
        }
    }

    /// Submits what is in the ring and waits for a completion, at most for `limit`; not at all when that is zero.
    fn submit_and_wait(&self, limit: Option<Duration>) -> io::Result<usize> {
        let ring = self.ring.borrow();
        match limit {
            None => ring.submit_and_wait(1),
            Some(Duration::ZERO) => ring.submit(),
            Some(limit) => {
                ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&types::Timespec::from(limit)))
            }
        }
    }

    /// Ends the process: the kernel may still write to memory that must not be freed.
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing else keeps the memory, and the device waits for another server"
    )]
    fn die(&self, why: &dyn std::fmt::Display) -> ! {
        tracing::error!(queue = self.idx, %why, "the queue cannot be served any more");
        std::process::abort();
    }

    async fn serve_tag<T: Target>(&self, tag: u16, target: &T) {
        let buffer = self.buffers.start.as_ptr() as u64 + u64::from(tag) * self.max_io_bytes as u64;
        let mut command = (uapi::FETCH_REQ, 0);
        loop {
            let (opcode, result) = command;
            let entry = opcode::UringCmd16::new(types::Fd(self.device.as_raw_fd()), opcode)
                .cmd(uapi::io_cmd(self.idx, tag, result, buffer))
                .build();
            let fetched = self.submit(tag, entry).await;
            if fetched != uapi::IO_RES_OK {
                // ENODEV: the device is being stopped. After anything else a request would never be answered.
                if fetched != -Errno::NODEV.raw_os_error() {
                    self.die(&format_args!("tag {tag} cannot fetch a request (errno {})", -fetched));
                }
                return;
            }
            let request = self.request(tag);
            self.served.update(|n| n + 1);
            let result = match target.serve(&request).await {
                // The driver's largest request is smaller than 2 GiB where the length counts: that of reads and writes.
                Ok(()) => i32::try_from(request.len).unwrap_or(0),
                Err(error) => -error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            };
            self.served.update(|n| n - 1);
            command = (uapi::COMMIT_AND_FETCH_REQ, result);
        }
    }

    /// What the driver wrote down for a tag whose request was just fetched.
    fn request(&self, tag: u16) -> Request<'_> {
        let at = usize::from(tag) * uapi::DESCRIPTOR_BYTES;
        // SAFETY: the mapping holds `depth` descriptors and `tag` is less than that; the driver does not touch a descriptor
        // between handing a request out and taking its result.
        let place = unsafe { self.descriptors.start.add(at) }.cast::<[u8; uapi::DESCRIPTOR_BYTES]>();
        // SAFETY: as above; it is bytes, which have no alignment.
        let bytes = unsafe { place.read_volatile() };
        let descriptor = uapi::Descriptor::decode(&bytes);
        Request {
            queue: self,
            tag,
            op: match descriptor.op {
                0 => Op::Read,
                1 => Op::Write,
                2 => Op::Flush,
                3 => Op::Discard,
                5 => Op::WriteZeroes,
                other => Op::Other(other),
            },
            offset: descriptor.offset,
            len: descriptor.len,
            fua: descriptor.fua,
            keeps_space: descriptor.keeps_space,
        }
    }

    /// Puts an entry into the ring; it goes to the kernel with the others when all tasks wait.
    fn submit(&self, tag: u16, entry: squeue::Entry) -> Submitted<'_> {
        self.submit_within(tag, entry, None)
    }

    /// The same; the kernel calls it off when it takes too long.
    fn submit_within(&self, tag: u16, entry: squeue::Entry, limit: Option<&'static types::Timespec>) -> Submitted<'_> {
        let key = self.results.borrow_mut().insert(None);
        let entry = entry.user_data((key as u64) << TAG_BITS | u64::from(tag));
        let entries = match limit {
            None => [Some(entry), None],
            Some(limit) => {
                let timeout = opcode::LinkTimeout::new(limit).build().user_data(IGNORED);
                [Some(entry.flags(squeue::Flags::IO_LINK)), Some(timeout)]
            }
        };
        let entries: Vec<squeue::Entry> = entries.into_iter().flatten().collect();
        loop {
            let mut ring = self.ring.borrow_mut();
            // SAFETY: what entries refer to are the buffers of this queue, which outlive its ring, limits that live for ever, and
            // descriptors that the caller's future borrows until the entry has completed: [`Submitted`] cannot be dropped before.
            if unsafe { ring.submission().push_multiple(&entries) }.is_ok() {
                return Submitted { queue: self, key };
            }
            if let Err(error) = ring.submit()
                && !matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::BUSY | Errno::AGAIN))
            {
                self.die(&error);
            }
        }
    }
}

/// An entry that is under way. Waits for its result.
struct Submitted<'q> {
    queue: &'q Queue<'q>,
    key: usize,
}

impl Future for Submitted<'_> {
    type Output = i32;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<i32> {
        match self.queue.results.borrow().get(self.key) {
            Some(Some(result)) => Poll::Ready(*result),
            _ => Poll::Pending,
        }
    }
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        let result = self.queue.results.borrow_mut().try_remove(self.key).flatten();
        if result.is_none() {
            // The kernel would write into a buffer that the next request has. It never happens while targets await what they
            // submit; the device waits for another server.
            self.queue.die(&"an operation was given up while it was under way");
        }
    }
}

impl Request<'_> {
    /// Reads from a file into a part of the buffer, all of it.
    ///
    /// # Errors
    /// The operating system's; `UnexpectedEof` when the file ends before.
    pub async fn read(&self, file: BorrowedFd<'_>, part: Range<usize>, offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < part.len() {
            let (start, len) = self.part(part.start + done..part.end)?;
            let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), start, len).offset(offset + done as u64).build();
            done += match self.outcome(entry).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => n,
            };
        }
        Ok(())
    }

    /// Writes a part of the buffer to a file, all of it; durably when asked to.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn write(&self, file: BorrowedFd<'_>, part: Range<usize>, offset: u64, durable: bool) -> io::Result<()> {
        let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut done = 0;
        while done < part.len() {
            let (start, len) = self.part(part.start + done..part.end)?;
            let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), start, len)
                .offset(offset + done as u64)
                .rw_flags(flags.bits().cast_signed())
                .build();
            done += match self.outcome(entry).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => n,
            };
        }
        Ok(())
    }

    /// Makes what was written to a file durable: its data, and what is needed to find it (`fdatasync(2)`).
    ///
    /// # Errors
    /// The operating system's.
    pub async fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let begin = Instant::now();
        let outcome = if self.queue.last_sync.get() < SHORT_SYNC && self.queue.served.get() == 1 {
            rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file)).map_err(io::Error::from)
        } else {
            let fd = types::Fd(file.as_raw_fd());
            self.outcome(opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()).await.map(drop)
        };
        self.queue.last_sync.set(begin.elapsed());
        outcome
    }

    /// Gives the space of a range of a file back: it reads as zeroes then (`FALLOC_FL_PUNCH_HOLE`).
    ///
    /// # Errors
    /// The operating system's.
    pub async fn punch(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let fd = types::Fd(file.as_raw_fd());
        let entry = opcode::Fallocate::new(fd, len).offset(offset).mode(mode.bits().cast_signed()).build();
        self.outcome(entry).await.map(drop)
    }

    /// Sends a part of the buffer as one packet. The socket must be one that waits.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn send(&self, socket: BorrowedFd<'_>, part: Range<usize>) -> io::Result<()> {
        let (start, len) = self.part(part)?;
        let flags = rustix::net::SendFlags::NOSIGNAL.bits().cast_signed();
        let entry = opcode::Send::new(types::Fd(socket.as_raw_fd()), start, len).flags(flags).build();
        match self.outcome(entry).await? {
            sent if sent == len as usize => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Receives one packet into a part of the buffer, and returns how long it was; 0 when there will be no more.
    ///
    /// # Errors
    /// The operating system's; `TimedOut` when none came within the limit.
    pub async fn receive(
        &self,
        socket: BorrowedFd<'_>,
        part: Range<usize>,
        limit: &'static Limit,
    ) -> io::Result<usize> {
        let (start, len) = self.part(part)?;
        let entry = opcode::Recv::new(types::Fd(socket.as_raw_fd()), start, len).build();
        loop {
            let result = self.queue.submit_within(self.tag, entry.clone(), Some(&limit.0)).await;
            match usize::try_from(result) {
                Ok(n) => return Ok(n),
                Err(_) => match Errno::from_raw_os_error(-result) {
                    Errno::INTR | Errno::AGAIN => {}
                    Errno::CANCELED | Errno::TIME => return Err(io::ErrorKind::TimedOut.into()),
                    errno => return Err(errno.into()),
                },
            }
        }
    }

    /// Writes to the buffer.
    ///
    /// # Errors
    /// `InvalidInput` for a place that the buffer does not have.
    pub fn put(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let (start, len) = self.part(at..at.saturating_add(bytes.len()))?;
        // SAFETY: `len` bytes at `start` are a part of the tag's buffer, which no reference is ever made to, so that `bytes` is
        // something else.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, len as usize) };
        Ok(())
    }

    /// The number by which [`Target::turn`] knows the request.
    #[must_use]
    pub fn tag(&self) -> u16 {
        self.tag
    }

    /// Writes to the buffer what memory holds from `at` on that another process may write to.
    ///
    /// # Errors
    /// `InvalidInput` for a part that the buffer or the memory does not have.
    pub fn put_shared(&self, part: Range<usize>, memory: &Shared, at: usize) -> io::Result<()> {
        let (start, len) = self.part(part)?;
        let from = memory.part(at..at.saturating_add(len as usize))?;
        // SAFETY: `len` bytes at both places, each a mapping of its own, to neither of which a reference is ever made. What the
        // other process writes meanwhile decides only what the part holds.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), start, len as usize) };
        Ok(())
    }

    /// Writes a part of the buffer to memory, from `at` on, that another process may write to.
    ///
    /// # Errors
    /// As [`Request::put_shared`].
    pub fn get_shared(&self, part: Range<usize>, memory: &Shared, at: usize) -> io::Result<()> {
        let (start, len) = self.part(part)?;
        let to = memory.part(at..at.saturating_add(len as usize))?;
        // SAFETY: as in `put_shared`.
        unsafe { std::ptr::copy_nonoverlapping(start.cast_const(), to.as_ptr(), len as usize) };
        Ok(())
    }

    /// Reads from the buffer.
    ///
    /// # Errors
    /// As [`Request::put`].
    pub fn get(&self, part: Range<usize>) -> io::Result<Vec<u8>> {
        let (start, len) = self.part(part)?;
        let mut bytes = vec![0; len as usize];
        // SAFETY: as above; `bytes` has `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), len as usize) };
        Ok(bytes)
    }

    /// Waits until a descriptor can be read from.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn wait_readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let events = u32::from(rustix::event::PollFlags::IN.bits());
        self.outcome(opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), events).build()).await.map(drop)
    }

    /// Fills a part of the buffer with zeroes.
    ///
    /// # Errors
    /// `InvalidInput` for a part that the buffer does not have.
    pub fn zero(&self, part: Range<usize>) -> io::Result<()> {
        let (start, len) = self.part(part)?;
        // SAFETY: a part of the tag's buffer, which no reference is ever made to. Whether an operation that is under way writes
        // there too decides only what the part holds.
        unsafe { std::ptr::write_bytes(start, 0, len as usize) };
        Ok(())
    }

    /// Writes zeroes to a range of a file. Uses the buffer, so the request must be one that brings no data.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn write_zeroes(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        self.zero(0..self.queue.max_io_bytes)?;
        let step = self.queue.max_io_bytes as u64;
        let mut done = 0;
        while done < len {
            let n = step.min(len - done);
            // It is at most the size of the buffer.
            self.write(file, 0..usize::try_from(n).unwrap_or(0), offset + done, false).await?;
            done += n;
        }
        Ok(())
    }

    /// Submits an entry until it is not interrupted; how many bytes it moved.
    async fn outcome(&self, entry: squeue::Entry) -> io::Result<usize> {
        loop {
            let result = self.queue.submit(self.tag, entry.clone()).await;
            match usize::try_from(result) {
                Ok(n) => return Ok(n),
                Err(_) => match Errno::from_raw_os_error(-result) {
                    Errno::INTR | Errno::AGAIN => {}
                    errno => return Err(errno.into()),
                },
            }
        }
    }

    /// Address and length of a part of the buffer.
    fn part(&self, part: Range<usize>) -> io::Result<(*mut u8, u32)> {
        let max = self.queue.max_io_bytes;
        let inside = part.start <= part.end && part.end <= max;
        let len = u32::try_from(part.len()).ok().filter(|_| inside).ok_or(io::ErrorKind::InvalidInput)?;
        let at = usize::from(self.tag) * max + part.start;
        // SAFETY: the mapping holds `depth` buffers of `max` bytes, the tag is less than the depth, and the part lies within
        // the tag's buffer, which was just checked.
        Ok((unsafe { self.queue.buffers.start.add(at) }.as_ptr(), len))
    }
}
