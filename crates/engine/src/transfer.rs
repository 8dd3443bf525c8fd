//! Sending and receiving: the changes to a pool before and after a stream (docs/formats/stream.md). Workers read and write
//! the streams (`work.rs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_api::wire::{Done, ReceiveView, ResumeToken, VolumeSend, VolumeView};
use bulkhead_core::action::{Action, Applied, LayerAction};
use bulkhead_core::backend::{self, STAGING_SUFFIX, not_received, staging_path};
use bulkhead_core::base::is_base;
use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::cow::differing_layers;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{MountOptions, Pool, PoolSource, Provision, ReadFrom, Volume, VolumeRef, VolumeState};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_core::volume;
use bulkhead_core::work::{SendDevice, SendTask};
use bulkhead_formats::layer::layer_path;
use bulkhead_formats::staging::{StagingLayer, StagingState};
use bulkhead_sys::lvm;
use uuid::Uuid;

use crate::engine::{Engine, Located};
use crate::room::Allocation;
use crate::volumes::created_now;

/// How long the staging file of an import has to be unused before the import counts as interrupted. Between two steps no process has it
/// open.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

impl Engine {
    /// Returns the devices or files to read for sending a snapshot, after making them immutable. Idempotent.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not a snapshot, the base was never sent, or the resume token is of another transfer; `Unsupported` if
    /// the pool has no snapshots, and for XFS on a thin pool.
    pub fn volume_send(
        &self,
        reference: &VolumeRef,
        request: &VolumeSend,
        dry_run: bool,
    ) -> Result<Done<SendTask>, Fault> {
        let located = self.locate_ready(reference)?;
        // Fails if the pool has no snapshots.
        let freeze = located.backend.freeze(&located.volume, Uuid::new_v4())?;
        if !located.volume.read_only {
            let cause = "it is not a snapshot, and may change while it is sent";
            return Err(Fault::new(Code::InvalidArgument, format!("volume {reference}"), cause)
                .reason(Reason::SnapshotNeeded { volume: reference.clone() }));
        }
        let from = |name: &Name| self.locate_ready(&VolumeRef { pool: reference.pool.clone(), name: name.clone() });
        let from = request.from.as_ref().map(from).transpose()?;
        let (object, steps) = match &located.pool.source {
            PoolSource::File { directory, .. } => {
                self.send_layers(&located, from.as_ref(), directory, freeze, dry_run)?
            }
            PoolSource::Lvm { vg, .. } => self.send_device(&located, from.as_ref(), vg, freeze, dry_run)?,
        };
        let object = match (object, &request.resume) {
            (Some(task), Some(token)) => Some(resumed(task, token)?),
            (object, _) => object,
        };
        Ok(Done { object, steps, dry_run })
    }

    fn send_layers(
        &self,
        snapshot: &Located,
        from: Option<&Located>,
        directory: &Path,
        freeze: Vec<Action>,
        dry_run: bool,
    ) -> Result<(Option<SendTask>, Vec<Applied>), Fault> {
        let reference = snapshot.volume.reference();
        let base = from.map(|from| self.layers_of(from)).transpose()?;
        if let (Some(from), Some([])) = (from, base.as_deref()) {
            return Err(never_sent(&reference, &from.volume.reference()));
        }
        let _room = self.reserve_for_copy(&snapshot.pool, snapshot.backend.as_ref(), &snapshot.volume)?;
        let steps = self.executor.run_steps(freeze, dry_run)?;
        if dry_run {
            return Ok((None, steps));
        }
        let layers = self.layers_of(&self.locate_ready(&reference)?)?;
        let paths = |ids: &[Uuid]| ids.iter().map(|id| layer_path(directory, *id)).collect::<Vec<PathBuf>>();
        let no_layer = || Fault::new(Code::Internal, format!("volume {reference}"), "it has no layer");
        let content = *layers.first().ok_or_else(no_layer)?;
        let header = sent_header(&snapshot.volume, content, base.as_ref().and_then(|base| base.first().copied()));
        let changed = base.map_or_else(|| layers.clone(), |base| differing_layers(&layers, &base));
        let (volume, layers, changed) = (reference, paths(&layers), paths(&changed));
        Ok((Some(SendTask { volume, header, layers, changed, device: None }), steps))
    }

