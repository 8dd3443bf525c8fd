//! Connections that become streams, and the workers and jobs behind them.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use bulkhead_api::client::{Stream, Streamed};
use bulkhead_api::wire::{DeviceMeasure, ImageImport, JobResult, JobState, JobView, VolumeSend};
use bulkhead_core::model::Server;
use bulkhead_core::name::Name;
use bulkhead_core::slices::{self, server};
use bulkhead_core::stream::StreamHeader;

use uuid::Uuid;

use super::*;
use crate::sim::worker::{BASE, SENT, WorkerBehavior, calibration};

const LIMIT: Duration = Duration::from_secs(30);

/// A daemon with a pool that has a snapshot.
async fn with_snapshot(dir: &TempDir, sim: &Sim) -> Daemon {
    let daemon = Daemon::start(dir, sim).await;
    make_pool(&daemon.client).await;
    daemon.client.volume_create(&volume_create("fast/data"), false).await.unwrap();
    let copy = VolumeCopy::new("snap".parse().unwrap(), true);
    daemon.client.volume_copy(&volume("fast/data"), &copy, false).await.unwrap();
    daemon
}

async fn send(daemon: &Daemon) -> Result<Stream, Fault> {
    match daemon.client.volume_send(&volume("fast/snap"), &VolumeSend::default(), false).await? {
        Streamed::Stream(stream) => Ok(stream),
        Streamed::Planned(done) => panic!("a dry run: {done:?}"),
    }
}

/// All that comes from a stream.
async fn read(stream: Stream) -> Vec<u8> {
    let read = tokio::task::spawn_blocking(move || {
        let (mut all, mut socket) = (stream.ahead.to_vec(), stream.socket);
        socket.read_to_end(&mut all).map(|_| all)
    });
    tokio::time::timeout(LIMIT, read).await.expect("the stream ends").unwrap().unwrap()
}

async fn ended(daemon: &Daemon, job: u64) -> JobView {
    let view = daemon.client.job_at_end(job, LIMIT).await.unwrap();
    assert!(view.ended_seconds_ago.is_some(), "{view:?}");
    view
}

