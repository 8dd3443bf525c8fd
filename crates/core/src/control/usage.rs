//! The I/O of tenants on a device, taken from an observation, and whether two of them share a
//! journal.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Usage;
use crate::devname::DevName;
use crate::identity::{ContainerKind, Identity};
use crate::model::Unit;
use crate::observe::activity::{Activity, ContainerView, FileSystemView};
use crate::observe::cost::as_f64;

/// The I/O of each tenant on a device in `seen`, the difference of two observations.
///
/// Journal I/O is the journal I/O that a tenant caused on file systems on the device, minus what the kernel charged to
/// it there. In device time, it is the tenant's part of the time that the device spent on metadata and flushes. It is
/// negative when the tenant's own threads wrote for others.
#[must_use]
pub fn usages(
    seen: &Activity,
    device: &DevName,
    unit: Unit,
    tenants: &BTreeMap<String, Identity>,
) -> BTreeMap<String, Usage> {
    let is_on_device = |fs: &&FileSystemView| fs.disks.iter().any(|disk| disk == device.as_str());
    let here: Vec<&FileSystemView> = seen.file_systems.iter().filter(is_on_device).collect();
    let views: HashMap<(ContainerKind, &str), &ContainerView> =
        seen.containers.iter().map(|view| (view.identity.key(), view)).collect();
    let metadata_bytes: f64 = here.iter().map(|fs| as_f64(fs.journal.total())).sum();
    let metadata_seconds = seen
        .devices
        .iter()
        .filter(|time| time.device == device.as_str())
        .map(|time| time.metadata_seconds + time.flush_seconds)
        .sum::<f64>();
    let journal_price = match unit {
        Unit::Bytes => 1.0,
        Unit::Time if metadata_bytes > 0.0 => metadata_seconds / metadata_bytes,
        Unit::Time => 0.0,
    };
    let usage = |identity: &Identity| {
        let Some(view) = views.get(&identity.key()) else { return Usage::default() };
        let native = view.devices.iter().filter(|share| share.device == device.as_str()).map(|share| match unit {
            Unit::Bytes => as_f64(share.read_bytes) + as_f64(share.written_bytes),
            Unit::Time => share.seconds,
        });
        let caused = view.journal.iter().filter(|share| here.iter().any(|fs| fs.device == share.device));
        let excess: f64 = caused.map(|share| as_f64(share.journal.total()) - as_f64(share.native_bytes)).sum();
        Usage { native: native.sum(), journal: excess * journal_price }
    };
    tenants.iter().map(|(name, identity)| (name.clone(), usage(identity))).collect()
}

/// Whether two of these tenants caused journal I/O on the same file system in `seen`. That of their block servers is not counted: they write
/// to images by direct I/O, so that a capped one has no transaction open while it waits, and no commit waits for its data.
#[must_use]
pub fn share_a_journal(seen: &Activity, tenants: &BTreeMap<String, Identity>) -> bool {
    let keys: HashSet<(ContainerKind, &str)> = tenants.values().map(Identity::key).collect();
    let mut journals = HashSet::new();
    let theirs = seen.containers.iter().filter(|view| keys.contains(&view.identity.key()));
    let mut caused = theirs.flat_map(|view| &view.journal).filter(|share| share.journal.total() > share.server_bytes);
    caused.any(|share| !journals.insert(share.device.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::identify;
    use crate::observe::activity::{DeviceShare, DeviceTime, FileSystemShare, JournalBytes};
    use crate::observe::histogram::Histogram;

    fn commit(commit_bytes: u64) -> JournalBytes {
        JournalBytes { commit_bytes, ..JournalBytes::default() }
    }

    fn seen() -> Activity {
        let share = |device: &str, read_bytes: u64, written_bytes: u64, seconds: f64| DeviceShare {
            device: device.to_owned(),
            seconds,
            read_bytes,
            written_bytes,
            ..DeviceShare::default()
        };
        let caused = |device: &str, bytes: u64, native_bytes: u64| FileSystemShare {
            device: device.to_owned(),
            journal: commit(bytes),
            native_bytes,
            ..FileSystemShare::default()
        };
        let fs = |device: &str, disk: &str, bytes: u64| FileSystemView {
            device: device.to_owned(),
            mount_point: None,
            disks: vec![disk.to_owned()],
            commits: 1,
            journal: commit(bytes),
            unattributed: JournalBytes::default(),
            pending_bytes: 0,
            fsync: Histogram::default(),
        };
        Activity {
            containers: vec![ContainerView {
                identity: identify("/system.slice/db.service"),
                journal: vec![caused("sda1", 3000, 1000), caused("sdb1", 500, 0)],
                read_bytes: 0,
                written_bytes: 0,
                device_seconds: 0.0,
                devices: vec![share("sda", 100, 200, 0.25), share("sdb", 7, 7, 0.5)],
                fsync: Histogram::default(),
            }],
            devices: vec![DeviceTime {
                device: "sda".to_owned(),
                data_seconds: 0.3,
                metadata_seconds: 0.3,
                flush_seconds: 0.1,
            }],
            file_systems: vec![fs("sda1", "sda", 8000), fs("sdb1", "sdb", 500)],
            ..Activity::default()
        }
    }

    #[test]
    fn tenants_whose_servers_write_to_images_on_one_file_system_do_not_share_its_journal() {
        let seen = |server_bytes: [u64; 2]| {
            let view = |name: &str, server_bytes| ContainerView {
                identity: identify(&format!("/{name}")),
                journal: vec![FileSystemShare {
                    device: "sda1".to_owned(),
                    journal: commit(4096),
                    server_bytes,
                    ..FileSystemShare::default()
                }],
                ..seen().containers.remove(0)
            };
            Activity { containers: vec![view("a", server_bytes[0]), view("b", server_bytes[1])], ..seen() }
        };
        let tenants = ["a", "b"].map(|name| (name.to_owned(), identify(&format!("/{name}")))).into();
        let is_shared = |server_bytes| share_a_journal(&seen(server_bytes), &tenants);
        assert!(is_shared([0, 0]) && is_shared([0, 4095]));
        assert!(!is_shared([4096, 4096]) && !is_shared([0, 4096]));
    }

    #[test]
    fn journal_io_is_what_others_wrote_for_a_tenant_on_the_device() {
        let tenants = BTreeMap::from([
            ("db".to_owned(), identify("/system.slice/db.service")),
            ("idle".to_owned(), identify("/system.slice/idle.service")),
        ]);
        let sda = "sda".parse().unwrap();
        let bytes = usages(&seen(), &sda, Unit::Bytes, &tenants);
        assert_eq!(bytes["db"], Usage { native: 300.0, journal: 2000.0 });
        assert_eq!(bytes["idle"], Usage::default());
        // It caused a quarter of the metadata's bytes, and is charged a quarter of the time.
        let time = usages(&seen(), &sda, Unit::Time, &tenants);
        assert!((time["db"].native - 0.25).abs() < 1e-12 && (time["db"].journal - 0.1).abs() < 1e-12, "{time:?}");
    }
}
