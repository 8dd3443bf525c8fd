//! A queue of a ublk device, served by one thread with one `io_uring`.
//!
//! Each tag is a task: it fetches a request, has a [`Target`] serve it, commits the result and fetches the next request in one command.
//! Buffers belong to the queue, one per tag, so that no memory which the kernel still writes to can be freed. There is no executor: a
//! task waits only for entries of the ring, whose user data contains its tag.

mod request;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use slab::Slab;

pub use self::request::{Limit, Op, Request};
use super::{DeviceInfo, UblkError, uapi};
use crate::mapping::Mapping;

/// Number of bits of a completion's user data that contain the tag.
const TAG_BITS: u32 = 16;

/// User data of completions that no task waits for.
const IGNORED: u64 = u64::MAX;

/// User data of the completion that ends a wait because the target's descriptor is readable.
const WOKEN: u64 = u64::MAX - 1;

/// If syncs are faster than this and no other request is in flight, the queue's thread runs them itself: `io_uring` hands each sync to
/// a worker, which on a fast disk costs as much as the sync. A request that arrives meanwhile waits that long.
const SHORT_SYNC: Duration = Duration::from_millis(1);

/// Serves requests, on the queue's thread, several concurrently.
pub trait Target {
    /// Serves a request completely, or fails it.
    fn serve(&self, request: &Request<'_>) -> impl Future<Output = io::Result<()>>;

    /// Called before each wait of the queue, for targets with timers: pushes the tags of requests that have to be polled again, and
    /// returns the maximum duration of the wait.
    fn before_wait(&self, _ready: &mut Vec<u16>) -> Option<Duration> {
        None
    }

    /// A descriptor that ends a wait when it becomes readable. The target reads what is in it in `before_wait`.
    fn wakes(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A queue.
pub struct Queue<'d> {
    device: &'d File,
    idx: u16,
    depth: u16,
    max_io_bytes: usize,
    // Dropped before the memory that its entries may refer to.
    ring: RefCell<IoUring>,
    /// Results of submitted entries, by their key.
    results: RefCell<Slab<Option<i32>>>,
    /// Number of requests being served.
    n_served: Cell<u16>,
    /// Duration of the last sync.
    last_sync: Cell<Duration>,
    descriptors: Mapping,
    buffers: Mapping,
}

impl std::fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("device", &self.device).field("idx", &self.idx).finish_non_exhaustive()
    }
}

/// Resources that this process provides for a queue. They are allocated for all queues before a device is accessed: if a server exits
/// while only some queues are mapped or fetching, some kernels do not permit a takeover.
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
    /// Allocates the resources of a queue. Call it on the thread that will serve the queue.
    ///
    /// # Errors
    /// [`UblkError::Ring`], [`UblkError::Node`].
    pub fn new(info: &DeviceInfo) -> Result<Self, UblkError> {
        let failed = |source| UblkError::Ring { operation: "create", source };
        // A tag has one driver command and one operation in flight, rarely more.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build((u32::from(info.depth) * 2).next_power_of_two())
            .map_err(failed)?;
        let buffers = Mapping::anonymous(usize::from(info.depth) * info.max_io_bytes as usize);
        Ok(Self { ring, buffers: buffers.map_err(map_error(info))? })
    }

    /// Attaches to a queue of a device that this process added or takes over.
    ///
    /// # Errors
    /// [`UblkError::Node`].
    pub fn attach<'d>(self, device: &'d File, info: &DeviceInfo, idx: u16) -> Result<Queue<'d>, UblkError> {
        let stride = uapi::MAX_QUEUE_DEPTH * uapi::DESCRIPTOR_BYTES as u64;
        // Written by the driver, and read by volatile reads only.
        let descriptors = Mapping::shared(
            device,
            usize::from(info.depth) * uapi::DESCRIPTOR_BYTES,
            u64::from(idx) * stride.next_multiple_of(rustix::param::page_size() as u64),
            ProtFlags::READ,
        )
        .map_err(map_error(info))?;
        Ok(Queue {
            device,
            idx,
            depth: info.depth,
            max_io_bytes: info.max_io_bytes as usize,
            ring: RefCell::new(self.ring),
            results: RefCell::default(),
            n_served: Cell::new(0),
            last_sync: Cell::new(Duration::MAX),
            descriptors,
            buffers: self.buffers,
        })
    }
}

fn map_error(info: &DeviceInfo) -> impl Fn(Errno) -> UblkError {
    let path = format!("/dev/ublkc{}", info.id);
    move |errno| UblkError::node("map", &path, errno)
}

