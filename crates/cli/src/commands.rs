//! The commands that are requests to the daemon: arguments become a request, and the answer is printed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_api::client::{Client, Removal};
use bulkhead_api::wire::{
    DeviceArbiter, DeviceControl, NewPoolSource, PoolCreate, PoolMove, TenantCreate, TenantSet, VolumeCheck,
    VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize, VolumeRollback,
};
use bulkhead_core::error::Fault;
use bulkhead_core::model::{MountOptions, ReadFrom, Server, VolumeRef};

use crate::args::{
    self, Command, DeviceCommand, HostCommand, ImageCommand, MountArgs, PoolCommand, PoolCreateArgs, Switch,
    TenantCommand, TenantSetArgs, VolumeCommand,
};
use crate::calibrate;
use crate::heatmap;
use crate::hold;
use crate::image;
use crate::job;
use crate::output::Output;
use crate::parse::{self, VolumeArg, invalid};
use crate::ready;
use crate::show;
use crate::transfer;
use crate::trim;

/// Sends a command's request to the daemon and prints the answer.
///
/// # Errors
/// Invalid arguments, and the daemon's faults.
pub(crate) async fn carry_out(command: Command, client: &Client, output: &Output) -> Result<(), Fault> {
    match command {
        Command::Pool(command) => pool(command, client, output).await,
        Command::Volume(command) => volume(command, client, output).await,
        Command::Image(ImageCommand::Import(args)) => image::import(args, client, output).await,
        Command::Heatmap(args) => heatmap::run(args, client, output).await,
        Command::Tenant(command) => tenant(command, client, output).await,
        Command::Device(command) => device(command, client, output).await,
        Command::Hold(args) => hold::run(args, client, output).await,
        Command::Job(command) => job::run(&command, client, output).await,
        Command::Host { command: None } => show::host(output, &client.host().await?),
        Command::Host { command: Some(HostCommand::Report) } => output.json(&client.host_report().await?),
        // Commands that run in this process are dispatched in main.rs.
        other => Err(invalid("command line", format!("{other:?} is not a request to the daemon"))),
    }
}

/// The volume that an argument refers to. The daemon is queried only if the argument names no pool.
///
/// # Errors
/// `NotFound`, `InvalidArgument` if it is ambiguous, and connection errors.
pub(crate) async fn resolve(client: &Client, volume: VolumeArg) -> Result<VolumeRef, Fault> {
    match volume {
        VolumeArg::Full(volume) => Ok(volume),
        VolumeArg::NameOnly(name) => {
            let volumes = client.volume_list(None).await?;
            parse::choose(&name, volumes.into_iter().map(|view| view.volume))
        }
    }
}

/// The volume that the text of an argument refers to.
///
/// # Errors
/// As [`resolve`].
pub(crate) async fn resolved(client: &Client, text: &str) -> Result<VolumeRef, Fault> {
    resolve(client, parse::volume(text)?).await
}

async fn all_resolved(client: &Client, texts: &[String]) -> Result<Vec<VolumeRef>, Fault> {
    let mut volumes = Vec::with_capacity(texts.len());
    for text in texts {
        volumes.push(resolved(client, text).await?);
    }
    Ok(volumes)
}

async fn pool(command: PoolCommand, client: &Client, output: &Output) -> Result<(), Fault> {
    match command {
        PoolCommand::Create(args) => {
            let dry_run = args.write.dry_run;
            let name = parse::pool_name(&args.name)?;
            let object = format!("pool {name}");
            let request = PoolCreate { name, source: place(args)? };
            show::done(output, &object, "created", &client.pool_create(&request, dry_run).await?)
        }
        PoolCommand::Ls => show::list(output, &client.pool_list().await?),
        PoolCommand::Inspect { name } => show::inspect(output, &client.pool_inspect(&parse::pool_name(&name)?).await?),
        PoolCommand::Move { name, dir, write } => {
            let name = parse::pool_name(&name)?;
            let request = PoolMove { directory: absolute(&dir)? };
            show::done(
                output,
                &format!("pool {name}"),
                "moved",
                &client.pool_move(&name, &request, write.dry_run).await?,
            )
        }
        PoolCommand::Rm { name, write } => {
            let name = parse::pool_name(&name)?;
            let done = client.pool_remove(&name, write.dry_run).await?;
            show::done(output, &format!("pool {name}"), "removed", &done)
        }
    }
}

/// The path as an absolute one: the daemon has another working directory.
fn absolute(path: &Path) -> Result<PathBuf, Fault> {
    std::path::absolute(path).map_err(|error| invalid(format!("directory {}", path.display()), error))
}

