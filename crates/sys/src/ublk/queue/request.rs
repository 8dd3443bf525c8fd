//! One request of a queue: its buffer, and the operations that serve it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use io_uring::{opcode, squeue, types};
use rustix::io::{Errno, ReadWriteFlags};

use super::{Queue, SHORT_SYNC};
use crate::shared::Shared;

/// Operation of a request (`UBLK_IO_OP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read from the device into the buffer.
    Read,
    /// Write the buffer to the device.
    Write,
    /// Make all completed writes durable.
    Flush,
    /// Discard the range.
    Discard,
    /// Make the range read as zeroes.
    WriteZeroes,
    /// Another operation, by its number.
    Other(u8),
}

/// A request with its buffer.
#[derive(Debug)]
pub struct Request<'q> {
    pub(super) queue: &'q Queue<'q>,
    pub(super) tag: u16,
    /// Operation.
    pub op: Op,
    /// Offset on the device, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// A write must be durable when it completes (`UBLK_IO_F_FUA`).
    pub fua: bool,
    /// Zeroed blocks must stay allocated (`UBLK_IO_F_NOUNMAP`).
    pub keeps_space: bool,
}

/// A time limit.
#[derive(Debug)]
pub struct Limit(types::Timespec);

impl Limit {
    /// A limit in milliseconds.
    #[must_use]
    pub const fn milliseconds(n: u32) -> Self {
        Self(types::Timespec::new().sec((n / 1000) as u64).nsec(n % 1000 * 1_000_000))
    }
}

impl Request<'_> {
    /// Reads from a file into a part of the buffer, completely.
    ///
    /// # Errors
    /// The operating system's; `UnexpectedEof` at the end of the file.
    pub async fn read(&self, file: BorrowedFd<'_>, part: Range<usize>, offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < part.len() {
            let (start, len) = self.part(part.start + done..part.end)?;
            let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), start, len).offset(offset + done as u64).build();
            done += match self.complete(entry).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => n,
            };
        }
        Ok(())
    }

    /// Writes a part of the buffer to a file, completely, and durably if `durable`.
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
            done += match self.complete(entry).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => n,
            };
        }
        Ok(())
    }

    /// Makes writes to a file durable, including the metadata needed to read the data (`fdatasync(2)`).
    ///
    /// # Errors
    /// The operating system's.
    pub async fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let begin = Instant::now();
        let outcome = if self.queue.last_sync.get() < SHORT_SYNC && self.queue.n_served.get() == 1 {
            rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file)).map_err(io::Error::from)
        } else {
            let fd = types::Fd(file.as_raw_fd());
            self.complete(opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()).await.map(drop)
        };
        self.queue.last_sync.set(begin.elapsed());
        outcome
    }

    /// Deallocates a range of a file, which then reads as zeroes (`FALLOC_FL_PUNCH_HOLE`).
    ///
    /// # Errors
    /// The operating system's.
    pub async fn punch(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let fd = types::Fd(file.as_raw_fd());
        let entry = opcode::Fallocate::new(fd, len).offset(offset).mode(mode.bits().cast_signed()).build();
        self.complete(entry).await.map(drop)
    }

    /// Sends a part of the buffer as one packet. The socket must be blocking.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn send(&self, socket: BorrowedFd<'_>, part: Range<usize>) -> io::Result<()> {
        let (start, len) = self.part(part)?;
        let flags = rustix::net::SendFlags::NOSIGNAL.bits().cast_signed();
        let entry = opcode::Send::new(types::Fd(socket.as_raw_fd()), start, len).flags(flags).build();
        match self.complete(entry).await? {
            sent if sent == len as usize => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Receives a packet into a part of the buffer, and returns its length; 0 at the end of the connection.
    ///
    /// # Errors
    /// The operating system's; `TimedOut` if none arrives within the limit.
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
    /// `InvalidInput` for a part out of bounds.
    pub fn put(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let (start, len) = self.part(at..at.saturating_add(bytes.len()))?;
        // SAFETY: `len` bytes at `start` are a part of the tag's buffer, to which no reference is ever created, so `bytes` does not
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, len as usize) };
        Ok(())
    }

    /// The request's tag, as in [`Target::before_wait`](super::Target::before_wait).
    #[must_use]
    pub fn tag(&self) -> u16 {
        self.tag
    }

    /// Copies shared memory at offset `at`, to which another process may write, to a part of the buffer.
    ///
    /// # Errors
    /// `InvalidInput` for a part out of bounds of the buffer or the memory.
    pub fn put_shared(&self, part: Range<usize>, memory: &Shared, at: usize) -> io::Result<()> {
        let (start, len) = self.part(part)?;
        let from = memory.part(at..at.saturating_add(len as usize))?;
        // SAFETY: `len` bytes are mapped at both addresses, in different mappings, to neither of which a reference is ever created.
        // Concurrent writes of the other process affect only the content.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), start, len as usize) };
        Ok(())
    }

    /// Copies a part of the buffer to shared memory at offset `at`, to which another process may write.
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

    /// Waits until a descriptor is readable.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn wait_readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let events = u32::from(rustix::event::PollFlags::IN.bits());
        self.complete(opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), events).build()).await.map(drop)
    }

    /// Fills a part of the buffer with zeroes.
    ///
    /// # Errors
    /// `InvalidInput` for a part out of bounds.
    pub fn zero(&self, part: Range<usize>) -> io::Result<()> {
        let (start, len) = self.part(part)?;
        // SAFETY: a part of the tag's buffer, to which no reference is ever created. A concurrent write by an operation in flight
        // affects only the content.
        unsafe { std::ptr::write_bytes(start, 0, len as usize) };
        Ok(())
    }

    /// Writes zeroes to a range of a file. Uses the buffer, so the request must not have data.
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

    /// Submits an entry, again if it is interrupted; returns the number of bytes transferred.
    async fn complete(&self, entry: squeue::Entry) -> io::Result<usize> {
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
        // SAFETY: the mapping has `depth` buffers of `max` bytes, the tag is less than the depth, and the part is within the tag's
        // buffer, as was just checked.
        Ok((unsafe { self.queue.buffers.start.add(at) }.as_ptr(), len))
    }
}
