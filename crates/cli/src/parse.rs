//! Validation of arguments: names, sizes, shares, limits, volume references. No I/O.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{IoLimit, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::observe::waits::MEMORY_NS;
use bulkhead_core::units::{Bytes, Latency, Share};

/// The fault of an invalid argument.
pub(crate) fn invalid(object: impl Display, cause: impl Display) -> Fault {
    Fault::new(Code::InvalidArgument, object, cause)
}

fn checked<T: FromStr<Err: Display>>(what: &str, text: &str) -> Result<T, Fault> {
    text.parse().map_err(|error| invalid(what, error))
}

pub(crate) fn pool_name(text: &str) -> Result<Name, Fault> {
    checked("pool", text)
}

pub(crate) fn tenant_name(text: &str) -> Result<Name, Fault> {
    checked("tenant", text)
}

/// A sharing domain.
pub(crate) fn domain_name(text: &str) -> Result<Name, Fault> {
    checked("sharing domain", text)
}

/// A directory right below a volume's root.
pub(crate) fn subdir_name(text: &str) -> Result<Name, Fault> {
    checked("directory", text)
}

pub(crate) fn volume_ref(text: &str) -> Result<VolumeRef, Fault> {
    checked("volume", text)
}

pub(crate) fn share(text: &str) -> Result<Share, Fault> {
    checked("--share", text)
}

/// The promised latency of fsyncs, in microseconds; `none` is 0.
pub(crate) fn fsync_p99(text: &str) -> Result<u64, Fault> {
    if text == "none" { Ok(0) } else { checked::<Latency>("--fsync-p99", text).map(Latency::us) }
}

/// The size of a volume.
pub(crate) fn size(text: &str) -> Result<Bytes, Fault> {
    match checked("--size", text)? {
        Bytes(0) => Err(invalid("--size", "a volume cannot have size 0: specify a size such as 10G")),
        size => Ok(size),
    }
}

/// The size of a journal, or `auto`.
pub(crate) fn journal_size(text: &str) -> Result<JournalSize, Fault> {
    match text {
        "auto" => Ok(JournalSize::Auto),
        _ => checked("--journal", text).map(JournalSize::Bytes),
    }
}

/// A volume argument: with its pool, or without if the name is unambiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeArg {
    Full(VolumeRef),
    NameOnly(Name),
}

pub(crate) fn volume(text: &str) -> Result<VolumeArg, Fault> {
    if text.contains('/') {
        volume_ref(text).map(VolumeArg::Full)
    } else {
        checked("volume", text).map(VolumeArg::NameOnly)
    }
}

/// The only one of the existing volumes with this name.
///
/// # Errors
/// `NotFound`, and `InvalidArgument` with the candidates if there is more than one.
pub(crate) fn choose(name: &Name, volumes: impl Iterator<Item = VolumeRef>) -> Result<VolumeRef, Fault> {
    let found: Vec<VolumeRef> = volumes.filter(|volume| volume.name == *name).collect();
    match &found[..] {
        [one] => Ok(one.clone()),
        [] => Err(Fault::new(Code::NotFound, format!("volume {name}"), "no pool has a volume of that name")
            .hint("`bulkhead volume ls` lists the volumes")),
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            let cause = format!("more than one pool has a volume of that name: {}", names.join(", "));
            Err(invalid(format!("volume {name}"), cause).hint("write it with its pool: POOL/VOLUME"))
        }
    }
}

/// The name of a copy, given as just the name or with the pool of its origin.
pub(crate) fn copy_name(origin: &VolumeRef, text: &str) -> Result<Name, Fault> {
    match volume(text)? {
        VolumeArg::NameOnly(name) => Ok(name),
        VolumeArg::Full(copy) if copy.pool == origin.pool => Ok(copy.name),
        VolumeArg::Full(copy) => {
            let cause = format!("a copy must be in the pool of its origin, {}", origin.pool);
            Err(invalid(format!("volume {copy}"), cause).hint("specify only the name of the copy"))
        }
    }
}

/// Parses `DEV:wbps=50M,riops=100`, with the keys of `io.max`.
pub(crate) fn limit(text: &str) -> Result<IoLimit, Fault> {
    let object = format!("limit {text:?}");
    let wrong = |cause: String| invalid(&object, cause).hint("write it like vda:wbps=50M,riops=100");
    let (device, settings) = text.rsplit_once(':').ok_or_else(|| wrong("it does not name a device".to_owned()))?;
    if device.is_empty() {
        return Err(wrong("it does not name a device".to_owned()));
    }
    let device = if device.starts_with('/') { device.to_owned() } else { format!("/dev/{device}") };
    let mut limit = IoLimit { device, ..IoLimit::default() };
    for setting in settings.split(',') {
        let (key, value) = setting.split_once('=').ok_or_else(|| wrong(format!("{setting:?} is not KEY=N")))?;
        let slot = match key {
            "rbps" => &mut limit.read_bytes_per_second,
            "wbps" => &mut limit.write_bytes_per_second,
            "riops" => &mut limit.read_iops,
            "wiops" => &mut limit.write_iops,
            _ => return Err(wrong(format!("{key:?} cannot be limited, only rbps, wbps, riops and wiops can"))),
        };
        let number = if key.ends_with("bps") {
            value.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| wrong(error.to_string()))?
        } else {
            value.parse::<u64>().map_err(|_| wrong(format!("{value:?} is not a whole number")))?
        };
        if number == 0 {
            return Err(wrong(format!("{key}=0 would stop all I/O")));
        }
        if slot.replace(number).is_some() {
            return Err(wrong(format!("{key} is given twice")));
        }
    }
    Ok(limit)
}

