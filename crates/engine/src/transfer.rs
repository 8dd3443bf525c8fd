//! Sending and receiving: what is done to a pool before and after a stream (docs/formats/stream.md). The streams themselves are
//! read and written by the command line, in a process of the operator's.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_core::action::Action;
use bulkhead_core::backend::{self, PART_SUFFIX, no_layers, part_path};
use bulkhead_core::base::is_base;
use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Pool, PoolSource, Provision, Sharing, Volume, VolumeRef, VolumeState};
use bulkhead_core::name::Name;
use bulkhead_core::stream::{PartState, StreamHeader, differing};
use bulkhead_core::units::Bytes;
use bulkhead_core::volume;
use bulkhead_core::wire::{Done, ReceiveView, SendView, VolumeSend, VolumeView};
use bulkhead_sys::layer::layer_path;
use uuid::Uuid;

use crate::engine::{Engine, Located};

/// After how long without anybody an import is taken for one that was cut off: between two steps of one nobody has its part open.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

impl Engine {
    /// Says what is to be read to send a snapshot, after what it holds was made a layer of its own. Idempotent.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no snapshot, or shares nothing with the one that is given; `Unsupported` on LVM.
    pub fn volume_send(
        &self,
        reference: &VolumeRef,
        request: &VolumeSend,
        dry_run: bool,
    ) -> Result<Done<SendView>, Fault> {
        let Located { pool, backend, volume } = self.locate_ready(reference)?;
        let PoolSource::File { directory, .. } = &pool.source else { return Err(no_layers(reference)) };
        let object = format!("volume {reference}");
        if !volume.read_only {
            return Err(Fault::new(
                Code::InvalidArgument,
                object,
                "it is no snapshot, and may change while it is sent",
            )
            .cure(format!("make one first: `bulkhead volume snapshot {reference} NAME`")));
        }
        let base = match &request.from {
            None => None,
            Some(name) => {
                let from = VolumeRef { pool: pool.name.clone(), name: name.clone() };
                let layers = self.layers_of(&self.locate_ready(&from)?)?;
                if layers.is_empty() {
                    let cause = format!("nothing that {from} holds has ever been sent or received");
                    return Err(Fault::new(Code::InvalidArgument, object, cause).cure("leave `--from` away"));
                }
                Some(layers)
            }
        };
        let steps = self.executor.run_steps(backend.freeze(&volume, Uuid::new_v4())?, dry_run)?;
        if dry_run {
            return Ok(Done { object: None, steps, dry_run });
        }
        let layers = self.layers_of(&self.locate_ready(reference)?)?;
        let paths = |ids: &[Uuid]| ids.iter().map(|id| layer_path(directory, *id)).collect::<Vec<PathBuf>>();
        let header = StreamHeader {
            content: *layers.first().ok_or_else(|| Fault::new(Code::Internal, object, "it has no layer"))?,
            base: base.as_ref().and_then(|base| base.first().copied()),
            size_bytes: volume.size_bytes,
            start_bytes: Bytes(0),
            data_bytes: Bytes(0),
            fs: volume.fs,
            snapshot: reference.to_string(),
        };
        let changed = base.map_or_else(|| layers.clone(), |base| differing(&layers, &base));
        let view = SendView { header, layers: paths(&layers), changed: paths(&changed) };
        Ok(Done { object: Some(view), steps, dry_run })
    }

    /// Begins to receive a snapshot as a volume, or goes on with it. Idempotent.
    ///
    /// # Errors
    /// `AlreadyExists`; `NotFound` for a pool or a base that is not there; `NoSpace`; `Unsupported` on LVM.
    pub fn volume_receive(
        &self,
        reference: &VolumeRef,
        header: &StreamHeader,
        dry_run: bool,
    ) -> Result<Done<ReceiveView>, Fault> {
        let (pool, part) = self.part_of(reference)?;
        let object = format!("volume {reference}");
        if self.find(&pool, &reference.name)?.is_some() {
            return Err(Fault::new(Code::AlreadyExists, object, "a volume of that name is there already")
                .cure("choose another name"));
        }
        self.check_unclaimed(&pool, &reference.name)?;
        let wanted = received_volume(&pool, &reference.name, header, Uuid::nil());
        // Whether such volumes can be had in the pool at all.
        backend::backend(&pool).receive(&part, &wanted)?;
        if is_base(header.content) {
            volume::checked_size(&wanted, header.size_bytes, Bytes(BLOCK_BYTES))?;
        }
        if is_base(header.content) && !dry_run {
            self.give_up_imports(&pool, ABANDONED_AFTER);
        }
        let found = self.host().part(&part)?;
        let received = found.map_or(Bytes(0), received_bytes);
        if header.start_bytes > received {
            let cause =
                format!("the stream begins at {}, and only {received} were received before", header.start_bytes);
            return Err(Fault::new(Code::InvalidArgument, object, cause)
                .cure(format!("send again, from where `bulkhead volume receive {reference} --token` says")));
        }
        Self::check_room(&self.host().space(&pool.source)?, header.data_bytes, true, &object)?;
        let (content, base, size_bytes) = (header.content, header.base, header.size_bytes);
        let create = Action::CreatePart { path: part.clone(), content, base, size_bytes };
        let steps = self.executor.run_steps(vec![create], dry_run)?;
        let object = if dry_run { None } else { Some(self.volume_receiving(reference)?) };
        Ok(Done { object, steps, dry_run })
    }

