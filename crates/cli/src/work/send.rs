//! Writes a snapshot to a client's stream.

use std::io::BufWriter;

use bulkhead_blockd::transfer::{Sender, TransferError};
use bulkhead_core::error::Fault;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{Outcome, SendTask};
use bulkhead_sys::roots::Roots;

use super::{Daemon, transfer};

pub(super) fn run(task: SendTask, daemon: &mut Daemon) -> Result<Outcome, Fault> {
    let SendTask { volume, header, layers, changed, device } = task;
    let fault = |error: &TransferError| transfer::fault(error, &volume, "send it again");
    let opened = match device {
        Some(device) => Sender::open_thin(&Roots::host(), header, &device.path, device.base.as_deref()),
        None => Sender::open(header, layers, changed),
    };
    let mut sender = opened.map_err(|error| fault(&error))?;
    let at_most = sender.header().data_bytes;
    let mut out = BufWriter::new(daemon.stream()?);
    let mut read_bytes = Bytes(0);
    let written = sender.send(&mut out, |bytes| {
        read_bytes = bytes;
        daemon.report_progress(bytes, Some(at_most));
    });
    written.map_err(|error| fault(&error))?;
    Ok(Outcome::Sent { read_bytes })
}
