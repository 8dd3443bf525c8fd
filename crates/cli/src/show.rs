//! The presentation of objects: one row in a list, or a block of `key: value` lines.

use bulkhead_api::wire::{DeviceView, Done, HostView, IoBytes, PoolView, TenantView, VolumeView};
use bulkhead_core::cow::LayersView;
use bulkhead_core::error::Fault;
use bulkhead_core::finding::{Finding, FindingId, Severity};
use bulkhead_core::journal::Accounting;
use bulkhead_core::model::{IoLimit, ReadFrom};
use bulkhead_core::units::{Bytes, Latency};
use serde::Serialize;

use crate::output::{Output, block, findings, table};

/// An API object that can be shown as text.
pub(crate) trait Show: Serialize {
    /// The message for an empty list.
    const EMPTY: &'static str;
    /// The headers of a list.
    const HEADERS: &'static [&'static str];
    /// One row of a list.
    fn row(&self) -> Vec<String>;
    /// All fields of the object.
    fn fields(&self) -> Vec<(&'static str, String)>;
    /// Its findings.
    fn findings(&self) -> &[Finding] {
        &[]
    }
    /// The origin of its values, if that is recorded.
    fn notes(&self) -> &[String] {
        &[]
    }
}

/// Whether a finding is shown in lists, and not only when its object is inspected.
fn is_urgent(finding: &Finding) -> bool {
    finding.severity == Severity::Critical || finding.id == FindingId::LayersMany
}

/// Prints a list.
pub(crate) fn list<T: Show>(output: &Output, items: &[T]) -> Result<(), Fault> {
    if output.is_json() {
        return output.json(&items);
    }
    if items.is_empty() {
        output.say(T::EMPTY);
        return Ok(());
    }
    let rows: Vec<Vec<String>> = items.iter().map(Show::row).collect();
    output.lines(&table(T::HEADERS, &rows))?;
    items.iter().flat_map(Show::findings).filter(|finding| is_urgent(finding)).for_each(|found| output.finding(found));
    Ok(())
}

/// Prints one object.
pub(crate) fn inspect<T: Show>(output: &Output, item: &T) -> Result<(), Fault> {
    if output.is_json() {
        return output.json(item);
    }
    let mut lines = block(&item.fields(), item.notes());
    if !item.findings().is_empty() {
        lines.extend(findings(item.findings()));
    }
    output.lines(&lines)
}

/// Prints the result of a command, for example `created`. In text form, only the steps of a dry run are data.
pub(crate) fn done<T: Show>(output: &Output, object: &str, result: &str, done: &Done<T>) -> Result<(), Fault> {
    steps(output, object, result, done)?;
    if output.is_json() {
        return Ok(());
    }
    for note in done.object.iter().flat_map(Show::notes) {
        output.say(&format!("note: {note}"));
    }
    done.object.iter().flat_map(Show::findings).for_each(|finding| output.finding(finding));
    Ok(())
}

/// As [`done`], without notes and findings of the object.
pub(crate) fn steps<T: Serialize>(output: &Output, object: &str, result: &str, done: &Done<T>) -> Result<(), Fault> {
    if output.is_json() {
        return output.json(done);
    }
    if done.steps.is_empty() {
        output.say(&format!("{object}: nothing to do"));
    } else if done.dry_run {
        let steps: Vec<String> = done.steps.iter().map(|step| format!("would {}", step.action)).collect();
        output.lines(&steps)?;
    } else if done.steps.iter().any(|step| step.changed) {
        output.say(&format!("{object}: {result}"));
    } else {
        output.say(&format!("{object}: no changes needed"));
    }
    Ok(())
}

/// Prints the result of a check, which can succeed without changing anything.
pub(crate) fn checked<T: Show>(output: &Output, object: &str, outcome: &Done<T>) -> Result<(), Fault> {
    if output.is_json() || outcome.dry_run {
        return done(output, object, "checked", outcome);
    }
    output.say(&format!("{object}: check passed"));
    Ok(())
}

/// Prints the daemon's version, and its facts and findings about the host.
pub(crate) fn host(output: &Output, host: &HostView) -> Result<(), Fault> {
    if output.is_json() {
        return output.json(host);
    }
    let mut fields = vec![("version".to_owned(), host.version.clone())];
    for (key, value) in host.facts.as_object().into_iter().flatten() {
        match value {
            serde_json::Value::Object(parts) => {
                let part = |(name, value): (&String, &serde_json::Value)| (format!("{key} {name}"), fact(value));
                fields.extend(parts.iter().map(part));
            }
            value => fields.push((key.replace('_', " "), fact(value))),
        }
    }
    let borrowed: Vec<(&str, String)> = fields.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let mut lines = block(&borrowed, &[]);
    lines.extend(findings(&host.findings));
    output.lines(&lines)
}

