//! `bulkhead hold`: enforces shares of containers on a device while this command runs, or until `hold rm`.

use std::pin::pin;
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_api::wire::{Done, HoldStart, HoldTenant, HoldView, StandingView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::Unit;
use bulkhead_core::units::{Bytes, Latency};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::interval;

use crate::args::{HoldArgs, HoldCommand, HoldStartArgs};
use crate::output::{Output, table};
use crate::parse::invalid;
use crate::show::{self, Show};

/// Interval between tables.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long a hold outlives this command if it is killed, seconds.
const LEASE_SECONDS: u32 = 60;
/// The lease is renewed once per this many tables, because each renewal is a line in the daemon's log.
const TABLES_PER_RENEWAL: u32 = 4;
/// Column titles.
const HEADERS: [&str; 8] = ["tenant", "target", "achieved", "journal", "error", "weight", "cap/s", "remarks"];

/// Starts, lists or removes holds.
///
/// # Errors
/// Invalid arguments, and the daemon's faults.
pub(crate) async fn run(args: HoldArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    match args.command {
        None => start(args.start, client, output).await,
        Some(HoldCommand::Ls) => show::list(output, &client.hold_list().await?),
        Some(HoldCommand::Rm { device, write }) => {
            let done = client.hold_stop(&device, write.dry_run).await?;
            show::done(output, &format!("hold on {device}"), "removed, its weights are reset", &done)
        }
    }
}

async fn start(args: HoldStartArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let stays = args.detach || args.write.dry_run;
    let request = HoldStart {
        device: args.device.clone(),
        unit: args.unit.into(),
        mode: args.mode.into(),
        tenants: tenants(&args)?,
        lease_seconds: (!stays).then_some(LEASE_SECONDS),
    };
    if stays {
        return show::done(output, "hold", "active", &client.hold_start(&request, args.write.dry_run).await?);
    }
    // Before the hold starts: otherwise an interruption during the request would leave the hold active until its lease expires.
    let mut signals = Signals::subscribe()?;
    let (done, continues) = request_hold(&request, &mut signals, client, output).await?;
    let Some(view) = done.object else {
        return Err(Fault::new(Code::Internal, "hold", "the daemon's answer lacks the hold"));
    };
    let device = view.hold.device.as_str();
    let followed = match continues {
        true => {
            output.say(&format!("enforcing shares on {device}; Ctrl-C ends this and resets the weights"));
            follow(&request, device, signals, client, output).await
        }
        false => Ok(()),
    };
    let ended = client.hold_stop(device, false).await;
    followed.and(ended.map(drop))
}

/// Requests a hold; returns the answer, and `false` if a signal arrived in the meantime.
async fn request_hold(
    request: &HoldStart,
    signals: &mut Signals,
    client: &Client,
    output: &Output,
) -> Result<(Done<HoldView>, bool), Fault> {
    let mut answer = pin!(client.hold_start(request, false));
    tokio::select! {
        done = &mut answer => return Ok((done?, true)),
        () = signals.received() => {}
    }
    output.say("waiting for the daemon to answer, so that the hold can be removed; press Ctrl-C again to let it expire instead");
    tokio::select! {
        done = answer => Ok((done?, false)),
        () = signals.received() => {
            let cause = format!("the daemon did not answer; if the hold still starts, it ends after {LEASE_SECONDS} s");
            Err(Fault::new(Code::Unavailable, "hold", cause).hint("`bulkhead hold ls` lists the holds"))
        }
    }
}

/// The signals that end a hold.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on, these signals are reported by [`Self::received`] and no longer end this process.
    fn subscribe() -> Result<Self, Fault> {
        let on = |kind| {
            signal(kind)
                .map_err(|error| Fault::new(Code::Internal, "bulkhead", format!("cannot handle signals ({error})")))
        };
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())? })
    }

    /// Waits for a signal; returns at once if one has arrived before.
    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Prints the state of the tenants until a signal arrives or the hold is removed by someone else.
