//! The shipped rules and dashboard, checked with a real Prometheus that scrapes the daemon: all their metrics exist.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::host::{json, start_daemon_as};
use super::observe::SLOW;
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::process::Process;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "metrics_in_prometheus",
    about: "a real Prometheus has values for all expressions of the rules and the dashboard, and an alert names victim \
            and culprit",
    kernels: &[Kernel::V6_12],
    profile: SLOW,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(metrics_in_prometheus(ctx)),
}];

const RULES: &str = include_str!("../../../../contrib/prometheus/bulkhead.rules.yml");
const RULE_TESTS: &str = include_str!("../../../../contrib/prometheus/bulkhead.rules.test.yml");
const DASHBOARD: &str = include_str!("../../../../contrib/grafana/bulkhead.json");

/// Panels and alerts whose result may be empty, with the reason.
const MAY_BE_EMPTY: [(&str, &str); 4] = [
    ("Unattributed journal bytes", "on a quiet start every container can be named; empty is the desired result"),
    ("BulkheadFindingCritical", "nothing is critical here"),
    ("BulkheadPoolMetadataNearlyFull", "no pool is on a thin pool here"),
    ("BulkheadObservationLimited", "nothing limits the observation on this kernel"),
];

const METRICS: &str = "127.0.0.1:9477";
const PROMETHEUS: &str = "127.0.0.1:9090";
const CONFIG: &str = "
global: { scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s }
rule_files: [/run/prometheus/now.rules.yml]
scrape_configs: [{ job_name: bulkhead, static_configs: [{ targets: ['127.0.0.1:9477'] }] }]
";
/// Time limit of an emulated Prometheus for what takes a second on real hardware.
const LIMIT: Duration = Duration::from_secs(120);
/// Number of scrapes with a wait of the victim that is enough for rates.
const SCRAPES: f64 = 5.0;