fn fact(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "-".to_owned(),
        serde_json::Value::Bool(yes) => yes_no(*yes),
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) => joined(items.iter().map(fact)),
        other => other.to_string(),
    }
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

fn joined(items: impl IntoIterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "-".to_owned() } else { items.join(", ") }
}

fn or_dash(item: Option<impl ToString>) -> String {
    item.map_or_else(|| "-".to_owned(), |item| item.to_string())
}

impl Show for PoolView {
    const EMPTY: &'static str = "no pools; `bulkhead pool create` creates one";
    const HEADERS: &'static [&'static str] = &["name", "kind", "source", "size", "free", "volumes", "on"];

    fn row(&self) -> Vec<String> {
        vec![
            self.name.to_string(),
            self.kind.clone(),
            self.source.clone(),
            or_dash(self.total_bytes),
            or_dash(self.free_bytes),
            self.n_volumes.to_string(),
            joined(&self.physical_devices),
        ]
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("name", self.name.to_string()),
            ("kind", self.kind.clone()),
            ("source", self.source.clone()),
            ("size", or_dash(self.total_bytes)),
            ("free", or_dash(self.free_bytes)),
            ("volumes", self.n_volumes.to_string()),
            ("physical devices", joined(&self.physical_devices)),
        ]
    }

    fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// Where a copied volume reads shared blocks, if it can have any.
fn read_from(volume: &VolumeView) -> Option<String> {
    let shares = volume.layers.as_ref().is_some_and(|layers| !layers.below.is_empty());
    let domain = volume.domain.as_ref().map_or_else(String::new, |domain| format!(", domain {domain}"));
    // Without layers it is a clone on a thin pool.
    let with_origin = volume.origin.as_ref().filter(|_| volume.layers.is_none() && volume.read_from != ReadFrom::Disk);
    match with_origin {
        Some(origin) => Some(format!("{}, with {origin}", volume.read_from)),
        None => shares.then(|| format!("{}{domain}", volume.read_from)),
    }
}

fn layers(layers: &LayersView) -> String {
    let own = layers.own_bytes;
    let below = Bytes(layers.below.iter().map(|layer| layer.bytes.0).sum());
    match layers.below.len() {
        0 => format!("{own} of its own"),
        1 => format!("{own} of its own, {below} in a layer below"),
        n => format!("{own} of its own, {below} in {n} layers below"),
    }
}

impl Show for VolumeView {
    const EMPTY: &'static str = "no volumes; `bulkhead volume create` creates one";
    const HEADERS: &'static [&'static str] =
        &["volume", "size", "fs", "state", "tenant", "journal", "device", "created by"];

    fn row(&self) -> Vec<String> {
        let journal = match &self.accounting {
            Accounting::NotMounted | Accounting::Users => "-",
            Accounting::JournalThread { .. } | Accounting::Server { .. } => "charged",
            Accounting::Partial { .. } => "partly",
            Accounting::None { .. } => "not charged",
        };
        let fs = if self.read_only { format!("{} ro", self.fs) } else { self.fs.to_string() };
        vec![
            self.volume.to_string(),
            self.size_bytes.to_string(),
            fs,
            self.state.clone(),
            or_dash(self.tenant.as_ref()),
            journal.to_owned(),
            or_dash(self.device.as_ref()),
            or_dash(self.created_by.as_ref()),
        ]
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let accounting = match &self.accounting {
            Accounting::NotMounted => "not mounted".to_owned(),
            Accounting::JournalThread { pid, cgroup } => format!("charged: thread {pid} is in {cgroup}"),
            Accounting::Server { pid, cgroup } => format!("charged: its block server, process {pid}, is in {cgroup}"),
            Accounting::Users => "none: I/O is charged to the cgroups of the processes that use the device".to_owned(),
            Accounting::Partial { limit } => format!("charged in part: {limit}"),
            Accounting::None { reason } => format!("not charged: {reason}"),
        };
        vec![
            ("volume", self.volume.to_string()),
            ("uuid", self.uuid.to_string()),
            ("state", self.state.clone()),
            ("size", self.size_bytes.to_string()),
            ("file system", self.fs.to_string()),
            ("provision", self.provision.to_string()),
            ("read-only", yes_no(self.read_only)),
            ("origin", or_dash(self.origin.as_ref())),
            ("layers", or_dash(self.layers.as_ref().map(layers))),
            ("reads from", or_dash(read_from(self))),
            ("tenant", or_dash(self.tenant.as_ref())),
            ("created by", or_dash(self.created_by.as_ref())),
            ("default tenant", or_dash(self.default_tenant.as_ref())),
            ("mounted at", or_dash(self.mounted_at.as_ref().map(|path| path.display()))),
            ("mount options", self.mount_options.to_string()),
            (
                "mounted directory",
                self.mount_options.subdir.as_ref().map_or_else(|| "/".to_owned(), ToString::to_string),
            ),
            ("device", or_dash(self.device.as_ref())),
            ("logical block", or_dash(self.logical_block_bytes.map(|bytes| Bytes(bytes.into())))),
            ("physical devices", joined(&self.physical_devices)),
            ("journal", accounting),
        ]
    }

    fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

