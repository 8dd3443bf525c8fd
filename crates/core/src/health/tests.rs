use uuid::Uuid;

use super::*;
use crate::cow::LayerView;
use crate::error::Code;
use crate::model::Server;
use crate::units::Share;

const GIB: u64 = 1 << 30;

fn pool(source: PoolSource) -> Pool {
    Pool { name: "p".parse().unwrap(), uuid: Uuid::from_u128(1), source }
}

fn files() -> Pool {
    pool(PoolSource::File { directory: "/srv/pool".into(), server: Server::Auto })
}

fn thin() -> Pool {
    pool(PoolSource::Lvm { vg: "vg".to_owned(), thin_pool: Some("thin".to_owned()), device: None })
}

fn volume() -> Volume {
    Volume { size_bytes: Bytes(10 * GIB), layered: true, ..Volume::sample() }
}

fn layers(n: usize) -> LayersView {
    LayersView { own_bytes: Bytes(0), below: vec![LayerView { id: Uuid::nil(), bytes: Bytes(0) }; n] }
}

fn ids(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.id.word()).collect()
}

#[test]
fn a_pool_is_nearly_full_from_its_threshold_on() {
    let space = |free| Space::new(Bytes(100 * GIB), Bytes(free), Bytes(4096));
    assert_eq!(pool_findings(&files(), &space(10 * GIB)), []);
    let found = pool_findings(&files(), &space(10 * GIB - 1));
    assert_eq!(ids(&found), ["pool_nearly_full"]);
    assert_eq!((&*found[0].object, found[0].evidence.contains("of 100 GiB are free")), ("pool p", true));
    // A thick pool's free space is used by new volumes only.
    let thick = pool(PoolSource::Lvm { vg: "vg".to_owned(), thin_pool: None, device: None });
    assert_eq!(pool_findings(&thick, &space(0)), []);
    let of_thin = |data, metadata| {
        let space = Space { data_pct: Some(data), metadata_pct: Some(metadata), ..space(GIB) };
        pool_findings(&thin(), &space)
    };
    assert_eq!(of_thin(79.9, 79.9), []);
    assert_eq!(ids(&of_thin(80.0, 10.0)), ["pool_nearly_full"]);
    assert_eq!(ids(&of_thin(10.0, 80.0)), ["pool_metadata_nearly_full"]);
}

#[test]
fn a_problem_reported_by_lvm_is_critical() {
    let space =
        Space { health: "needs_check".to_owned(), is_partial: true, ..Space::new(Bytes(GIB), Bytes(GIB), Bytes(4096)) };
    let found = pool_findings(&thin(), &space);
    assert_eq!(ids(&found), ["physical_volume_missing", "pool_unhealthy"]);
    assert!(found[1].evidence.contains("vg/thin: needs_check"), "{found:?}");
    assert!(found.iter().all(|finding| finding.severity == crate::finding::Severity::Critical));
}

#[test]
fn a_volume_without_facts_has_no_findings() {
    assert_eq!(volume_findings(&volume(), &VolumeFacts::default()), []);
    let fine = Backing::Served { has_server: true, lost_base: None, unprepared: Bytes(0) };
    let facts = VolumeFacts { backing: Some(&fine), accounting: Some(&Accounting::NotMounted), ..Default::default() };
    assert_eq!(volume_findings(&volume(), &facts), []);
}

#[test]
fn a_copy_has_findings_while_it_depends_on_layers() {
    let of = |volume: &Volume, n, backing: Option<&Backing>| {
        let layers = layers(n);
        let facts = VolumeFacts { backing, layers: Some(&layers), ..Default::default() };
        volume_findings(volume, &facts)
    };
    assert_eq!(of(&volume(), 0, None), []);
    assert_eq!(ids(&of(&volume(), 1, None)), ["full_provision_lost"]);
    let thin = Volume { provision: Provision::OnDemand, flatten: true, ..volume() };
    assert_eq!(ids(&of(&thin, MANY_LAYERS - 1, None)), ["flattening"]);
    assert_eq!(ids(&of(&thin, MANY_LAYERS, None)), ["layers_many", "flattening"]);
    let evidence = |backing| of(&thin, 1, backing)[0].evidence.clone();
    assert!(evidence(None).contains("it is not in use now"));
    assert!(evidence(Some(&Backing::LogicalVolume)).contains("are being copied"));
}

