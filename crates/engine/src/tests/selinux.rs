//! SELinux contexts of the mounts of leases.

use std::path::Path;

use bulkhead_api::wire::{LeaseCreate, LeaseView, TenantSet};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FrontEnd, LeaseUser, SelinuxContext, VolumeFs};

use super::{Op, assert_settled, engine, run, volume, with_pools};
use crate::engine::Engine;
use crate::sim::Sim;

const ONE: Option<&str> = Some("system_u:object_r:container_file_t:s0:c1,c2");
const OTHER: Option<&str> = Some("system_u:object_r:container_file_t:s0:c3,c4");

/// Where `file/v` is mounted.
fn target() -> &'static Path {
    Path::new("/run/bulkhead/mnt/file/v")
}

/// A host with the volumes `file/v` and `file/w`; tenant `db` keeps the latter mounted.
fn host() -> (Sim, Engine) {
    let sim = with_pools();
    let engine = engine(&sim);
    for name in ["file/v", "file/w"] {
        run(&engine, &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
    }
    run(&engine, &Op::Tenant("db", "file/w")).unwrap();
    (sim, engine)
}

fn context(text: Option<&str>) -> Option<SelinuxContext> {
    text.map(|text| text.parse().unwrap())
}

fn request(name: &str, user: &str, text: Option<&str>) -> LeaseCreate {
    LeaseCreate {
        tenant: "db".parse().unwrap(),
        volumes: vec![volume(name)],
        pid: None,
        user: Some(LeaseUser { front_end: FrontEnd::Csi, id: user.to_owned() }),
        selinux_context: context(text),
    }
}

fn lease(engine: &Engine, user: &str, text: Option<&str>) -> Result<LeaseView, Fault> {
    engine.lease_create(&request("file/v", user, text), None).map(|mut reply| reply.leases.remove(0))
}

fn code(outcome: Result<LeaseView, Fault>) -> Code {
    outcome.unwrap_err().code
}

#[test]
fn a_volume_is_mounted_with_the_context_of_its_leases_also_when_it_is_mounted_again() {
    let (sim, first) = host();
    let view = lease(&first, "a", ONE).unwrap();
    assert_eq!((view.selinux_context, sim.context_of(target())), (context(ONE), context(ONE)));
    assert_eq!(sim.context_of(Path::new("/run/bulkhead/mnt/file/w")), None);

    let second = engine(&sim);
    assert_settled(&sim, &second, "after a restart");
    for text in [ONE, ONE] {
        assert_eq!(lease(&second, "a", text).unwrap().selinux_context, context(ONE));
    }
    sim.unmount(target());
    second.tick();
    assert_eq!(sim.context_of(target()), context(ONE), "mounted again by the check");
    // Also while the records cannot be listed.
    sim.set_unlistable(Some("/run/bulkhead/leases"));
    sim.unmount(target());
    second.tick();
    assert_eq!(sim.context_of(target()), context(ONE), "mounted again by what was known");
    sim.set_unlistable(None);
    sim.unmount(target());
    let third = engine(&sim);
    assert_eq!(sim.context_of(target()), context(ONE), "mounted again at a start");
    assert_eq!(third.lease_list().unwrap()[0].selinux_context, context(ONE));
    assert_settled(&sim, &third, "after both");
}

#[test]
fn all_users_of_a_volume_have_one_context() {
    let (sim, engine) = host();
    let end = |view: &LeaseView| engine.lease_remove(view.id, None).unwrap();
    for (used, refused) in [(ONE, [OTHER, None]), (None, [ONE, OTHER])] {
        let (a, b) = (lease(&engine, "a", used).unwrap(), lease(&engine, "b", used).unwrap());
        for user in ["a", "b", "c"] {
            for text in refused {
                let fault = lease(&engine, user, text).unwrap_err();
                assert_eq!(fault.code, Code::InUse, "{fault}");
                assert!(fault.cause.contains("context") && !fault.hint.is_empty(), "{fault}");
            }
        }
        end(&a);
        assert_eq!(code(lease(&engine, "a", refused[0])), Code::InUse);
        assert_eq!((sim.context_of(target()), engine.lease_list().unwrap().len()), (context(used), 1));
        end(&b);
        assert_settled(&sim, &engine, "after both have returned it");
        end(&lease(&engine, "a", refused[0]).unwrap());
    }
}

#[test]
fn a_volume_that_its_tenant_keeps_mounted_has_no_context() {
    let (sim, engine) = host();
    let fault = engine.lease_create(&request("file/w", "a", ONE), None).unwrap_err();
    assert_eq!(fault.code, Code::InUse, "{fault}");
    let view = lease(&engine, "a", ONE).unwrap();
    let attach = TenantSet { attach: vec![volume("file/v")], ..TenantSet::default() };
    let attach = || engine.tenant_set(&"db".parse().unwrap(), &attach, false).map(drop);
    assert_eq!(attach().unwrap_err().code, Code::InUse);
    sim.set_process(42, Some(1));
    assert_eq!(run(&engine, &Op::Lease("db", "file/v")).unwrap_err().code, Code::InUse, "of a command");
    engine.lease_remove(view.id, None).unwrap();
    attach().unwrap();
    assert_eq!(code(lease(&engine, "a", ONE)), Code::InUse);
    lease(&engine, "a", None).unwrap();
    assert_settled(&sim, &engine, "attached");
}

#[test]
fn a_volume_that_was_returned_but_kept_busy_gets_another_context_once_it_is_free() {
    for user in ["a", "b"] {
        let (sim, engine) = host();
        let view = lease(&engine, "a", ONE).unwrap();
        sim.set_busy(target(), true);
        engine.lease_remove(view.id, None).unwrap_err();
        assert_eq!(code(lease(&engine, user, OTHER)), Code::InUse, "{user}");
        assert_eq!(sim.context_of(target()), context(ONE));
        sim.set_busy(target(), false);
        lease(&engine, user, OTHER).unwrap();
        assert_eq!(sim.context_of(target()), context(OTHER), "{user}");
        engine.tick();
        assert_eq!(engine.lease_list().unwrap().len(), 1, "{user}");
        assert_settled(&sim, &engine, user);
    }
}

#[test]
fn without_selinux_a_context_is_refused_and_nothing_is_mounted() {
    let (sim, engine) = host();
    sim.disable_selinux();
    let fault = lease(&engine, "a", ONE).unwrap_err();
    assert_eq!(fault.code, Code::Unsupported);
    assert!(fault.to_string().contains("does not use SELinux"), "{fault}");
    assert_eq!(engine.lease_list().unwrap(), []);
    assert_settled(&sim, &engine, "after what was refused");
    lease(&engine, "a", None).unwrap();
}

#[test]
fn a_raw_volume_has_no_context() {
    let (sim, engine) = host();
    run(&engine, &Op::Create("file/raw", 64, VolumeFs::None)).unwrap();
    let fault = engine.lease_create(&request("file/raw", "a", ONE), None).unwrap_err();
    assert_eq!(fault.code, Code::InvalidArgument);
    assert!(fault.to_string().contains("no files that could have an SELinux context"), "{fault}");
    assert_settled(&sim, &engine, "after what was refused");
    engine.lease_create(&request("file/raw", "a", None), None).unwrap();
}
