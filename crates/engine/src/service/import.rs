//! Imports of images, as jobs with workers.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bulkhead_api::wire::{Done, ImageImport, JobResult, ReceiveView};
use bulkhead_core::base::{IMPORTING, is_base};
use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{VolumeFs, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{ImportTask, MIN_BASE_BYTES, Order, Outcome, Staged, Task};

use super::{Reply, Service, Terms};
use crate::engine::Engine;
use crate::locks::Claim;
use crate::work::WorkerJob;

/// The default directory in which archives are unpacked.
const STAGING: &str = "/var/tmp";

impl Service {
    /// Imports an archive as a snapshot.
    ///
    /// # Errors
    /// Those of [`Engine::volume_receive`] and [`Engine::check_can_pay`]; `InvalidArgument` for a directory that is not safe to unpack into.
    pub(crate) async fn volume_import(
        &self,
        volume: VolumeRef,
        request: ImageImport,
        terms: Terms,
    ) -> Result<Reply<Done<ReceiveView>>, Fault> {
        let worker_job = Importing { volume, request, header: Mutex::default() };
        if !terms.dry_run {
            return self.start_worker_job(worker_job, terms).await.map(Reply::Stream);
        }
        let planned = self.change(terms, worker_job.operation(), worker_job.claim(), move |engine| {
            engine.check_can_pay(worker_job.payer())?;
            worker_job.plan(engine)
        });
        planned.await.map(Reply::Planned)
    }
}

struct Importing {
    volume: VolumeRef,
    request: ImageImport,
    /// The header that the staging file was made for.
    header: Mutex<Option<StreamHeader>>,
}

impl Importing {
    /// The plan, as far as it is known before unpacking.
    fn plan(&self, engine: &Engine) -> Result<Done<ReceiveView>, Fault> {
        self.staging(engine)?;
        let size = self.request.size_bytes.map(|size| size.round_up(Bytes(BLOCK_BYTES)).unwrap_or(size));
        engine.volume_receive(&self.volume, &self.header(size.unwrap_or(MIN_BASE_BYTES), Bytes(0)), true)
    }

    /// The header of the base, as far as it is known before the import.
    fn header(&self, size_bytes: Bytes, data_bytes: Bytes) -> StreamHeader {
        StreamHeader {
            content: IMPORTING,
            base: None,
            size_bytes,
            start_bytes: Bytes(0),
            // At most the size of the volume is needed.
            data_bytes: data_bytes.min(size_bytes),
            fs: VolumeFs::Ext4,
            snapshot: self.request.source.clone(),
        }
    }

    /// Refuses a directory in which users other than root could replace unpacked files.
    fn staging(&self, engine: &Engine) -> Result<PathBuf, Fault> {
        let staging = self.request.staging.clone().unwrap_or_else(|| STAGING.into());
        let object = || format!("directory {}", staging.display());
        let is_plain = |path: &Path| path.is_absolute() && !path.components().any(|part| part.as_os_str() == "..");
        if !is_plain(staging.as_path()) {
            return Err(Fault::new(Code::InvalidArgument, object(), "it is not an absolute path")
                .hint("give its absolute path"));
        }
        // Checked for a name in it: in a sticky directory that is safe.
        match engine.host().who_can_replace(&staging.join("tree"))? {
            None => Ok(staging),
            Some(why) => {
                let cause = format!("{why}: unpacked files could be replaced");
                Err(Fault::new(Code::InvalidArgument, object(), cause)
                    .hint("choose a directory that only root can write to, or a sticky one, such as /var/tmp"))
            }
        }
    }

    fn staged_header(&self) -> std::sync::MutexGuard<'_, Option<StreamHeader>> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerJob for Importing {
    fn operation(&self) -> String {
        format!("import volume {}", self.volume)
    }

    fn claim(&self) -> Claim {
        Claim::default().volume(&self.volume)
    }

    fn payer(&self) -> Option<&Name> {
        self.request.tenant.as_ref()
    }

    fn prepare(&self, engine: &Engine) -> Result<(Task, Option<Name>), Fault> {
        discard_interrupted(engine, &self.volume)?;
        // Requests that are refused in any case are refused before unpacking.
        self.plan(engine)?;
        let (volume, staging) = (self.volume.clone(), self.staging(engine)?);
        let ImageImport { source, size_bytes, platform, reference, strict, staging: _, tenant } = self.request.clone();
        let task = ImportTask { volume, source, size_bytes, platform, reference, strict, staging };
        Ok((Task::Import(task), tenant))
    }

    fn ends_with_client(&self) -> bool {
        true
    }

    fn staged(&self, engine: &Engine, staged: &Staged) -> Result<Order, Fault> {
        let header = self.header(staged.size_bytes, staged.data_bytes);
        let view = engine.volume_receive(&self.volume, &header, false)?.object;
        let nothing = || Fault::new(Code::Internal, format!("volume {}", self.volume), "it has no staging file");
        let part = view.ok_or_else(nothing)?.part;
        *self.staged_header() = Some(header);
        Ok(Order::Make { staging_file: part })
    }

    fn last_step(&self) -> Option<String> {
        Some(format!("create volume {} from the imported image", self.volume))
    }

    fn finish(&self, engine: &Engine, outcome: Outcome) -> Result<JobResult, Fault> {
        match (outcome, self.staged_header().clone()) {
            (Outcome::Imported { content, entries, left_out }, Some(header)) => {
                let done = engine.volume_received(&self.volume, &StreamHeader { content, ..header }, false)?;
                Ok(JobResult::Imported { done: Box::new(done), content, entries, left_out })
            }
            (other, _) => Err(unexpected_outcome(&self.volume, &other)),
        }
    }

    fn needs_cleanup(&self, fault: &Fault) -> bool {
        // A staging file in use belongs to another job.
        self.staged_header().is_some() && fault.code != Code::InUse
    }

    fn clean_up(&self, engine: &Engine) -> Result<(), Fault> {
        engine.volume_receive_abort(&self.volume, false).map(drop)
    }
}

/// Discards the staging file of an interrupted import of the same name.
fn discard_interrupted(engine: &Engine, volume: &VolumeRef) -> Result<(), Fault> {
    match engine.volume_receiving(volume) {
        Ok(view) if is_base(view.content) => engine.volume_receive_abort(volume, false).map(drop),
        Ok(view) => {
            let cause = format!("a snapshot is being received under that name: {}", view.content);
            Err(Fault::new(Code::InUse, format!("volume {volume}"), cause).reason(Reason::OtherReceived))
        }
        Err(fault) if fault.code == Code::NotFound || fault.code == Code::Unsupported => Ok(()),
        Err(fault) => Err(fault),
    }
}

pub(super) fn unexpected_outcome(volume: &VolumeRef, outcome: &Outcome) -> Fault {
    Fault::new(
        Code::Internal,
        format!("volume {volume}"),
        format!("a worker reported an unexpected outcome ({outcome:?})"),
    )
}
