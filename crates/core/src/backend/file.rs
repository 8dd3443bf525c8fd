//! Directory pools: a volume is an image, which a block server serves with direct I/O.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::{Backend, Replacement, WRITTEN_IN_ADVANCE, no_snapshots};
use crate::action::{Action, DeviceRef, FsAction, ImageAction, LayerAction, Record, ServerAction, StateAction};
use crate::cgroup::CgroupPath;
use crate::error::Fault;
use crate::model::{FsKind, Provision, Server, Volume};
use crate::name::Name;
use crate::serve::ServeSpec;
use crate::units::Bytes;

/// File name suffix of a volume's record in a directory pool.
pub const VOLUME_RECORD_SUFFIX: &str = "volume";
/// File name suffix of a volume's image in a directory pool.
pub const IMAGE_SUFFIX: &str = "img";
/// File name suffix of a layer in a directory pool; the stem is its UUID.
pub const LAYER_SUFFIX: &str = "layer";
/// File name suffix of a future image in a directory pool; the stem is a UUID.
pub const NEW_SUFFIX: &str = "new";
/// File name suffix of a staging file in a directory pool.
pub const STAGING_SUFFIX: &str = "part";
/// File name suffix of a layer's index; appended to the name of a staging file, that of the future index.
pub const INDEX_SUFFIX: &str = "index";
/// File name of a directory pool's own record.
pub const POOL_RECORD: &str = "bulkhead-pool";

/// Path of a volume's record in a directory pool.
#[must_use]
pub fn volume_record_path(directory: &Path, name: &Name) -> PathBuf {
    directory.join(format!("{name}.{VOLUME_RECORD_SUFFIX}"))
}

/// Path of a volume's image in a directory pool.
#[must_use]
pub fn image_path(directory: &Path, name: &Name) -> PathBuf {
    directory.join(format!("{name}.{IMAGE_SUFFIX}"))
}

/// Path of the staging file of a volume in a directory pool.
#[must_use]
pub fn staging_path(directory: &Path, name: &Name) -> PathBuf {
    directory.join(format!("{name}.{STAGING_SUFFIX}"))
}

/// Images in a directory, served with direct I/O.
#[derive(Debug)]
pub(super) struct FileBackend {
    pub(super) directory: PathBuf,
    pub(super) server: Server,
}

impl FileBackend {
    fn image(&self, volume: &Volume) -> PathBuf {
        image_path(&self.directory, &volume.name)
    }

    fn write_record(&self, volume: &Volume) -> Action {
        let path = volume_record_path(&self.directory, &volume.name);
        Action::State(StateAction::WriteRecord { path, record: Box::new(Record::Volume(volume.clone())) })
    }
}

impl Backend for FileBackend {
    fn device(&self, volume: &Volume) -> DeviceRef {
        DeviceRef::Image { image: self.image(volume), volume: volume.uuid }
    }

    fn create(&self, volume: &Volume) -> Vec<Action> {
        let path = self.image(volume);
        let create = Action::Image(ImageAction::CreateImage {
            path,
            size_bytes: volume.size_bytes,
            provision: volume.provision,
        });
        [vec![self.write_record(volume), create], self.open(volume, None)].concat()
    }

    fn record(&self, _old: &Volume, new: &Volume) -> Action {
        self.write_record(new)
    }

    fn open(&self, volume: &Volume, server_cgroup: Option<&CgroupPath>) -> Vec<Action> {
        let spec = ServeSpec {
            // In an image that was written in advance, a hole would cost a commit of the host's journal at the next
            // write.
            discards: volume.provision == Provision::OnDemand,
            layered: volume.layered,
            flatten: volume.flatten,
            cgroup: server_cgroup.cloned(),
            ..ServeSpec::new(volume, self.image(volume))
        };
        vec![Action::Server(ServerAction::AttachImage { server: self.server, spec })]
    }

    fn close(&self, volume: &Volume) -> Vec<Action> {
        vec![Action::Server(ServerAction::DetachImage { image: self.image(volume), volume: volume.uuid })]
    }

    fn grow(&self, volume: &Volume, to: Bytes) -> Vec<Action> {
        let image = self.image(volume);
        vec![
            Action::Image(ImageAction::GrowImage { path: image.clone(), size_bytes: to, provision: volume.provision }),
            Action::Server(ServerAction::RefreshImage { image, volume: volume.uuid, size_bytes: to }),
        ]
    }