    /// Content on a thin pool is identified by the UUID of the snapshot, which cannot be changed once it has been sent.
    fn send_device(
        &self,
        snapshot: &Located,
        from: Option<&Located>,
        vg: &str,
        freeze: Vec<Action>,
        dry_run: bool,
    ) -> Result<(Option<SendTask>, Vec<Applied>), Fault> {
        let mut open = Vec::new();
        if let Some(from) = from {
            let found = self.host().logical_volumes(vg)?;
            let is_protected = found.iter().any(|lv| lv.name == from.volume.name.as_str() && lv.read_only);
            if !from.volume.read_only || !is_protected {
                return Err(never_sent(&snapshot.volume.reference(), &from.volume.reference()));
            }
            open = from.backend.open(&from.volume, None);
        }
        let steps = self.executor.run_steps([freeze, open].concat(), dry_run)?;
        let node = |located: &Located| lvm::node(vg, located.volume.name.as_str());
        let task = (!dry_run).then(|| SendTask {
            volume: snapshot.volume.reference(),
            header: sent_header(&snapshot.volume, snapshot.volume.uuid, from.map(|from| from.volume.uuid)),
            layers: Vec::new(),
            changed: Vec::new(),
            device: Some(SendDevice { path: node(snapshot), base: from.map(node) }),
        });
        Ok((task, steps))
    }

    /// Starts or resumes receiving a snapshot as a volume. Idempotent.
    ///
    /// # Errors
    /// `AlreadyExists`; `NotFound` if the pool or the base does not exist; `NoSpace`; `Unsupported` on LVM.
    pub fn volume_receive(
        &self,
        reference: &VolumeRef,
        header: &StreamHeader,
        dry_run: bool,
    ) -> Result<Done<ReceiveView>, Fault> {
        let (pool, staging) = self.staging_path(reference)?;
        let object = format!("volume {reference}");
        self.check_unused(&pool, &reference.name)?;
        let wanted = received_volume(&pool, &reference.name, header, Uuid::nil());
        // Fails if the pool does not support such volumes.
        backend::backend(&pool).receive(&staging, &wanted)?;
        if is_base(header.content) {
            volume::checked_size(&wanted, header.size_bytes, Bytes(BLOCK_BYTES))?;
        }
        if is_base(header.content) && !dry_run {
            self.discard_interrupted_imports(&pool, ABANDONED_AFTER);
        }
        let received = self.transfer_state(&staging)?.map_or(Bytes(0), received_bytes);
        if header.start_bytes > received {
            let cause =
                format!("the stream begins at {}, but only {received} has been received so far", header.start_bytes);
            return Err(Fault::new(Code::InvalidArgument, object, cause)
                .reason(Reason::ReceiveIncomplete { volume: reference.clone() }));
        }
        let _room = self.reserve(&pool, header.data_bytes, Allocation::Unobserved, &object)?;
        let (content, base, size_bytes) = (header.content, header.base, header.size_bytes);
        let create = Action::Layer(LayerAction::CreateStagingFile { path: staging.clone(), content, base, size_bytes });
        let steps = self.executor.run_steps(vec![create], dry_run)?;
        let object = if dry_run { None } else { Some(self.volume_receiving(reference)?) };
        Ok(Done { object, steps, dry_run })
    }

    /// The progress of receiving a volume.
    ///
    /// # Errors
    /// `NotFound` if there is no transfer under that name.
    pub fn volume_receiving(&self, reference: &VolumeRef) -> Result<ReceiveView, Fault> {
        let (_, staging) = self.staging_path(reference)?;
        let found = self.transfer_state(&staging)?.ok_or_else(|| {
            Fault::new(Code::NotFound, format!("volume {reference}"), "nothing has been received so far")
                .reason(Reason::NothingReceived { volume: reference.clone() })
        })?;
        Ok(ReceiveView {
            volume: reference.clone(),
            content: found.content,
            base: found.base,
            size_bytes: found.size,
            received_bytes: received_bytes(found),
            part: staging,
        })
    }

    /// The state of a staging file, unless it has become a layer and only its name is left.
    fn transfer_state(&self, staging: &Path) -> Result<Option<StagingState>, Fault> {
        Ok(self.host().staging_file(staging)?.filter(|found| found.layer != StagingLayer::Same))
    }

