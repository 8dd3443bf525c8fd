//! `bulkhead volume send` and `receive`: a snapshot as a stream, on standard output or input.

use std::io::{self, Cursor, IsTerminal as _, Read as _};

use bulkhead_api::client::{Client, Streamed};
use bulkhead_api::wire::{JobResult, ResumeToken, VolumeSend};
use bulkhead_blockd::transfer::read_header;
use bulkhead_core::error::Fault;
use bulkhead_core::units::Bytes;
use uuid::Uuid;

use crate::args::{ReceiveArgs, SendArgs};
use crate::commands::resolved;
use crate::output::Output;
use crate::parse::{self, invalid};
use crate::progress;
use crate::show;
use crate::stream::{self, Feed};
use crate::work::transfer_fault as fault;

/// The text of a resume token: the content's UUID, that of its base, and the received bytes.
fn token_text(token: &ResumeToken) -> String {
    let base = token.base.map_or_else(|| "none".to_owned(), |base| base.to_string());
    format!("{}:{base}:{}", token.content, token.received_bytes.0)
}

fn parse_token(text: &str) -> Result<ResumeToken, Fault> {
    let bad = || {
        invalid(format!("token {text:?}"), "not a valid resume token").hint(
            "get it on the receiving host with `bulkhead volume receive POOL/VOLUME --token`, and pass it unchanged",
        )
    };
    let words: Vec<&str> = text.trim().split(':').collect();
    let [content, base, offset] = words[..] else { return Err(bad()) };
    let uuid = |text| Uuid::try_parse(text).map_err(|_| bad());
    let base = if base == "none" { None } else { Some(uuid(base)?) };
    let received_bytes = Bytes(offset.parse().map_err(|_| bad())?);
    Ok(ResumeToken { content: uuid(content)?, base, received_bytes })
}

/// Writes a snapshot to standard output.
///
/// # Errors
/// Invalid arguments, the daemon's faults, and a failed write of the stream.
pub(crate) async fn send(args: SendArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let snapshot = resolved(client, &args.snapshot).await?;
    let resume = args.resume.as_deref().map(parse_token).transpose()?;
    if io::stdout().is_terminal() && !args.write.dry_run {
        return Err(invalid("standard output", "a stream cannot be written to a terminal")
            .hint("redirect it to a file, or pipe it to `bulkhead volume receive`"));
    }
    let from = args.from.as_deref().map(|name| parse::copy_name(&snapshot, name)).transpose()?;
    let out = stream::file(io::stdout(), "standard output")?;
    let request = VolumeSend { from, resume };
    let stream = match client.volume_send(&snapshot, &request, args.write.dry_run).await? {
        Streamed::Planned(done) => return show::steps(output, &format!("volume {snapshot}"), "", &done),
        Streamed::Stream(stream) => stream,
    };
    let bar = progress::bytes("sent", None, output);
    let done = stream::write(client, stream, out, &bar).await;
    bar.finish_and_clear();
    if let JobResult::Sent { read_bytes } = done? {
        output.say(&format!("volume {snapshot}: sent, {read_bytes} read"));
    }
    Ok(())
}

/// Reads a snapshot from standard input.
///
/// # Errors
/// Invalid arguments, the daemon's faults, and errors of the stream.
pub(crate) async fn receive(args: ReceiveArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let volume = parse::volume_ref(&args.volume)?;
    let object = format!("volume {volume}");
    if args.token {
        let view = client.volume_receiving(&volume).await?;
        return if output.is_json() {
            output.json(&view)
        } else {
            output.lines(&[token_text(&ResumeToken::from(&view))])
        };
    }
    if args.abort {
        let done = client.volume_receive_abort(&volume, args.write.dry_run).await?;
        return show::steps(output, &object, "received data discarded", &done);
    }
    let tenant = args.tenant.as_deref().map(parse::tenant_name).transpose()?;
    if io::stdin().is_terminal() {
        return Err(invalid("standard input", "a stream cannot be read from a terminal")
            .hint("redirect it from a file, or pipe it from `bulkhead volume send`"));
    }
    let mut input = stream::file(io::stdin(), "standard input")?;
    let hint = "nothing was received; send it again, and check that the stream is not altered on the way";
    let (header, start) = read_header(&mut input).map_err(|error| fault(&error, &volume, hint))?;
    let stream = match client.volume_receive(&volume, &header, tenant.as_ref(), args.write.dry_run).await? {
        Streamed::Planned(done) => return show::steps(output, &object, "", &done),
        Streamed::Stream(stream) => stream,
    };
    let bar = progress::bytes("received", Some(header.data_bytes), output);
    let feed = move |out: &mut Feed| out.copy_from(&mut Cursor::new(start).chain(input), "standard input");
    let done = stream::feed(client, stream, feed, &bar).await;
    bar.finish_and_clear();
    if let JobResult::Received(done) = done? {
        show::done(output, &object, &format!("received, with the content of {}", header.snapshot), &done)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bulkhead_core::error::Code;

    use super::*;

    #[test]
    fn a_printed_token_can_be_parsed() {
        let whole = ResumeToken { content: Uuid::from_u128(7), base: None, received_bytes: Bytes(4096) };
        assert_eq!(token_text(&whole), "00000000-0000-0000-0000-000000000007:none:4096");
        for wanted in [whole, ResumeToken { base: Some(Uuid::from_u128(8)), ..whole }] {
            assert_eq!(parse_token(&format!("{}\n", token_text(&wanted))).unwrap(), wanted);
        }
        for bad in ["", "x", "00000000-0000-0000-0000-000000000007:4096", "a:b:c", "::"] {
            assert_eq!(parse_token(bad).unwrap_err().code, Code::InvalidArgument, "{bad:?}");
        }
    }
}
