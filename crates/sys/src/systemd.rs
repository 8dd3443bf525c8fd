//! Slice and scope units of systemd (org.freedesktop.systemd1(5), systemd.slice(5), systemd.scope(5)): start, properties, stop.
//!
//! If systemd is process 1, it owns the cgroups at the top of the hierarchy: runtimes use a slice as the parent of their containers,
//! and a controller is enabled below a slice only while a unit in it requests that. Changes of units outlive the caller, but not a
//! reboot. Does not write cgroup files ([`crate::cgroup`]), or decide on a slice's properties.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_core::units::DevNo;
use zbus::blocking::Connection;
use zbus::blocking::connection::Builder;
use zbus::zvariant::{self, OwnedObjectPath, OwnedValue, Value};

use crate::process;
use crate::roots::Roots;
use bulkhead_core::cgroup::CgroupPath;

/// Time limit of a reply: while systemd reloads itself it does not reply.
const REPLY_LIMIT: Duration = Duration::from_secs(25);

/// Time limit for a unit to reach a state. A slice has nothing to wait for.
const STATE_LIMIT: Duration = Duration::from_secs(20);

/// Poll interval of a unit's state.
const POLL_PAUSE: Duration = Duration::from_millis(5);

/// The suffix of slice units.
const SLICE: &str = ".slice";

/// The suffix of scope units.
const SCOPE: &str = ".scope";

const DESTINATION: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// Error on starting a transient unit that exists already, for example started by a runtime.
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
/// Error for a unit that is not loaded, and thus not active.
const NO_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// Error on a start while another client's job stops the unit.
const CONFLICT: &str = "org.freedesktop.systemd1.TransactionIsDestructive";
/// Time limit for the end of such a job: a delayed check delays those of other tenants.
const CONFLICT_LIMIT: Duration = Duration::from_secs(1);

/// `CGROUP_LIMIT_MAX` of systemd: no limit.
const NO_LIMIT: u64 = u64::MAX;

/// A request to systemd failed.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The connection failed.
    #[error("systemd does not answer on the system bus")]
    Unreachable(#[source] Box<zbus::Error>),
    /// systemd refused the request.
    #[error("systemd refuses to {what} {unit}")]
    Refused {
        /// The request, as a verb.
        what: &'static str,
        /// The unit.
        unit: String,
        /// systemd's error.
        source: Box<zbus::Error>,
    },
    /// The unit did not reach a state in time.
    #[error("unit {unit} is {found}, not {wanted}, after {} s", STATE_LIMIT.as_secs())]
    Late {
        /// The unit.
        unit: String,
        /// The expected `ActiveState`.
        wanted: &'static str,
        /// The actual `ActiveState`.
        found: String,
    },
}

/// A property of a slice that applies to its cgroup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    /// `IOWeight=`, 1 to 10000.
    IoWeight(u64),
    /// `CPUWeight=`, 1 to 10000.
    CpuWeight(u64),
    /// `IOReadBandwidthMax=`, `IOWriteBandwidthMax=`, `IOReadIOPSMax=` and `IOWriteIOPSMax=` on a device, in bytes and
    /// operations per second; `None` for no limit.
    IoMax(DevNo, [Option<u64>; 4]),
}