#[test]
fn a_device_has_findings_about_what_it_lacks() {
    let of =
        |backing: &Backing| volume_findings(&volume(), &VolumeFacts { backing: Some(backing), ..Default::default() });
    assert_eq!(of(&Backing::LogicalVolume), []);
    let by_choice = of(&Backing::Loop { direct_io: true, no_ublk: None });
    assert_eq!(ids(&by_choice), ["served_by_loop"]);
    let forced = of(&Backing::Loop { direct_io: false, no_ublk: Some("no such module".to_owned()) });
    assert_eq!(ids(&forced), ["served_by_loop", "image_cached_twice"]);
    assert!(forced[0].evidence.ends_with("; no such module"), "{forced:?}");
    let worst = Backing::Served { has_server: false, lost_base: Some("/dev/vg/s".into()), unprepared: Bytes(GIB) };
    assert_eq!(ids(&of(&worst)), ["server_gone", "memory_not_shared", "image_unprepared"]);
}

#[test]
fn mappings_and_uncharged_journals_are_findings() {
    let accounting = Accounting::None { reason: "its journal thread was not found".to_owned() };
    let facts = VolumeFacts {
        is_mapped: true,
        journal: Some(Bytes::mib(8)),
        accounting: Some(&accounting),
        ..Default::default()
    };
    let found = volume_findings(&volume(), &facts);
    assert_eq!(ids(&found), ["volume_mapped", "journal_not_charged", "journal_small_after_growth"]);
    assert_eq!(found[0], mapping_finding(&volume().reference()));
    assert!(found.iter().all(|finding| finding.object == "volume p/v"), "{found:?}");
}

#[test]
fn users_outside_of_a_slice_are_named() {
    let (volume, tenant) = ("p/v".parse().unwrap(), "db".parse().unwrap());
    let found = |cgroups: &[&str]| {
        let cgroups: Vec<CgroupPath> = cgroups.iter().map(|cgroup| cgroup.parse().unwrap()).collect();
        outside_finding(&volume, &tenant, &cgroups)
    };
    let own = "bulkhead.slice/bulkhead-db.slice/docker-1.scope";
    assert_eq!((found(&[]), found(&[own])), (None, None));
    let id = "4f".repeat(32);
    let docker = format!("system.slice/docker-{id}.scope");
    let finding = found(&[&docker, own, "bulkhead.slice/bulkhead-db.slice2", "a.slice/b.service", "c"]).unwrap();
    assert_eq!((finding.id.word(), &*finding.object), ("outside_slice", "volume p/v"));
    assert!(finding.evidence.contains(&format!("docker 4f4f4f4f4f4f in /{docker}, ")), "{finding:?}");
    assert!(finding.evidence.ends_with(", unit b.service in /a.slice/b.service and 1 more"), "{finding:?}");
}

#[test]
fn an_unfinished_import_cannot_be_resumed() {
    let volume = "p/r".parse().unwrap();
    let unfinished =
        |content| unfinished_finding(Unfinished { volume: &volume, content, received: Bytes(0), size: Bytes(GIB) });
    let received = unfinished(Uuid::from_u128(7));
    assert_eq!((received.id.word(), &*received.object), ("receive_unfinished", "volume p/r"));
    assert!(
        received.evidence.contains("0 B of 1 GiB")
            && matches!(received.reason.as_deref(), Some(Reason::ReceiveUnfinished { .. }))
    );
    assert_eq!(unfinished(Uuid::from_u128(0x8000_8000_0000_0000_0000)).id, FindingId::ImportUnfinished);
}

#[test]
fn a_condition_of_all_tenants_is_a_finding_of_the_host() {
    let tenant = Tenant {
        name: "db".parse().unwrap(),
        share: Share::DEFAULT,
        limits: vec![],
        fsync_p99_us: None,
        volumes: vec![],
        created_by: None,
        removing: true,
        profile: None,
    };
    let refused = Fault::new(Code::Unsupported, "cgroup /", "a realtime process is below it").hint("move that");
    let of = |has_weight_files, has_cpu, cpu_refused| {
        let found =
            tenant_findings(&tenant, &TenantFacts { has_weight_files, has_cpu, cpu_refused, unkept_promise: None });
        found.into_iter().map(|finding| (finding.id.word().to_owned(), finding.object)).collect::<Vec<_>>()
    };
    let pair = |id: &str, object: &str| (id.to_owned(), object.to_owned());
    let removal = pair("tenant_removal_pending", "tenant db");
    assert_eq!(of(true, true, None), std::slice::from_ref(&removal));
    assert_eq!(of(true, true, Some(&refused)), [removal.clone(), pair("cpu_controller_refused", "tenant db")]);
    let host = [pair("share_without_effect", "host"), pair("cpu_controller_missing", "host")];
    assert_eq!(of(false, false, Some(&refused)), [vec![removal], host.to_vec()].concat());
}
