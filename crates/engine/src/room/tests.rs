//! Concurrent reservations on the simulated host.

use std::thread;

use bulkhead_api::wire::{
    NewPoolSource, PoolCreate, VolumeCheck, VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize, VolumeSend,
};
use bulkhead_core::model::{Provision, Server};

use super::*;
use crate::carry_out::Executor;
use crate::engine::Dirs;
use crate::sim::Sim;

fn with_pools(sim: &Sim) -> Engine {
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    for (name, source) in [
        ("file", NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto }),
        ("thick", NewPoolSource::VolumeGroup { vg: "vg".into(), thin_pool: None }),
        ("thin", NewPoolSource::VolumeGroup { vg: "tvg".into(), thin_pool: Some("thin".into()) }),
    ] {
        engine.pool_create(&PoolCreate { name: name.parse().unwrap(), source }, false).unwrap();
    }
    engine
}

fn sim() -> Sim {
    Sim::default().with_group("vg", &[]).with_group("tvg", &["thin"])
}

fn create(engine: &Engine, name: &str, mib: u64) -> Result<(), Fault> {
    let request =
        VolumeCreate { provision: Some(Provision::Full), ..VolumeCreate::new(name.parse().unwrap(), Bytes::mib(mib)) };
    engine.volume_create(&request, false).map(drop)
}

fn resize(engine: &Engine, name: &str, mib: u64) -> Result<(), Fault> {
    let request = VolumeResize { size_bytes: Some(Bytes::mib(mib)), ..VolumeResize::default() };
    engine.volume_resize(&name.parse().unwrap(), &request, false).map(drop)
}

/// Pauses an operation once it has allocated so much to an image or volume, runs `then`, and resumes it.
fn during_half_an_allocation(sim: &Sim, path: &str, mib: u64, begin: impl FnOnce() + Send, then: impl FnOnce()) {
    sim.pause_allocation(path, Some(Bytes::mib(mib)));
    thread::scope(|scope| {
        // Also if an assertion fails, or the scope would wait forever.
        let _go_on = GoOn { sim, path };
        scope.spawn(begin);
        while sim.allocated_to(path) != Bytes::mib(mib) {
            thread::yield_now();
        }
        then();
    });
}

struct GoOn<'a> {
    sim: &'a Sim,
    path: &'a str,
}

impl Drop for GoOn<'_> {
    fn drop(&mut self) {
        self.sim.pause_allocation(self.path, None);
    }
}

#[test]
fn allocated_space_is_not_counted_twice() {
    for (pool, path) in [("file", "/srv/pool/a.img"), ("thin", "/dev/tvg/a")] {
        let sim = sim();
        let engine = with_pools(&sim);
        sim.set_free(Bytes::mib(200));
        let name = |name| format!("{pool}/{name}");
        let begin = || create(&engine, &name("a"), 100).unwrap();
        during_half_an_allocation(&sim, path, 60, begin, || {
            // 140 MiB are free, of which the first operation needs another 40.
            let fault = create(&engine, &name("b"), 104).unwrap_err();
            assert!(fault.code == Code::NoSpace && fault.cause.contains("has 100 MiB left (of 140 MiB"), "{fault}");
            create(&engine, &name("b"), 100).unwrap();
        });
        let pool = engine.pool(&pool.parse().unwrap()).unwrap();
        assert_eq!(engine.host().space(&pool.source).unwrap().free, Bytes(0));
    }
}

#[test]
fn space_allocated_by_a_growth_is_not_counted_twice() {
    for (pool, path) in [("file", "/srv/pool/a.img"), ("thick", "/dev/vg/a")] {
        let sim = sim();
        let engine = with_pools(&sim);
        let name = |name| format!("{pool}/{name}");
        create(&engine, &name("a"), 64).unwrap();
        sim.set_free(Bytes::mib(200));
        let begin = || resize(&engine, &name("a"), 164).unwrap();
        during_half_an_allocation(&sim, path, 124, begin, || {
            assert_eq!(create(&engine, &name("b"), 104).unwrap_err().code, Code::NoSpace);
            create(&engine, &name("b"), 100).unwrap();
        });
    }
}

#[test]
fn growing_a_full_thin_volume_allocates_at_once() {
    let sim = sim();
    let engine = with_pools(&sim);
    create(&engine, "thin/a", 64).unwrap();
    sim.set_free(Bytes::mib(100));
    assert_eq!(resize(&engine, "thin/a", 168).unwrap_err().code, Code::NoSpace);
    resize(&engine, "thin/a", 160).unwrap();
    let pool = engine.pool(&"thin".parse().unwrap()).unwrap();
    assert_eq!(
        (sim.allocated_to("/dev/tvg/a"), engine.host().space(&pool.source).unwrap().free),
        (Bytes::mib(160), Bytes::mib(4))
    );
}

#[test]
fn of_two_requests_of_which_one_fits_exactly_one_is_accepted() {
    for round in 0..50 {
        let sim = sim();
        let engine = with_pools(&sim);
        sim.set_free(Bytes::mib(100));
        let accepted: usize = thread::scope(|scope| {
            let ask = |name: &'static str| scope.spawn(|| usize::from(create(&engine, name, 64).is_ok()));
            let both = [ask("file/a"), ask("file/b")];
            both.into_iter().map(|asked| asked.join().unwrap()).sum()
        });
        assert_eq!(accepted, 1, "round {round}");
    }
}