type Pair = (&'static str, OwnedValue);

impl Property {
    fn pairs(&self) -> Result<Vec<Pair>, zbus::Error> {
        match self {
            Self::IoWeight(weight) => Ok(vec![("IOWeight", OwnedValue::from(*weight))]),
            Self::CpuWeight(weight) => Ok(vec![("CPUWeight", OwnedValue::from(*weight))]),
            Self::IoMax(dev, limits) => {
                let names = ["IOReadBandwidthMax", "IOWriteBandwidthMax", "IOReadIOPSMax", "IOWriteIOPSMax"];
                let path = format!("/dev/block/{dev}");
                let value = |limit: &Option<u64>| Value::from(vec![(path.clone(), limit.unwrap_or(NO_LIMIT))]);
                names
                    .into_iter()
                    .zip(limits)
                    .map(|(name, limit)| Ok((name, OwnedValue::try_from(value(limit))?)))
                    .collect()
            }
        }
    }
}

/// Whether systemd is process 1 (sd_booted(3)).
#[must_use]
pub fn is_running(roots: &Roots) -> bool {
    roots.base.join("run/systemd/system").symlink_metadata().is_ok_and(|found| found.is_dir())
}

/// Whether there is a system bus, through which systemd accepts requests.
#[must_use]
pub fn has_bus(roots: &Roots) -> bool {
    roots.base.join("run/dbus/system_bus_socket").exists()
}

/// The slice unit of a cgroup. Each dash in the name is a level, so `a-b.slice` is in `a.slice`; `None` if a unit of this name would
/// have another cgroup.
#[must_use]
pub fn slice_of(cgroup: &CgroupPath) -> Option<&str> {
    let unit = cgroup.name();
    let stem = unit.strip_suffix(SLICE)?;
    let above = cgroup.parent()?;
    let fits = match stem.rsplit_once('-') {
        Some((parent, last)) => !last.is_empty() && slice_of(&above) == Some(&format!("{parent}{SLICE}")),
        None => above.is_root(),
    };
    fits.then_some(unit)
}

/// The scope unit of a cgroup directly in a slice.
#[must_use]
pub fn scope_of(cgroup: &CgroupPath) -> Option<&str> {
    let unit = cgroup.name();
    let is_one = unit.ends_with(SCOPE) && cgroup.parent().is_some_and(|above| slice_of(&above).is_some());
    is_one.then_some(unit)
}

/// systemd as process 1.
#[derive(Debug, Default)]
pub struct Manager {
    /// Connection to the system bus; established on demand, and again after a failure.
    connection: Mutex<Option<Connection>>,
    /// Slices that this process has started or found, with the properties that it has set.
    known: Mutex<BTreeSet<(String, Option<Property>)>>,
}

impl Manager {
    /// Starts a slice with the controllers io and memory, unless this process has done so already.
    ///
    /// # Errors
    /// [`SystemdError`].
    pub fn start(&self, unit: &str) -> Result<(), SystemdError> {
        if self.known().contains(&(unit.to_owned(), None)) {
            return Ok(());
        }
        let accounting = ["IOAccounting", "MemoryAccounting"].map(|name| (name, OwnedValue::from(true)));
        let description = Value::from("Bulkhead tenant").try_into().map(|text| ("Description", text));
        let properties: Vec<Pair> = accounting.into_iter().chain(description.ok()).collect();
        let end = Instant::now() + CONFLICT_LIMIT;
        while let Err(error) = self.try_start(unit, &properties) {
            if !is_named(&error, CONFLICT) || Instant::now() >= end {
                return Err(error);
            }
            process::pause(POLL_PAUSE);
        }
        self.wait_for(unit, "active")?;
        self.known().insert((unit.to_owned(), None));
        Ok(())
    }

    /// Starts a slice. Fails while another client stops it or its parent slice, which a start would start, too: replacing that job
    /// would make the client's `systemctl stop` fail with "canceled".
    fn try_start(&self, unit: &str, properties: &[Pair]) -> Result<(), SystemdError> {
        match self.start_transient(unit, properties) {
            Err(error) if is_named(&error, EXISTS) => {
                let _: OwnedObjectPath = self.call("start", unit, "StartUnit", &(unit, "fail"))?;
                let accounting: Vec<&Pair> = properties.iter().filter(|(name, _)| *name != "Description").collect();
                self.call("change", unit, "SetUnitProperties", &(unit, true, accounting))
            }
            started => started,
        }
    }

    /// Starts a transient unit, unless it conflicts with another client's job.
    fn start_transient(&self, unit: &str, properties: &[Pair]) -> Result<(), SystemdError> {
        let auxiliary: Vec<(&str, Vec<Pair>)> = Vec::new();
        let job: Result<OwnedObjectPath, _> =
            self.call("start", unit, "StartTransientUnit", &(unit, "fail", properties, auxiliary));
        job.map(drop)
    }

    /// Moves a process into a new scope in a slice. The cgroup is delegated to it (`Delegate`); systemd removes the scope when its last
    /// process has exited.
    ///
    /// # Errors
    /// [`SystemdError`], also if there is no such process, or if the scope exists.
    pub fn start_scope(&self, unit: &str, slice: &str, pid: u32) -> Result<(), SystemdError> {
        let refused = |source: zvariant::Error| refused("start", unit, source.into());
        let texts = [("Slice", slice), ("Description", "Bulkhead run"), ("CollectMode", "inactive-or-failed")];
        let mut properties = vec![
            ("PIDs", OwnedValue::try_from(Value::from(vec![pid])).map_err(refused)?),
            ("Delegate", OwnedValue::from(true)),
        ];
        for (name, text) in texts {
            properties.push((name, OwnedValue::try_from(Value::from(text)).map_err(refused)?));
        }
        self.start_transient(unit, &properties)?;
        self.wait_for(unit, "active")
    }

    /// Sets a property of a slice until it is stopped, unless this process has set the same value last.
    ///
    /// # Errors
    /// [`SystemdError`].
    pub fn set(&self, unit: &str, property: &Property) -> Result<(), SystemdError> {
        let key = (unit.to_owned(), Some(property.clone()));
        if self.known().contains(&key) {
            return Ok(());
        }
        let refused = |source| refused("change", unit, source);
        let pairs = property.pairs().map_err(refused)?;
        let (): () = self.call("change", unit, "SetUnitProperties", &(unit, true, pairs))?;
        let mut known = self.known();
        known.retain(|(other, known)| other != unit || !known.as_ref().is_some_and(|known| known.replaces(property)));
        known.insert(key);
        Ok(())
    }

    /// Drops the cached state of a slice, after it was changed by another client.
    pub fn invalidate(&self, unit: &str) {
        self.known().retain(|(known, _)| known != unit);
    }

    /// Stops a unit; a slice with all units in it. Kills processes in it, so it should be empty. Its properties are lost.
    ///
    /// # Errors
    /// [`SystemdError`].
    pub fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        self.invalidate(unit);
        let job: Result<OwnedObjectPath, _> = self.call("stop", unit, "StopUnit", &(unit, "replace"));
        match job {
            Ok(_) => self.wait_for(unit, "inactive")?,
            Err(error) if is_named(&error, NO_UNIT) => {}
            Err(error) => return Err(error),
        }
        // If a runtime started the slice first, systemd stores our properties in drop-in files, which are removed here.
        let reverted: Result<Vec<(String, String, String)>, _> =
            self.call("revert", unit, "RevertUnitFiles", &(vec![unit],));
        if let Err(error) = reverted {
            tracing::debug!(unit, %error, "its properties are kept until the next reboot");
        }
        Ok(())
    }

    /// Whether the host is being shut down or rebooted (`SystemState`, as `systemctl is-system-running` shows it).
    ///
    /// # Errors
    /// [`SystemdError`].
    pub fn is_stopping(&self) -> Result<bool, SystemdError> {
        self.property(MANAGER_PATH, MANAGER, "SystemState", "host").map(|state| state == "stopping")
    }

    fn wait_for(&self, unit: &str, wanted: &'static str) -> Result<(), SystemdError> {
        let end = Instant::now() + STATE_LIMIT;
        loop {
            let found = self.state(unit)?;
            if found == wanted {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(SystemdError::Late { unit: unit.to_owned(), wanted, found });
            }
            process::pause(POLL_PAUSE);
        }
    }

    /// `ActiveState` of a unit.
    fn state(&self, unit: &str) -> Result<String, SystemdError> {
        let path: OwnedObjectPath = match self.call("inspect", unit, "GetUnit", &(unit,)) {
            Err(error) if is_named(&error, NO_UNIT) => return Ok("inactive".to_owned()),
            found => found?,
        };
        self.property(path.as_str(), UNIT, "ActiveState", unit)
    }

    /// A string property of an object, which error messages call `unit`.
    fn property(&self, path: &str, interface: &str, name: &str, unit: &str) -> Result<String, SystemdError> {
        let refused = |source| refused("inspect", unit, source);
        let connection = self.connection()?;
        let answer = connection.call_method(Some(DESTINATION), path, Some(PROPERTIES), "Get", &(interface, name));
        let value: OwnedValue = answer.and_then(|answer| answer.body().deserialize()).map_err(refused)?;
        String::try_from(value).map_err(|error| refused(error.into()))
    }

    fn call<B, R>(&self, what: &'static str, unit: &str, method: &str, body: &B) -> Result<R, SystemdError>
    where
        B: serde::Serialize + zbus::zvariant::DynamicType,
        R: for<'d> zbus::zvariant::DynamicDeserialize<'d> + 'static,
    {
        let answer = self.connection()?.call_method(Some(DESTINATION), MANAGER_PATH, Some(MANAGER), method, body);
        let answer = answer.inspect_err(|error| {
            // A reply, even an error, means that the connection works.
            if !matches!(error, zbus::Error::MethodError(..)) {
                *self.slot() = None;
            }
        });
        let refused = |source| refused(what, unit, source);
        let answer = answer.map_err(refused)?;
        answer.body().deserialize().map_err(refused)
    }

    fn connection(&self) -> Result<Connection, SystemdError> {
        let mut slot = self.slot();
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        let connected = Builder::system().and_then(|builder| builder.method_timeout(REPLY_LIMIT).build());
        Ok(slot.insert(connected.map_err(|error| SystemdError::Unreachable(Box::new(error)))?).clone())
    }

    fn slot(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<(String, Option<Property>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Property {
    /// Whether both set the same property.
    fn replaces(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::IoWeight(_), Self::IoWeight(_)) | (Self::CpuWeight(_), Self::CpuWeight(_)) => true,
            (Self::IoMax(one, _), Self::IoMax(other, _)) => one == other,
            _ => false,
        }
    }
}

fn refused(what: &'static str, unit: &str, source: zbus::Error) -> SystemdError {
    SystemdError::Refused { what, unit: unit.to_owned(), source: Box::new(source) }
}

fn is_named(error: &SystemdError, wanted: &str) -> bool {
    let SystemdError::Refused { source, .. } = error else { return false };
    matches!(&**source, zbus::Error::MethodError(name, ..) if name.as_str() == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_of_a_slice_follows_from_its_name() {
        let unit = |path: &str| slice_of(&path.parse().unwrap()).map(str::to_owned);
        assert_eq!(unit("bulkhead.slice").as_deref(), Some("bulkhead.slice"));
        assert_eq!(unit("a.slice/a-b.slice/a-b-c.slice").as_deref(), Some("a-b-c.slice"));
        assert_eq!(unit("a.slice/a-x\\x2dy.slice").as_deref(), Some("a-x\\x2dy.slice"));
        for other in ["a.slice/b.slice", "a.slice/journal", "a-b.slice", "x/a.slice", "a.slice/a-.slice", "/"] {
            assert_eq!(unit(other), None, "{other}");
        }
        // The cgroup of a journal thread, a sibling of its owner's.
        assert_eq!(unit("a.slice/bulkhead-journal:a-b.slice"), None);
    }

    #[test]
    fn a_scope_is_directly_in_a_slice() {
        let unit = |path: &str| scope_of(&path.parse().unwrap()).map(str::to_owned);
        assert_eq!(unit("a.slice/a-b.slice/bulkhead-run-7.scope").as_deref(), Some("bulkhead-run-7.scope"));
        for other in ["a.slice/a-b.slice/run-7", "a.slice/a-b.slice", "a.slice/container/x.scope", "x.scope", "/"] {
            assert_eq!(unit(other), None, "{other}");
        }
    }

    #[test]
    fn io_limits_have_the_property_names_of_systemd() {
        let limits = Property::IoMax(DevNo::new(8, 16), [None, Some(1 << 20), None, Some(10)]);
        let pairs = limits.pairs().unwrap();
        assert_eq!(
            pairs.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" "),
            "IOReadBandwidthMax IOWriteBandwidthMax IOReadIOPSMax IOWriteIOPSMax"
        );
        let value: Vec<(String, u64)> = pairs[1].1.clone().try_into().unwrap();
        assert_eq!(value, [("/dev/block/8:16".to_owned(), 1 << 20)]);
        assert_eq!(pairs[0].1.value_signature().to_string(), "a(st)");
    }

    #[test]
    fn systemd_is_detected_by_its_directory() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        assert!(!is_running(&roots));
        std::fs::create_dir_all(base.path().join("run/systemd/system")).unwrap();
        assert!(is_running(&roots) && !has_bus(&roots));
        std::fs::create_dir_all(base.path().join("run/dbus/system_bus_socket")).unwrap();
        assert!(has_bus(&roots));
    }
}