#[tokio::test]
async fn a_worker_that_sends_is_charged_to_the_tenant_if_there_is_one() {
    let (dir, sim) = (dir(), sim());
    let daemon = with_snapshot(&dir, &sim).await;
    let planned = daemon.client.volume_send(&volume("fast/snap"), &VolumeSend::default(), true).await.unwrap();
    assert!(matches!(planned, Streamed::Planned(done) if done.dry_run && !done.steps.is_empty()));
    assert!(sim.started().is_empty());

    let stream = send(&daemon).await.unwrap();
    let job = stream.job;
    assert_eq!(read(stream).await, SENT);
    let view = ended(&daemon, job).await;
    assert_eq!((view.state, view.operation.as_str()), (JobState::Done, "send volume fast/snap"));
    assert_eq!(view.result, Some(JobResult::Sent { read_bytes: Bytes(SENT.len() as u64) }));
    assert_eq!(view.progress.unwrap().of_bytes, Some(Bytes::mib(64)));
    assert_eq!(sim.started()[0].cgroup, slices::work());
    assert!(sim.leftovers().cgroups.is_empty(), "{:?}", sim.leftovers().cgroups);

    let (name, volumes) = ("db".parse().unwrap(), vec![volume("fast/snap")]);
    let tenant = TenantCreate { volumes, ..TenantCreate::new(name) };
    daemon.client.tenant_create(&tenant, false).await.unwrap();
    let before = sim.leftovers();
    let stream = send(&daemon).await.unwrap();
    assert_eq!(read(stream).await, SENT);
    assert_eq!(sim.started()[1].cgroup, server(&tenant.name));
    assert_eq!(sim.leftovers(), before);
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn bytes_after_the_request_are_the_beginning_of_the_stream() {
    let (dir, sim) = (dir(), sim());
    let daemon = with_snapshot(&dir, &sim).await;
    let socket = daemon.client.socket().to_owned();
    // As much as one read returns.
    let ahead: Vec<u8> = (0..6000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let wanted = [SENT, &ahead].concat();
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(socket).unwrap();
        let head = "POST /v1/volumes/fast/snap/send HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\n\
                    Upgrade: bulkhead-stream\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(&[head.as_bytes(), &ahead].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    });
    let answer = tokio::time::timeout(LIMIT, answer).await.expect("an answer").unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    assert!(head.starts_with("http/1.1 101 ") && head.contains("\r\nupgrade: bulkhead-stream\r\n"), "{head}");
    assert!(head.contains("\r\nbulkhead-job: "), "{head}");
    assert!(answer[end..] == wanted, "{} bytes instead of {}", answer.len() - end, wanted.len());
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn refusals_precede_the_upgrade_to_a_stream() {
    let (dir, sim) = (dir(), sim());
    let daemon = with_snapshot(&dir, &sim).await;
    // Neither with a stream nor a dry run.
    let (status, fault) = daemon.raw(Method::POST, "/v1/volumes/fast/snap/send", "{}").await;
    assert_eq!((status, fault["code"].as_str()), (426, Some("invalid_argument")), "{fault}");
    assert!(fault["cause"].as_str().unwrap().contains("bulkhead-stream"), "{fault}");
    for (name, code) in [("fast/data", Code::InvalidArgument), ("fast/none", Code::NotFound)] {
        let refused = daemon.client.volume_send(&volume(name), &VolumeSend::default(), false).await;
        assert_eq!(refused.unwrap_err().code, code, "{name}");
    }
    assert!(sim.started().is_empty());
    let fault = Fault::new(Code::InUse, "thin pool", "snapshots are being compared").hint("wait");
    sim.set_behavior(WorkerBehavior::Refuses(fault.clone()));
    assert_eq!(send(&daemon).await.unwrap_err(), fault);
    let job = daemon.client.job_list().await.unwrap()[0].clone();
    assert_eq!((job.state, job.fault), (JobState::Failed, Some(fault)));
    assert!(sim.leftovers().cgroups.is_empty());
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_job_reports_that_its_worker_died() {
    let (dir, sim) = (dir(), sim());
    sim.set_behavior(WorkerBehavior::Dies);
    let daemon = with_snapshot(&dir, &sim).await;
    let stream = send(&daemon).await.unwrap();
    let job = stream.job;
    assert!(read(stream).await.is_empty());
    let fault = ended(&daemon, job).await.fault.unwrap();
    assert_eq!(fault.code, Code::Internal);
    assert!(fault.cause.contains("without a report (signal: 9"), "{fault}");
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_job_ends_its_stream_and_a_disconnected_client_its_job() {
    let (dir, sim) = (dir(), sim());
    sim.set_behavior(WorkerBehavior::Hangs);
    let daemon = with_snapshot(&dir, &sim).await;
    let stream = send(&daemon).await.unwrap();
    let job = stream.job;
    // The job continues, and the volume is free for other operations.
    let view = daemon.client.job_at_end(job, Duration::from_secs(1)).await.unwrap();
    assert_eq!((view.state, view.ended_seconds_ago), (JobState::Running, None));
    daemon.client.volume_map(&volume("fast/data"), false).await.unwrap();
    daemon.client.volume_unmap(&volume("fast/data"), false).await.unwrap();
    daemon.client.job_cancel(job).await.unwrap();
    assert_eq!(read(stream).await, SENT);
    assert_eq!(ended(&daemon, job).await.state, JobState::Cancelled);

    let stream = send(&daemon).await.unwrap();
    let job = stream.job;
    drop(stream);
    assert_eq!(ended(&daemon, job).await.state, JobState::Failed);
    assert!(sim.leftovers().cgroups.is_empty());

    // A stopping daemon does not wait for transfers.
    let stream = send(&daemon).await.unwrap();
    let stopped = tokio::time::timeout(Duration::from_secs(10), daemon.stop());
    stopped.await.expect("it stops").unwrap();
    read(stream).await;
}

/// A daemon with a pool that can receive.
async fn with_file_pool(dir: &TempDir, sim: &Sim) -> Daemon {
    let daemon = Daemon::start(dir, sim).await;
    let source = NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto };
    daemon.client.pool_create(&PoolCreate { name: "files".parse().unwrap(), source }, false).await.unwrap();
    daemon
}

fn header() -> StreamHeader {
    StreamHeader {
        content: Uuid::from_u128(7),
        base: None,
        size_bytes: Bytes::mib(64),
        start_bytes: Bytes(0),
        data_bytes: Bytes::mib(1),
        fs: VolumeFs::Ext4,
        snapshot: "elsewhere/s".to_owned(),
    }
}

async fn receive(daemon: &Daemon) -> Result<Stream, Fault> {
    match daemon.client.volume_receive(&volume("files/r"), &header(), None, false).await? {
        Streamed::Stream(stream) => Ok(stream),
        Streamed::Planned(done) => panic!("a dry run: {done:?}"),
    }
}

#[tokio::test]
async fn a_received_stream_becomes_a_volume() {
    let (dir, sim) = (dir(), sim());
    let daemon = with_file_pool(&dir, &sim).await;
    let planned = daemon.client.volume_receive(&volume("files/r"), &header(), None, true).await.unwrap();
    assert!(matches!(planned, Streamed::Planned(done) if done.dry_run && !done.steps.is_empty()));
    let elsewhere = daemon.client.volume_receive(&volume("none/r"), &header(), None, false).await;
    assert_eq!(elsewhere.unwrap_err().code, Code::NotFound);

    // A failed transfer keeps what it has received, and the next one resumes it.
    let fault = Fault::new(Code::Corrupt, "volume files/r", "the stream is truncated");
    sim.set_behavior(WorkerBehavior::Fails(fault.clone()));
    let stream = receive(&daemon).await.unwrap();
    let job = stream.job;
    (&stream.socket).write_all(b"half").unwrap();
    drop(stream);
    assert_eq!(ended(&daemon, job).await.fault, Some(fault));
    assert_eq!(daemon.client.volume_receiving(&volume("files/r")).await.unwrap().content, header().content);

    sim.set_behavior(WorkerBehavior::Works);
    let stream = receive(&daemon).await.unwrap();
    let job = stream.job;
    (&stream.socket).write_all(b"a whole stream").unwrap();
    stream.socket.shutdown(std::net::Shutdown::Write).unwrap();
    let view = ended(&daemon, job).await;
    assert_eq!(view.state, JobState::Done);
    let Some(JobResult::Received(done)) = view.result.clone() else { panic!("{view:?}") };
    assert_eq!(done.object, Some(daemon.client.volume_inspect(&volume("files/r")).await.unwrap()));
    assert_eq!(sim.received(), b"a whole stream");
    assert_eq!(receive(&daemon).await.unwrap_err().code, Code::AlreadyExists);
    assert!(sim.leftovers().cgroups.is_empty() && sim.leftovers().staging_files.is_empty());
    daemon.stop().await.unwrap();
}

fn archive() -> ImageImport {
    let source = "tree.tar".to_owned();
    ImageImport {
        source,
        size_bytes: None,
        platform: None,
        reference: None,
        strict: false,
        staging: None,
        tenant: None,
    }
}

async fn import(daemon: &Daemon, staging: Option<&str>) -> Result<Stream, Fault> {
    let staging = staging.map(PathBuf::from);
    match daemon.client.volume_import(&volume("files/base"), &ImageImport { staging, ..archive() }, false).await? {
        Streamed::Stream(stream) => Ok(stream),
        Streamed::Planned(done) => panic!("a dry run: {done:?}"),
    }
}

/// Writes the whole archive; the client then waits.
fn write_all(stream: &Stream) {
    (&stream.socket).write_all(b"an archive").unwrap();
    stream.socket.shutdown(std::net::Shutdown::Write).unwrap();
}

#[tokio::test]
async fn an_incomplete_import_leaves_nothing() {
    let (dir, sim) = (dir(), sim());
    let daemon = with_file_pool(&dir, &sim).await;
    for staging in ["relative", "/srv/../etc", "/home/alice/tmp"] {
        assert_eq!(import(&daemon, Some(staging)).await.unwrap_err().code, Code::InvalidArgument, "{staging}");
    }
    let before = sim.leftovers();
    let fault = Fault::new(Code::NoSpace, "volume files/base", "it does not fit");
    sim.set_behavior(WorkerBehavior::Fails(fault.clone()));
    let stream = import(&daemon, None).await.unwrap();
    write_all(&stream);
    assert_eq!(ended(&daemon, stream.job).await.fault, Some(fault));
    assert_eq!(daemon.client.volume_receiving(&volume("files/base")).await.unwrap_err().code, Code::NotFound);

    // One whose client disconnects after sending everything, and one that is cancelled.
    sim.set_behavior(WorkerBehavior::Hangs);
    for is_cancelled in [false, true] {
        let stream = import(&daemon, None).await.unwrap();
        let job = stream.job;
        write_all(&stream);
        while daemon.client.volume_receiving(&volume("files/base")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if is_cancelled {
            daemon.client.job_cancel(job).await.unwrap();
        } else {
            drop(stream);
        }
        assert_eq!(ended(&daemon, job).await.state, JobState::Cancelled);
        assert_eq!(daemon.client.volume_receiving(&volume("files/base")).await.unwrap_err().code, Code::NotFound);
    }
    assert_eq!(sim.leftovers(), before);

    sim.set_behavior(WorkerBehavior::Works);
    let stream = import(&daemon, Some("/srv/staging")).await.unwrap();
    write_all(&stream);
    let view = ended(&daemon, stream.job).await;
    let Some(JobResult::Imported { done, content, entries, .. }) = view.result.clone() else { panic!("{view:?}") };
    assert_eq!((content, entries, sim.received()), (BASE, 7, b"an archive".to_vec()));
    assert!(done.object.unwrap().read_only);
    daemon.stop().await.unwrap();
}

/// A named tenant pays for a transfer or an import; the volume is not attached to it.
#[tokio::test]
async fn a_named_tenant_pays_for_transfers_and_imports() {
    let (dir, sim) = (dir(), sim());
    let daemon = with_file_pool(&dir, &sim).await;
    let (client, db): (_, Name) = (&daemon.client, "db".parse().unwrap());
    let (receiver, base) = (volume("files/r"), volume("files/base"));
    let import = ImageImport { tenant: Some(db.clone()), ..archive() };
    // A missing tenant is refused with a hint, before anything is created.
    let before = sim.leftovers();
    for dry_run in [false, true] {
        let faults = [
            client.volume_receive(&receiver, &header(), Some(&db), dry_run).await.unwrap_err(),
            client.volume_import(&base, &import, dry_run).await.unwrap_err(),
        ];
        for fault in faults {
            let reason = Some(Reason::NoSuchTenant { tenant: db.clone() });
            assert_eq!((fault.code, fault.reason.map(|reason| *reason)), (Code::NotFound, reason));
        }
    }
    assert_eq!((sim.leftovers(), sim.started()), (before, vec![]));

    let tenant = TenantCreate::new(db.clone());
    client.tenant_create(&tenant, false).await.unwrap();
    for begun in [
        client.volume_receive(&receiver, &header(), Some(&db), false).await.unwrap(),
        client.volume_import(&base, &import, false).await.unwrap(),
    ] {
        let Streamed::Stream(stream) = begun else { panic!("a dry run") };
        write_all(&stream);
        assert_eq!(ended(&daemon, stream.job).await.state, JobState::Done);
    }
    assert!(sim.started().iter().all(|spec| spec.cgroup == server(&db)), "{:?}", sim.started());
    for name in [receiver, base] {
        assert_eq!(client.volume_inspect(&name).await.unwrap().tenant, None);
    }
    assert!(client.tenant_inspect(&db).await.unwrap().volumes.is_empty());
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_device_is_measured_by_one_job_at_a_time() {
    let (dir, sim) = (dir(), sim());
    let daemon = Daemon::start(&dir, &sim).await;
    let client = &daemon.client;
    let (measure, verify) = (DeviceMeasure::default(), DeviceMeasure { verify: true, pool: None });
    assert_eq!(client.device_measure("sdz", &measure).await.unwrap_err().code, Code::NotFound);
    assert_eq!(client.device_measure("sda", &verify).await.unwrap_err().code, Code::NotFound);

    sim.set_behavior(WorkerBehavior::Hangs);
    let job = client.device_measure("/dev/sda", &measure).await.unwrap();
    assert_eq!((job.state, job.objects), (JobState::Running, vec!["device sda".to_owned()]));
    let hasty = client.clone().with_wait(Duration::ZERO);
    let refused = hasty.device_measure("sda", &measure).await.unwrap_err();
    assert!(refused.code == Code::InUse && refused.cause.contains("calibrate device /dev/sda"), "{refused}");
    let measuring =
        async { while client.job_inspect(job.id).await.unwrap().step.as_deref() != Some("the small load alone") {} };
    tokio::time::timeout(LIMIT, measuring).await.expect("the worker starts");
    client.job_cancel(job.id).await.unwrap();
    let view = ended(&daemon, job.id).await;
    assert_eq!((view.state, view.step.as_deref()), (JobState::Cancelled, Some("the small load alone")));
    assert!(client.device_inspect("sda").await.unwrap().calibration.is_none());

    sim.set_behavior(WorkerBehavior::Works);
    let job = client.device_measure("sda", &measure).await.unwrap();
    let view = ended(&daemon, job.id).await;
    assert_eq!((view.steps.unwrap().of, view.figures.len()), (2, 1));
    let Some(JobResult::Calibrated(done)) = view.result.clone() else { panic!("{view:?}") };
    assert_eq!(done.object.unwrap().calibration, Some(calibration()));
    let job = client.device_measure("sda", &verify).await.unwrap();
    assert_eq!(ended(&daemon, job.id).await.result, Some(JobResult::Verified(Vec::new())));
    assert!(sim.leftovers().cgroups.is_empty());
    daemon.stop().await.unwrap();
}
