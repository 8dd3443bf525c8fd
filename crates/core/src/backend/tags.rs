//! LVM tags: how volumes and pools on LVM contain their own records (docs/formats/state.md).

use uuid::Uuid;

use crate::error::{Code, Fault};
use crate::model::{FrontEnd, MountOptions, Pool, PoolSource, Provision, ReadFrom, Volume, VolumeFs, VolumeState};
use crate::name::Name;
use crate::units::Bytes;

/// Prefix of all tags, followed by `key` or `key=value`. docs/formats/state.md lists them.
const TAG_PREFIX: &str = "bulkhead.";

/// The tag that identifies a logical volume as this volume: logical volumes without it are not touched.
pub(super) fn owner_tag(volume: &Volume) -> String {
    format!("{TAG_PREFIX}volume={}", volume.uuid)
}

/// The tags of a volume's logical volume, which contain its record.
#[must_use]
pub fn tags_of(volume: &Volume) -> Vec<String> {
    let state = match volume.state {
        VolumeState::Creating => "creating".to_owned(),
        VolumeState::Ready => "ready".to_owned(),
        VolumeState::Removing => "removing".to_owned(),
        VolumeState::Resizing { to_bytes } => format!("resizing:{}", to_bytes.0),
        VolumeState::ReplacingJournal { to_bytes } => format!("journal:{}", to_bytes.0),
    };
    let provision = match volume.provision {
        Provision::Full => "full",
        Provision::OnDemand => "on_demand",
    };
    let mut tags = vec![
        owner_tag(volume),
        format!("{TAG_PREFIX}fs={}", volume.fs),
        format!("{TAG_PREFIX}provision={provision}"),
        format!("{TAG_PREFIX}state={state}"),
    ];
    if volume.fast_commit {
        tags.push(format!("{TAG_PREFIX}fast_commit"));
    }
    if volume.read_only {
        tags.push(format!("{TAG_PREFIX}read_only"));
    }
    if let Some(origin) = &volume.origin {
        tags.push(format!("{TAG_PREFIX}origin={origin}"));
    }
    if let Some(from) = volume.unfilled_from_bytes {
        tags.push(format!("{TAG_PREFIX}unfilled={}", from.0));
    }
    if volume.read_from != ReadFrom::Disk {
        tags.push(format!("{TAG_PREFIX}share={}", volume.read_from.tag()));
    }
    let MountOptions { suid, dev, subdir } = &volume.mount_options;
    let flags = [(*suid, "suid"), (*dev, "dev")].into_iter().filter(|(is_set, _)| *is_set);
    tags.extend(flags.map(|(_, flag)| format!("{TAG_PREFIX}{flag}")));
    tags.extend(subdir.iter().map(|subdir| format!("{TAG_PREFIX}subdir={subdir}")));
    tags.extend(volume.created_by.iter().map(|front_end| format!("{TAG_PREFIX}created_by={front_end}")));
    tags.extend(volume.default_tenant.iter().map(|tenant| format!("{TAG_PREFIX}tenant={tenant}")));
    tags.extend(volume.created_unix_seconds.iter().map(|seconds| format!("{TAG_PREFIX}created={seconds}")));
    tags
}