    /// Makes a snapshot of a complete staging file.
    ///
    /// # Errors
    /// `InvalidArgument` if it is incomplete; `Corrupt` if its file system is damaged. The staging file is kept then.
    pub fn volume_received(
        &self,
        reference: &VolumeRef,
        header: &StreamHeader,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        let (pool, staging) = self.staging_path(reference)?;
        let found = self.host().staging_file(&staging)?;
        if !found.is_some_and(|found| found.content == header.content && found.received.is_none()) {
            let cause = format!("snapshot {} has not been received completely", header.content);
            return Err(Fault::new(Code::InvalidArgument, format!("volume {reference}"), cause)
                .reason(Reason::ReceiveIncomplete { volume: reference.clone() }));
        }
        self.check_unused(&pool, &reference.name)?;
        let new = received_volume(&pool, &reference.name, header, Uuid::new_v4());
        let backend = backend::backend(&pool);
        let steps = self.executor.run(&volume::receive(backend.as_ref(), &staging, &new)?, dry_run)?;
        let object = if dry_run { None } else { Some(self.volume_inspect(reference)?) };
        Ok(Done { object, steps, dry_run })
    }

    /// Discards the staging file of a volume. Idempotent.
    ///
    /// # Errors
    /// `InUse` while it is being received.
    pub fn volume_receive_abort(&self, reference: &VolumeRef, dry_run: bool) -> Result<Done<ReceiveView>, Fault> {
        let (pool, staging) = self.staging_path(reference)?;
        let mut steps = Vec::new();
        // Including one whose creation was interrupted.
        if self.staging_names(&pool)?.contains(&reference.name) {
            let remove = vec![Action::Layer(LayerAction::RemoveStagingFile { path: staging })];
            steps = self.executor.run_steps([remove, backend::backend(&pool).sweep()].concat(), dry_run)?;
        }
        Ok(Done { object: None, steps, dry_run })
    }

    /// Removes staging files of completely received volumes, which a crash before the last step leaves. One that cannot be removed
    /// does not affect the others.
    pub(crate) fn complete_received(&self, pool: &Pool, problems: &mut Vec<Fault>) -> Result<(), Fault> {
        let names = self.staging_names(pool)?;
        if names.is_empty() {
            return Ok(());
        }
        for volume in self.volumes_in(pool)?.into_iter().filter_map(Result::ok) {
            if volume.state != VolumeState::Ready || !names.contains(&volume.name) {
                continue;
            }
            let (_, staging) = self.staging_path(&volume.reference())?;
            let removed = self.host().staging_file(&staging).and_then(|found| {
                let is_done = |found: StagingState| found.received.is_none() && found.layer != StagingLayer::Missing;
                let remove = found
                    .is_some_and(is_done)
                    .then_some(Action::Layer(LayerAction::RemoveStagingFile { path: staging }));
                self.executor.run_steps(remove.into_iter().collect(), false)
            });
            problems.extend(removed.err());
        }
        Ok(())
    }

    /// Removes leftovers of interrupted imports from a pool: unlike a receive, an import cannot be resumed.
    pub(crate) fn discard_interrupted_imports(&self, pool: &Pool, after: Duration) {
        let discarded = self.incomplete_receives(pool).and_then(|receives| {
            for import in receives.into_iter().filter(|receive| is_base(receive.content)) {
                if self.host().staging_file_is_abandoned(&import.part, after)? {
                    tracing::info!(volume = %import.volume, "discarding an interrupted import");
                    self.executor
                        .run_steps(vec![Action::Layer(LayerAction::RemoveStagingFile { path: import.part })], false)?;
                }
            }
            Ok(())
        });
        if let Err(fault) = discarded {
            tracing::warn!(object = %fault.object, cause = %fault.cause, "cannot discard interrupted imports");
        }
    }

    /// The names of the staging files in a pool.
    fn staging_names(&self, pool: &Pool) -> Result<Vec<Name>, Fault> {
        let PoolSource::File { directory, .. } = &pool.source else { return Ok(Vec::new()) };
        let entries = self.host().list_dir(directory)?.unwrap_or_default();
        let name = |entry: &String| entry.strip_suffix(STAGING_SUFFIX)?.strip_suffix('.')?.parse::<Name>().ok();
        Ok(entries.iter().filter_map(name).collect())
    }