    fn fill(&self, _volume: &Volume, _from: Bytes) -> Option<Action> {
        None
    }

    fn shrink(&self, volume: &Volume, to: Bytes) -> Vec<Action> {
        vec![Action::Image(ImageAction::ShrinkImage { path: self.image(volume), size_bytes: to })]
    }

    fn remove(&self, volume: &Volume) -> Vec<Action> {
        let image = self.image(volume);
        vec![
            Action::Server(ServerAction::DetachImage { image: image.clone(), volume: volume.uuid }),
            Action::Image(ImageAction::RemoveImage { path: image }),
            Action::State(StateAction::RemoveRecord { path: volume_record_path(&self.directory, &volume.name) }),
        ]
        .into_iter()
        .chain(self.sweep())
        .collect()
    }

    fn snapshot(&self, origin: &Volume, new: &Volume) -> Result<Vec<Action>, Fault> {
        // Each copy creates at most one layer, so its UUID serves for both.
        let freeze = self.freeze(origin, new.uuid)?;
        let copy = Action::Image(ImageAction::CopyImage { path: self.image(new), of: self.image(origin) });
        Ok([vec![self.write_record(new)], freeze, vec![copy]].concat())
    }

    fn freeze(&self, volume: &Volume, layer: Uuid) -> Result<Vec<Action>, Fault> {
        if self.server == Server::Loop {
            return Err(no_snapshots(volume, "loop"));
        }
        let mut steps =
            vec![Action::Image(ImageAction::CreateLayer { image: self.image(volume), volume: volume.uuid, layer })];
        if !volume.layered {
            steps.push(self.write_record(&Volume { layered: true, ..volume.clone() }));
        }
        Ok(steps)
    }

    fn receive(&self, staging_file: &Path, new: &Volume) -> Result<Vec<Action>, Fault> {
        if self.server == Server::Loop {
            return Err(no_snapshots(new, "loop"));
        }
        let publish =
            Action::Layer(LayerAction::PublishStagingFile { path: staging_file.to_owned(), image: self.image(new) });
        Ok(vec![self.write_record(new), publish])
    }

    fn set_fs_uuid(&self, new: &Volume, _fs: FsKind, by_device: Vec<Action>) -> Vec<Action> {
        vec![Action::Fs(FsAction::StampFsUuid { image: self.image(new), uuid: new.uuid, otherwise: by_device })]
    }

    fn replacement(&self, volume: &Volume, snapshot: &Volume, id: Uuid) -> Result<Replacement, Fault> {
        let (old, of) = (self.image(volume), self.image(snapshot));
        let new = self.directory.join(format!("{id}.{NEW_SUFFIX}"));
        // The volume is closed, so that the new device can have its identity.
        let spec = ServeSpec { discards: true, layered: true, ..ServeSpec::new(volume, new.clone()) };
        let attach = Action::Server(ServerAction::AttachImage { server: self.server, spec });
        let detach = Action::Server(ServerAction::DetachImage { image: new.clone(), volume: volume.uuid });
        Ok(Replacement {
            create: [
                self.freeze(snapshot, id)?,
                vec![Action::Image(ImageAction::CopyImage { path: new.clone(), of }), attach],
            ]
            .concat(),
            device: DeviceRef::Image { image: new.clone(), volume: volume.uuid },
            swap: vec![detach.clone(), Action::Image(ImageAction::ReplaceImage { path: old, by: new.clone() })],
            undo: [detach, Action::Image(ImageAction::RemoveImage { path: new })]
                .into_iter()
                .chain(self.sweep())
                .collect(),
        })
    }

    fn discard_obstacle(&self, volume: &Volume) -> Option<&'static str> {
        match (volume.provision, volume.layered) {
            (Provision::OnDemand, _) => None,
            (Provision::Full, false) => Some(WRITTEN_IN_ADVANCE),
            (Provision::Full, true) => {
                Some("it was provisioned in full before it was copied, and its block server refuses discards")
            }
        }
    }

    fn sweep(&self) -> Vec<Action> {
        vec![Action::Layer(LayerAction::SweepLayers { directory: self.directory.clone() })]
    }
}
