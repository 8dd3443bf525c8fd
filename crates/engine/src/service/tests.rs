//! Concurrent operations on the simulated host.

use std::sync::Condvar;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};

use bulkhead_api::routes::VolumeFilter;
use bulkhead_api::wire::{
    JobState, LeaseCreate, NewPoolSource, PoolCreate, TenantCreate, TenantSet, VolumeCopy, VolumeCreate,
};
use bulkhead_core::finding::Finding;
use bulkhead_core::model::{FrontEnd, LeaseUser, Server, VolumeRef};
use bulkhead_core::units::Bytes;

use super::*;
use crate::carry_out::Executor;
use crate::engine::Dirs;
use crate::locks::Object;
use crate::sim::{Observed, Sim};

fn service_on(sim: &Sim, observe: Arc<dyn Observe>) -> Service {
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    Service::new(engine, serde_json::Value::Null, observe, "/run/x.sock".into())
}

fn service() -> Service {
    service_on(&Sim::default(), Arc::new(Observed::default()))
}

fn at_once() -> Terms {
    Terms { wait: Duration::from_millis(1), ..Terms::default() }
}

fn device(name: &str) -> Claim {
    Claim::default().changes(Object::Device(name.to_owned()))
}

/// A running operation on a device, which ends on a signal.
async fn begin(service: &Service, name: &str) -> (tokio::task::JoinHandle<Result<&'static str, Fault>>, Sender<()>) {
    let (go, may_end): (Sender<()>, Receiver<()>) = channel();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (service, claim) = (service.clone(), device(name));
    let running = tokio::spawn(async move {
        let work = move |_: &Engine| {
            begun.send(()).unwrap();
            may_end.recv().unwrap();
            Ok("finished")
        };
        service.change(Terms::default(), "test".to_owned(), claim, work).await
    });
    has_begun.await.unwrap();
    (running, go)
}

/// Blocks observations until it is opened.
#[derive(Debug, Default)]
struct Gate(Mutex<bool>, Condvar);

impl Observe for Gate {
    fn observe(&self, _waits: Duration) -> Result<Observation, Fault> {
        drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
        Ok(Observation::default())
    }

    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
}

