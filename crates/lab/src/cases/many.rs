//! Many volumes on one host: the cost of each operation, and of an idle daemon. In virtual time, so that the figures
//! are those of a processor of 10^9 instructions a second on any host.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::host::{
    PROFILE, kernel_is_silent, leave_devices_to_bulkhead, make_file_pool, nothing_is_critical, start_daemon_timed,
    unmake_file_pool,
};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;

/// A machine with memory for a thousand block servers.
const MANY: Profile =
    Profile { name: "many", disks: &[DiskSpec::new(DiskModel::Fast, 8192)], memory_mib: 12288, ..PROFILE };

/// Run by name only: each operation is done once per volume. The targets are for an optimised build: `lab run
/// --release`. A busy second of virtual time takes some 8 s to emulate.
pub(super) const SOAK: &[Case] = &[
    Case {
        name: "many_volumes_100",
        about: "the cost of 100 volumes of ten tenants: creation, attaching, listing, idling, a daemon restart, a boot",
        kernels: &[Kernel::V6_12],
        profile: MANY,
        limit: Duration::from_secs(1800),
        run: |ctx| Box::pin(many(ctx, 100)),
    },
    Case {
        name: "many_volumes_1000",
        about: "the same with 1000 volumes of a hundred tenants",
        kernels: &[Kernel::V6_12],
        profile: MANY,
        limit: Duration::from_secs(14_400),
        run: |ctx| Box::pin(many(ctx, 1000)),
    },
];

/// Runs the step in its argument for `N` volumes, with requests from several threads, and prints the cost as JSON.
const ASK: &str = r#"
import http.client, json, socket, sys, time
from concurrent.futures import ThreadPoolExecutor

N, PER_TENANT = int(sys.argv[2]), 10

class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/bulkhead/bulkhead.sock")

def ask(method, path, body=None):
    connection = Connection("bulkhead", timeout=3000)
    connection.request(method, path, json.dumps(body) if body is not None else None, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 300, (method, path, answer.status, text)
    return text

def timed(work, items, threads):
    took = []
    def one(item):
        begin = time.monotonic()
        work(item)
        took.append(time.monotonic() - begin)
    begin = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, items))
    return {"seconds": round(time.monotonic() - begin, 2), "longest": round(max(took), 3)}

def volumes(tenant):
    return [f"file/v{n}" for n in range(tenant * PER_TENANT, (tenant + 1) * PER_TENANT)]