impl Queue<'_> {
    /// Serves requests until the device is stopped.
    ///
    /// Aborts the process if the ring fails: memory that the kernel may still write to must not be freed, and the device waits for
    /// another server, as after any other crash of this one.
    pub fn run<T: Target>(&self, target: &T) {
        let mut tasks: Vec<Option<Pin<Box<dyn Future<Output = ()> + '_>>>> =
            (0..self.depth).map(|tag| Some(Box::pin(self.serve_tag(tag, target)) as Pin<Box<_>>)).collect();
        let mut ready: Vec<usize> = (0..tasks.len()).collect();
        let mut due = Vec::new();
        let mut living = tasks.len();
        let mut context = Context::from_waker(Waker::noop());
        let mut is_watched = false;
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
            let limit = target.before_wait(&mut due);
            ready.extend(due.drain(..).map(usize::from));
            if let Some(wakes) = target.wakes().filter(|_| !is_watched) {
                let events = u32::from(PollFlags::IN.bits());
                self.push(&[opcode::PollAdd::new(types::Fd(wakes.as_raw_fd()), events).build().user_data(WOKEN)]);
                is_watched = true;
            }
            if let Err(error) = self.submit_and_wait(if ready.is_empty() { limit } else { Some(Duration::ZERO) }) {
                // EBUSY and EAGAIN: completions have to be consumed first. ETIME: the time limit has expired.
                let harmless = [Errno::INTR, Errno::BUSY, Errno::AGAIN, Errno::TIME];
                if !Errno::from_io_error(&error).is_some_and(|errno| harmless.contains(&errno)) {
                    self.abort(&error);
                }
            }
            let mut ring = self.ring.borrow_mut();
            let mut results = self.results.borrow_mut();
            for entry in ring.completion() {
                let data = entry.user_data();
                if data == WOKEN {
                    is_watched = false;
                }
                if data >= WOKEN {
                    continue;
                }
                // Both parts had these sizes in `submit`.
                let (key, tag) = ((data >> TAG_BITS) as usize, (data & ((1 << TAG_BITS) - 1)) as usize);
                if let Some(result) = results.get_mut(key) {
                    *result = Some(entry.result());
                }
                ready.push(tag);
            }
        }
    }

    /// Submits the entries in the ring and waits for a completion, up to `limit`; does not wait if `limit` is zero.
    ///
    /// While no request is being served, the wait is outside of the ring. Kernels from 6.5 on account a thread that waits in a ring with
    /// anything in flight as waiting for I/O (`io_cqring_wait`), and the driver's commands always are: an idle server would be 100 % I/O
    /// pressure of its tenant and of the host.
    fn submit_and_wait(&self, limit: Option<Duration>) -> io::Result<usize> {
        let ring = self.ring.borrow();
        if limit == Some(Duration::ZERO) {
            return ring.submit();
        }
        if self.n_served.get() == 0 {
            let n_submitted = ring.submit()?;
            let limit = limit.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
            // SAFETY: `ring` owns the descriptor, and is not dropped before the end of the call.
            let descriptor = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
            poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], limit.as_ref())?;
            return Ok(n_submitted);
        }
        match limit {
            None => ring.submit_and_wait(1),
            Some(limit) => {
                ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&types::Timespec::from(limit)))
            }
        }
    }

    /// Aborts the process, because the kernel may still write to memory that must not be freed.
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing else keeps the memory, and the device waits for another server"
    )]
    fn abort(&self, error: &dyn std::fmt::Display) -> ! {
        tracing::error!(queue = self.idx, %error, "the queue cannot be served any more");
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
                // ENODEV: the device is being stopped. With any other error, requests would never complete.
                if fetched != -Errno::NODEV.raw_os_error() {
                    self.abort(&format_args!("tag {tag} cannot fetch a request (errno {})", -fetched));
                }
                return;
            }
            let request = self.request(tag);
            self.n_served.update(|n| n + 1);
            let result = match target.serve(&request).await {
                // The result matters for reads and writes only, which are smaller than 2 GiB.
                Ok(()) => i32::try_from(request.len).unwrap_or(0),
                Err(error) => -error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            };
            self.n_served.update(|n| n - 1);
            command = (uapi::COMMIT_AND_FETCH_REQ, result);
        }
    }

    /// The request that was just fetched for a tag.
    fn request(&self, tag: u16) -> Request<'_> {
        let at = usize::from(tag) * uapi::DESCRIPTOR_BYTES;
        // SAFETY: the mapping has `depth` descriptors, and `tag` is less than that; the driver does not change a descriptor between
        // handing out a request and receiving its result.
        let place = unsafe { self.descriptors.start.add(at) }.cast::<[u8; uapi::DESCRIPTOR_BYTES]>();
        // SAFETY: as above; bytes need no alignment.
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

    /// Adds an entry to the ring; it is submitted together with others when all tasks are waiting.
    fn submit(&self, tag: u16, entry: squeue::Entry) -> Submitted<'_> {
        self.submit_within(tag, entry, None)
    }

    /// [`Queue::submit`], with a time limit, after which the kernel cancels the operation.
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
        self.push(&entries);
        Submitted { queue: self, key }
    }

    /// Adds entries to the ring.
    fn push(&self, entries: &[squeue::Entry]) {
        loop {
            let mut ring = self.ring.borrow_mut();
            // SAFETY: entries refer to the buffers of this queue, which outlive its ring, to static limits, and to descriptors that the
            // caller's future borrows until the entry has completed ([`Submitted`] cannot be dropped before), or that the target keeps while
            // its queue runs.
            if unsafe { ring.submission().push_multiple(entries) }.is_ok() {
                return;
            }
            if let Err(error) = ring.submit()
                && !matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::BUSY | Errno::AGAIN))
            {
                self.abort(&error);
            }
        }
    }
}

/// A submitted entry; a future of its result.
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
            // The kernel would write to a buffer of the next request. Never happens if targets await what they submit; the device waits
            // for another server.
            self.queue.abort(&"an operation was dropped while it was in flight");
        }
    }
}