async fn follow(
    request: &HoldStart,
    device: &str,
    mut signals: Signals,
    client: &Client,
    output: &Output,
) -> Result<(), Fault> {
    let mut ticks = interval(INTERVAL);
    // The first tick is immediate, when there is nothing to show yet.
    ticks.tick().await;
    for number in 1.. {
        tokio::select! {
            () = signals.received() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let Some(view) = client.hold_list().await?.into_iter().find(|view| view.hold.device.as_str() == device) else {
            output.say(&format!("the hold on {device} was removed by someone else"));
            return Ok(());
        };
        if u32::is_multiple_of(number, TABLES_PER_RENEWAL) {
            client.hold_start(request, false).await?;
        }
        print(&view, output)?;
        if !output.has_reader() {
            return Ok(());
        }
    }
    Ok(())
}

fn print(view: &HoldView, output: &Output) -> Result<(), Fault> {
    if output.is_json() {
        return output.json(view);
    }
    let mut lines = vec![format!("{}: {} ({} corrections)", view.hold.device, view.reason, view.corrections)];
    if !view.standings.is_empty() {
        lines.extend(table(&HEADERS, &view.standings.iter().map(row).collect::<Vec<_>>()));
    }
    output.lines(&lines)
}

/// A tenant's caps, per second.
fn cap(standing: &StandingView) -> String {
    let ops = standing.cap.map(|ops| ops.to_string());
    let bytes = standing.cap_bytes.map(|bytes| Bytes(bytes).to_string());
    let caps: Vec<String> = ops.into_iter().chain(bytes).collect();
    if caps.is_empty() { "-".to_owned() } else { caps.join(", ") }
}

fn row(standing: &StandingView) -> Vec<String> {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut remarks: Vec<String> =
        standing.fsync_p99_seconds.map(|p99| format!("fsync p99 {:.0} ms", 1e3 * p99)).into_iter().collect();
    match standing {
        StandingView { infeasible: true, .. } => {
            remarks.push("its journal I/O alone exceeds its share: give it its own volume".to_owned());
        }
        StandingView { contends: false, .. } => remarks.push("not contending".to_owned()),
        _ => {}
    }
    vec![
        standing.name.clone(),
        percent(standing.target_share),
        percent(standing.achieved_share),
        percent(standing.journal_share),
        match standing.contends {
            true => format!("{:+.1}", 100.0 * (standing.achieved_share - standing.target_share)),
            false => "-".to_owned(),
        },
        standing.weight.to_string(),
        cap(standing),
        remarks.join(", "),
    ]
}

/// The tenants and their settings.
fn tenants(args: &HoldStartArgs) -> Result<Vec<HoldTenant>, Fault> {
    let mut tenants: Vec<HoldTenant> = args.tenants.iter().map(|text| tenant(text)).collect::<Result<_, _>>()?;
    for text in &args.fsync_p99 {
        let (object, example) = (format!("--fsync-p99 {text}"), "for example `--fsync-p99 db=20ms`");
        let (name, time) =
            split_name(text).ok_or_else(|| invalid(&object, "it is not of the form NAME=TIME").hint(example))?;
        let us = time.parse::<Latency>().map_err(|error| invalid(&object, error).hint(example))?.us();
        if named(&mut tenants, name, &object)?.fsync_p99_us.replace(us).is_some() {
            return Err(invalid(&object, "it is given twice").hint("set one latency per tenant"));
        }
    }
    for text in &args.journal {
        let (object, example) = (format!("--journal {text}"), "for example `--journal db=/srv/db`");
        let (name, path) =
            text.split_once('=').ok_or_else(|| invalid(&object, "it is not of the form NAME=PATH").hint(example))?;
        if !path.starts_with('/') {
            return Err(invalid(&object, format!("{path:?} is not an absolute path")).hint(example));
        }
        if named(&mut tenants, name, &object)?.journal.replace(path.into()).is_some() {
            return Err(invalid(&object, "it is given twice").hint("name one file system per tenant"));
        }
    }
    Ok(tenants)
}

fn named<'a>(tenants: &'a mut [HoldTenant], name: &str, object: &str) -> Result<&'a mut HoldTenant, Fault> {
    tenants.iter_mut().find(|tenant| tenant.tenant == name).ok_or_else(|| {
        invalid(object, format!("{name} has no share")).hint(format!("add a share, for example `--tenant {name}=50`"))
    })
}

/// Splits `NAME=…` at the last equals sign, because names may contain one.
fn split_name(text: &str) -> Option<(&str, &str)> {
    text.rsplit_once('=').filter(|(name, _)| !name.is_empty())
}

fn tenant(text: &str) -> Result<HoldTenant, Fault> {
    let object = format!("--tenant {text}");
    let example = "for example `--tenant db=70`";
    let (name, share) =
        split_name(text).ok_or_else(|| invalid(&object, "it is not of the form NAME=SHARE").hint(example))?;
    let number = share.trim_end_matches('%').parse().ok().filter(|number: &f64| number.is_finite());
    let share = number.ok_or_else(|| invalid(&object, format!("{share:?} is not a number")).hint(example))?;
    Ok(HoldTenant::new(name, share))
}

impl Show for HoldView {
    const EMPTY: &'static str = "no shares are enforced; `bulkhead hold --tenant A=50 --tenant B=50` enforces some";
    const HEADERS: &'static [&'static str] = &["device", "unit", "weights", "state", "tenants (achieved/target)"];

    fn row(&self) -> Vec<String> {
        let standing = |tenant: &str| self.standings.iter().find(|standing| standing.name == tenant);
        let tenants = self.hold.tenants.iter().map(|tenant| match standing(&tenant.name) {
            Some(standing) => {
                format!("{} {:.0}/{:.0} %", tenant.name, 100.0 * standing.achieved_share, 100.0 * standing.target_share)
            }
            None => format!("{} -/{:.0} %", tenant.name, f64::from(tenant.share_ppm) / 1e4),
        });
        let unit = match self.hold.unit {
            Unit::Bytes => "bytes",
            Unit::Time => "time",
        };
        let tenants = tenants.collect::<Vec<_>>().join(", ");
        vec![self.hold.device.to_string(), unit.to_owned(), self.hold.weight_file.clone(), self.state.clone(), tenants]
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        Self::HEADERS.iter().copied().zip(self.row()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parsed() {
        let share = |text: &str| tenant(text).map(|read| (read.tenant, read.share));
        assert_eq!(share("db=70"), Ok(("db".to_owned(), 70.0)));
        assert_eq!(share("a=b=0.5%"), Ok(("a=b".to_owned(), 0.5)));
        for bad in ["db", "=5", "db=", "db=much"] {
            assert_eq!(share(bad).map_err(|fault| fault.code), Err(Code::InvalidArgument), "{bad}");
        }
    }
}