/// Limits of several devices; each device may occur once.
pub(crate) fn limits(texts: &[String]) -> Result<Vec<IoLimit>, Fault> {
    let limits: Vec<IoLimit> = texts.iter().map(|text| limit(text)).collect::<Result<_, _>>()?;
    for (i, limit) in limits.iter().enumerate() {
        if limits[..i].iter().any(|other| other.device == limit.device) {
            return Err(invalid("--limit", format!("{} has more than one", limit.device))
                .hint("specify all limits of a device in one option, separated by commas"));
        }
    }
    Ok(limits)
}

/// A volume of `run`, and its mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunVolume {
    pub(crate) volume: VolumeArg,
    pub(crate) target: PathBuf,
    pub(crate) read_only: bool,
}

/// `REF:/path` or `REF:/path:ro`.
pub(crate) fn run_volume(text: &str) -> Result<RunVolume, Fault> {
    let object = format!("--volume {text:?}");
    let wrong = |cause: &str| invalid(&object, cause).hint("write it like data:/var/lib/mysql or data:/srv:ro");
    let (reference, place) =
        text.split_once(':').ok_or_else(|| wrong("it does not name a directory to mount the volume on"))?;
    let (target, read_only) = place.strip_suffix(":ro").map_or((place, false), |target| (target, true));
    let target = target.strip_suffix(":rw").unwrap_or(target);
    if !Path::new(target).is_absolute() {
        return Err(wrong("the directory is not an absolute path"));
    }
    Ok(RunVolume { volume: volume(reference)?, target: target.into(), read_only })
}

/// A time in seconds, for clap.
///
/// # Errors
/// When it is not a number from 0.2 to 86400.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is not a number of seconds".to_owned())?;
    if (0.2..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("it is not between 0.2 and 86400 seconds".to_owned())
    }
}

/// A time in seconds, at most as long as the daemon keeps waits.
pub(crate) fn past_seconds(text: &str) -> Result<f64, String> {
    let memory = Duration::from_nanos(MEMORY_NS).as_secs_f64();
    match seconds(text)? {
        seconds if seconds <= memory => Ok(seconds),
        _ => Err(format!("waits are kept for {memory} seconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_as_many_past_seconds_are_accepted_as_waits_are_kept() {
        assert_eq!(past_seconds("300"), Ok(300.0));
        assert_eq!(past_seconds("300.1"), Err("waits are kept for 300 seconds".to_owned()));
        assert_eq!(past_seconds("0"), seconds("0"));
    }

    #[test]
    fn limits_have_the_keys_of_io_max() {
        let expected = IoLimit {
            device: "/dev/vda".into(),
            write_bytes_per_second: Some(50 << 20),
            read_iops: Some(100),
            ..IoLimit::default()
        };
        assert_eq!(limit("vda:wbps=50M,riops=100"), Ok(expected.clone()));
        assert_eq!(limit("/dev/vda:riops=100,wbps=50MiB"), Ok(expected));
        assert_eq!(limit("/dev/disk/by-path/pci-0:1:rbps=1").map(|l| l.device), Ok("/dev/disk/by-path/pci-0:1".into()));
        for bad in
            ["", "vda", ":wbps=1", "vda:", "vda:wbps", "vda:wbps=0", "vda:x=1", "vda:riops=1K", "vda:rbps=1,rbps=2"]
        {
            assert_eq!(limit(bad).map_err(|fault| fault.code), Err(Code::InvalidArgument), "{bad}");
        }
        assert!(limits(&["vda:rbps=1".into(), "/dev/vda:wbps=1".into()]).is_err());
    }

    #[test]
    fn volumes_of_run_are_parsed() {
        let read = |text: &str| run_volume(text).map(|v| (v.target.display().to_string(), v.read_only));
        assert_eq!(read("data:/srv"), Ok(("/srv".into(), false)));
        assert_eq!(read("fast/data:/srv/a:b:ro"), Ok(("/srv/a:b".into(), true)));
        for bad in ["data", "data:", "data:srv", ":/srv", "a/b/c:/srv", "../a:/srv"] {
            assert!(run_volume(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_volume_without_its_pool_is_found_if_its_name_is_unique() {
        let existing = || ["a/db", "b/db", "b/web"].iter().map(|text| text.parse().unwrap());
        let choose = |name: &str| choose(&name.parse().unwrap(), existing());
        assert_eq!(choose("web").map(|v| v.to_string()), Ok("b/web".into()));
        assert_eq!(choose("none").map_err(|fault| fault.code), Err(Code::NotFound));
        let fault = choose("db").unwrap_err();
        assert!(fault.cause.ends_with("a/db, b/db"), "{fault}");
    }
}
