//! Signatures on a device, by `wipefs` and `blkid` (libblkid).

use std::fmt;
use std::path::Path;
use std::time::Duration;

use bulkhead_core::units::Bytes;
use serde::Deserialize;

use super::BlockError;
use crate::tool::Tool;

/// Time limit of `wipefs` and `blkid`: they read a few hundred KiB, from a device that may be slow and busy.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

/// A signature: file system, RAID or LVM label, partition table, swap …
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Kind as libblkid names it: `ext4`, `xfs`, `LVM2_member`, `gpt`, `swap` …; `ambiguous` if blkid finds several.
    pub kind: String,
    /// `filesystem`, `raid`, `crypto`, `partition-table` or `other`; empty if unknown.
    pub usage: String,
    /// Uuid, if it has one.
    pub uuid: Option<String>,
    /// Label, if it has one.
    pub label: Option<String>,
    /// Byte offset of the magic; `None` if only `blkid` found it.
    pub offset: Option<Bytes>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        match (&self.label, &self.uuid) {
            (Some(label), _) => write!(f, " {label:?}"),
            (None, Some(uuid)) => write!(f, " {uuid}"),
            (None, None) => Ok(()),
        }
    }
}

/// The signatures on a device or image file, by `wipefs` and then `blkid`; empty means blank.
///
/// Blank means that no format known to libblkid was found, not that there is no data.
///
/// # Errors
/// [`BlockError::Probe`] if a program fails, [`BlockError::ProbeOutput`] if its output has an unexpected format.
pub fn signatures(device: &Path) -> Result<Vec<Signature>, BlockError> {
    let probe = |source| BlockError::Probe { path: device.to_owned(), source };
    let wipefs = Tool::new("wipefs")
        .args(["--json", "--no-act", "--output", "OFFSET,TYPE,UUID,LABEL,USAGE", "--"])
        .arg(device)
        .limit(PROBE_LIMIT)
        .run()
        .map_err(probe)?;
    let mut found =
        parse_wipefs(&wipefs.stdout).map_err(|source| BlockError::ProbeOutput { path: device.to_owned(), source })?;
    if found.is_empty() {
        // blkid(8): 2 means nothing found, 8 an ambiguous result.
        let blkid = Tool::new("blkid")
            .args(["-p", "-o", "export", "--"])
            .arg(device)
            .ok_codes(&[0, 2, 8])
            .limit(PROBE_LIMIT)
            .run()
            .map_err(probe)?;
        found.extend(match blkid.code {
            0 => parse_blkid(&blkid.stdout),
            8 => Some(Signature {
                kind: "ambiguous".into(),
                usage: String::new(),
                uuid: None,
                label: None,
                offset: None,
            }),
            _ => None,
        });
    }
    Ok(found)
}

#[derive(Deserialize)]
struct WipefsReport {
    signatures: Vec<WipefsLine>,
}

#[derive(Deserialize)]
struct WipefsLine {
    offset: String,
    r#type: String,
    uuid: Option<String>,
    label: Option<String>,
    #[serde(default)]
    usage: Option<String>,
}

fn parse_wipefs(text: &str) -> Result<Vec<Signature>, serde_json::Error> {
    // Old versions print nothing at all for a blank device.
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let report: WipefsReport = serde_json::from_str(text)?;
    let offset = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(Bytes);
    Ok(report
        .signatures
        .into_iter()
        .map(|line| Signature {
            offset: offset(&line.offset),
            kind: line.r#type,
            usage: line.usage.unwrap_or_default(),
            uuid: line.uuid.filter(|text| !text.is_empty()),
            label: line.label.filter(|text| !text.is_empty()),
        })
        .collect())
}

fn parse_blkid(text: &str) -> Option<Signature> {
    let value = |key: &str| {
        let found = text.lines().find_map(|line| line.split_once('=').filter(|(name, _)| *name == key));
        // `-o export` escapes for a shell: "LVM2\ 001".
        found.map(|(_, value)| value.replace('\\', "")).filter(|value| !value.is_empty())
    };
    let (kind, usage) = match (value("TYPE"), value("PTTYPE")) {
        (Some(kind), _) => (kind, value("USAGE").unwrap_or_default()),
        (None, Some(kind)) => (kind, "partition-table".to_owned()),
        (None, None) => return None,
    };
    Some(Signature {
        kind,
        usage,
        uuid: value("UUID").or_else(|| value("PTUUID")),
        label: value("LABEL"),
        offset: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wipefs_reports_are_read() {
        // util-linux 2.41: a blank device, and one with ext4.
        assert_eq!(parse_wipefs("{\n   \"signatures\": [\n\n   ]\n}\n").unwrap(), []);
        assert_eq!(parse_wipefs("").unwrap(), []);
        let text = r#"{ "signatures": [
            { "offset": "0x438", "type": "ext4", "uuid": "11111111-2222-3333-4444-555555555555", "label": "vol1", "usage": "filesystem" },
            { "offset": "0x1fe", "type": "dos", "uuid": null, "label": null, "usage": "partition-table" } ] }"#;
        let found = parse_wipefs(text).unwrap();
        assert_eq!((found[0].kind.as_str(), found[0].offset), ("ext4", Some(Bytes(0x438))));
        assert_eq!(found[0].to_string(), "ext4 \"vol1\"");
        assert_eq!((found[1].to_string().as_str(), found[1].usage.as_str()), ("dos", "partition-table"));
        assert!(parse_wipefs("nonsense").is_err());
    }

    #[test]
    fn blkid_exports_are_read() {
        let text = "DEVNAME=/dev/vda\nUUID=fvJMWB-ygTA-TEDH-BWxz-AiUe-yoG3-wMvtDn\nVERSION=LVM2\\ 001\nTYPE=LVM2_member\nUSAGE=raid\n";
        let found = parse_blkid(text).unwrap();
        assert_eq!((found.kind.as_str(), found.usage.as_str(), found.offset), ("LVM2_member", "raid", None));
        let table = parse_blkid("DEVNAME=/dev/vdb\nPTUUID=x\nPTTYPE=gpt\n").unwrap();
        assert_eq!((table.kind.as_str(), table.usage.as_str()), ("gpt", "partition-table"));
        assert_eq!(parse_blkid("DEVNAME=/dev/vdb\n"), None);
    }

    #[test]
    fn a_blank_file_has_no_signature_and_swap_has_one() {
        if crate::tool::find_program("wipefs").is_none() || crate::tool::find_program("blkid").is_none() {
            eprintln!("skipped: wipefs and blkid are not installed");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let mut content = vec![0; 1 << 20];
        std::fs::write(&image, &content).unwrap();
        assert_eq!(signatures(&image).unwrap(), []);
        content[4086..4096].copy_from_slice(b"SWAPSPACE2");
        content[1024] = 1;
        content[1028] = 255;
        std::fs::write(&image, &content).unwrap();
        let found = signatures(&image).unwrap();
        assert_eq!(found[0].kind, "swap", "{found:?}");
    }
}
