//! Putting a container into its tenant's slice: the path of its cgroup is changed in its configuration.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_core::error::Fault;
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};

use crate::arguments::Container;
use crate::parent::DefaultParent;
use crate::settings::Settings;
use crate::spec::Spec;
use crate::volumes;

/// Time limit of the daemon's answers, for all volumes of a container together.
pub const ANSWER: Duration = Duration::from_secs(5);

/// Limit of a configuration's size, bytes. Those of engines have some 10 KiB, with hundreds of mounts some 100 KiB.
const MAX_BYTES: u64 = 4 << 20;

/// Why a container starts where its engine puts it.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Its configuration cannot be read.
    #[error("{}: cannot read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Its configuration is not a regular file, such as a symbolic link, which would be replaced.
    #[error("{}: it is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Its configuration is larger than any that an engine writes.
    #[error("{}: it is larger than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Its configuration is malformed.
    #[error("{}: it is not the configuration of a container", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// The daemon refuses to say whose a volume is, or is not there.
    #[error("volume {volume}: {fault}{hint}", hint = hint(fault))]
    Daemon {
        /// The volume.
        volume: VolumeRef,
        /// The daemon's error.
        fault: Box<Fault>,
    },
    /// The daemon does not answer in time.
    #[error("the daemon does not answer within {} s", limit.as_secs_f64())]
    NoAnswer {
        /// The time limit.
        limit: Duration,
    },
    /// No runtime of asynchronous tasks can be made.
    #[error("cannot ask the daemon")]
    Client(#[source] io::Error),
    /// Its volumes belong to different tenants.
    #[error("it uses volumes of two tenants, {} of {} and {} of {}", .0[0].0, .0[0].1, .0[1].0, .0[1].1)]
    TwoTenants(Box<[(VolumeRef, Name); 2]>),
    /// Its configuration cannot be replaced.
    #[error("{}: cannot replace it", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

fn hint(fault: &Fault) -> String {
    if fault.hint.is_empty() { String::new() } else { format!("; {}", fault.hint) }
}

/// Puts a container with volumes of one tenant into the tenant's slice, unless somebody has chosen another parent. Asks the daemon for `limit` at
/// most. Returns the tenant, or `None` if nothing was to be done.
///
/// # Errors
/// [`PlaceError`]; the configuration is as before then.
pub fn place(container: &Container, settings: &Settings, limit: Duration) -> Result<Option<Name>, PlaceError> {
    let file = Configuration::open(&container.bundle.join(&container.config))?;
    let malformed = |source| PlaceError::Malformed { path: file.path.clone(), source };
    let spec = Spec::parse(&file.text).map_err(malformed)?;
    let path = spec.cgroups_path().map_err(malformed)?.unwrap_or_default();
    let id = container.id.to_str().unwrap_or_default();
    let Some(parent) = DefaultParent::parse(&path, id) else { return Ok(None) };
    let used = volumes::find(&settings.run_dir.join("mnt"), &container.bundle, spec.sources());
    if used.is_empty() {
        return Ok(None);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(PlaceError::Client)?;
    let client = Client::new(&settings.socket);
    let tenant = runtime.block_on(async {
        tokio::time::timeout(limit, tenant_of(&client, used)).await.unwrap_or(Err(PlaceError::NoAnswer { limit }))
    })?;
    let Some(tenant) = tenant else { return Ok(None) };
    if let Some(text) = spec.with_cgroups_path(&parent.in_slice_of(&tenant)) {
        file.replace(&text).map_err(|source| PlaceError::Write { path: file.path.clone(), source })?;
    }
    Ok(Some(tenant))
}

/// The one tenant of the volumes; `None` if no volume has one.
async fn tenant_of(client: &Client, volumes: impl IntoIterator<Item = VolumeRef>) -> Result<Option<Name>, PlaceError> {
    let mut first: Option<(VolumeRef, Name)> = None;
    for volume in volumes {
        let view = client.volume_inspect(&volume).await;
        let view = view.map_err(|fault| PlaceError::Daemon { volume: volume.clone(), fault: Box::new(fault) })?;
        match (view.tenant, first.take()) {
            (Some(tenant), Some(one)) if one.1 != tenant => {
                return Err(PlaceError::TwoTenants(Box::new([one, (volume, tenant)])));
            }
            (Some(tenant), None) => first = Some((volume, tenant)),
            (_, before) => first = before,
        }
    }
    Ok(first.map(|(_, tenant)| tenant))
}

/// The file of a configuration, and what it contains.
struct Configuration {
    path: PathBuf,
    /// Its directory, in which it is replaced whatever the path means by then.
    directory: OwnedFd,
    stat: Stat,
    text: String,
}

impl Configuration {
    fn open(path: &Path) -> Result<Self, PlaceError> {
        let read_error = |source: io::Error| PlaceError::Read { path: path.to_owned(), source };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(PlaceError::NotAFile { path: path.to_owned() });
        };
        let directory = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| read_error(errno.into()))?;
        // Opening a named pipe must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&directory, name, flags, Mode::empty()) {
            Err(rustix::io::Errno::LOOP) => return Err(PlaceError::NotAFile { path: path.to_owned() }),
            file => std::fs::File::from(file.map_err(|errno| read_error(errno.into()))?),
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| read_error(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(PlaceError::NotAFile { path: path.to_owned() });
        }
        let mut text = String::new();
        let n_bytes = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(read_error)?;
        if n_bytes as u64 > MAX_BYTES {
            return Err(PlaceError::TooLarge { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), directory, stat, text })
    }

    /// Replaces the file by one with another text and the same mode and owner. It is not synced: no engine starts a container from a bundle of
    /// before a power cut.
    fn replace(&self, text: &str) -> io::Result<()> {
        let (directory, name) = (self.directory.as_fd(), self.path.file_name().unwrap_or_default());
        let staging = format!(".{}.bulkhead-{}", name.to_string_lossy(), std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &staging, flags, Mode::RUSR | Mode::WUSR)?;
        let ended = self.fill(file.into(), text);
        let ended = ended.and_then(|()| Ok(rustix::fs::renameat(directory, &staging, directory, name)?));
        if ended.is_err() {
            remove(directory, &staging);
        }
        ended
    }

    fn fill(&self, mut file: std::fs::File, text: &str) -> io::Result<()> {
        file.write_all(text.as_bytes())?;
        rustix::fs::fchown(&file, Some(Uid::from_raw(self.stat.st_uid)), Some(Gid::from_raw(self.stat.st_gid)))?;
        // After the owner, whose change clears bits of the mode.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(self.stat.st_mode))?;
        Ok(())
    }
}

/// Removes a staging file; the error that made it useless is the one to report.
fn remove(directory: BorrowedFd<'_>, staging: &str) {
    let _ = rustix::fs::unlinkat(directory, staging, AtFlags::empty());
}