/// Reads a volume's record from the tags of its logical volume. `None` if it is not a volume of Bulkhead.
///
/// # Errors
/// `Corrupt` if it is one, and a tag is missing or cannot be read.
pub fn volume_from_tags(pool: &Name, lv: &str, size_bytes: Bytes, tags: &[String]) -> Result<Option<Volume>, Fault> {
    let value =
        |key: &str| tags.iter().find_map(|tag| tag.strip_prefix(TAG_PREFIX)?.strip_prefix(key)?.strip_prefix('='));
    let flag = |key: &str| tags.iter().any(|tag| tag.strip_prefix(TAG_PREFIX) == Some(key));
    let Some(uuid) = value("volume") else { return Ok(None) };
    let corrupt = |what: &str| {
        Fault::new(
            Code::Corrupt,
            format!("volume {pool}/{lv}"),
            format!("its LVM tag {TAG_PREFIX}{what} is missing or cannot be read"),
        )
        .hint(
            "compare `lvs -o lv_name,lv_tags` with docs/formats/state.md and restore the tag with `lvchange --addtag`",
        )
    };
    let fs = match value("fs") {
        Some("ext4") => VolumeFs::Ext4,
        Some("xfs") => VolumeFs::Xfs,
        Some("none") => VolumeFs::None,
        _ => return Err(corrupt("fs")),
    };
    let provision = match value("provision") {
        Some("full") => Provision::Full,
        Some("on_demand") => Provision::OnDemand,
        _ => return Err(corrupt("provision")),
    };
    let state = match value("state") {
        Some("creating") => VolumeState::Creating,
        Some("ready") => VolumeState::Ready,
        Some("removing") => VolumeState::Removing,
        Some(text) => {
            let (stage, to) = text.split_once(':').ok_or_else(|| corrupt("state"))?;
            let to_bytes = Bytes(to.parse().map_err(|_| corrupt("state"))?);
            match stage {
                "resizing" => VolumeState::Resizing { to_bytes },
                "journal" => VolumeState::ReplacingJournal { to_bytes },
                _ => return Err(corrupt("state")),
            }
        }
        None => return Err(corrupt("state")),
    };
    Ok(Some(Volume {
        pool: pool.clone(),
        name: lv.parse().map_err(|_| corrupt("volume (the logical volume's name)"))?,
        uuid: Uuid::parse_str(uuid).map_err(|_| corrupt("volume"))?,
        size_bytes,
        fs,
        provision,
        fast_commit: flag("fast_commit"),
        read_only: flag("read_only"),
        origin: value("origin").map(str::parse).transpose().map_err(|_| corrupt("origin"))?,
        layered: false,
        flatten: false,
        unfilled_from_bytes: value("unfilled").map(str::parse).transpose().map_err(|_| corrupt("unfilled"))?.map(Bytes),
        read_from: value("share").map_or(Some(ReadFrom::Disk), ReadFrom::from_tag).ok_or_else(|| corrupt("share"))?,
        domain: None,
        mount_options: MountOptions {
            suid: flag("suid"),
            dev: flag("dev"),
            subdir: value("subdir").map(str::parse).transpose().map_err(|_| corrupt("subdir"))?,
        },
        // A front end of a later version is unknown here.
        created_by: value("created_by").and_then(FrontEnd::from_tag),
        default_tenant: value("tenant").map(str::parse).transpose().map_err(|_| corrupt("tenant"))?,
        created_unix_seconds: value("created").map(str::parse).transpose().map_err(|_| corrupt("created"))?,
        state,
    }))
}

/// The tag that identifies a volume group as this pool.
#[must_use]
pub fn pool_uuid_tag(pool: &Pool) -> String {
    format!("{TAG_PREFIX}pool_uuid={}", pool.uuid)
}

/// The pool's UUID in the tags of its volume group; `None` if that is not a pool.
#[must_use]
pub fn pool_uuid_from_tags(tags: &[String]) -> Option<Uuid> {
    tags.iter().find_map(|tag| Uuid::parse_str(tag.strip_prefix(TAG_PREFIX)?.strip_prefix("pool_uuid=")?).ok())
}

/// The tags of a pool's volume group, which contain its record.
#[must_use]
pub fn pool_tags(pool: &Pool) -> Vec<String> {
    let mut tags = vec![format!("{TAG_PREFIX}pool={}", pool.name), pool_uuid_tag(pool)];
    if let PoolSource::Lvm { thin_pool: Some(thin_pool), .. } = &pool.source {
        tags.push(format!("{TAG_PREFIX}thin_pool={thin_pool}"));
    }
    tags
}

#[cfg(test)]
mod tests;
