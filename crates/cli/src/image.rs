//! `bulkhead image import`: imports a directory, a tar archive or an OCI image as a snapshot to clone. The daemon imports archives only;
//! a source that is not an archive is packed into one here, with the permissions of the user who runs this command, and an image of a running
//! Docker, Podman or containerd is passed on as it arrives from there.

use std::io;
use std::path::{PathBuf, absolute};

use bulkhead_api::client::{Client, Streamed};
use bulkhead_api::wire::{Done, ImageImport, JobResult, VolumeView};
use bulkhead_core::base::LeftOut;
use bulkhead_core::error::Fault;
use bulkhead_export::{BadSource, ImageName, unknown_transport};
use bulkhead_image::{ImportError, Platform, Source};
use serde::Serialize;

use crate::args::ImageImportArgs;
use crate::output::Output;
use crate::parse::{self, invalid};
use crate::progress;
use crate::show;
use crate::stream::{self, Feed};

/// Where the archive comes from.
enum Input {
    Path(Source),
    /// An image of the runtime at a socket.
    Runtime(ImageName, PathBuf),
}

impl Input {
    /// Writes the archive to the job.
    fn write_to(self, name: &str, out: &mut Feed) -> Result<(), Fault> {
        match self {
            Self::Path(source) => source.write_to(out).map_err(|error| fault(name, &error)),
            Self::Runtime(image, socket) => {
                bulkhead_export::write_to(&image, &socket, out).map_err(|error| error.fault(&image))
            }
        }
    }
}

fn fault(name: &str, error: &ImportError) -> Fault {
    error.fault(format!("source {name}"))
}

/// The image of a runtime that the source names, with the socket of the runtime; `None` for a path.
fn image_name(args: &ImageImportArgs) -> Result<Option<(ImageName, PathBuf)>, Fault> {
    // Names of images are text; a path need not be.
    let text = args.source.to_str().unwrap_or_default();
    let fault = |error: BadSource| error.fault(text);
    let Some(mut image) = bulkhead_export::parse(text).map_err(fault)? else {
        let options = [
            ("--runtime-socket", args.runtime_socket.is_some()),
            ("--containerd-namespace", args.containerd_namespace.is_some()),
        ];
        if let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) {
            return Err(invalid(option, "the source is a path, and not an image of Docker, Podman or containerd")
                .hint("omit it, or specify docker-daemon:NAME, podman:NAME or containerd:NAME"));
        }
        let is_missing = args.source.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        return match unknown_transport(text).filter(|_| is_missing) {
            Some(error) => Err(fault(error)),
            None => Ok(None),
        };
    };
    if let Some(namespace) = &args.containerd_namespace {
        image = image.in_namespace(namespace).map_err(fault)?;
    }
    let socket = args.runtime_socket.clone().unwrap_or_else(|| PathBuf::from(image.runtime().socket()));
    Ok(Some((image, socket)))
}

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
    let image = image_name(&args)?;
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
    let input = match image {
        Some((image, socket)) => Input::Runtime(image, socket),
        None => Input::Path(Source::open(&args.source, &staging).map_err(|error| fault(&name, &error))?),
    };
    let bar = progress::bytes("imported", None, output);
    let feed = move |out: &mut Feed| input.write_to(&name, out);
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command, ImageCommand};

    /// The arguments of an import, as a user would give them.
    fn args(words: &[&str]) -> ImageImportArgs {
        let all = ["bulkhead", "image", "import"].iter().chain(words);
        match Cli::try_parse_from(all).map(|cli| cli.command) {
            Ok(Command::Image(ImageCommand::Import(args))) => args,
            other => panic!("{other:?}"),
        }
    }
    #[test]
    fn the_socket_is_that_of_the_runtime_unless_another_is_specified() {
        let socket = |words: &[&str]| {
            image_name(&args(&[words, &["files/web"]].concat())).map(|found| found.map(|(_, socket)| socket))
        };
        assert_eq!(socket(&["podman:web"]), Ok(Some("/run/podman/podman.sock".into())));
        assert_eq!(socket(&["containerd:web"]), Ok(Some("/run/containerd/containerd.sock".into())));
        assert_eq!(socket(&["docker-daemon:web", "--runtime-socket=/s"]), Ok(Some("/s".into())));
        assert_eq!(socket(&["rootfs"]), Ok(None));
        assert!(socket(&["docker:web"]).is_err());
    }

    #[test]
    fn options_that_do_not_apply_to_the_source_are_refused() {
        for (words, said) in [
            (["rootfs", "--runtime-socket=/s"], "--runtime-socket"),
            (["rootfs", "--containerd-namespace=k8s.io"], "--containerd-namespace"),
            (["podman:web", "--containerd-namespace=k8s.io"], "Podman has no namespaces"),
            (["containerd:web", "--containerd-namespace=a/b"], "is not a namespace"),
            (["nerdctl:web", "--strict"], "is not an image transport"),
        ] {
            let fault = image_name(&args(&[&words[..], &["files/web"]].concat())).unwrap_err();
            assert!(fault.to_string().contains(said), "{fault}");
        }
    }
}