impl Show for TenantView {
    const EMPTY: &'static str = "no tenants; `bulkhead tenant create` creates one";
    const HEADERS: &'static [&'static str] = &["name", "share", "processes", "read", "written", "journal", "volumes"];

    fn row(&self) -> Vec<String> {
        vec![
            self.name.to_string(),
            self.share.to_string(),
            self.n_processes.to_string(),
            Bytes(self.payload_io.read_bytes + self.server_io.read_bytes).to_string(),
            Bytes(self.payload_io.written_bytes + self.server_io.written_bytes).to_string(),
            Bytes(self.journal_io.written_bytes).to_string(),
            joined(&self.volumes),
        ]
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("name", self.name.to_string()),
            ("share", self.share.to_string()),
            ("limits", joined(self.limits.iter().map(limit))),
            ("fsync p99", or_dash(self.fsync_p99_us.map(Latency::from_us))),
            ("volumes", joined(&self.volumes)),
            ("created by", or_dash(self.created_by.as_ref())),
            ("slice", self.slice.clone()),
            ("processes", self.n_processes.to_string()),
            ("payload I/O", io(self.payload_io)),
            ("journal I/O", io(self.journal_io)),
            ("server I/O", io(self.server_io)),
        ]
    }

    fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

impl Show for DeviceView {
    const EMPTY: &'static str = "no block devices";
    const HEADERS: &'static [&'static str] = &["name", "dev", "size", "scheduler", "policy", "shares work", "on"];

    fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.dev.clone(),
            self.size_bytes.to_string(),
            or_dash(self.scheduler.as_ref()),
            self.policy.to_string(),
            yes_no(self.shares_work),
            joined(&self.physical_devices),
        ]
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("name", self.name.clone()),
            ("dev", self.dev.clone()),
            ("size", self.size_bytes.to_string()),
            ("rotational", yes_no(self.rotational)),
            ("scheduler", or_dash(self.scheduler.as_ref())),
            ("physical devices", joined(&self.physical_devices)),
            ("policy", self.policy.to_string()),
            ("arbiter", if self.arbiter { "on" } else { "off" }.to_owned()),
            ("shares work", format!("{}: {}", yes_no(self.shares_work), self.reason)),
            ("io.cost.model", or_dash(self.cost_model.as_ref())),
            ("io.cost.qos", or_dash(self.cost_qos.as_ref())),
        ];
        if let Some(calibration) = &self.calibration {
            fields.push(("calibrated model", calibration.model.clone()));
            fields.push(("calibrated qos", calibration.qos.clone()));
        } else {
            fields.push(("calibrated", "no".to_owned()));
        }
        fields
    }

    fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The measurements of its calibration.
    fn notes(&self) -> &[String] {
        self.calibration.as_ref().map_or(&[], |calibration| &calibration.measured)
    }
}

fn limit(limit: &IoLimit) -> String {
    let bytes = |key: &str, n: Option<u64>| n.map(|n| format!("{key}={}", Bytes(n)));
    let count = |key: &str, n: Option<u64>| n.map(|n| format!("{key}={n}"));
    let parts = [
        bytes("rbps", limit.read_bytes_per_second),
        bytes("wbps", limit.write_bytes_per_second),
        count("riops", limit.read_iops),
        count("wiops", limit.write_iops),
    ];
    format!("{} {}", limit.device, parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
}

fn io(io: IoBytes) -> String {
    format!("{} read, {} written", Bytes(io.read_bytes), Bytes(io.written_bytes))
}