    /// How far the receiving of a volume is.
    ///
    /// # Errors
    /// `NotFound` when nothing is being received under that name.
    pub fn volume_receiving(&self, reference: &VolumeRef) -> Result<ReceiveView, Fault> {
        let (_, part) = self.part_of(reference)?;
        let found = self.host().part(&part)?.ok_or_else(|| {
            Fault::new(Code::NotFound, format!("volume {reference}"), "nothing of it has been received so far")
        })?;
        Ok(ReceiveView {
            volume: reference.clone(),
            content: found.content,
            base: found.base,
            size_bytes: found.size,
            received_bytes: received_bytes(found),
            part,
        })
    }

    /// Makes a snapshot of what was received, all of it.
    ///
    /// # Errors
    /// `InvalidArgument` when something is missing; `Corrupt` when its file system is damaged. What was received stays then.
    pub fn volume_received(
        &self,
        reference: &VolumeRef,
        header: &StreamHeader,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        let (pool, part) = self.part_of(reference)?;
        let found = self.host().part(&part)?;
        if !found.is_some_and(|found| found.content == header.content && found.received.is_none()) {
            let cause = format!("not all of {} has been received", header.content);
            return Err(Fault::new(Code::InvalidArgument, format!("volume {reference}"), cause)
                .cure(format!("`bulkhead volume receive {reference} --token` says how far it is")));
        }
        self.check_unclaimed(&pool, &reference.name)?;
        let new = received_volume(&pool, &reference.name, header, Uuid::new_v4());
        let backend = backend::backend(&pool);
        let steps = self.executor.run(&volume::receive(backend.as_ref(), &part, &new)?, dry_run)?;
        let object = if dry_run { None } else { Some(self.volume_inspect(reference)?) };
        Ok(Done { object, steps, dry_run })
    }

    /// Gives up what was received of a volume so far. Idempotent.
    ///
    /// # Errors
    /// `InUse` while it is being received.
    pub fn volume_receive_abort(&self, reference: &VolumeRef, dry_run: bool) -> Result<Done<ReceiveView>, Fault> {
        let (pool, part) = self.part_of(reference)?;
        let mut steps = Vec::new();
        if self.host().part(&part)?.is_some() {
            let remove = vec![Action::RemovePart { path: part }];
            steps = self.executor.run_steps([remove, backend::backend(&pool).tidy()].concat(), dry_run)?;
        }
        Ok(Done { object: None, steps, dry_run })
    }

    /// Removes what imports left in a pool that were cut off: unlike what is received, they do not go on where they were.
    pub(crate) fn give_up_imports(&self, pool: &Pool, after: Duration) {
        let given_up = self.parts(pool).and_then(|parts| {
            for part in parts.into_iter().filter(|part| is_base(part.content)) {
                if self.host().part_is_abandoned(&part.part, after)? {
                    tracing::info!(volume = %part.volume, "giving up an import that was cut off");
                    self.executor.run_steps(vec![Action::RemovePart { path: part.part }], false)?;
                }
            }
            Ok(())
        });
        if let Err(fault) = given_up {
            tracing::warn!(object = %fault.object, cause = %fault.cause, "cannot give up what imports left");
        }
    }

    /// What has been received in part in a pool.
    pub(crate) fn parts(&self, pool: &Pool) -> Result<Vec<ReceiveView>, Fault> {
        let PoolSource::File { directory, .. } = &pool.source else { return Ok(Vec::new()) };
        let entries = self.host().list_dir(directory)?.unwrap_or_default();
        let names = entries.iter().filter_map(|entry| {
            entry.strip_suffix(PART_SUFFIX).and_then(|entry| entry.strip_suffix('.'))?.parse::<Name>().ok()
        });
        let views = names.map(|name| self.volume_receiving(&VolumeRef { pool: pool.name.clone(), name }));
        views.filter(|view| !matches!(view, Err(fault) if fault.code == Code::NotFound)).collect()
    }

    /// The layers that a volume lies on, the newest first.
    fn layers_of(&self, located: &Located) -> Result<Vec<Uuid>, Fault> {
        let layers = self.host().layers(&located.backend.device(&located.volume))?;
        Ok(layers.into_iter().flat_map(|layers| layers.below).map(|layer| layer.id).collect())
    }

    fn part_of(&self, reference: &VolumeRef) -> Result<(Pool, PathBuf), Fault> {
        let pool = self.pool(&reference.pool)?;
        self.check_identity(&pool)?;
        let PoolSource::File { directory, .. } = &pool.source else { return Err(no_layers(reference)) };
        let part = part_path(directory, &reference.name);
        Ok((pool, part))
    }
}

fn received_bytes(part: PartState) -> Bytes {
    part.received.unwrap_or(part.size)
}

/// A volume that holds what a stream of this header has.
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
        share: Sharing::default(),
        domain: None,
        state: VolumeState::Creating,
    }
}
