//! Rotating snapshots on the simulated host.

use std::sync::Arc;

use bulkhead_api::routes::VolumeFilter;
use bulkhead_api::wire::{NewPoolSource, PoolCreate, TenantCreate, VolumeCopy, VolumeCreate};
use bulkhead_core::merge::{MERGE_ALL_FROM, MERGE_FROM};
use bulkhead_core::units::Bytes;

use super::*;
use crate::carry_out::Executor;
use crate::engine::Dirs;
use crate::sim::Sim;

fn engine(sim: &Sim) -> Engine {
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    engine.reconcile();
    engine
}

fn volume(name: &str) -> VolumeRef {
    format!("p/{name}").parse().unwrap()
}

/// Writes to the volume and takes a snapshot, repeatedly, and keeps the last `kept` snapshots.
fn rotate(sim: &Sim, engine: &Engine, snapshots: std::ops::Range<usize>, kept: usize, merge: bool) {
    for n in snapshots {
        let name = format!("s{n}").parse().unwrap();
        let request = VolumeCopy::new(name, true);
        sim.write("/srv/pool/v.img");
        engine.volume_copy(&volume("v"), &request, false).unwrap();
        if n >= kept {
            engine.volume_remove(&volume(&format!("s{}", n - kept)), false, false).unwrap();
        }
        if merge {
            tick(engine);
        }
    }
}

/// A host with a volume on a pool, and its engine.
fn with_volume() -> (Sim, Engine) {
    let sim = Sim::default();
    let engine = engine(&sim);
    let source = NewPoolSource::Directory { path: "/srv/pool".into(), server: Default::default() };
    engine.pool_create(&PoolCreate { name: "p".parse().unwrap(), source }, false).unwrap();
    let request = VolumeCreate::new(volume("v"), Bytes::mib(64));
    engine.volume_create(&request, false).unwrap();
    let request = TenantCreate { volumes: vec![volume("v")], ..TenantCreate::new("db".parse().unwrap()) };
    engine.tenant_create(&request, false).unwrap();
    (sim, engine)
}

/// The periodic check of the service.
fn tick(engine: &Engine) {
    if let Some(turn) = engine.try_start_merge() {
        assert!(engine.try_start_merge().is_none(), "one at a time");
        engine.merge_layers(turn).unwrap();
    }
    engine.tick();
}

fn depth(engine: &Engine) -> usize {
    engine.volume_inspect(&volume("v")).unwrap().layers.map_or(0, |layers| layers.below.len())
}

#[test]
fn snapshots_can_rotate_forever() {
    let (sim, engine) = with_volume();
    let mut deepest = 0;
    for n in 0..300 {
        rotate(&sim, &engine, n..n + 1, 3, true);
        deepest = deepest.max(depth(&engine));
    }
    assert!(deepest <= 3 + MERGE_FROM, "{deepest}");
    assert!(engine.problems().is_empty(), "{:?}", engine.problems());
    assert_eq!(engine.volume_list(&VolumeFilter::default()).unwrap().len(), 4);
    // The layers of kept snapshots too, if there are not too many.
    let (sim, engine) = with_volume();
    for n in 0..200 {
        let every_other = if n % 2 == 1 { 1 } else { usize::MAX };
        rotate(&sim, &engine, n..n + 1, every_other, true);
        if n >= 60 {
            engine.volume_remove(&volume(&format!("s{}", n - 60)), false, false).unwrap();
        }
    }
    assert!(depth(&engine) <= MERGE_ALL_FROM + 2, "{}", depth(&engine));
}

#[test]
fn a_crash_after_any_step_of_a_merge_is_recovered() {
    for cut in 0.. {
        let (sim, before) = with_volume();
        rotate(&sim, &before, 0..20, 2, false);
        assert_eq!(depth(&before), 20);
        sim.crash_after(Some(cut));
        let turn = before.try_start_merge().unwrap();
        before.merge_layers(turn).unwrap();
        let was_cut = depth(&before) > 4 || !sim.leftovers().unused_layers.is_empty();
        sim.crash_after(None);
        let after = engine(&sim);
        assert!(after.problems().is_empty(), "{cut}: {:?}", after.problems());
        assert_eq!(after.volume_inspect(&volume("v")).unwrap().state, "ready");
        assert!(sim.leftovers().unused_layers.is_empty(), "{cut}");
        tick(&after);
        assert!(depth(&after) <= 4, "{cut}: {}", depth(&after));
        if !was_cut {
            assert!(cut >= 4, "only {cut} cuts were tried");
            break;
        }
    }
}

#[test]
fn a_merge_without_room_is_retried_after_the_next_change() {
    let (sim, engine) = with_volume();
    rotate(&sim, &engine, 0..20, 2, false);
    sim.set_free(Bytes::mib(1));
    tick(&engine);
    assert_eq!(depth(&engine), 20);
    assert!(engine.try_start_merge().is_none(), "nothing has changed");
    sim.set_free(Bytes::mib(100));
    engine.volume_remove(&volume("s18"), false, false).unwrap();
    tick(&engine);
    assert!(depth(&engine) <= 3, "{}", depth(&engine));
}

#[test]
fn a_pool_that_is_being_removed_is_skipped() {
    let (sim, engine) = with_volume();
    rotate(&sim, &engine, 0..20, 2, false);
    let claim = Claim::default().changes(crate::locks::Object::Pool("p".parse().unwrap()));
    let held = engine.shared.locks.try_claim(engine.executor.job(), claim).unwrap();
    tick(&engine);
    assert_eq!(depth(&engine), 20);
    drop(held);
    tick(&engine);
    assert!(depth(&engine) <= 3, "{}", depth(&engine));
}
