//! Trimming on the simulated host, where each part gives 1 MiB back.

use std::sync::mpsc::channel;

use bulkhead_api::wire::{
    JobState, JobView, NewPoolSource, PoolCreate, TenantCreate, TenantSet, VolumeCopy, VolumeCreate,
};
use bulkhead_core::model::{Provision, Server};
use bulkhead_core::reason::Reason;
use bulkhead_core::units::Bytes;
use tokio::task::JoinHandle;

use super::*;
use crate::carry_out::Executor;
use crate::engine::Dirs;
use crate::sim::{Observed, Sim};

const MOUNTED: &str = "/run/bulkhead/mnt/p/v";

fn volume(text: &str) -> VolumeRef {
    text.parse().unwrap()
}

fn sim() -> Sim {
    let sim = Sim::default().with_group("vg", &[]).with_group("tvg", &["thin"]);
    sim.set_total(Bytes(8 * Bytes::GIB));
    sim
}

fn service_on(sim: &Sim) -> Service {
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    engine.reconcile();
    Service::new(engine, serde_json::Value::Null, Arc::new(Observed::default()), "/nowhere".into())
}

async fn pool(service: &Service, name: &str, source: NewPoolSource) {
    service.pool_create(PoolCreate { name: name.parse().unwrap(), source }, Terms::default()).await.unwrap();
}

async fn create(service: &Service, name: &str, size_bytes: Bytes, provision: Option<Provision>) {
    let request = VolumeCreate { provision, ..VolumeCreate::new(volume(name), size_bytes) };
    service.volume_create(request, Terms::default()).await.unwrap();
}

async fn attach(service: &Service, name: &str) {
    let tenant = name.replace('/', "-").parse().unwrap();
    let request = TenantCreate { volumes: vec![volume(name)], ..TenantCreate::new(tenant) };
    service.tenant_create(request, Terms::default()).await.unwrap();
}

/// `p/v`, of three parts, which tenant `p-v` has mounted.
async fn three_parts(sim: &Sim) -> Service {
    let service = service_on(sim);
    pool(&service, "p", NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto }).await;
    create(&service, "p/v", Bytes(3 * Bytes::GIB), Some(Provision::OnDemand)).await;
    attach(&service, "p/v").await;
    service
}

async fn trim(service: &Service, name: &str) -> Result<Done<TrimView>, Fault> {
    service.volume_trim(volume(name), Terms::default()).await
}

fn begin(service: &Service) -> JoinHandle<Result<Done<TrimView>, Fault>> {
    let service = service.clone();
    tokio::spawn(async move { trim(&service, "p/v").await })
}

/// Waits until a job matches.
async fn job(service: &Service, matches: impl Fn(&JobView) -> bool) -> JobView {
    loop {
        match service.job_list().into_iter().find(&matches) {
            Some(job) => return job,
            None => tokio::task::yield_now().await,
        }
    }
}

fn is_trimming(job: &JobView) -> bool {
    job.operation == "trim volume p/v"
        && job.step.as_deref().is_some_and(|step| step.starts_with("trim the file system"))
}

fn detach() -> TenantSet {
    TenantSet { detach: vec![volume("p/v")], ..TenantSet::default() }
}

#[tokio::test]
async fn all_parts_are_trimmed_and_the_answer_is_their_sum() {
    let sim = sim();
    let service = three_parts(&sim).await;
    let terms = Terms { dry_run: true, ..Terms::default() };
    let dry = service.volume_trim(volume("p/v"), terms).await.unwrap();
    assert_eq!((dry.object, service.0.engine.trimmed().len()), (None, 0));
    let done = trim(&service, "p/v").await.unwrap();
    assert_eq!(done.object.map(|view| view.trimmed_bytes), Some(Bytes::mib(3)));
    let actions = |steps: &[bulkhead_core::action::Applied]| -> Vec<String> {
        steps.iter().map(|step| step.action.to_string()).collect()
    };
    assert_eq!(actions(&done.steps), actions(&dry.steps));
    assert_eq!(done.steps[2].action.to_string(), format!("trim the file system at {MOUNTED} from 2 GiB to 3 GiB"));
    trim(&service, "p/v").await.unwrap();
    assert_eq!(
        service.0.engine.trimmed().clone().into_iter().collect::<Vec<_>>(),
        [("p".parse().unwrap(), Bytes::mib(6))]
    );
    assert_eq!(service.job_list()[0].state, JobState::Done);
}