#[tokio::test]
async fn abandoned_observations_count_towards_the_limit_while_they_block_a_thread() {
    let gate = Arc::new(Gate::default());
    let service = service_on(&Sim::default(), gate.clone());
    for _ in 0..MAX_OBSERVATIONS {
        // Polled once, as by a scraper that disconnects: the request is started.
        tokio::select! { biased; _ = service.observe(Duration::ZERO) => panic!("the gate is shut"), () = std::future::ready(()) => {} }
    }
    let n_free = service.0.observations.available_permits();
    // Before any assertion: threads that wait at the gate would keep the test from ending.
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert_eq!(n_free, 0);
    service.observe(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn a_panic_is_an_internal_fault_and_the_next_operation_works() {
    let service = service();
    let claim = || device("sda");
    let broken =
        service.change::<()>(Terms::default(), "break".to_owned(), claim(), |_| panic!("the {} broke", "wheel"));
    let fault = broken.await.unwrap_err();
    assert_eq!(fault.code, Code::Internal);
    assert!(fault.cause.ends_with("a bug in Bulkhead: the wheel broke"), "{fault}");
    assert_eq!(service.job_list()[0].state, JobState::Failed);
    assert_eq!(service.change(Terms::default(), "mend".to_owned(), claim(), |_| Ok(1)).await, Ok(1));
}

#[tokio::test]
async fn an_operation_delays_only_others_on_the_same_object() {
    let service = service();
    let (running, go) = begin(&service, "sda").await;
    assert_eq!(service.change(Terms::default(), "other".to_owned(), device("sdb"), |_| Ok(1)).await, Ok(1));
    assert_eq!(service.pool_list().await, Ok(vec![]));
    service.hold_step().await;
    service.tick();
    let fault = service.change(at_once(), "same".to_owned(), device("sda"), |_| Ok(())).await.unwrap_err();
    assert_eq!((fault.code, fault.object.as_str()), (Code::InUse, "device sda"));
    assert!(fault.cause.starts_with("nothing was changed") && fault.cause.contains("job 1 (test)"), "{fault}");
    go.send(()).unwrap();
    assert_eq!(running.await.unwrap(), Ok("finished"));
}

#[tokio::test]
async fn a_waiting_job_can_be_cancelled_and_ends_with_its_client() {
    let service = service();
    let (running, go) = begin(&service, "sda").await;
    let second = {
        let service = service.clone();
        tokio::spawn(
            async move { service.change(Terms::default(), "second".to_owned(), device("sda"), |_| Ok(())).await },
        )
    };
    let waiting = |service: &Service| service.job_list().into_iter().find(|job| job.state == JobState::Waiting);
    let job = loop {
        match waiting(&service) {
            Some(job) => break job,
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!((job.operation.as_str(), &job.waits_for[..]), ("second", &[1][..]));
    service.job_cancel(job.id).unwrap();
    assert_eq!(second.await.unwrap().map_err(|fault| fault.code), Err(Code::Cancelled));
    {
        let third = service.change(Terms::default(), "third".to_owned(), device("sda"), |_| Ok(()));
        tokio::select! { biased; _ = third => panic!("not its turn"), () = std::future::ready(()) => {} }
    }
    go.send(()).unwrap();
    assert_eq!(running.await.unwrap(), Ok("finished"));
    assert_eq!(service.change(Terms::default(), "fourth".to_owned(), device("sda"), |_| Ok(4)).await, Ok(4));
}

/// The plugin may be restarted while the end of a lease waits, and Docker does not repeat an Unmount.
#[tokio::test]
async fn the_end_of_a_lease_does_not_end_with_its_client() {
    let service = slow_volume(&Sim::default()).await;
    let volume: VolumeRef = "p/v".parse().unwrap();
    let user = LeaseUser { front_end: FrontEnd::Docker, id: "1".to_owned() };
    let request = LeaseCreate {
        tenant: "t".parse().unwrap(),
        volumes: vec![volume.clone()],
        pid: None,
        user: Some(user),
        selinux_context: None,
    };
    let lease = service.lease_create(request, Terms::default()).await.unwrap().leases.remove(0);
    let (go, may_end) = channel();
    let other = {
        let (service, claim) = (service.clone(), Claim::default().volume(&volume));
        let work = move |_: &Engine| may_end.recv().map_err(|error| Fault::new(Code::Internal, "test", error));
        tokio::spawn(async move { service.change(Terms::default(), "other".to_owned(), claim, work).await })
    };
    let has = |state: JobState| service.job_list().iter().any(|job| job.state == state);
    while !has(JobState::Running) {
        tokio::task::yield_now().await;
    }
    {
        let client = service.lease_remove(lease.id, Terms::default());
        tokio::pin!(client);
        while !has(JobState::Waiting) {
            tokio::select! { biased; _ = &mut client => panic!("not its turn"), () = tokio::task::yield_now() => {} }
        }
    }
    assert_eq!(service.lease_list().await.unwrap().len(), 1);
    go.send(()).unwrap();
    other.await.unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(60), async {
        while !service.lease_list().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

/// The claimed object may have changed by the time it is free.
#[tokio::test]
async fn a_claim_is_resolved_again_once_it_is_granted() {
    let service = service();
    let (running, go) = begin(&service, "sda").await;
    let is_moved = Arc::new(AtomicBool::new(false));
    let moved = {
        let (service, is_moved) = (service.clone(), Arc::clone(&is_moved));
        tokio::spawn(async move {
            let find = move |_: &Engine| Ok(device(if is_moved.load(SeqCst) { "sdb" } else { "sda" }));
            service.change_with(Terms::default(), "moved".to_owned(), find, |_| Ok(())).await
        })
    };
    while !service.job_list().iter().any(|job| job.state == JobState::Waiting) {
        tokio::task::yield_now().await;
    }
    is_moved.store(true, SeqCst);
    go.send(()).unwrap();
    assert_eq!(running.await.unwrap(), Ok("finished"));
    assert_eq!(moved.await.unwrap(), Ok(()));
    let job = service.job_list().into_iter().find(|job| job.operation == "moved").unwrap();
    assert_eq!((job.state, &job.objects[..]), (JobState::Done, &["device sdb".to_owned()][..]));
}

#[tokio::test]
async fn closing_waits_for_running_jobs_and_refuses_waiting_ones() {
    let service = service();
    let (running, go) = begin(&service, "sda").await;
    let mut waiting = Box::pin(service.change(Terms::default(), "waits".to_owned(), device("sda"), |_| Ok(())));
    tokio::select! { biased; _ = &mut waiting => panic!("not its turn"), () = std::future::ready(()) => {} }
    let mut closing = Box::pin(service.close());
    tokio::select! { biased; () = &mut closing => panic!("it did not wait"), () = std::future::ready(()) => {} }
    assert_eq!(waiting.await.map_err(|fault| fault.code), Err(Code::Unavailable));
    let late = service.change(Terms::default(), "late".to_owned(), device("sdb"), |_| Ok(()));
    assert_eq!(late.await.map_err(|fault| fault.code), Err(Code::Unavailable));
    assert_eq!(service.running(), ["job 1 (test)"]);
    go.send(()).unwrap();
    assert_eq!(running.await.unwrap(), Ok("finished"));
    closing.await;
}

/// A volume of tenant `t`, whose dirty data takes forever to be written.
async fn slow_volume(sim: &Sim) -> Service {
    let service = service_on(sim, Arc::new(Observed::default()));
    let source = NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto };
    service.pool_create(PoolCreate { name: "p".parse().unwrap(), source }, Terms::default()).await.unwrap();
    let volume = "p/v".parse().unwrap();
    let request = VolumeCreate::new(volume, Bytes::mib(64));
    service.volume_create(request, Terms::default()).await.unwrap();
    let name = "t".parse().unwrap();
    let request = TenantCreate { volumes: vec!["p/v".parse().unwrap()], ..TenantCreate::new(name) };
    service.tenant_create(request, Terms::default()).await.unwrap();
    sim.set_slow("/run/bulkhead/mnt/p/v".as_ref(), true);
    service
}

fn snapshot() -> VolumeCopy {
    VolumeCopy::new("s".parse().unwrap(), true)
}

fn detach() -> TenantSet {
    TenantSet { detach: vec!["p/v".parse().unwrap()], ..TenantSet::default() }
}

#[tokio::test]
async fn a_wait_for_a_slow_tenants_data_times_out_without_a_change() {
    let sim = Sim::default();
    let service = slow_volume(&sim).await;
    let volume = || "p/v".parse().unwrap();
    let before = service.volume_list(VolumeFilter::default()).await.unwrap();
    let fault = service.volume_copy(volume(), snapshot(), at_once()).await.unwrap_err();
    assert_eq!(fault.code, Code::InUse);
    assert!(fault.cause.contains("nothing was changed") && fault.cause.contains("sync the file system"), "{fault}");
    let fault = service.tenant_set("t".parse().unwrap(), detach(), at_once()).await.unwrap_err();
    assert_eq!(fault.code, Code::InUse);
    assert_eq!(service.volume_list(VolumeFilter::default()).await.unwrap(), before);
    sim.set_slow("/run/bulkhead/mnt/p/v".as_ref(), false);
    service.volume_copy(volume(), snapshot(), at_once()).await.unwrap();
    service.tenant_set("t".parse().unwrap(), detach(), at_once()).await.unwrap();
}

#[tokio::test]
async fn a_slow_tenant_delays_neither_others_nor_shutdown() {
    let sim = Sim::default();
    let service = slow_volume(&sim).await;
    let copying = {
        let service = service.clone();
        tokio::spawn(async move { service.volume_copy("p/v".parse().unwrap(), snapshot(), Terms::default()).await })
    };
    while !service.job_list().iter().any(|job| job.step.as_deref().is_some_and(|step| step.starts_with("sync"))) {
        tokio::task::yield_now().await;
    }
    let volume = "p/other".parse().unwrap();
    let request = VolumeCreate::new(volume, Bytes::mib(64));
    service.volume_create(request, at_once()).await.unwrap();
    service.close().await;
    assert_eq!(copying.await.unwrap().map_err(|fault| fault.code), Err(Code::Unavailable));
}
