//! Disks that report that they fail (SMART), as facts: what udisks has read of them, if it runs. It is not started, and no disk is asked.

use std::collections::HashMap;
use std::time::Duration;

use bulkhead_core::identity::printable;
use zbus::blocking::connection::Builder;
use zbus::zvariant::{OwnedObjectPath, OwnedValue};

use crate::roots::Roots;

/// Time limit of a call, less than that of a look.
const LIMIT: Duration = Duration::from_millis(800);

const UDISKS: &str = "org.freedesktop.UDisks2";

/// Objects of udisks: for each path its interfaces with their properties.
type Objects = HashMap<OwnedObjectPath, HashMap<String, HashMap<String, OwnedValue>>>;

/// What is wrong with disks, by device name.
pub(super) fn failing(roots: &Roots) -> Result<HashMap<String, String>, String> {
    let socket = roots.base.join("run/dbus/system_bus_socket");
    if !socket.exists() {
        return Ok(HashMap::new());
    }
    ask(&format!("unix:path={}", socket.display())).map_err(|error| error.to_string())
}

fn ask(address: &str) -> Result<HashMap<String, String>, zbus::Error> {
    let bus = Builder::address(address)?.method_timeout(LIMIT).build()?;
    let dbus = "org.freedesktop.DBus";
    let answer = bus.call_method(Some(dbus), "/org/freedesktop/DBus", Some(dbus), "NameHasOwner", &UDISKS)?;
    if !answer.body().deserialize::<bool>()? {
        return Ok(HashMap::new());
    }
    let manager = "org.freedesktop.DBus.ObjectManager";
    let answer = bus.call_method(Some(UDISKS), "/org/freedesktop/UDisks2", Some(manager), "GetManagedObjects", &())?;
    Ok(of_devices(&answer.body().deserialize::<Objects>()?))
}

/// The devices of drives that fail.
fn of_devices(objects: &Objects) -> HashMap<String, String> {
    let property = |interfaces: &HashMap<String, HashMap<String, OwnedValue>>, interface: &str, name: &str| {
        interfaces.get(&format!("{UDISKS}.{interface}"))?.get(name)?.try_clone().ok()
    };
    let why = |interfaces: &HashMap<String, HashMap<String, OwnedValue>>| {
        let ata = property(interfaces, "Drive.Ata", "SmartFailing").and_then(|failing| bool::try_from(failing).ok());
        let nvme = property(interfaces, "NVMe.Controller", "SmartCriticalWarning")
            .and_then(|warnings| Vec::<String>::try_from(warnings).ok());
        match nvme.filter(|warnings| !warnings.is_empty()) {
            Some(warnings) => Some(format!("its critical warnings are {}", printable(&warnings.join(", ")))),
            None => (ata == Some(true)).then(|| "its own test of its attributes has failed".to_owned()),
        }
    };
    let device = |interfaces: &HashMap<String, HashMap<String, OwnedValue>>| {
        let drive = OwnedObjectPath::try_from(property(interfaces, "Block", "Drive")?).ok()?;
        let path = Vec::<u8>::try_from(property(interfaces, "Block", "Device")?).ok()?;
        let path = String::from_utf8_lossy(path.strip_suffix(b"\0").unwrap_or(&path)).into_owned();
        Some((path.strip_prefix("/dev/")?.to_owned(), why(objects.get(&drive)?)?))
    };
    objects.values().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::zvariant::{ObjectPath, Value};

    #[test]
    fn a_drive_that_fails_is_found_by_its_device() {
        let path = |name: &str| OwnedObjectPath::try_from(format!("/org/freedesktop/UDisks2/{name}")).unwrap();
        let properties = |interface: &str, values: Vec<(&str, Value<'_>)>| {
            let values =
                values.into_iter().map(|(name, value)| (name.to_owned(), OwnedValue::try_from(value).unwrap()));
            HashMap::from([(format!("{UDISKS}.{interface}"), values.collect())])
        };
        let mut objects = Objects::new();
        for (device, drive, interface, values) in [
            ("sda", "good", "Drive.Ata", vec![("SmartFailing", Value::from(false))]),
            ("sdb", "bad", "Drive.Ata", vec![("SmartFailing", Value::from(true))]),
            ("nvme0n1", "worn", "NVMe.Controller", vec![("SmartCriticalWarning", Value::from(vec!["spare"]))]),
            ("nvme1n1", "new", "NVMe.Controller", vec![("SmartCriticalWarning", Value::from(Vec::<String>::new()))]),
        ] {
            let drive_path = path(&format!("drives/{drive}"));
            let bytes = format!("/dev/{device}\0").into_bytes();
            let of_block =
                vec![("Drive", Value::from(ObjectPath::from(drive_path.clone()))), ("Device", Value::from(bytes))];
            objects.insert(path(&format!("block_devices/{device}")), properties("Block", of_block));
            objects.insert(drive_path, properties(interface, values));
        }
        let found = of_devices(&objects);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found["sdb"], "its own test of its attributes has failed");
        assert_eq!(found["nvme0n1"], "its critical warnings are spare");
    }
}