#[tokio::test]
async fn volumes_that_must_not_be_trimmed_are_refused_with_the_reason() {
    let sim = sim();
    let service = three_parts(&sim).await;
    pool(&service, "thick", NewPoolSource::VolumeGroup { vg: "vg".into(), thin_pool: None }).await;
    pool(&service, "thin", NewPoolSource::VolumeGroup { vg: "tvg".into(), thin_pool: Some("thin".into()) }).await;
    for (name, provision, why) in [
        ("p/full", None, Some("written in advance")),
        ("thick/v", None, Some("keeps its space")),
        ("thin/full", Some(Provision::Full), Some("written in advance")),
        ("thin/v", None, None),
    ] {
        create(&service, name, Bytes::mib(64), provision).await;
        attach(&service, name).await;
        let refused = trim(&service, name).await.map_err(|fault| (fault.code, fault.cause));
        match why {
            Some(why) => {
                assert!(matches!(&refused, Err((Code::Unsupported, cause)) if cause.contains(why)), "{refused:?}")
            }
            None => assert!(refused.is_ok(), "{refused:?}"),
        }
    }
    let snapshot = VolumeCopy::new("s".parse().unwrap(), true);
    service.volume_copy(volume("p/v"), snapshot, Terms::default()).await.unwrap();
    // Nor does a copy of a volume written in advance get holes.
    let of_full = VolumeCopy::new("of-full".parse().unwrap(), true);
    service.volume_copy(volume("p/full"), of_full, Terms::default()).await.unwrap();
    for (name, why) in [("p/s", "read-only"), ("p/full", "refuses discards")] {
        let fault = trim(&service, name).await.unwrap_err();
        assert!(fault.code == Code::Unsupported && fault.cause.contains(why), "{fault}");
    }
    service.tenant_set("p-v".parse().unwrap(), detach(), Terms::default()).await.unwrap();
    let fault = trim(&service, "p/v").await.unwrap_err();
    assert_eq!(fault.code, Code::InvalidArgument);
    assert!(
        fault.cause.starts_with("it is not mounted")
            && matches!(fault.reason.as_deref(), Some(Reason::VolumeNotAttached { .. })),
        "{fault:?}"
    );
    assert_eq!(trim(&service, "p/none").await.map_err(|fault| fault.code), Err(Code::NotFound));
}

/// Other operations wait for the current part only.
#[tokio::test]
async fn detaching_the_volume_between_two_parts_ends_trimming() {
    let sim = sim();
    let service = three_parts(&sim).await;
    sim.set_slow(MOUNTED.as_ref(), true);
    let trimming = begin(&service);
    job(&service, is_trimming).await;
    let detaching = {
        let service = service.clone();
        tokio::spawn(async move { service.tenant_set("p-v".parse().unwrap(), detach(), Terms::default()).await })
    };
    job(&service, |job| job.state == JobState::Waiting).await;
    sim.set_slow(MOUNTED.as_ref(), false);
    let fault = trimming.await.unwrap().unwrap_err();
    assert_eq!((fault.code, fault.object.as_str()), (Code::InvalidArgument, "volume p/v"));
    assert_eq!(
        fault.cause,
        "it was detached while it was being trimmed; by then 1 MiB of free space in its first 1 GiB had been trimmed"
    );
    detaching.await.unwrap().unwrap();
}

#[tokio::test]
async fn between_two_parts_others_can_claim_the_volume_and_trimming_can_be_cancelled() {
    let sim = sim();
    let service = three_parts(&sim).await;
    sim.set_slow(MOUNTED.as_ref(), true);
    let trimming = begin(&service);
    job(&service, is_trimming).await;
    let (go, may_end) = channel::<()>();
    let other = {
        let (service, claim) = (service.clone(), Claim::default().volume(&volume("p/v")));
        let work = move |_: &Engine| {
            may_end.recv().unwrap();
            Ok(())
        };
        tokio::spawn(async move { service.change(Terms::default(), "other".to_owned(), claim, work).await })
    };
    job(&service, |job| job.operation == "other" && job.state == JobState::Waiting).await;
    sim.set_slow(MOUNTED.as_ref(), false);
    let waiting = job(&service, |job| is_trimming(job) && job.state == JobState::Waiting).await;
    service.job_cancel(waiting.id).unwrap();
    let fault = trimming.await.unwrap().unwrap_err();
    assert_eq!(fault.code, Code::Cancelled);
    assert_eq!(fault.cause, "it was cancelled; by then 1 MiB of free space in its first 1 GiB had been trimmed");
    assert_eq!(service.job_inspect(waiting.id).unwrap().state, JobState::Cancelled);
    go.send(()).unwrap();
    other.await.unwrap().unwrap();
}

#[tokio::test]
async fn trimming_ends_with_its_client_and_can_be_cancelled_within_a_part() {
    let sim = sim();
    let service = three_parts(&sim).await;
    sim.set_slow(MOUNTED.as_ref(), true);
    for is_cancelled in [false, true] {
        let trimming = begin(&service);
        let id = job(&service, |job| is_trimming(job) && job.state == JobState::Running).await.id;
        if is_cancelled {
            service.job_cancel(id).unwrap();
        } else {
            trimming.abort();
        }
        job(&service, |job| job.id == id && job.state == JobState::Cancelled).await;
        drop(trimming);
    }
    // The volume is free.
    sim.set_slow(MOUNTED.as_ref(), false);
    assert_eq!(trim(&service, "p/v").await.unwrap().steps.len(), 3);
}

#[tokio::test]
async fn a_crash_after_any_part_leaves_nothing_to_recover() {
    for parts in 0..3 {
        let sim = sim();
        let service = three_parts(&sim).await;
        sim.crash_after(Some(parts));
        assert_eq!(trim(&service, "p/v").await.map_err(|fault| fault.code), Err(Code::Internal));
        sim.crash_after(None);
        let next = service_on(&sim);
        assert!(next.0.engine.problems().is_empty(), "{:?}", next.0.engine.problems());
        assert_eq!(trim(&next, "p/v").await.unwrap().steps.len(), 3);
    }
}