    /// The incomplete receives in a pool.
    pub(crate) fn incomplete_receives(&self, pool: &Pool) -> Result<Vec<ReceiveView>, Fault> {
        let names = self.staging_names(pool)?.into_iter();
        let views = names.map(|name| self.volume_receiving(&VolumeRef { pool: pool.name.clone(), name }));
        views.filter(|view| !matches!(view, Err(fault) if fault.code == Code::NotFound)).collect()
    }

    /// The tenant that pays for sending a snapshot: its own, or that of a volume which depends on its layers.
    pub(crate) fn sender_pays(&self, snapshot: &VolumeRef, task: &SendTask) -> Result<Option<Name>, Fault> {
        match self.holders(snapshot)?.0 {
            None if task.device.is_none() => self.user_pays(&snapshot.pool, task.header.content),
            holder => Ok(holder),
        }
    }

    /// The tenant that pays for receiving a snapshot: that of a volume which depends on its base.
    pub(crate) fn receiver_pays(&self, volume: &VolumeRef, header: &StreamHeader) -> Result<Option<Name>, Fault> {
        header.base.map_or(Ok(None), |base| self.user_pays(&volume.pool, base))
    }

    /// The tenant of a volume that depends on a layer.
    fn user_pays(&self, pool: &Name, layer: Uuid) -> Result<Option<Name>, Fault> {
        let users = self.users_of(&self.pool(pool)?, layer)?;
        Ok(users.iter().find_map(|volume| self.holders(volume).ok()?.0))
    }

    /// The backing chain of a volume, newest layer first.
    fn layers_of(&self, located: &Located) -> Result<Vec<Uuid>, Fault> {
        let layers = self.host().layers(&located.backend.device(&located.volume))?;
        Ok(layers.into_iter().flat_map(|layers| layers.below).map(|layer| layer.id).collect())
    }

    fn staging_path(&self, reference: &VolumeRef) -> Result<(Pool, PathBuf), Fault> {
        let pool = self.pool(&reference.pool)?;
        self.check_identity(&pool)?;
        let PoolSource::File { directory, .. } = &pool.source else { return Err(not_received(reference)) };
        let staging = staging_path(directory, &reference.name);
        Ok((pool, staging))
    }
}

/// Starts the stream at the offset of the resume token.
fn resumed(mut task: SendTask, token: &ResumeToken) -> Result<SendTask, Fault> {
    let object = format!("volume {}", task.volume);
    let StreamHeader { content, base, .. } = task.header;
    if token.content != content {
        let cause = format!("the resume token is of snapshot {}, but this snapshot is {content}", token.content);
        return Err(Fault::new(Code::InvalidArgument, object, cause).reason(Reason::ResumeOfOther));
    }
    if token.base != base {
        return Err(Fault::new(Code::InvalidArgument, object, "the resume token is of a transfer with another base")
            .reason(Reason::ResumeOnOtherBase));
    }
    task.header.start_bytes = token.received_bytes;
    Ok(task)
}

fn never_sent(snapshot: &VolumeRef, from: &VolumeRef) -> Fault {
    let cause = format!("the content of {from} has never been sent or received");
    Fault::new(Code::InvalidArgument, format!("volume {snapshot}"), cause)
        .reason(Reason::NeverSent { from: from.clone() })
}

/// The header of a complete stream; the amount of data is not known yet.
fn sent_header(snapshot: &Volume, content: Uuid, base: Option<Uuid>) -> StreamHeader {
    StreamHeader {
        content,
        base,
        size_bytes: snapshot.size_bytes,
        start_bytes: Bytes(0),
        data_bytes: Bytes(0),
        fs: snapshot.fs,
        snapshot: snapshot.reference().to_string(),
    }
}

fn received_bytes(state: StagingState) -> Bytes {
    state.received.unwrap_or(state.size)
}

/// The volume for a stream with this header.
fn received_volume(pool: &Pool, name: &Name, header: &StreamHeader, uuid: Uuid) -> Volume {
    Volume {
        pool: pool.name.clone(),
        name: name.clone(),
        uuid,
        size_bytes: header.size_bytes,
        fs: header.fs,
        provision: Provision::OnDemand,
        fast_commit: false,
        read_only: true,
        origin: None,
        layered: true,
        flatten: false,
        unfilled_from_bytes: None,
        read_from: ReadFrom::default(),
        domain: None,
        mount_options: MountOptions::default(),
        created_by: None,
        default_tenant: None,
        created_unix_seconds: created_now(),
        state: VolumeState::Creating,
    }
}
