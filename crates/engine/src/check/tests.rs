//! Periodic checks of hosts with many volumes, on the simulated host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_api::wire::{LeaseCreate, NewPoolSource, PoolCreate, TenantCreate, TenantSet, VolumeCreate};
use bulkhead_core::finding::FindingId;
use bulkhead_core::model::Server;
use bulkhead_core::slices;
use bulkhead_core::tenant;
use bulkhead_core::units::Bytes;

use super::*;
use crate::carry_out::Executor;
use crate::engine::Dirs;
use crate::sim::Sim;

fn with_pool() -> (Sim, Engine) {
    let sim = Sim::default();
    sim.set_free(Bytes(100 * Bytes::GIB));
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    engine.reconcile();
    let source = NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto };
    engine.pool_create(&PoolCreate { name: "p".parse().unwrap(), source }, false).unwrap();
    (sim, engine)
}

/// Creates a tenant with `count` volumes; returns their mount points.
fn with_volumes(engine: &Engine, tenant: &str, count: usize) -> Vec<PathBuf> {
    let volumes: Vec<VolumeRef> = (0..count).map(|n| format!("p/{tenant}{n}").parse().unwrap()).collect();
    for volume in &volumes {
        let request = VolumeCreate::new(volume.clone(), Bytes::mib(64));
        engine.volume_create(&request, false).unwrap();
    }
    let targets = volumes.iter().map(|volume| Path::new("/run/bulkhead/mnt").join(volume.to_string())).collect();
    let request = TenantCreate { volumes, ..TenantCreate::new(tenant.parse().unwrap()) };
    engine.tenant_create(&request, false).unwrap();
    targets
}

/// The number of volumes whose journal threads are in the right cgroup.
fn n_placed(sim: &Sim, targets: &[PathBuf]) -> usize {
    targets.iter().filter(|target| sim.journal_of(target).is_some()).count()
}

#[test]
fn an_unchanged_volume_costs_no_step() {
    let (sim, engine) = with_pool();
    let steps_of_a_check = || {
        let before = sim.n_steps();
        engine.tick();
        sim.n_steps() - before
    };
    let (mut targets, mut costs) = (Vec::new(), Vec::new());
    for (name, count) in [("a", 10), ("b", 90)] {
        targets.extend(with_volumes(&engine, name, count));
        // Volumes mounted since the last check are examined in full.
        assert!(steps_of_a_check() >= 2 * count);
        costs.push(steps_of_a_check());
    }
    let name: Name = "b".parse().unwrap();
    let of_a_tenant = tenant::cgroups(&engine.tenant(&name).unwrap(), &["io.weight"], &Vec::new()).len()
        + tenant::prioritize_serving(&name).len()
        + tenant::move_version_0_1_processes(&name, &slices::payload(&name), &[]).len()
        + 2;
    assert!(costs[1] <= costs[0] + of_a_tenant, "{costs:?}: it grows with the number of volumes");
    // A proof does not hold any more once journal threads are lost, each time.
    for _ in 0..2 {
        sim.lose_journals();
        assert_eq!(n_placed(&sim, &targets), 0);
        engine.tick();
        assert_eq!(n_placed(&sim, &targets), targets.len());
    }
    assert!(engine.problems().is_empty());
}

#[test]
fn many_volumes_take_turns_in_the_periodic_check() {
    let (sim, engine) = with_pool();
    let targets: Vec<PathBuf> = ["a", "b", "c"].into_iter().flat_map(|name| with_volumes(&engine, name, 100)).collect();
    let bound = targets.len().div_ceil(PROVED);
    (0..bound).for_each(|_| engine.tick());
    targets.iter().for_each(|target| sim.unmount(target));
    engine.tick();
    // A missing mount is detected at once, for all volumes.
    let points = engine.host().mount_points().unwrap();
    assert!(targets.iter().all(|target| points.contains(target)));
    sim.lose_journals();
    engine.tick();
    assert!((PROVED..targets.len()).contains(&n_placed(&sim, &targets)));
    (1..bound).for_each(|_| engine.tick());
    assert_eq!(n_placed(&sim, &targets), targets.len());
    assert!(engine.problems().is_empty());
}

/// The number of volumes that a check would examine now, and whether these are all.
fn to_check(engine: &Engine) -> (usize, bool) {
    let roster = engine.roster(&mut Vec::new());
    let (mounts, changes) = (engine.host().mount_points().unwrap(), engine.mounted_volumes().changes());
    let now = MountState { roster, mounts, changes };
    let round = engine.next_round(&now);
    (round.slots.len(), round.has_all_slots)
}

#[test]
fn all_volumes_are_checked_only_after_a_change() {
    let (sim, engine) = with_pool();
    let targets = with_volumes(&engine, "a", 2 * PROVED);
    let settle = || {
        // The first check mounts all, and the second one changes nothing.
        (0..2).for_each(|_| engine.tick());
        let (n, all) = to_check(&engine);
        assert!(n <= PROVED + IN_FULL && !all, "{n}");
    };
    settle();
    let n_all = targets.len();
    sim.unmount(&targets[7]);
    assert_eq!(to_check(&engine), (n_all, true));
    settle();
    assert!(engine.host().is_mounted(&targets[7]).unwrap());
    engine.mounted_volumes().remove(&"p/a9".parse().unwrap());
    assert_eq!(to_check(&engine), (n_all, true));
    settle();
    let detach = TenantSet { detach: vec!["p/a11".parse().unwrap()], ..TenantSet::default() };
    engine.tenant_set(&"a".parse().unwrap(), &detach, false).unwrap();
    assert_eq!(to_check(&engine), (n_all - 1, true));
    settle();
}