#[test]
fn a_pool_that_does_not_answer_delays_no_other() {
    let sim = sim();
    let engine = with_pools(&sim);
    let pool = |name: &str| engine.pool(&name.parse().unwrap()).unwrap();
    let reserve = |name: &str| engine.reserve(&pool(name), Bytes::mib(64), Allocation::Unobserved, "volume");
    let earlier = reserve("thick").unwrap();
    sim.set_silent("vg", true);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| reserve("thick").map(drop));
        while !sim.has_waiting_query("vg") {
            thread::yield_now();
        }
        let other = reserve("file").map(drop);
        // Nor does it delay the release of a reservation in it.
        drop(earlier);
        let was_waiting = !waiting.is_finished();
        sim.set_silent("vg", false);
        assert!(was_waiting);
        other.unwrap();
        waiting.join().unwrap().unwrap();
    });
}

/// Once recorded, a flattening is promised as well as reserved. The simulated volume shares 2 MiB.
#[test]
fn a_flattening_that_is_promised_and_reserved_counts_once() {
    let sim = sim();
    let engine = with_pools(&sim);
    create(&engine, "file/v", 64).unwrap();
    let volume = "file/v".parse().unwrap();
    let copy = VolumeCopy::new("s".parse().unwrap(), true);
    engine.volume_copy(&volume, &copy, false).unwrap();
    engine.volume_flatten(&volume, &VolumeFlatten::default(), false).unwrap();
    sim.set_free(Bytes::mib(100));
    let pool = engine.pool(&"file".parse().unwrap()).unwrap();
    let reserve = |mib, takes| engine.reserve(&pool, Bytes::mib(mib), takes, "volume").map_err(|fault| fault.code);
    let left = |mib| reserve(mib, Allocation::Unobserved).map(drop);
    assert_eq!((left(98), left(99)), (Ok(()), Err(Code::NoSpace)));
    let reserved = reserve(2, Allocation::Flattening("v".parse().unwrap())).unwrap();
    assert_eq!((left(98), left(99)), (Ok(()), Err(Code::NoSpace)));
    // Other allocations of the volume are added.
    let growth = reserve(4, Allocation::Unobserved).unwrap();
    assert_eq!((left(94), left(95)), (Ok(()), Err(Code::NoSpace)));
    drop((reserved, growth));
    assert_eq!(left(98), Ok(()));
}

/// A volume of the simulated host has 1 MiB of its own, and each layer has 2 MiB.
#[test]
fn a_copy_adds_to_the_room_of_a_flattening() {
    let flattened = |name: &str| {
        let sim = sim();
        let engine = with_pools(&sim);
        create(&engine, "file/v", 64).unwrap();
        copy(&engine, "s").unwrap();
        engine.volume_flatten(&name.parse().unwrap(), &VolumeFlatten::default(), false).unwrap();
        (sim, engine)
    };
    let reason = |volume: &str| Some(Box::new(Reason::FlatteningNeedsRoom { volume: volume.parse().unwrap() }));
    let (sim, engine) = flattened("file/v");
    sim.write("/srv/pool/v.img");
    // Room for what is promised, and not quite for its own blocks.
    sim.set_free(Bytes(Bytes::mib(3).0 - 4096));
    let before = sim.leftovers();
    let fault = copy(&engine, "t").unwrap_err();
    assert_eq!((fault.code, &fault.reason), (Code::NoSpace, &reason("file/v")), "{fault}");
    let check = VolumeCheck { repair: false, full: true };
    let fault = engine.volume_check(&"file/v".parse().unwrap(), &check, false).unwrap_err();
    assert_eq!((fault.code, fault.reason), (Code::NoSpace, reason("file/v")));
    assert_eq!(sim.leftovers(), before);
    sim.set_free(Bytes::mib(3));
    copy(&engine, "t").unwrap();
    // From now on two layers are promised.
    sim.set_free(Bytes::mib(5));
    let pool = engine.pool(&"file".parse().unwrap()).unwrap();
    let left = |mib| {
        engine.reserve(&pool, Bytes::mib(mib), Allocation::Unobserved, "volume").map(drop).map_err(|fault| fault.code)
    };
    assert_eq!((left(1), left(2)), (Ok(()), Err(Code::NoSpace)));

    let (sim, engine) = flattened("file/s");
    let send = || engine.volume_send(&"file/s".parse().unwrap(), &VolumeSend::default(), false);
    sim.set_free(Bytes::mib(2));
    let fault = send().unwrap_err();
    assert_eq!((fault.code, fault.reason), (Code::NoSpace, reason("file/s")));
    sim.set_free(Bytes::mib(3));
    send().unwrap();
}

fn copy(engine: &Engine, name: &str) -> Result<(), Fault> {
    let request = VolumeCopy::new(name.parse().unwrap(), true);
    engine.volume_copy(&"file/v".parse().unwrap(), &request, false).map(drop)
}
