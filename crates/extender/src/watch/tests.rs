use std::net::SocketAddr;

use bulkhead_core::units::Bytes;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::cluster::{Cluster, Settings};
use crate::publish::Published;
use crate::server::{Limits, now};

fn extender() -> Arc<Extender> {
    Arc::new(Extender::new(Cluster::new(Settings::default()), Limits::default(), "starting"))
}

fn report(cpus: u32) -> HostReport {
    HostReport {
        version: 1,
        unix_seconds: 1,
        cpus,
        memory_bytes: Bytes::mib(1024),
        domain: None,
        devices: vec![],
        workloads: vec![],
        n_left_out: 0,
    }
}

fn node(name: &str, cpus: u32, version: &str) -> Value {
    let published = Published { node: name.to_owned(), node_uid: "u".to_owned(), report: report(cpus) };
    let mut object = published.object();
    object["metadata"]["resourceVersion"] = version.into();
    object
}

fn pod(uid: &str, node: &str) -> Value {
    json!({ "metadata": { "uid": uid, "labels": { WORKLOAD: "mysql" } }, "spec": { "nodeName": node } })
}

fn list(version: &str, items: Vec<Value>) -> Value {
    json!({ "metadata": { "resourceVersion": version }, "items": items })
}

fn cpus(extender: &Extender, node: &str) -> Option<u32> {
    extender.cluster().report_of(node).map(|report| report.cpus)
}

#[test]
fn what_is_gone_between_two_lists_is_forgotten() {
    let extender = extender();
    let mut reports = Follower::new(Kind::Reports, Arc::clone(&extender));
    let mut pods = Follower::new(Kind::Pods, Arc::clone(&extender));
    reports.listed(vec![list("5", vec![node("a", 1, "3")]), list("5", vec![node("b", 2, "4")])]).unwrap();
    pods.listed(vec![list("5", vec![pod("u", "a"), pod("v", "a")])]).unwrap();
    assert_eq!(extender.cluster().counts(now())[..1], [2]);
    assert_eq!(extender.cluster().counts(now())[2], 2);
    reports.listed(vec![list("9", vec![node("b", 3, "8")])]).unwrap();
    pods.listed(vec![list("9", vec![pod("v", "a")])]).unwrap();
    assert_eq!((cpus(&extender, "a"), cpus(&extender, "b")), (None, Some(3)));
    assert_eq!(extender.cluster().counts(now())[2], 1);
    assert!(reports.listed(vec![json!({ "items": [] })]).is_err());
}

#[test]
fn events_change_what_is_known_and_where_the_watch_goes_on() {
    let extender = extender();
    let mut reports = Follower::new(Kind::Reports, Arc::clone(&extender));
    reports.listed(vec![list("5", vec![node("a", 1, "3")])]).unwrap();
    let event = |kind: &str, object: Value| json!({ "type": kind, "object": object });
    reports.event(event("ADDED", node("b", 2, "6"))).unwrap();
    reports.event(event("MODIFIED", node("a", 4, "7"))).unwrap();
    assert_eq!((cpus(&extender, "a"), cpus(&extender, "b")), (Some(4), Some(2)));
    reports.event(event("BOOKMARK", json!({ "metadata": { "resourceVersion": "12" } }))).unwrap();
    assert_eq!(reports.version.as_deref(), Some("12"));
    reports.event(event("DELETED", node("a", 4, "13"))).unwrap();
    assert_eq!((cpus(&extender, "a"), reports.version.as_deref()), (None, Some("13")));
    // One that cannot be used is not taken for the one before.
    let mut bad = node("b", 2, "14");
    bad["report"]["version"] = 9.into();
    reports.event(event("MODIFIED", bad)).unwrap();
    assert_eq!((cpus(&extender, "b"), reports.version.as_deref()), (None, Some("14")));
    assert!(extender.metrics.text([0; 4]).contains("bulkhead_extender_unusable_reports_total 1\n"));
    // Another failure continues; an expired version does not.
    assert!(reports.event(event("ERROR", json!({ "code": 500, "message": "etcd" }))).is_err());
    assert_eq!(reports.version.as_deref(), Some("14"));
    let error = reports.event(event("ERROR", json!({ "code": 410, "message": "too old" }))).unwrap_err();
    assert_eq!((error.to_string().as_str(), reports.version), ("the watch ended: too old", None));
}

/// Answers one connection after the other with what `answers` has, and returns the targets that were asked for.
async fn server(answers: Vec<String>) -> (SocketAddr, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            asked.push(head.split(' ').nth(1).unwrap().to_owned());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        asked
    });
    (address, served)
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn a_list_has_pages_and_a_watch_goes_on_until_its_version_has_expired() {
    let extender = extender();
    let mut follower = Follower::new(Kind::Reports, Arc::clone(&extender));
    let mut first = list("5", vec![node("a", 1, "3")]);
    first["metadata"]["continue"] = "next+page".into();
    let event = json!({ "type": "MODIFIED", "object": node("a", 7, "6") });
    let answers = vec![
        answer("200 OK", &first.to_string()),
        answer("200 OK", &list("5", vec![node("b", 2, "4")]).to_string()),
        answer("200 OK", &format!("{event}\n")),
        answer("500 Internal Server Error", r#"{"message": "etcd is away"}"#),
        answer("410 Gone", r#"{"message": "too old resource version"}"#),
    ];
    let (proxy, served) = server(answers).await;
    let api = Api { proxy };
    assert!(follower.step(&api).await.unwrap(), "listed");
    assert_eq!((cpus(&extender, "a"), cpus(&extender, "b")), (Some(1), Some(2)));
    assert!(!follower.step(&api).await.unwrap(), "watched");
    assert_eq!((cpus(&extender, "a"), follower.version.as_deref()), (Some(7), Some("6")));
    let error = format!("{:#}", follower.step(&api).await.unwrap_err());
    assert!(error.contains("the answer is 500 Internal Server Error: etcd is away"), "{error}");
    assert_eq!(follower.version.as_deref(), Some("6"), "continued there");
    assert!(!follower.step(&api).await.unwrap());
    assert_eq!(follower.version, None, "a list comes next");
    let asked = served.await.unwrap();
    assert_eq!(asked[0], "/apis/bulkhead.dev/v1alpha1/nodereports?limit=500&continue=");
    assert_eq!(asked[1], "/apis/bulkhead.dev/v1alpha1/nodereports?limit=500&continue=next%2Bpage");
    assert!(asked[2].ends_with("&timeoutSeconds=290&resourceVersion=5") && asked[3].ends_with("resourceVersion=6"));
    assert!(follower.step(&api).await.is_err(), "nobody listens any more");
}

#[test]
fn pods_are_selected_by_the_server() {
    assert_eq!(
        Kind::Pods.target(),
        "/api/v1/pods?labelSelector=bulkhead.dev%2Fworkload&fieldSelector=spec.nodeName%21%3D%2Cstatus.phase%21%3D\
         Succeeded%2Cstatus.phase%21%3DFailed&"
    );
}