#[test]
fn records_that_cannot_be_listed_are_maintained_as_before() {
    let (sim, engine) = with_pool();
    let targets = with_volumes(&engine, "a", 10);
    engine.tick();
    for dir in ["/var/lib/bulkhead/tenants", "/run/bulkhead/leases", "/var/lib/bulkhead/pools"] {
        sim.set_unlistable(Some(dir));
        sim.lose_journals();
        sim.unmount(&targets[3]);
        engine.tick();
        assert_eq!(n_placed(&sim, &targets), targets.len(), "{dir}");
        let found = engine.problems();
        assert!(matches!(&found[..], [one] if one.id == FindingId::RecordUnreadable), "{dir}: {found:?}");
        sim.set_unlistable(None);
        engine.tick();
        assert!(engine.problems().is_empty());
    }
}

#[test]
fn many_leases_take_turns_and_one_that_cannot_be_ended_is_retried_each_time() {
    let (sim, engine) = with_pool();
    let n_leases = 3 * LEASES;
    let targets = with_volumes(&engine, "a", n_leases);
    let volumes: Vec<VolumeRef> = (0..n_leases).map(|n| format!("p/a{n}").parse().unwrap()).collect();
    let tenant: Name = "a".parse().unwrap();
    let detach = TenantSet { detach: volumes.clone(), ..TenantSet::default() };
    engine.tenant_set(&tenant, &detach, false).unwrap();
    for (pid, volume) in (1000..).zip(&volumes) {
        sim.set_process(pid, Some(7));
        let request = LeaseCreate {
            tenant: tenant.clone(),
            volumes: vec![volume.clone()],
            pid: Some(pid),
            user: None,
            selinux_context: None,
        };
        engine.lease_create(&request, None).unwrap();
    }
    let n_mounted = || targets.iter().filter(|target| engine.host().is_mounted(target).unwrap()).count();
    engine.tick();
    assert_eq!((n_mounted(), engine.leases().unwrap().len()), (n_leases, n_leases));
    sim.set_process(1000, None);
    sim.set_busy(&targets[0], true);
    let is_detected = (0..n_leases.div_ceil(LEASES)).any(|_| {
        engine.tick();
        !engine.problems().is_empty()
    });
    assert!(is_detected);
    // It was just checked, and two thirds of the others come before its next turn.
    sim.set_busy(&targets[0], false);
    engine.tick();
    assert_eq!((n_mounted(), engine.leases().unwrap().len()), (n_leases - 1, n_leases - 1));
    assert!(engine.problems().is_empty());
    (1000..).zip(&volumes).for_each(|(pid, _)| sim.set_process(pid, None));
    engine.tick();
    assert_eq!(n_mounted(), n_leases - 1 - LEASES);
    (0..2).for_each(|_| engine.tick());
    assert_eq!((n_mounted(), engine.leases().unwrap().len()), (0, 0));
    assert!(engine.problems().is_empty());
}

#[test]
fn an_unchanged_tenant_costs_no_step() {
    let (sim, engine) = with_pool();
    let names: Vec<Name> = (0..TENANTS).map(|n| format!("t{n:02}").parse().unwrap()).collect();
    names.iter().for_each(|name| drop(with_volumes(&engine, name.as_str(), 0)));
    let steps_of_a_check = || {
        let before = sim.n_steps();
        engine.tick();
        sim.n_steps() - before
    };
    let cost_of_all = steps_of_a_check();
    let cost_of_full = steps_of_a_check();
    assert_eq!(cost_of_full * TENANTS, cost_of_all * TENANTS_IN_FULL);
    // A tenant that is not examined in full this time.
    let (slice, of_io) = (slices::tenant(&names[TENANTS - 1]), "io.weight");
    let before = sim.cgroup_file(&slice, of_io).unwrap();
    sim.set_cgroup_file(&slice, of_io, "default 1");
    assert!(steps_of_a_check() > cost_of_full);
    assert_eq!(sim.cgroup_file(&slice, of_io).unwrap(), before);
    assert_eq!(steps_of_a_check(), cost_of_full);
    // Changed records invalidate the proofs.
    with_volumes(&engine, "other", 0);
    assert!(steps_of_a_check() >= cost_of_all);
    assert!(engine.problems().is_empty());
}

#[test]
fn many_tenants_take_turns_in_the_periodic_check() {
    let (sim, engine) = with_pool();
    let names: Vec<Name> = (0..40).map(|n| format!("t{n}").parse().unwrap()).collect();
    names.iter().for_each(|name| drop(with_volumes(&engine, name.as_str(), 0)));
    for name in &names {
        sim.disable_cpu(slices::tenant(name));
    }
    let n_whole = || {
        let is_whole = |name: &&Name| sim.cgroup_file(slices::journal(name), "cpu.weight").is_some();
        names.iter().filter(is_whole).count()
    };
    assert_eq!(n_whole(), 0);
    for expected in [TENANTS, 2 * TENANTS, names.len()] {
        engine.tick();
        assert_eq!(n_whole(), expected);
    }
}