fn place(args: PoolCreateArgs) -> Result<NewPoolSource, Fault> {
    let given = args.place;
    match (given.dir, given.vg, given.device) {
        (Some(path), None, None) => {
            let path = absolute(&path)?;
            let server = match args.server {
                args::Server::Auto => Server::Auto,
                args::Server::Loop => Server::Loop,
            };
            Ok(NewPoolSource::Directory { path, server })
        }
        (None, Some(vg), None) => Ok(NewPoolSource::VolumeGroup { vg, thin_pool: args.thin_pool }),
        (None, None, Some(path)) => Ok(NewPoolSource::Device { path, thin: args.thin, erase: args.erase }),
        _ => Err(invalid("pool", "give exactly one of --dir, --vg and --device")),
    }
}

async fn volume(command: VolumeCommand, client: &Client, output: &Output) -> Result<(), Fault> {
    match command {
        VolumeCommand::Create(args) => {
            let request = VolumeCreate {
                fs: args.fs.into(),
                provision: args.provision.map(Into::into),
                journal: args.journal.as_deref().map(parse::journal_size).transpose()?,
                fast_commit: args.fast_commit,
                mount_options: mount_options(&args.mount)?,
                ..VolumeCreate::new(parse::volume_ref(&args.volume)?, parse::size(&args.size)?)
            };
            let done = client.volume_create(&request, args.write.dry_run).await?;
            show::done(output, &format!("volume {}", request.volume), "created", &done)
        }
        VolumeCommand::Ls { pool } => {
            let pool = pool.as_deref().map(parse::pool_name).transpose()?;
            show::list(output, &client.volume_list(pool.as_ref()).await?)
        }
        VolumeCommand::Inspect { volume } => {
            let volume = resolved(client, &volume).await?;
            show::inspect(output, &client.volume_inspect(&volume).await?)
        }
        VolumeCommand::Rm { volume, force, write } => {
            let volume = resolved(client, &volume).await?;
            let done = client.volume_remove(&volume, Removal { force, dry_run: write.dry_run }).await?;
            show::done(output, &format!("volume {volume}"), "removed", &done)
        }
        VolumeCommand::Resize { volume, size, shrink, journal, write } => {
            let size_bytes = size.as_deref().map(parse::size).transpose()?;
            let journal = journal.as_deref().map(parse::journal_size).transpose()?;
            let request = VolumeResize { size_bytes, shrink, journal };
            let volume = resolved(client, &volume).await?;
            let done = client.volume_resize(&volume, &request, write.dry_run).await?;
            show::done(output, &format!("volume {volume}"), "resized", &done)
        }
        VolumeCommand::Snapshot { volume, name, write } => {
            let mount_options = MountOptions::default();
            let snapshot = Copy { name, read_only: true, read_from: None, domain: None, mount_options };
            copy(client, output, &volume, snapshot, write.dry_run).await
        }
        VolumeCommand::Clone { volume, name, read_from, domain, mount, write } => {
            let (read_from, mount_options) = (read_from.map(Into::into), mount_options(&mount)?);
            let clone = Copy { name, read_only: false, read_from, domain, mount_options };
            copy(client, output, &volume, clone, write.dry_run).await
        }
        VolumeCommand::Rollback { volume, snapshot, lose_changes, write } => {
            let volume = resolved(client, &volume).await?;
            let request = VolumeRollback { to: parse::copy_name(&volume, &snapshot)?, lose_changes };
            let done = client.volume_rollback(&volume, &request, write.dry_run).await?;
            show::done(output, &format!("volume {volume}"), "reverted", &done)
        }
        VolumeCommand::Flatten { volume, cancel, write } => {
            let volume = resolved(client, &volume).await?;
            let done = client.volume_flatten(&volume, &VolumeFlatten { cancel }, write.dry_run).await?;
            let what = if cancel { "flattening stopped" } else { "marked for flattening" };
            show::done(output, &format!("volume {volume}"), what, &done)
        }
        VolumeCommand::Send(args) => transfer::send(args, client, output).await,
        VolumeCommand::Receive(args) => transfer::receive(args, client, output).await,
        VolumeCommand::Check { volume, repair, full, write } => {
            let volume = resolved(client, &volume).await?;
            let done = client.volume_check(&volume, &VolumeCheck { repair, full }, write.dry_run).await?;
            show::checked(output, &format!("volume {volume}"), &done)
        }
        VolumeCommand::Trim { volumes, all, write } => {
            let selected = if all { None } else { Some(all_resolved(client, &volumes).await?) };
            trim::run(selected, write.dry_run, client, output).await
        }
        VolumeCommand::Map { volume, write } => {
            let volume = resolved(client, &volume).await?;
            let done = client.volume_map(&volume, write.dry_run).await?;
            let device = done.object.as_ref().and_then(|view| view.device.clone());
            show::done(output, &format!("volume {volume}"), &format!("mapped as {}", device.unwrap_or_default()), &done)
        }
        VolumeCommand::Unmap { volume, write } => {
            let volume = resolved(client, &volume).await?;
            let done = client.volume_unmap(&volume, write.dry_run).await?;
            show::done(output, &format!("volume {volume}"), "unmapped", &done)
        }
    }
}

