//! `bulkhead volume send` and `receive`: a snapshot as a stream. The daemon says what is to be read or written; the stream goes
//! through this process, so that it is the operator's to slow down, and to end.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal as _};
use std::os::fd::AsFd;
use std::str::FromStr;

use bulkhead_blockd::ImageError;
use bulkhead_blockd::transfer::{Receiver, Sender, TransferError};
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::reason::Reason;
use bulkhead_core::stream::StreamError;
use bulkhead_core::units::Bytes;
use bulkhead_core::wire::{ReceiveView, SendDevice, VolumeSend};
use bulkhead_engine::client::Client;
use bulkhead_sys::layer::LayerError;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::thin::ThinError;
use bulkhead_sys::tool::ToolError;
use uuid::Uuid;

use crate::args::{ReceiveArgs, SendArgs};
use crate::commands::resolved;
use crate::output::Output;
use crate::parse::{self, invalid};
use crate::progress;
use crate::show;

/// Where an interrupted transfer goes on: what is sent, what that is based on, and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token {
    content: Uuid,
    base: Option<Uuid>,
    offset: Bytes,
}

impl Token {
    fn of(view: &ReceiveView) -> Self {
        Self { content: view.content, base: view.base, offset: view.received_bytes }
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let base = self.base.map_or_else(|| "none".to_owned(), |base| base.to_string());
        write!(f, "{}:{base}:{}", self.content, self.offset.0)
    }
}

impl FromStr for Token {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let bad = || {
            invalid(format!("token {text:?}"), "it is none that `bulkhead volume receive --token` prints")
                .cure("ask for it on the receiving host, and give it as it is")
        };
        let words: Vec<&str> = text.trim().split(':').collect();
        let [content, base, offset] = words[..] else { return Err(bad()) };
        let uuid = |text| Uuid::try_parse(text).map_err(|_| bad());
        let base = if base == "none" { None } else { Some(uuid(base)?) };
        Ok(Self { content: uuid(content)?, base, offset: Bytes(offset.parse().map_err(|_| bad())?) })
    }
}

/// Writes a snapshot to standard output.
///
/// # Errors
/// Wrong arguments, the daemon's faults, and why the stream cannot be written.
pub(crate) async fn send(args: SendArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let snapshot = resolved(client, &args.snapshot).await?;
    let resume = args.resume.as_deref().map(Token::from_str).transpose()?;
    if io::stdout().is_terminal() && !args.write.dry_run {
        return Err(invalid("standard output", "a stream is not for a terminal")
            .cure("redirect it to a file, or pipe it to `bulkhead volume receive`"));
    }
    let from = args.from.as_deref().map(|name| parse::copy_name(&snapshot, name)).transpose()?;
    let done = client.volume_send(&snapshot, &VolumeSend { from }, args.write.dry_run).await?;
    let Some(view) = done.object else { return show::steps(output, &format!("volume {snapshot}"), "", &done) };
    let mut header = view.header;
    if let Some(token) = resume {
        check_token(&token, &snapshot, header.content, header.base)?;
        header.start_bytes = token.offset;
    }
    let fault = |error: &TransferError| fault(error, &snapshot, "send it again");
    let opened = match view.device {
        Some(SendDevice { path, base }) => Sender::open_thin(&Roots::host(), header, &path, base.as_deref()),
        None => Sender::open(header, view.layers, view.changed),
    };
    let mut sender = opened.map_err(|error| fault(&error))?;
    let bar = progress::bytes("sent", Some(sender.header().data_bytes), output);
    let mut out = BufWriter::new(stream(io::stdout(), "standard output")?);
    let mut sent = Bytes(0);
    let written = sender.send(&mut out, |bytes| {
        sent = bytes;
        bar.set_position(bytes.0);
    });
    bar.finish_and_clear();
    written.map_err(|error| fault(&error))?;
    output.say(&format!("volume {snapshot}: sent, {sent} were read"));
    Ok(())
}

/// Reads a snapshot from standard input.
///
/// # Errors
/// Wrong arguments, the daemon's faults, and what is wrong with the stream.
pub(crate) async fn receive(args: ReceiveArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let volume = parse::volume_ref(&args.volume)?;
    let object = format!("volume {volume}");
    if args.token {
        let view = client.volume_receiving(&volume).await?;
        return if output.is_json() { output.json(&view) } else { output.lines(&[Token::of(&view).to_string()]) };
    }
    if args.abort {
        let done = client.volume_receive_abort(&volume, args.write.dry_run).await?;
        return show::steps(output, &object, "what was received is given up", &done);
    }
    if io::stdin().is_terminal() {
        return Err(invalid("standard input", "a stream does not come from a terminal")
            .cure("redirect it from a file, or pipe it from `bulkhead volume send`"));
    }
    let input = BufReader::new(stream(io::stdin(), "standard input")?);
    let anew = "none of it was taken in: send it anew, and look at what it passes through on its way";
    let mut receiver = Receiver::open(input).map_err(|error| fault(&error, &volume, anew))?;
    let header = receiver.header().clone();
    let done = client.volume_receive(&volume, &header, args.write.dry_run).await?;
    let Some(view) = &done.object else { return show::steps(output, &object, "", &done) };
    let bar = progress::bytes("received", Some(header.data_bytes), output);
    let received = receiver.receive(&view.part, |bytes| bar.set_position(bytes.0));
    bar.finish_and_clear();
    let again = format!("`bulkhead volume receive {volume} --token` says where to go on");
    received.map_err(|error| fault(&error, &volume, &again))?;
    let done = client.volume_received(&volume, &header, false).await?;
    show::done(output, &object, &format!("received, as it was in {}", header.snapshot), &done)
}

