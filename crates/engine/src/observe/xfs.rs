//! Observation of XFS: loaded when there is an XFS, and omitted, with the reason, when that fails. Failures here never
//! stop the observation of ext4.

use std::collections::HashSet;

use bulkhead_core::error::chain;
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::observe::limits::finding;
use bulkhead_core::observe::record::{Batch, CgroupId, ShareKey};
use bulkhead_core::units::DevNo;
use bulkhead_sys::bpf::{BpfError, Tracer};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::scratch::Scratch;

use super::{Charged, SelfTest, charged};

/// The tracer of XFS, if there is an XFS and it can be traced.
#[derive(Debug, Default)]
pub(super) struct Xfs {
    tracer: Option<Tracer>,
    /// Why XFS is not observed, or what its figures lack.
    finding: Option<Finding>,
}

impl Xfs {
    /// Updates the observed XFS file systems. The first one loads the tracer.
    pub(super) fn refresh(&mut self, roots: &Roots, devices: &[DevNo], is_attached: bool) {
        self.refresh_with(devices, is_attached, || load(roots));
    }

    fn refresh_with(
        &mut self,
        devices: &[DevNo],
        is_attached: bool,
        load: impl FnOnce() -> Result<(Tracer, Option<Finding>), String>,
    ) {
        if devices.is_empty() {
            return;
        }
        if self.tracer.is_none() && self.finding.is_none() {
            match load() {
                Ok((tracer, finding)) => {
                    tracing::info!("the BPF programs for XFS are loaded");
                    (self.tracer, self.finding) = (Some(tracer), finding);
                }
                Err(reason) => self.fail(reason),
            }
            if is_attached {
                self.attach();
            }
        }
        self.with(|tracer| tracer.add_journals(devices));
    }

    /// Whether there is an XFS that is not observed.
    pub(super) fn has_failed(&self) -> bool {
        self.tracer.is_none() && self.finding.is_some()
    }

    /// Attaches the programs, if they are loaded.
    pub(super) fn attach(&mut self) {
        self.with(Tracer::attach);
    }

    pub(super) fn detach(&mut self) {
        if let Some(tracer) = &mut self.tracer {
            tracer.detach();
        }
    }

    /// Events since the last poll.
    pub(super) fn poll(&mut self) -> Batch {
        self.with(Tracer::poll).unwrap_or_default()
    }

    pub(super) fn evict_shares(&mut self, keys: &[ShareKey]) {
        self.with(|tracer| tracer.evict_shares(keys));
    }

    pub(super) fn evict_cgroups(&mut self, gone: &HashSet<CgroupId>) {
        self.with(|tracer| tracer.evict_cgroups(gone));
    }

    /// Why XFS is not observed, or what its figures lack.
    pub(super) fn findings(&self) -> impl Iterator<Item = Finding> {
        self.finding.clone().into_iter()
    }

    fn fail(&mut self, reason: String) {
        let finding = finding(FindingId::XfsNotObserved, format!("xfs: not attributed: {reason}"));
        *self = Self { tracer: None, finding: Some(finding) };
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Tracer) -> Result<T, BpfError>) -> Option<T> {
        match act(self.tracer.as_mut()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fail(chain(&error));
                None
            }
        }
    }
}

/// Loads the programs and runs their self-test. What it could not verify is a finding.
fn load(roots: &Roots) -> Result<(Tracer, Option<Finding>), String> {
    let mut tracer = Tracer::load_xfs().map_err(|error| chain(&error))?;
    match self_test(roots, &mut tracer) {
        Ok(()) => Ok((tracer, None)),
        Err(SelfTest::NotMade(error)) => {
            let evidence = format!("xfs: the self-test could not be run: {}", chain(&error));
            Ok((tracer, Some(finding(FindingId::SelfTestNotMade, evidence))))
        }
        Err(SelfTest::Failed(cause)) => Err(cause),
        Err(SelfTest::Bpf(error)) => Err(chain(&error)),
    }
}

/// Writes to a scratch XFS and compares what is charged with what its log's device saw.
fn self_test(roots: &Roots, tracer: &mut Tracer) -> Result<(), SelfTest> {
    let scratch = Scratch::xfs(roots).map_err(SelfTest::NotMade)?;
    let failed = |cause: String| SelfTest::Failed(format!("its self-test failed: {cause}"));
    let io = |error: std::io::Error| failed(format!("cannot write to the scratch file system ({error})"));
    let written = || scratch.journal_written(roots).map_err(|error| failed(error.to_string()));
    scratch.settle().map_err(io)?;
    tracer.attach().map_err(SelfTest::Bpf)?;
    let before = written()?;
    scratch.exercise().map_err(io)?;
    let saw = written()? - before;
    let batch = tracer.poll().map_err(SelfTest::Bpf)?;
    tracer.detach();
    let Charged { owned, unowned, .. } = charged(batch, scratch.fs_dev());
    // Extent conversions by kernel threads after write-back have no owner if write-back has none (cgroup v1).
    if owned + unowned != saw || owned < saw / 10 * 9 {
        return Err(failed(format!(
            "the log's device received {saw} bytes, but {owned} were charged to their owners and {unowned} have no owner"
        )));
    }
    tracer.reset().map_err(SelfTest::Bpf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xfs_that_cannot_be_traced_is_reported() {
        let mut xfs = Xfs::default();
        xfs.refresh_with(&[], true, || panic!("there is no XFS"));
        assert_eq!(xfs.findings().count(), 0);
        let some = [DevNo::new(8, 1)];
        xfs.refresh_with(&some, true, || Err("no such tracepoint".to_owned()));
        // Not retried while the observation runs.
        xfs.refresh_with(&some, true, || panic!("it was loaded again"));
        let expected = finding(FindingId::XfsNotObserved, "xfs: not attributed: no such tracepoint");
        assert_eq!(xfs.findings().collect::<Vec<_>>(), [expected]);
        assert!(xfs.has_failed() && xfs.poll().records.is_empty());
    }
}
