//! Periodic checks of hosts with many volumes, on the simulated host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_core::model::{FsKind, Server};
use bulkhead_core::tenant;
use bulkhead_core::units::{Bytes, Share};
use bulkhead_core::wire::{NewPoolSource, PoolCreate, TenantCreate, VolumeCreate};

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

/// A tenant with so many volumes: where they are mounted.
fn with_volumes(engine: &Engine, tenant: &str, count: usize) -> Vec<PathBuf> {
    let volumes: Vec<VolumeRef> = (0..count).map(|n| format!("p/{tenant}{n}").parse().unwrap()).collect();
    for volume in &volumes {
        let request = VolumeCreate {
            volume: volume.clone(),
            size_bytes: Bytes::mib(64),
            fs: FsKind::Ext4,
            provision: None,
            fast_commit: false,
        };
        engine.volume_create(&request, false).unwrap();
    }
    let targets = volumes.iter().map(|volume| Path::new("/run/bulkhead/mnt").join(volume.to_string())).collect();
    let request = TenantCreate { name: tenant.parse().unwrap(), share: Share::DEFAULT, limits: vec![], volumes };
    engine.tenant_create(&request, false).unwrap();
    targets
}

/// How many of the volumes that are mounted there have their journal threads where they belong.
fn n_placed(sim: &Sim, targets: &[PathBuf]) -> usize {
    targets.iter().filter(|target| sim.journal_of(target).is_some()).count()
}

#[test]
fn a_volume_that_is_as_it_was_costs_no_step() {
    let (sim, engine) = with_pool();
    let steps_of_a_check = || {
        let before = sim.n_steps();
        engine.tick();
        sim.n_steps() - before
    };
    let (mut targets, mut costs) = (Vec::new(), Vec::new());
    for (name, count) in [("a", 10), ("b", 90)] {
        targets.extend(with_volumes(&engine, name, count));
        // What was mounted since the last check is looked at in full.
        assert!(steps_of_a_check() >= 2 * count);
        costs.push(steps_of_a_check());
    }
    let name: Name = "b".parse().unwrap();
    let of_a_tenant = tenant::cgroups(&engine.tenant(&name).unwrap(), &["io.weight"], &Vec::new()).len()
        + tenant::serve_first(&name).len()
        + tenant::take_over(&name, "", &[]).len()
        + 2;
    assert!(costs[1] <= costs[0] + of_a_tenant, "{costs:?}: it grows with the number of volumes");
    // A proof of what was is none of what is: each time that they are lost.
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
    // That nothing is mounted is seen at once, of all of them.
    let points = engine.host().mount_points().unwrap();
    assert!(targets.iter().all(|target| points.contains(target)));
    sim.lose_journals();
    engine.tick();
    assert!((PROVED..targets.len()).contains(&n_placed(&sim, &targets)));
    (1..bound).for_each(|_| engine.tick());
    assert_eq!(n_placed(&sim, &targets), targets.len());
    assert!(engine.problems().is_empty());
}

#[test]
fn many_tenants_take_turns_in_the_periodic_check() {
    let (sim, engine) = with_pool();
    let names: Vec<Name> = (0..40).map(|n| format!("t{n}").parse().unwrap()).collect();
    names.iter().for_each(|name| drop(with_volumes(&engine, name.as_str(), 0)));
    for name in &names {
        sim.disable_cpu(&tenant::slice(name));
    }
    let n_whole = || {
        let is_whole = |name: &&Name| sim.cgroup_file(&tenant::journal(name), "cpu.weight").is_some();
        names.iter().filter(is_whole).count()
    };
    assert_eq!(n_whole(), 0);
    for expected in [TENANTS, 2 * TENANTS, names.len()] {
        engine.tick();
        assert_eq!(n_whole(), expected);
    }
}