/// Refuses to go on with something else than what was begun.
fn check_token(token: &Token, snapshot: &VolumeRef, content: Uuid, base: Option<Uuid>) -> Result<(), Fault> {
    let object = format!("volume {snapshot}");
    if token.content != content {
        let cause = format!("what was received in part is {}, and it is {content}", token.content);
        return Err(invalid(object, cause)
            .cure("name the snapshot that was being sent; if it is gone or was written to, give up what was received (`--abort`)"));
    }
    if token.base != base {
        return Err(invalid(object, "what was received in part is based on something else")
            .cure("give the same `--from` as before, or none if there was none"));
    }
    Ok(())
}

fn fault(error: &TransferError, volume: &VolumeRef, cure: &str) -> Fault {
    let same = cure.to_owned();
    let (code, cure) = match (error, io_kind(error)) {
        (_, Some(io::ErrorKind::PermissionDenied)) => {
            (Code::PermissionDenied, "run it as root, whose the pool's files are".to_owned())
        }
        (_, Some(io::ErrorKind::StorageFull)) => (Code::NoSpace, format!("make room there; {same}")),
        (TransferError::Stream(StreamError::Version(_)), _) => (
            Code::Corrupt,
            "receive it with the version of Bulkhead that sent it; if that is this one, it was changed on its way"
                .to_owned(),
        ),
        (TransferError::Base(_), _) => {
            (Code::Corrupt, "import the same image where it is needed, or send a snapshot of a clone".to_owned())
        }
        (TransferError::Stream(_) | TransferError::CutOff | TransferError::TooLong, _) => (Code::Corrupt, same),
        (
            TransferError::Part(LayerError::File(_)) | TransferError::Layers(ImageError::Layers(LayerError::File(_))),
            _,
        ) => (Code::Internal, same),
        (TransferError::Part(LayerError::PartLocked { .. }), _) => (Code::InUse, same),
        (TransferError::Part(error) | TransferError::Layers(ImageError::Layers(error)), _) => {
            let (code, cure) = error.code_and_cure();
            (code, cure.to_owned())
        }
        (TransferError::Thin(ThinError::Tool(ToolError::Missing { package, .. })), _) => {
            (Code::Unsupported, format!("apt-get install {package}"))
        }
        (TransferError::Thin(ThinError::Delta(_)), _) => {
            (Code::Unsupported, "copy its files to a new volume, and send a snapshot of that".to_owned())
        }
        (TransferError::Thin(ThinError::Reserved { pool, .. }), _) => {
            let left = format!("dmsetup message {pool} 0 release_metadata_snap");
            (Code::InUse, format!("send it again when that has ended; what nobody uses goes with `{left}`"))
        }
        (TransferError::Writable(device), _) => {
            (Code::Internal, format!("`lvchange -pr {0}; lvchange --refresh {0}`, and send it again", device.display()))
        }
        _ => (Code::Internal, same),
    };
    let fault = Fault::new(code, format!("volume {volume}"), chain(error)).cure(cure);
    match error {
        TransferError::Part(LayerError::GivenUp { .. }) => {
            fault.reason(Reason::ReceiveIncomplete { volume: volume.clone() })
        }
        TransferError::Part(error) | TransferError::Layers(ImageError::Layers(error)) => match error.reason() {
            Some(reason) => fault.reason(reason),
            None => fault,
        },
        _ => fault,
    }
}

/// What the operating system refused, where that is behind an error.
pub(crate) fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| Some(error.downcast_ref::<io::Error>()?.kind()))
}

/// Standard input or output as a file, without a buffer that looks for lines.
fn stream(of: impl AsFd, name: &str) -> Result<File, Fault> {
    let failed = |error: io::Error| Fault::new(Code::Internal, name, error);
    of.as_fd().try_clone_to_owned().map(File::from).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_printed() {
        let token = Token { content: Uuid::from_u128(7), base: None, offset: Bytes(4096) };
        assert_eq!(token.to_string(), "00000000-0000-0000-0000-000000000007:none:4096");
        for token in [token, Token { base: Some(Uuid::from_u128(8)), ..token }] {
            assert_eq!(format!("{token}\n").parse::<Token>().unwrap(), token);
        }
        for bad in ["", "x", "00000000-0000-0000-0000-000000000007:4096", "a:b:c", "::"] {
            assert_eq!(bad.parse::<Token>().unwrap_err().code, Code::InvalidArgument, "{bad:?}");
        }
    }
}