/// Properties of a new snapshot or clone.
struct Copy {
    name: String,
    read_only: bool,
    read_from: Option<ReadFrom>,
    domain: Option<String>,
    mount_options: MountOptions,
}

fn mount_options(args: &MountArgs) -> Result<MountOptions, Fault> {
    let subdir = args.subdir.as_deref().map(parse::subdir_name).transpose()?;
    Ok(MountOptions { suid: args.suid, dev: args.dev, subdir })
}

async fn copy(client: &Client, output: &Output, origin: &str, copy: Copy, dry_run: bool) -> Result<(), Fault> {
    let origin = resolved(client, origin).await?;
    let name = parse::copy_name(&origin, &copy.name)?;
    let domain = copy.domain.as_deref().map(parse::domain_name).transpose()?;
    let object = format!("volume {}/{name}", origin.pool);
    let Copy { read_only, read_from, mount_options, .. } = copy;
    let request = VolumeCopy { read_from, domain, mount_options, ..VolumeCopy::new(name, read_only) };
    show::done(output, &object, "created", &client.volume_copy(&origin, &request, dry_run).await?)
}

async fn tenant(command: TenantCommand, client: &Client, output: &Output) -> Result<(), Fault> {
    match command {
        TenantCommand::Create { name, share, limits, fsync_p99, volumes, write } => {
            let request = TenantCreate {
                share: parse::share(&share)?,
                limits: parse::limits(&limits)?,
                fsync_p99_us: fsync_p99.as_deref().map(parse::fsync_p99).transpose()?.filter(|us| *us > 0),
                volumes: all_resolved(client, &volumes).await?,
                ..TenantCreate::new(parse::tenant_name(&name)?)
            };
            let done = client.tenant_create(&request, write.dry_run).await?;
            show::done(output, &format!("tenant {}", request.name), "created", &done)
        }
        TenantCommand::Ls => show::list(output, &client.tenant_list().await?),
        TenantCommand::Inspect { name } => {
            show::inspect(output, &client.tenant_inspect(&parse::tenant_name(&name)?).await?)
        }
        TenantCommand::Ready { name, timeout } => {
            let name = parse::tenant_name(&name)?;
            show::inspect(output, &ready::wait(&name, Duration::from_secs(timeout), client).await?)
        }
        TenantCommand::Set(args) => tenant_set(&args, client, output).await,
        TenantCommand::Rm { name, force, write } => {
            let name = parse::tenant_name(&name)?;
            let done = client.tenant_remove(&name, Removal { force, dry_run: write.dry_run }).await?;
            show::done(output, &format!("tenant {name}"), "removed", &done)
        }
    }
}

async fn tenant_set(args: &TenantSetArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let name = parse::tenant_name(&args.name)?;
    let limits = parse::limits(&args.limits)?;
    let request = TenantSet {
        share: args.share.as_deref().map(parse::share).transpose()?,
        limits: (args.no_limits || !limits.is_empty()).then_some(limits),
        fsync_p99_us: args.fsync_p99.as_deref().map(parse::fsync_p99).transpose()?,
        attach: all_resolved(client, &args.attach).await?,
        detach: all_resolved(client, &args.detach).await?,
    };
    if request == TenantSet::default() {
        return Err(invalid(format!("tenant {name}"), "nothing to change")
            .hint("specify --share, --limit, --no-limits, --fsync-p99, --attach or --detach"));
    }
    let done = client.tenant_set(&name, &request, args.write.dry_run).await?;
    show::done(output, &format!("tenant {name}"), "changed", &done)
}

async fn device(command: DeviceCommand, client: &Client, output: &Output) -> Result<(), Fault> {
    match command {
        DeviceCommand::Ls => show::list(output, &client.device_list().await?),
        DeviceCommand::Inspect { device } => show::inspect(output, &client.device_inspect(&device).await?),
        DeviceCommand::Control { device, choice, write } => {
            let request = DeviceControl { policy: choice.policy.map(Into::into) };
            let done = client.device_control(&device, &request, write.dry_run).await?;
            show::done(output, &format!("device {device}"), "changed", &done)
        }
        DeviceCommand::Arbiter { device, switch, write } => {
            let request = DeviceArbiter { on: switch == Switch::On };
            let done = client.device_arbiter(&device, &request, write.dry_run).await?;
            show::done(output, &format!("device {device}"), "changed", &done)
        }
        DeviceCommand::Calibrate(args) => calibrate::run(args, client, output).await,
        // Runs in this process, see main.rs.
        other @ DeviceCommand::Costs(_) => {
            Err(invalid("command line", format!("{other:?} is not a request to the daemon")))
        }
    }
}
