//! Parsing LVM's reports (lvmreport(7), `--reportformat json`): all values are strings.

use std::path::PathBuf;

use bulkhead_core::units::{Bytes, DevNo};
use serde::Deserialize;

use super::{Lv, LvKind, Vg, node};

#[derive(Deserialize)]
struct Report {
    report: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    #[serde(default)]
    vg: Vec<VgLine>,
    #[serde(default)]
    lv: Vec<LvLine>,
    #[serde(default)]
    pv: Vec<PvLine>,
}

#[derive(Deserialize)]
struct PvLine {
    vg_name: String,
    #[serde(default)]
    pv_name: String,
}

#[derive(Deserialize)]
struct VgLine {
    vg_name: String,
    vg_size: String,
    vg_free: String,
    vg_extent_size: String,
    vg_tags: String,
    pv_count: String,
    vg_missing_pv_count: String,
}

#[derive(Deserialize)]
struct LvLine {
    lv_name: String,
    vg_name: String,
    lv_size: String,
    lv_layout: String,
    lv_role: String,
    pool_lv: String,
    origin: String,
    lv_active: String,
    lv_device_open: String,
    lv_tags: String,
    data_percent: String,
    metadata_percent: String,
    lv_kernel_major: String,
    lv_kernel_minor: String,
    lv_attr: String,
    lv_skip_activation: String,
    lv_health_status: String,
}

/// Device nodes of the physical volumes of a group, from a report on all physical volumes.
pub(super) fn parse_pv_devices(text: &str, vg: &str) -> Result<Vec<PathBuf>, String> {
    let report: Report = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let lines = report.report.into_iter().flat_map(|section| section.pv);
    Ok(lines.filter(|line| line.vg_name == vg).map(|line| PathBuf::from(line.pv_name)).collect())
}

pub(super) fn parse_vgs(text: &str) -> Result<Vec<Vg>, String> {
    let report: Report = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let lines = report.report.into_iter().flat_map(|section| section.vg);
    lines
        .map(|line| {
            Ok(Vg {
                size: bytes("vg_size", &line.vg_size)?,
                free: bytes("vg_free", &line.vg_free)?,
                extent_size: bytes("vg_extent_size", &line.vg_extent_size)?,
                tags: tags(&line.vg_tags),
                pv_count: number("pv_count", &line.pv_count)?,
                partial: number::<u32>("vg_missing_pv_count", &line.vg_missing_pv_count)? > 0,
                name: line.vg_name,
            })
        })
        .collect()
}

pub(super) fn parse_lvs(text: &str) -> Result<Vec<Lv>, String> {
    let report: Report = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let lines = report.report.into_iter().flat_map(|section| section.lv);
    // Brackets mark internal volumes, which are reported only with `-a`.
    lines.filter(|line| !line.lv_name.starts_with('[')).map(parse_lv).collect()
}

/// The group in a report on one physical volume; `None` if it belongs to none.
pub(super) fn parse_group_of_pv(text: &str) -> Result<Option<String>, String> {
    let report: Report = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let name = report.report.into_iter().flat_map(|section| section.pv).map(|pv| pv.vg_name).next();
    let name = name.ok_or("the physical volume is not in the report")?;
    Ok((!name.is_empty()).then_some(name))
}

fn parse_lv(line: LvLine) -> Result<Lv, String> {
    let layout: Vec<&str> = line.lv_layout.split(',').collect();
    let has_role = |role: &str| line.lv_role.split(',').any(|found| found == role);
    let kind = match layout.as_slice() {
        _ if has_role("thicksnapshot") => LvKind::ThickSnapshot { origin: line.origin },
        ["linear"] => LvKind::Linear,
        words if words.contains(&"thin") && words.contains(&"pool") => LvKind::ThinPool,
        words if words.contains(&"thin") => {
            LvKind::Thin { pool: line.pool_lv, origin: Some(line.origin).filter(|origin| !origin.is_empty()) }
        }
        _ => LvKind::Other(line.lv_layout.clone()),
    };
    // The second letter of lv_attr is the permission in the metadata; lv_permissions is unknown for inactive volumes.
    let read_only = matches!(line.lv_attr.as_bytes().get(1), Some(b'r'));
    // The eighth letter is z if new blocks are zeroed before use.
    let zeroes = matches!(line.lv_attr.as_bytes().get(7), Some(b'z'));
    // -1 while it is inactive.
    let dev = match (line.lv_kernel_major.parse(), line.lv_kernel_minor.parse()) {
        (Ok(major), Ok(minor)) => Some(DevNo::new(major, minor)),
        _ => None,
    };
    Ok(Lv {
        path: node(&line.vg_name, &line.lv_name),
        size: bytes("lv_size", &line.lv_size)?,
        kind,
        active: !line.lv_active.is_empty(),
        open: line.lv_device_open == "open",
        tags: tags(&line.lv_tags),
        data_percent: percent("data_percent", &line.data_percent)?,
        metadata_percent: percent("metadata_percent", &line.metadata_percent)?,
        dev,
        read_only,
        zeroes,
        activation_skip: !line.lv_skip_activation.is_empty(),
        health: line.lv_health_status,
        name: line.lv_name,
        vg: line.vg_name,
    })
}

fn tags(text: &str) -> Vec<String> {
    let mut tags: Vec<String> = text.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
    tags.sort();
    tags
}

fn bytes(field: &str, text: &str) -> Result<Bytes, String> {
    number(field, text).map(Bytes)
}

fn number<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{field} is {text:?}"))
}

fn percent(field: &str, text: &str) -> Result<Option<f64>, String> {
    if text.is_empty() { Ok(None) } else { number(field, text).map(Some) }
}