def daemon(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    memory = [line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS")]
    return (int(fields[11]) + int(fields[12])) / 100, int(memory[0]) / 1024

def create():
    request = lambda n: {"volume": f"file/v{n}", "size_bytes": 16 << 20, "provision": "on_demand"}
    return timed(lambda n: ask("POST", "/v1/volumes", request(n)), range(N), 8)

def attach():
    request = lambda n: {"name": f"t{n}", "share": 100, "limits": [], "volumes": volumes(n)}
    return timed(lambda n: ask("POST", "/v1/tenants", request(n)), range(N // PER_TENANT), 8)

def used(asked):
    before, _ = daemon(sys.argv[3])
    for _ in range(20):
        time.sleep(15)
        for path in asked:
            ask("GET", path)
    after, memory = daemon(sys.argv[3])
    return {"core_pct": round((after - before) / 3, 2), "memory_mib": round(memory, 1)}

def idle():
    time.sleep(120)
    return used([])

def look():
    views = {"volumes": "/v1/volumes", "tenants": "/v1/tenants", "metrics": "/metrics", "one": "/v1/volumes/file/v7", "host": "/v1/host"}
    # The first query of the metrics starts the observation.
    ask("GET", "/metrics")
    return {name: timed(lambda path: ask("GET", path), [path], 1)["seconds"] for name, path in views.items()}

def scraped():
    return used(["/metrics"])

def storm():
    tenants = range(10)
    for n in tenants:
        ask("PATCH", f"/v1/tenants/t{n}", {"detach": volumes(n)})
    pairs = [(n, volume) for n in tenants for volume in volumes(n)]
    return timed(lambda pair: ask("PATCH", f"/v1/tenants/t{pair[0]}", {"attach": [pair[1]]}), pairs, 100)

def detach():
    return timed(lambda n: ask("DELETE", f"/v1/tenants/t{n}"), range(N // PER_TENANT), 8)

def remove():
    return timed(lambda n: ask("DELETE", f"/v1/volumes/file/v{n}"), range(N), 8)

print(json.dumps(globals()[sys.argv[1]]()))
"#;

/// Time limit of any step.
const LIMIT: Duration = Duration::from_secs(14_400);

/// Targets for a thousand idle volumes, for a boot, and for a hundred volumes that are attached at once.
const IDLE_PCT: f64 = 1.0;
const IDLE_MIB: f64 = 60.0;
const BOOT_SECONDS: f64 = 60.0;
const STORM_SECONDS: f64 = 10.0;

async fn many(ctx: &mut Ctx, n: usize) -> Result<Outcome> {
    let ctx = &*ctx;
    let program = ctx.program("bulkhead");
    // Each request of a volume locks memory.
    let argv = [program.as_str(), "daemon", "--volume-requests", "8"];
    let (daemon, _) = start_daemon_timed(ctx, &argv, LIMIT).await?;
    make_file_pool(ctx).await?;
    leave_devices_to_bulkhead(ctx).await?;
    ctx.machine.write_file("/run/ask.py", ASK.as_bytes()).await?;
    let ask = async |step: &str, daemon: u32| -> Result<Value> {
        let script = format!("python3 /run/ask.py {step} {n} {daemon}");
        let output = ctx.machine.sh_within(&script, LIMIT).await?;
        ctx.log(format!("{n} volumes: {step}: {}", output.trim()));
        Ok(serde_json::from_str(&output)?)
    };
    for step in ["create", "attach"] {
        ask(step, 0).await?;
    }
    let idle = ask("idle", daemon.pid()).await?;
    ask("look", 0).await?;
    // Scrapes at the interval of Prometheus, which keep the observation running.
    ask("scraped", daemon.pid()).await?;
    let storm = ask("storm", 0).await?;

    daemon.kill().await?;
    let (daemon, again) = start_daemon_timed(ctx, &argv, LIMIT).await?;
    ctx.log(format!("{n} volumes: a restarted daemon is ready after {again:.1} s"));

    // A boot: everything is recorded, and nothing is attached.
    ctx.machine.sh("cp -a /var/lib/bulkhead /run/recorded").await?;
    ask("detach", 0).await?;
    daemon.stop().await?;
    ctx.machine.sh("rm -r /var/lib/bulkhead; mv /run/recorded /var/lib/bulkhead").await?;
    let (daemon, boot) = start_daemon_timed(ctx, &argv, LIMIT).await?;
    let mounted = ctx.machine.sh("grep -c ' /run/bulkhead/mnt/' /proc/self/mountinfo").await?;
    ensure!(mounted.trim() == n.to_string(), "{mounted} of {n} volumes are mounted after a boot");
    nothing_is_critical(ctx, "after a boot").await?;
    ctx.log(format!("{n} volumes: a boot takes {boot:.1} s"));

    for step in ["detach", "remove"] {
        ask(step, 0).await?;
    }
    ctx.machine.sh("rm -r /run/ask.py /run/udev/rules.d").await?;
    kernel_is_silent(ctx).await?;
    unmake_file_pool(ctx).await?;
    daemon.stop().await?;
    let missed: Vec<String> = [
        ("% of a core while idle", &idle["core_pct"], IDLE_PCT),
        ("MiB for the daemon", &idle["memory_mib"], IDLE_MIB),
        ("s for attaching 100 at once", &storm["seconds"], STORM_SECONDS),
        ("s for a boot", &Value::from(boot), BOOT_SECONDS),
    ]
    .iter()
    .filter(|(_, found, target)| found.as_f64().is_none_or(|found| found > *target))
    .map(|(what, found, target)| format!("{found} {what} instead of {target}"))
    .collect();
    ensure!(missed.is_empty(), "with {n} volumes: {}", missed.join(", "));
    Ok(Outcome::Passed)
}
