//! `bulkhead image import`: imports a directory, a tar archive or an OCI image as a snapshot to clone. The daemon imports archives only;
//! a source that is not an archive is packed into one here, with the permissions of the user who runs this command.

use std::path::absolute;

use bulkhead_api::client::{Client, Streamed};
use bulkhead_api::wire::{Done, ImageImport, JobResult, VolumeView};
use bulkhead_core::base::LeftOut;
use bulkhead_core::error::Fault;
use bulkhead_image::{ImportError, Platform, Source};
use serde::Serialize;

use crate::args::ImageImportArgs;
use crate::output::Output;
use crate::parse::{self, invalid};
use crate::progress;
use crate::show;
use crate::stream::{self, Feed};

/// Imports an image.
///
/// # Errors
/// Invalid arguments, errors of the source, and the daemon's faults.
pub(crate) async fn import(args: ImageImportArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let volume = parse::volume_ref(&args.volume)?;
    let object = format!("volume {volume}");
    let size_bytes = args.size.as_deref().map(parse::size).transpose()?;
    if let Some(platform) = &args.platform {
        platform.parse::<Platform>().map_err(|error| parse::invalid("--platform", error))?;
    }
    let staging = absolute(&args.staging).map_err(|error| invalid("--staging", error))?;
    let tenant = args.tenant.as_deref().map(parse::tenant_name).transpose()?;
    let name = args.source.display().to_string();
    let request = ImageImport {
        source: name.clone(),
        size_bytes,
        platform: args.platform,
        reference: args.reference,
        strict: args.strict,
        staging: Some(staging.clone()),
        tenant,
    };
    let stream = match client.volume_import(&volume, &request, args.write.dry_run).await? {
        Streamed::Planned(done) => return show::steps(output, &object, "", &done),
        Streamed::Stream(stream) => stream,
    };
    let fault = move |error: &ImportError| error.fault(format!("source {name}"));
    let source = Source::open(&args.source, &staging).map_err(|error| fault(&error))?;
    let bar = progress::bytes("imported", None, output);
    let feed = move |out: &mut Feed| source.write_to(out).map_err(|error| fault(&error));
    let result = stream::feed(client, stream, feed, &bar).await;
    bar.finish_and_clear();
    let JobResult::Imported { done, content, entries, left_out } = result? else { return Ok(()) };
    if output.is_json() {
        return output.json(&Imported { done: &done, left_out: &left_out });
    }
    show::done(output, &object, &format!("imported {entries} entries as base {content}"), &done)?;
    left_out.iter().for_each(|left_out| output.say(&format!("note: omitted {left_out}")));
    Ok(())
}

/// The result of an import, as JSON.
#[derive(Serialize)]
struct Imported<'a> {
    #[serde(flatten)]
    done: &'a Done<VolumeView>,
    left_out: &'a [LeftOut],
}
