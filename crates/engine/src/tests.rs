//! Tests of the engine on the simulated host. This file has their common parts: requests as values, pools, and the invariants that hold
//! after any interruption.

mod copies;
mod crashes;
mod devices;
mod journals;
mod outside;
mod raw;
mod records;
mod report;
mod requests;
mod selinux;
mod tenants;

use std::sync::Arc;

use bulkhead_api::routes::VolumeFilter;
use bulkhead_api::wire::{
    LeaseCreate, NewPoolSource, PoolCreate, TenantCreate, TenantSet, VolumeCopy, VolumeCreate, VolumeFlatten,
    VolumeResize, VolumeRollback, VolumeSend, VolumeView,
};
use bulkhead_core::error::Fault;
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{FrontEnd, LeaseUser, Provision, ReadFrom, Server, VolumeFs, VolumeRef};
use bulkhead_core::reason::Reason;
use bulkhead_core::slices;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use uuid::Uuid;

use crate::carry_out::Executor;
use crate::engine::{Dirs, Engine};
use crate::sim::Sim;
use crate::trim::Trimming;

/// A request, which can be interrupted after each of its steps.
#[derive(Clone, Debug)]
enum Op {
    Create(&'static str, u64, VolumeFs),
    Remove(&'static str),
    Resize(&'static str, u64),
    Journal(&'static str, JournalSize),
    Clone(&'static str, &'static str),
    /// A clone that shares page cache with its snapshot.
    Share(&'static str, &'static str),
    Snapshot(&'static str, &'static str),
    Rollback(&'static str, &'static str),
    Flatten(&'static str),
    /// Receives a complete snapshot.
    Receive(&'static str, &'static str),
    Tenant(&'static str, &'static str),
    Detach(&'static str, &'static str),
    RemoveTenant(&'static str),
    Lease(&'static str, &'static str),
    /// By a user of a front end.
    Use(&'static str, &'static str),
    /// By a user of a front end, with an SELinux context.
    Label(&'static str, &'static str),
    /// By all users of front ends.
    Return(&'static str),
    /// Resizes a volume that is provisioned on demand.
    CreateOnDemand(&'static str),
    CreateFull(&'static str, VolumeFs),
    Trim(&'static str),
}

fn engine(sim: &Sim) -> Engine {
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    engine.reconcile();
    engine
}

fn reason(fault: &Fault) -> Option<&Reason> {
    fault.reason.as_deref()
}

fn volume(text: &str) -> VolumeRef {
    text.parse().unwrap()
}

fn pool(name: &str, source: NewPoolSource) -> PoolCreate {
    PoolCreate { name: name.parse().unwrap(), source }
}

fn with_pools() -> Sim {
    let sim = Sim::default().with_group("vg", &[]).with_group("tvg", &["thin"]);
    let engine = engine(&sim);
    for request in [
        pool("file", NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto }),
        pool("thick", NewPoolSource::VolumeGroup { vg: "vg".into(), thin_pool: None }),
        pool("thin", NewPoolSource::VolumeGroup { vg: "tvg".into(), thin_pool: Some("thin".into()) }),
    ] {
        engine.pool_create(&request, false).unwrap();
    }
    sim
}

fn run_on(sim: &Sim, engine: &Engine, op: &Op) -> Result<(), bulkhead_core::error::Fault> {
    match op {
        Op::Create(name, mib, fs) => {
            let request = VolumeCreate { fs: *fs, ..VolumeCreate::new(volume(name), Bytes::mib(*mib)) };
            engine.volume_create(&request, false).map(drop)
        }
        Op::Remove(name) => engine.volume_remove(&volume(name), true, false).map(drop),
        Op::Resize(name, mib) => {
            let request = VolumeResize { size_bytes: Some(Bytes::mib(*mib)), shrink: true, journal: None };
            engine.volume_resize(&volume(name), &request, false).map(drop)
        }
        Op::Journal(name, size) => {
            let request = VolumeResize { journal: Some(*size), ..VolumeResize::default() };
            engine.volume_resize(&volume(name), &request, false).map(drop)
        }
        Op::Clone(name, copy) => {
            let request = VolumeCopy::new(copy.parse().unwrap(), false);
            engine.volume_copy(&volume(name), &request, false).map(drop)
        }
        Op::Share(name, copy) => {
            let read_from = Some(ReadFrom::HostCache);
            let request = VolumeCopy { read_from, ..VolumeCopy::new(copy.parse().unwrap(), false) };
            engine.volume_copy(&volume(name), &request, false).map(drop)
        }
        Op::Rollback(name, to) => {
            let request = VolumeRollback { to: to.parse().unwrap(), lose_changes: true };
            engine.volume_rollback(&volume(name), &request, false).map(drop)
        }
        Op::Receive(snapshot, name) => {
            let view = engine.volume_send(&volume(snapshot), &VolumeSend::default(), false)?.object;
            let header = StreamHeader { content: Uuid::from_u128(7), ..view.unwrap().header };
            let part = engine.volume_receive(&volume(name), &header, false)?.object.unwrap().part;
            sim.fill_staging_file(&part);
            engine.volume_received(&volume(name), &header, false).map(drop)
        }
        Op::Flatten(name) => engine.volume_flatten(&volume(name), &VolumeFlatten::default(), false).map(drop),
        Op::Snapshot(name, copy) => {
            let request = VolumeCopy::new(copy.parse().unwrap(), true);
            engine.volume_copy(&volume(name), &request, false).map(drop)
        }
        Op::Tenant(tenant, name) => {
            let request = TenantCreate { volumes: vec![volume(name)], ..TenantCreate::new(tenant.parse().unwrap()) };
            engine.tenant_create(&request, false).map(drop)
        }
        Op::Detach(tenant, name) => {
            let request = TenantSet { detach: vec![volume(name)], ..TenantSet::default() };
            engine.tenant_set(&tenant.parse().unwrap(), &request, false).map(drop)
        }
        Op::RemoveTenant(tenant) => engine.tenant_remove(&tenant.parse().unwrap(), true, false).map(drop),
        Op::Lease(tenant, name) => {
            let request = LeaseCreate {
                tenant: tenant.parse().unwrap(),
                volumes: vec![volume(name)],
                pid: Some(42),
                user: None,
                selinux_context: None,
            };
            engine.lease_create(&request, None).map(drop)
        }
        Op::Use(tenant, name) => {
            let user = Some(LeaseUser { front_end: FrontEnd::Docker, id: "c1".into() });
            let request = LeaseCreate {
                tenant: tenant.parse().unwrap(),
                volumes: vec![volume(name)],
                pid: None,
                user,
                selinux_context: None,
            };
            engine.lease_create(&request, None).map(drop)
        }
        Op::Label(tenant, name) => {
            let request = LeaseCreate {
                tenant: tenant.parse().unwrap(),
                volumes: vec![volume(name)],
                pid: None,
                user: Some(LeaseUser { front_end: FrontEnd::Csi, id: "c2".into() }),
                selinux_context: Some("system_u:object_r:container_file_t:s0".parse().unwrap()),
            };
            engine.lease_create(&request, None).map(drop)
        }
        Op::Return(name) => {
            let leases = engine.lease_list()?.into_iter().filter(|lease| lease.volume == volume(name));
            leases.filter(|lease| lease.user.is_some()).try_for_each(|lease| engine.lease_remove(lease.id, None))
        }
        Op::CreateOnDemand(name) | Op::CreateFull(name, _) => {
            let (provision, fs, mib) = match op {
                Op::CreateFull(_, VolumeFs::Xfs) => (Provision::Full, VolumeFs::Xfs, 320),
                Op::CreateFull(_, fs) => (Provision::Full, *fs, 64),
                _ => (Provision::OnDemand, VolumeFs::Ext4, 64),
            };
            let request =
                VolumeCreate { fs, provision: Some(provision), ..VolumeCreate::new(volume(name), Bytes::mib(mib)) };
            engine.volume_create(&request, false).map(drop)
        }
        Op::Trim(name) => engine.trim_next(&volume(name), &mut Trimming::default(), false).map(drop),
    }
}

fn run(engine: &Engine, op: &Op) -> Result<(), bulkhead_core::error::Fault> {
    run_on(&Sim::default(), engine, op)
}

/// Invariants: every volume is ready, nothing is attached or mounted without a tenant, a mount has the SELinux context of its leases, and there
/// are no problems.
fn assert_settled(sim: &Sim, engine: &Engine, context: &str) {
    assert!(engine.problems().is_empty(), "{context}: {:?}", engine.problems());
    let views = engine.volume_list(&VolumeFilter::default()).unwrap();
    for view in &views {
        assert_eq!(view.state, "ready", "{context}: {view:?}");
        assert_eq!(view.mounted_at.is_some(), view.tenant.is_some(), "{context}: {view:?}");
    }
    for lease in engine.lease_list().unwrap() {
        assert_eq!(sim.context_of(&lease.mounted_at), lease.selinux_context, "{context}: {lease:?}");
    }
    let left = sim.leftovers();
    let mounted = views.iter().filter(|view| view.mounted_at.is_some()).count();
    assert_eq!(left.mounts.len(), mounted, "{context}: {left:?}");
    assert_eq!(left.images.len() + left.volumes.len(), views.len(), "{context}: {left:?}");
    let is_served = |view: &&VolumeView| match view.volume.pool.as_str() {
        "file" => true,
        _ => view.read_from != ReadFrom::Disk,
    };
    let attached_wanted = views.iter().filter(|view| view.mounted_at.is_some()).filter(is_served).count();
    assert_eq!(left.attached.len(), attached_wanted, "{context}: {left:?}");
    assert!(left.unused_layers.is_empty() && left.staging_files.is_empty(), "{context}: {left:?}");
    let tenants = engine.tenant_list().unwrap();
    for leaf in tenants.iter().flat_map(|view| [slices::journal(&view.name), slices::server(&view.name)]) {
        assert_eq!(sim.cgroup_file(&leaf, "cpu.weight").as_deref(), Some("10000"), "{context}: {leaf}");
    }
    if tenants.is_empty() {
        assert_eq!(left.cgroups, Vec::<String>::new(), "{context}");
    }
}