/// Values of Grafana's variables: either all, or one of each.
struct Variables {
    about: &'static str,
    values: Vec<(&'static str, String)>,
}

async fn metrics_in_prometheus(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let packages = async { anyhow::Ok((ctx.lab.package("prometheus").await?, ctx.lab.package("promtool").await?)) };
    let (prometheus, promtool) = match packages.await {
        Ok((prometheus, promtool)) => {
            ctx.log(format!("{}, {}", prometheus.version, promtool.version));
            (prometheus.path("usr/bin/prometheus"), promtool.path("usr/bin/promtool"))
        }
        Err(error) => {
            return Ok(Outcome::Skipped(format!("Debian's prometheus and promtool are not available: {error:#}")));
        }
    };
    let disk = ctx.machine.disk(0).await?;
    ctx.machine
        .sh(&format!(
            "ip link set lo up; mkdir -p /run/prometheus /run/shared; mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 {disk}; mount \
             {disk} /run/shared; cd /sys/fs/cgroup; echo '+io +memory' > cgroup.subtree_control; mkdir test.slice; echo '+io \
             +memory' > test.slice/cgroup.subtree_control; mkdir test.slice/victim.service test.slice/culprit.service"
        ))
        .await?;
    check_rules(ctx, &promtool).await?;
    let prometheus = start_prometheus(ctx, &prometheus).await?;
    let program = ctx.program("bulkhead");
    let daemon = start_daemon_as(ctx, &[&program, "daemon", "--metrics", METRICS], &[]).await?;
    json(ctx, &["pool", "create", "files", "--dir", "/run/shared/pool"]).await?;
    // The first query loads the BPF programs, which takes longer than a scrape may.
    json(ctx, &["top", "--total"]).await?;
    // A single process that spends its time waiting: under emulation, starting processes would take longer than
    // waiting.
    load(
        ctx,
        "victim",
        "while :; do dd if=/dev/zero of=log bs=512 count=1000 oflag=append,sync conv=notrunc status=none; done",
    )
    .await?;
    let streams = "while :; do for i in 1 2 3 4; do (head -c 16777216 /dev/zero > s$i; sync s$i) & done; wait; done";
    load(ctx, "culprit", streams).await?;

    ctx.log("all loads are running");
    ctx.machine
        .wait_until("Prometheus answers", LIMIT, async || {
            let ready = get(ctx, PROMETHEUS, "/-/ready").await?;
            Ok(ready.contains("Prometheus Server is Ready").then_some(()))
        })
        .await?;
    ctx.machine
        .wait_until("there are enough scrapes", LIMIT, async || {
            let blame = "bulkhead_fsync_blame_seconds_total{victim='victim.service',culprit='culprit.service'}";
            let counts = query(ctx, &[&format!("count_over_time({blame}[5m])")]).await?;
            Ok(counts.concat().first().is_some_and(|count| *count >= SCRAPES).then_some(()))
        })
        .await?;
    ctx.log("there are enough scrapes");
    let firing = firing(ctx).await?;
    ctx.log(format!("firing: {}", firing["annotations"]["description"]));
    let found = check_expressions(ctx, &disk).await?;
    ctx.save("queries.txt", &found)?;
    check_metrics(ctx, &promtool).await?;

    prometheus.kill(15).await?;
    prometheus.wait(LIMIT).await?;
    json(ctx, &["pool", "rm", "files"]).await?;
    daemon.stop().await?;
    ctx.machine
        .sh(&format!(
            "for c in victim culprit; do cd /sys/fs/cgroup/test.slice/$c.service; echo 1 > cgroup.kill; while grep -q 'populated 1' \
             cgroup.events; do :; done; cd ..; rmdir $c.service; done; cd ..; rmdir test.slice; umount /run/shared; rm -r \
             /run/shared /run/prometheus; wipefs -qa {disk}"
        ))
        .await?;
    Ok(Outcome::Passed)
}

/// Starts a container that runs `script` on the shared file system until its cgroup is killed.
async fn load(ctx: &Ctx, cgroup: &str, script: &str) -> Result<()> {
    let script = format!("echo $$ > /sys/fs/cgroup/test.slice/{cgroup}.service/cgroup.procs; cd /run/shared; {script}");
    ctx.machine.spawn(&["bash", "-c", &script], &[]).await.map(drop)
}

/// Checks and tests the shipped rules with Prometheus's own tool.
async fn check_rules(ctx: &Ctx, promtool: &str) -> Result<()> {
    ctx.machine.write_file("/run/prometheus/bulkhead.rules.yml", RULES.as_bytes()).await?;
    ctx.machine.write_file("/run/prometheus/bulkhead.rules.test.yml", RULE_TESTS.as_bytes()).await?;
    let checks = format!(
        "cd /run/prometheus; {promtool} check rules --lint=all --lint-fatal bulkhead.rules.yml; {promtool} test rules \
         bulkhead.rules.test.yml"
    );
    ctx.log(ctx.machine.sh(&checks).await?.split_whitespace().collect::<Vec<_>>().join(" "));
    Ok(())
}

/// Starts Prometheus with the rules, without the `for` of alerts, so that they fire at once: the delays are tested with
/// the rules.
async fn start_prometheus(ctx: &Ctx, program: &str) -> Result<Process> {
    let at_once = |line: &str| if line.trim().starts_with("for: ") { String::new() } else { format!("{line}\n") };
    let rules: String = RULES.lines().map(at_once).collect();
    ctx.machine.write_file("/run/prometheus/now.rules.yml", rules.as_bytes()).await?;
    ctx.machine.write_file("/run/prometheus/prometheus.yml", CONFIG.as_bytes()).await?;
    let listen = format!("--web.listen-address={PROMETHEUS}");
    let options = ["--config.file=/run/prometheus/prometheus.yml", "--storage.tsdb.path=/run/prometheus/data"];
    ctx.machine.spawn(&[program, options[0], options[1], &listen], &[]).await
}

/// Checks the scraped metrics with Prometheus's own tool, which reports bad names, types and units on standard error.
async fn check_metrics(ctx: &Ctx, promtool: &str) -> Result<()> {
    let scraped = get(ctx, METRICS, "/metrics").await?;
    let metrics = body(&scraped)?;
    ctx.save("metrics.txt", metrics)?;
    let check = ctx.machine.spawn_with_input(&[promtool, "check", "metrics"], &[], metrics.as_bytes()).await?;
    let output = check.wait(LIMIT).await?;
    let complaints = format!("{}{}", output.stdout, output.stderr);
    ensure!(output.status == ExitStatus::Code(0) && complaints.is_empty(), "promtool check metrics: {complaints}");
    Ok(())
}

/// Waits for the alert that names the victim and the culprit.
async fn firing(ctx: &Ctx) -> Result<Value> {
    let alert = ctx
        .machine
        .wait_until("an alert names victim and culprit", LIMIT, async || {
            let alerts = api(ctx, "/api/v1/alerts").await?;
            let found = alerts["alerts"].as_array().into_iter().flatten().find(|alert| {
                let label = |name: &str| alert["labels"][name].as_str().unwrap_or_default();
                label("alertname") == "BulkheadFsyncBlamed"
                    && (label("victim"), label("culprit")) == ("victim.service", "culprit.service")
                    && alert["state"] == "firing"
            });
            Ok(found.cloned())
        })
        .await?;
    let description = alert["annotations"]["description"].as_str().context("no description")?;
    for wanted in ["unit victim.service spends", "waiting for I/O of unit culprit.service."] {
        ensure!(description.contains(wanted), "the alert does not say {wanted:?}: {description}");
    }
    Ok(alert)
}

/// Evaluates the expressions of all rules and panels; returns the number of values of each.
async fn check_expressions(ctx: &Ctx, disk: &str) -> Result<String> {
    let device = disk.trim_start_matches("/dev/").to_owned();
    let with = |about, values: [&str; 5]| Variables {
        about,
        values: ["job", "instance", "tenant", "volume", "device"].into_iter().zip(values.map(str::to_owned)).collect(),
    };
    let all = with("all", [".+", ".+", ".*", ".*", ".*"]);
    let one = with("one", ["bulkhead", METRICS, "victim.service", &device, &device]);
    let dashboard: Value = serde_json::from_str(DASHBOARD)?;
    let mut expressions = rules(ctx).await?;
    for panel in dashboard["panels"].as_array().context("no panels")? {
        let title = panel["title"].as_str().context("a panel without a title")?;
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().with_context(|| format!("{title} has a target without expression"))?;
            for variables in [&all, &one] {
                expressions.push((title.to_owned(), variables.about, variables.substitute(expr)));
            }
        }
    }
    ensure!(expressions.len() > 40, "only {} expressions", expressions.len());
    let asked: Vec<&str> = expressions.iter().map(|(.., expr)| expr.as_str()).collect();
    let answers = query(ctx, &asked).await?;
    let mut found = String::new();
    let mut wrong = Vec::new();
    for ((title, about, expr), values) in expressions.iter().zip(answers) {
        // A quantile of no samples is NaN, which counts as empty.
        let figures: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        found.push_str(&format!("{title} ({about}): {} {:?}: {expr}\n", figures.len(), figures.first()));
        let may_be_empty = MAY_BE_EMPTY.iter().any(|(name, _)| name == title);
        if figures.is_empty() && !may_be_empty {
            wrong.push(format!("{title} ({about}) finds nothing: {expr}"));
        }
        if let Some(value) = figures.iter().find(|value| !(0.0..1e12).contains(*value)) {
            wrong.push(format!("{title} ({about}) finds {value}, which is not plausible: {expr}"));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().context("no variables")? {
        if let Some(asked) = variable["query"]["query"].as_str() {
            let choices = label_values(ctx, &all.substitute(asked)).await?;
            found.push_str(&format!("{asked}: {choices:?}\n"));
            if choices.is_empty() {
                wrong.push(format!("the variable {} has no values: {asked}", variable["name"]));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (name, why) in MAY_BE_EMPTY {
        ensure!(expressions.iter().any(|(title, ..)| title == name), "there is no {name} that may be empty: {why}");
    }
    ctx.log(format!("{} expressions find figures", expressions.len()));
    Ok(found)
}

/// The expressions of the rules as loaded by Prometheus, those of alerts without their thresholds.
async fn rules(ctx: &Ctx) -> Result<Vec<(String, &'static str, String)>> {
    let loaded = api(ctx, "/api/v1/rules").await?;
    let mut expressions = Vec::new();
    for rule in loaded["groups"].as_array().into_iter().flatten().flat_map(|group| group["rules"].as_array()).flatten()
    {
        let text = |key: &str| rule[key].as_str().unwrap_or_default();
        let (name, expr) = (text("name"), text("query"));
        ensure!(text("health") == "ok", "rule {name} is {}: {}", text("health"), text("lastError"));
        if text("type") == "alerting" {
            let bare = without_thresholds(expr).with_context(|| format!("alert {name} has no threshold: {expr}"))?;
            expressions.push((name.to_owned(), "alert", bare));
        } else {
            expressions.push((name.to_owned(), "rule", expr.to_owned()));
        }
    }
    let n_rules = RULES
        .lines()
        .filter(|line| line.trim().starts_with("- record:") || line.trim().starts_with("- alert:"))
        .count();
    ensure!(expressions.len() == n_rules, "{} of {n_rules} rules are loaded", expressions.len());
    Ok(expressions)
}

/// Removes comparisons with numbers from an expression; `None` when there are none.
fn without_thresholds(expr: &str) -> Option<String> {
    let mut words = expr.split_whitespace();
    let (mut bare, mut n_thresholds) = (Vec::new(), 0);
    while let Some(word) = words.next() {
        if !matches!(word, ">" | "<" | ">=" | "<=" | "==" | "!=") {
            bare.push(word);
            continue;
        }
        let next = words.next().unwrap_or_default();
        let number = next.trim_end_matches(')');
        if number.parse::<f64>().is_ok() {
            n_thresholds += 1;
            bare.extend(Some(&next[number.len()..]).filter(|parentheses| !parentheses.is_empty()));
        } else {
            bare.extend([word, next]);
        }
    }
    (n_thresholds > 0).then(|| bare.join(" "))
}

impl Variables {
    fn substitute(&self, expr: &str) -> String {
        let expr = expr.replace("$__rate_interval", "1m").replace("$__range", "10m");
        self.values.iter().fold(expr, |expr, (name, value)| expr.replace(&format!("${name}"), value))
    }
}

/// Current values of each expression.
async fn query(ctx: &Ctx, expressions: &[&str]) -> Result<Vec<Vec<f64>>> {
    let form = |expr: &&str| format!("query={}", percent_encoded(expr));
    let requests = expressions.iter().map(|expr| request(PROMETHEUS, "POST", "/api/v1/query", &form(expr))).collect();
    let responses = http(ctx, PROMETHEUS, requests).await?;
    let values = |(expr, response): (&&str, &String)| {
        let answer = data(response).with_context(|| format!("asked for {expr}"))?;
        let series = answer["result"].as_array().with_context(|| format!("no result: {answer}"))?;
        series.iter().map(|series| Ok(series["value"][1].as_str().context("no value")?.parse()?)).collect()
    };
    expressions.iter().zip(&responses).map(values).collect()
}

/// Choices that Grafana offers for a `label_values(metric, label)`.
async fn label_values(ctx: &Ctx, asked: &str) -> Result<Vec<String>> {
    let inside = asked.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    let (metric, label) =
        inside.and_then(|inside| inside.rsplit_once(", ")).with_context(|| format!("not understood: {asked}"))?;
    let path = format!("/api/v1/label/{label}/values?match[]={}", percent_encoded(metric));
    let answer = api(ctx, &path).await?;
    Ok(answer.as_array().into_iter().flatten().filter_map(|value| value.as_str().map(str::to_owned)).collect())
}

/// Queries Prometheus; returns the `data` of its answer.
async fn api(ctx: &Ctx, path: &str) -> Result<Value> {
    data(&get(ctx, PROMETHEUS, path).await?)
}

fn data(response: &str) -> Result<Value> {
    let answer: Value = serde_json::from_str(body(response)?).with_context(|| format!("not JSON: {response}"))?;
    if answer["status"] != "success" {
        bail!("Prometheus says {}", answer["error"]);
    }
    Ok(answer["data"].clone())
}

async fn get(ctx: &Ctx, address: &str, path: &str) -> Result<String> {
    Ok(http(ctx, address, vec![request(address, "GET", path, "")]).await?.concat())
}

fn request(address: &str, method: &str, path: &str, form: &str) -> String {
    let kind = "Content-Type: application/x-www-form-urlencoded";
    format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\n{kind}\r\nContent-Length: {}\r\n\r\n{form}", form.len())
}

/// Sends the requests and returns the raw responses, which are empty when no server listens. The guest's only client is
/// bash, which takes longer to start than to send, so one process sends all.
async fn http(ctx: &Ctx, address: &str, requests: Vec<String>) -> Result<Vec<String>> {
    let script = format!(
        "for request; do exec 3<>/dev/tcp/{}; printf %s \"$request\" >&3; cat <&3; printf '\\036'; done",
        address.replace(':', "/")
    );
    let argv: Vec<&str> =
        ["bash", "-c", &script, "http"].into_iter().chain(requests.iter().map(String::as_str)).collect();
    let output = ctx.machine.run(&argv).await?.stdout;
    let mut answers = output.split('\u{1e}').map(str::to_owned).collect::<Vec<_>>();
    answers.resize(requests.len(), String::new());
    Ok(answers)
}

fn body(response: &str) -> Result<&str> {
    let (head, body) = response.split_once("\r\n\r\n").with_context(|| format!("no HTTP answer: {response:?}"))?;
    ensure!(head.contains(" 200 ") || head.contains(" 400 "), "unexpected answer: {head}");
    Ok(body)
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_removed() {
        let check = |expr: &str, bare: Option<&str>| assert_eq!(without_thresholds(expr).as_deref(), bare);
        check("a:b > 0.2", Some("a:b"));
        check("(a{b=\"c\"} > 0.01) and c >= 1024", Some("(a{b=\"c\"} ) and c"));
        check("rate(a[5m]) < 0.9 or up == b", Some("rate(a[5m]) or up == b"));
        check("a == b", None);
    }

    #[test]
    fn variables_are_substituted() {
        let one = Variables { about: "one", values: vec![("tenant", "db".to_owned())] };
        assert_eq!(one.substitute("rate(a{t=~\"$tenant\"}[$__rate_interval])"), "rate(a{t=~\"db\"}[1m])");
        assert_eq!(percent_encoded("a b{c=\"d\"}"), "a%20b%7Bc%3D%22d%22%7D");
    }
}
