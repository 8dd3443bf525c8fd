//! Packets between processes on this host (`AF_UNIX`, `SOCK_SEQPACKET`), optionally with a file descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, chmod, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
    socket_with, socketpair, sockopt,
};

use crate::process::Handle;

/// Backlog of pending connections.
const BACKLOG: i32 = 128;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens at a path, which must not exist. Only the user of this process can connect.
///
/// # Errors
/// The operating system's.
pub fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let listener = socket()?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    // Connecting is impossible before it listens, so there is no window with wrong permissions.
    chmod(path, Mode::RUSR | Mode::WUSR)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Connects to the listener at a path, without waiting. Receiving on the connection blocks.
///
/// # Errors
/// The operating system's: `NotFound` and `ConnectionRefused` without a listener, `WouldBlock` if the backlog is full.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let flags = fcntl_getfl(&socket)?;
    fcntl_setfl(&socket, flags - OFlags::NONBLOCK)?;
    Ok(socket)
}

/// A pair of connected sockets. Sending and receiving block.
///
/// # Errors
/// The operating system's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Accepts a pending connection, if any. Sending and receiving on it do not block.
///
/// # Errors
/// The operating system's.
pub fn accept_one(listener: impl AsFd) -> io::Result<Option<OwnedFd>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        accepted => Ok(Some(accepted?)),
    }
}

/// The process at the other end of a connection; `None` if it has exited.
///
/// # Errors
/// The operating system's.
pub fn peer(connection: impl AsFd) -> io::Result<Option<Handle>> {
    Handle::open(sockopt::socket_peercred(connection)?.pid)
}

/// Sets the time limit of receiving on a connection.
///
/// # Errors
/// The operating system's.
pub fn set_receive_timeout(connection: impl AsFd, limit: std::time::Duration) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(connection, sockopt::Timeout::Recv, Some(limit))?)
}

/// Sends a packet, optionally with a descriptor.
///
/// # Errors
/// The operating system's.
pub fn send(connection: impl AsFd, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(packet)];
    match retry_on_intr(|| sendmsg(&connection, &parts, &mut control, SendFlags::NOSIGNAL))? {
        sent if sent == packet.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Receives a packet of at most the buffer's length, with its descriptor if it has one. The packet is empty at the end of the connection.
///
/// # Errors
/// The operating system's; `InvalidData` for a longer packet.
pub fn receive(connection: impl AsFd, buffer: &mut [u8]) -> io::Result<(&[u8], Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    // With a time limit, any signal interrupts it.
    let received = retry_on_intr(|| recvmsg(&connection, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    if received.flags.contains(rustix::net::ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((&buffer[..received.bytes], descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read as _;

    #[test]
    fn packets_and_descriptors_are_transferred() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert_eq!(connect_to(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = listen_at(&path).unwrap();
        assert!(accept_one(&listener).unwrap().is_none());
        let one = connect_to(&path).unwrap();
        let other = accept_one(&listener).unwrap().unwrap();
        let text = dir.path().join("text");
        std::fs::write(&text, "text").unwrap();
        send(&one, b"first", Some(File::open(&text).unwrap().as_fd())).unwrap();
        send(&one, &[7; 100], None).unwrap();
        let mut buffer = [0; 64];
        let (packet, descriptor) = receive(&other, &mut buffer).unwrap();
        assert_eq!(packet, b"first");
        let mut text = String::new();
        File::from(descriptor.unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert_eq!(receive(&other, &mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(peer(&other).unwrap().is_some());
        set_receive_timeout(&one, std::time::Duration::from_millis(1)).unwrap();
        assert_eq!(receive(&one, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(other);
        assert!(receive(&one, &mut buffer).unwrap().0.is_empty());
        drop(listener);
        assert_eq!(connect_to(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
