//! The extender as a scheduler meets it: recorded requests, and answers.

#![expect(clippy::unwrap_used, reason = "these are tests, and their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_core::model::Profile;
use bulkhead_core::report::{HostReport, ReportedDevice, ReportedPool, ReportedWorkload};
use bulkhead_core::units::{Bytes, Share};
use bulkhead_extender::cluster::{Cluster, Now, Settings};
use bulkhead_extender::protocol::Args;
use bulkhead_extender::server::{Extender, Limits, now};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What the scheduler of Kubernetes 1.35.4 sent with `nodeCacheCapable: true`, for both verbs.
const FILTER: &str = include_str!("filter.json");

fn costs(per_s: f64) -> DeviceCosts {
    let cost = format!(r#"{{"latency-us": {}, "per-s": {per_s}}}"#, 4e6 / per_s);
    let both = format!(r#"{{"small": {cost}, "large": {cost}}}"#);
    let text = format!(
        r#"{{"random-read": {both}, "sequential-read": {both}, "random-write": {both}, "sequential-write": {both},
        "durable-write": {cost}, "read-write-sharing": 1, "sequential-run": 1}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn demand(clients: f64) -> Demand {
    let text = format!(
        r#"{{"clients": {clients}, "think-seconds": 0.05, "cpu-seconds": 0.0001, "durable": {{"per-operation": 1, "chain": 2}},
        "requests": [{{"access": "random-read", "bytes": 4096, "per-operation": 1}}]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// A tenant that is a copy of `workload`; without a demand if it has no clients.
fn tenant(name: &str, workload: &str, clients: f64) -> ReportedWorkload {
    let profile = (clients > 0.0).then(|| Profile {
        workload: Some(workload.parse().unwrap()),
        demand: demand(clients),
        alone_per_s: None,
        unix_seconds: 1,
    });
    ReportedWorkload {
        name: name.parse().unwrap(),
        share: Share::DEFAULT,
        device: Some("sda".to_owned()),
        space_bytes: Bytes::mib(1),
        fsync_p99_us: None,
        volumes: vec![],
        profile,
    }
}

fn report(costs: Option<DeviceCosts>, workloads: Vec<ReportedWorkload>) -> HostReport {
    let pools = vec![ReportedPool { name: "fast".parse().unwrap(), free_bytes: Some(Bytes::mib(100)) }];
    HostReport {
        version: 1,
        unix_seconds: now().unix_seconds,
        cpus: 4,
        memory_bytes: Bytes::mib(8 << 10),
        domain: None,
        devices: vec![ReportedDevice { name: "sda".to_owned(), costs, shares_work: true, pools }],
        workloads,
        n_left_out: 0,
    }
}

/// `idle` and `busy` are alike but for what runs there; `bare` has not measured its device.
fn extender() -> Extender {
    let mut cluster = Cluster::new(Settings { budget: Duration::from_secs(60), ..Settings::default() });
    cluster.set_report("idle", report(Some(costs(1000.0)), vec![]));
    cluster
        .set_report("busy", report(Some(costs(1000.0)), vec![tenant("a", "mysql", 8.0), tenant("b", "backup", 32.0)]));
    cluster.set_report("bare", report(None, vec![]));
    Extender::new(cluster, Limits::default(), "starting")
}

fn args(uid: &str, workload: Option<&str>, annotations: Value, nodes: &[&str]) -> Args {
    let labels = workload.map_or(json!({}), |workload| json!({ "bulkhead.dev/workload": workload }));
    let metadata =
        json!({ "name": "p", "namespace": "default", "uid": uid, "labels": labels, "annotations": annotations });
    serde_json::from_value(json!({ "Pod": { "metadata": metadata, "spec": {} }, "NodeNames": nodes })).unwrap()
}

fn filtered(extender: &Extender, args: &Args) -> Value {
    serde_json::from_slice(&extender.filter(args, now()).unwrap()).unwrap()
}

fn scored(extender: &Extender, args: &Args) -> Vec<(String, i64)> {
    scored_at(extender, args, now())
}

fn scored_at(extender: &Extender, args: &Args, now: Now) -> Vec<(String, i64)> {
    let list: Vec<Value> = serde_json::from_slice(&extender.prioritize(args, now).unwrap()).unwrap();
    let pair = |one: Value| (one["Host"].as_str().unwrap().to_owned(), one["Score"].as_i64().unwrap());
    list.into_iter().map(pair).collect()
}

fn score(extender: &Extender, uid: &str, nodes: &[&str]) -> Vec<i64> {
    scored(extender, &args(uid, Some("mysql"), json!({}), nodes)).into_iter().map(|(_, score)| score).collect()
}

#[test]
fn a_recorded_request_is_answered_in_go_names() {
    let extender = extender();
    let args: Args = serde_json::from_str(FILTER).unwrap();
    assert_eq!(
        filtered(&extender, &args),
        json!({
            "Nodes": null, "NodeNames": ["bare", "busy", "idle", "node-1"], "FailedNodes": {},
            "FailedAndUnresolvableNodes": {}, "Error": ""
        })
    );
    let scores = scored(&extender, &args);
    assert_eq!(scores.iter().map(|(host, _)| host.as_str()).collect::<Vec<_>>(), ["bare", "busy", "idle", "node-1"]);
    // Nodes of which nothing is known are between the idle and the busy one.
    assert!(scores[0].1 == 5 && scores[1].1 < 5 && scores[2].1 == 10 && scores[3].1 == 5, "{scores:?}");
}

#[test]
fn nodes_can_be_sent_as_objects_and_come_back_as_they_were() {
    let extender = extender();
    let item = |name: &str| json!({ "metadata": { "name": name }, "status": { "later": [1.50, null] } });
    let pod = json!({ "metadata": { "uid": "u", "labels": { "bulkhead.dev/workload": "mysql" }, "annotations":
        { "bulkhead.dev/floor": "0.9" } } });
    let sent = json!({ "pod": pod, "nodes": { "items": [item("busy"), item("idle")] } });
    let args: Args = serde_json::from_value(sent).unwrap();
    let result = filtered(&extender, &args);
    assert_eq!(result["Nodes"]["items"], json!([item("idle")]));
    assert_eq!((&result["Nodes"]["kind"], &result["NodeNames"]), (&json!("NodeList"), &Value::Null));
    let text = result["FailedNodes"]["busy"].as_str().unwrap();
    assert!(text.starts_with("mysql keeps ") && text.ends_with(" % of its throughput, less than 90 %"), "{text}");
}

#[test]
fn pods_without_a_workload_pass_everywhere_with_equal_scores() {
    let extender = extender();
    let args = args("u", None, json!({ "bulkhead.dev/floor": "x" }), &["idle", "busy", "nowhere"]);
    assert_eq!(filtered(&extender, &args)["NodeNames"], json!(["idle", "busy", "nowhere"]));
    assert!(scored(&extender, &args).iter().all(|(_, score)| *score == 0));
}

#[test]
fn what_is_not_known_passes_with_a_neutral_score_and_is_counted() {
    let extender = extender();
    let old = HostReport { unix_seconds: 7, ..report(Some(costs(1000.0)), vec![]) };
    extender.cluster().set_report("old", old);
    let ahead = HostReport { unix_seconds: now().unix_seconds + 1000, ..report(Some(costs(1000.0)), vec![]) };
    extender.cluster().set_report("ahead", ahead);
    assert_eq!(extender.cluster().counts(now())[..2], [5, 2]);
    let nodes = ["old", "bare", "nowhere"];
    let known = args("u", Some("mysql"), json!({}), &nodes);
    assert_eq!(filtered(&extender, &known)["NodeNames"], json!(nodes));
    // One of them is assumed, and so has one more.
    let mut scores: Vec<i64> = scored(&extender, &known).into_iter().map(|(_, score)| score).collect();
    scores.sort_unstable();
    assert_eq!(scores, [5, 5, 6]);
    let unknown = args("v", Some("mongodb"), json!({}), &["idle", "busy"]);
    assert_eq!(filtered(&extender, &unknown)["NodeNames"], json!(["idle", "busy"]));
    let bad = args("w", Some("mysql"), json!({ "bulkhead.dev/floor": "2" }), &["idle", "busy"]);
    assert_eq!(filtered(&extender, &bad)["NodeNames"], json!(["idle", "busy"]));
    let text = extender.metrics.text([4, 1, 0, 1]);
    for (reason, n) in [
        ("no_report", 2),
        ("stale_report", 2),
        ("no_costs", 2),
        ("unknown_workload", 2),
        ("bad_annotation", 2),
        ("no_time", 0),
    ] {
        let line = format!("bulkhead_extender_neutral_answers_total{{reason=\"{reason}\"}} {n}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn nodes_without_time_left_for_predictions_pass() {
    let settings = Settings { budget: Duration::ZERO, ..Settings::default() };
    let mut cluster = Cluster::new(settings);
    cluster.set_report("idle", report(Some(costs(1000.0)), vec![tenant("a", "mysql", 8.0)]));
    let extender = Extender::new(cluster, Limits::default(), "starting");
    assert_eq!(score(&extender, "u", &["idle"]), [6]);
    assert!(extender.metrics.text([0; 4]).contains("{reason=\"no_time\"} 1\n"));
}

#[test]
fn constraints_of_pod_and_neighbours_remove_nodes_with_the_planners_reasons() {
    let extender = extender();
    let failed = |workload: &str, annotations: Value, node: &str| {
        let result = filtered(&extender, &args("u", Some(workload), annotations, &["idle", node]));
        let cause = |key: &str| result[key][node].as_str().map(str::to_owned);
        let impossible = cause("FailedAndUnresolvableNodes").map(|cause| format!("! {cause}"));
        cause("FailedNodes").or(impossible).unwrap_or_else(|| "-".to_owned())
    };
    let text = failed("mysql", json!({ "bulkhead.dev/fsync-p99": "10ms" }), "busy");
    assert!(text.starts_with("an fsync of mysql takes ") && text.ends_with(" ms, more than 10.0 ms"), "{text}");
    assert_eq!(failed("mysql", json!({ "bulkhead.dev/space": "90M" }), "busy"), "-");
    assert_eq!(failed("mysql", json!({ "bulkhead.dev/space": "1G" }), "busy"), "! no pool has 1 GiB of free space");
    assert_eq!(failed("mysql", json!({ "bulkhead.dev/pool": "slow" }), "busy"), "! there is no pool slow");
    assert_eq!(failed("mysql", json!({ "bulkhead.dev/pool": "fast" }), "busy"), "-");
    // A promise to a neighbour that holds today.
    let mut neighbour = tenant("n", "mail", 1.0);
    neighbour.fsync_p99_us = Some(15_000);
    extender.cluster().set_report("promised", report(Some(costs(1000.0)), vec![neighbour]));
    let text = failed("backup", json!({}), "promised");
    assert!(text.starts_with("an fsync of mail takes ") && text.ends_with(" ms, more than 15.0 ms"), "{text}");
}

#[test]
fn two_pods_in_a_row_do_not_both_see_the_node_empty() {
    let extender = extender();
    let report = report(Some(costs(1000.0)), vec![]);
    extender.cluster().set_report("other", report.clone());
    let nodes = ["idle", "other"];
    let first = score(&extender, "u1", &nodes);
    let chosen = usize::from(first[1] > first[0]);
    assert_eq!(first[chosen], 10, "{first:?}");
    let second = score(&extender, "u2", &nodes);
    assert!(second[1 - chosen] == 10 && second[chosen] < 9, "{second:?}");
    // A repeated attempt does not meet itself.
    assert_eq!(score(&extender, "u2", &nodes)[1 - chosen], 10);
    // Both are seen bound on one node, whatever was preferred.
    let wish =
        bulkhead_extender::wish::Wish::of(&args("", Some("mysql"), json!({}), &[]).pod.metadata).unwrap().unwrap();
    for uid in ["u1", "u2"] {
        extender.cluster().bind(uid, nodes[chosen], wish.clone());
    }
    assert_eq!(extender.cluster().counts(now()), [4, 0, 2, 0]);
    let third = score(&extender, "u3", &nodes);
    assert!(third[1 - chosen] == 10 && third[chosen] < second[chosen], "{third:?} {second:?}");
    // The node's report has one of them as a tenant: it is not counted twice.
    extender.cluster().remove_pod("u3");
    let mut later = report.clone();
    later.workloads.push(tenant("a", "mysql", 8.0));
    extender.cluster().set_report(nodes[chosen], later.clone());
    assert_eq!(score(&extender, "u4", &nodes), third);
    extender.cluster().remove_pod("u4");
    // With both, and with one pod gone that the report still has.
    later.workloads.push(tenant("b", "mysql", 8.0));
    extender.cluster().set_report(nodes[chosen], later);
    assert_eq!(score(&extender, "u5", &nodes), third);
    extender.cluster().remove_pod("u5");
    extender.cluster().remove_pod("u1");
    assert_eq!(score(&extender, "u6", &nodes), third);
}

#[test]
fn the_last_node_that_a_filter_leaves_is_assumed_because_no_score_is_asked_for() {
    let extender = extender();
    filtered(&extender, &args("u", Some("mysql"), json!({}), &["idle"]));
    assert_eq!(extender.cluster().counts(now())[3], 1);
}

#[test]
fn an_assumption_ends() {
    let extender = extender();
    let begin = now();
    let pod = |uid: &str| args(uid, Some("mysql"), json!({}), &["idle", "busy"]);
    let first = scored_at(&extender, &pod("u1"), begin);
    assert_eq!(first[0].1, 10);
    assert!(scored_at(&extender, &pod("u2"), begin)[0].1 < 9);
    extender.cluster().remove_pod("u2");
    let later = Now { instant: begin.instant + Duration::from_secs(31), ..begin };
    assert_eq!(scored_at(&extender, &pod("u3"), later), first);
}

#[test]
fn the_latest_demand_of_a_workload_counts_and_files_go_first() {
    let extender = extender();
    let mut cluster = extender.cluster();
    let clients = |cluster: &Cluster| cluster.demand("mysql").map(|demand| demand.clients);
    assert_eq!(clients(&cluster), Some(8.0));
    let mut newer = tenant("c", "mysql", 16.0);
    newer.profile.as_mut().unwrap().unix_seconds = 2;
    cluster.set_report("other", report(Some(costs(1000.0)), vec![newer]));
    assert_eq!(clients(&cluster), Some(16.0));
    cluster.set_demands([("mysql".to_owned(), demand(2.0))].into());
    assert_eq!(clients(&cluster), Some(2.0));
    cluster.set_demands([].into());
    cluster.remove_report("other");
    assert_eq!(clients(&cluster), Some(8.0));
    cluster.remove_report("busy");
    assert_eq!(clients(&cluster), None);
}

async fn served(extender: &Arc<Extender>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Arc::clone(extender).serve(listener, std::future::pending()));
    address
}

async fn exchange(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn it_speaks_http_and_refuses_what_it_does_not_understand() {
    let extender = Arc::new(extender());
    let address = served(&extender).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(exchange(address, &get("/healthz")).await.starts_with("HTTP/1.1 200"));
    assert!(exchange(address, &get("/readyz")).await.ends_with("starting\n"));
    extender.set_ready(Ok(()));
    assert!(exchange(address, &get("/readyz")).await.starts_with("HTTP/1.1 200"));
    let answer = exchange(address, &post("/prioritize", FILTER)).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#"{"Host":"idle","Score":10}"#), "{answer}");
    let refused = exchange(address, &post("/filter", r#"{"Pod": 7}"#)).await;
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("not the arguments of an extender"), "{refused}");
    assert!(exchange(address, &get("/filter")).await.starts_with("HTTP/1.1 405"));
    assert!(exchange(address, &post("/bind", "{}")).await.contains("there is no such path; there are /filter"));
    let large = "POST /filter HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 99999999\r\n\r\n";
    assert!(exchange(address, large).await.starts_with("HTTP/1.1 413"));
    let metrics = exchange(address, &get("/metrics")).await;
    for line in [
        "{verb=\"prioritize\",outcome=\"ok\"} 1",
        "{verb=\"filter\",outcome=\"refused\"} 2",
        "bulkhead_extender_nodes 3",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}
