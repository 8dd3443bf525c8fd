//! `bulkhead device calibrate`: measures here, with the daemon making what is needed, and has the daemon store the result.

use bulkhead_bench::calibrate::{self, Request, Told, Verified};
use bulkhead_bench::cgroup_run::Cancel;
use bulkhead_core::error::{Code, Fault};
use bulkhead_engine::client::Client;

use crate::args::CalibrateArgs;
use crate::demo;
use crate::output::Output;
use crate::parse::{self, invalid};
use crate::progress::Steps;
use crate::show::{self, Show};

/// Measures a device, or takes the lines that were given, and has them stored.
///
/// # Errors
/// Wrong arguments, `PermissionDenied` without root, what the measurement failed with, and the daemon's faults.
pub(crate) async fn run(args: CalibrateArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let object = format!("device {}", args.device);
    if args.verify {
        let view = client.device_inspect(&args.device).await?;
        let calibration = view.calibration.ok_or_else(|| {
            Fault::new(Code::NotFound, &object, "it was never calibrated: there is nothing to verify")
                .cure(format!("calibrate it first: `bulkhead device calibrate {}`", view.name))
        })?;
        let verify = |client, request: &Request, on_step: calibrate::OnStep<'_>| {
            calibrate::verify(client, request, &calibration, on_step)
        };
        return show::list(output, &measure(&args, client, output, verify)?);
    }
    let given = args.iocost.calibration();
    let was_measured = given.is_none();
    let calibration = match given {
        Some(calibration) => calibration,
        None if args.write.dry_run => {
            return Err(invalid(object, "measuring uses the device, which a dry run must not")
                .cure("leave `--dry-run` away, or give `--model` and `--qos`"));
        }
        None => measure(&args, client, output, calibrate::run)?,
    };
    let done = client.device_calibrate(&args.device, &calibration, args.write.dry_run).await?;
    if was_measured && !output.is_json() {
        // The figures were shown as they came.
        output.say(&format!("{object}: calibrated"));
        return Ok(());
    }
    show::done(output, &object, "calibrated", &done)
}

/// On a thread of its own: it waits for processes, and asks the daemon in between.
fn measure<T: Send>(
    args: &CalibrateArgs,
    client: &Client,
    output: &Output,
    work: impl FnOnce(Client, &Request, calibrate::OnStep<'_>) -> anyhow::Result<T> + Send,
) -> Result<T, Fault> {
    let object = format!("device {}", args.device);
    if !rustix::process::geteuid().is_root() {
        return Err(Fault::new(Code::PermissionDenied, object, "measuring needs root").cure("run it with sudo"));
    }
    let request = Request {
        device: args.device.clone(),
        pool: args.pool.as_deref().map(parse::pool_name).transpose()?,
        program: "/proc/self/exe".into(),
        cancel: Cancel::new(),
    };
    let fault = |error| demo::fault(&object, error);
    request.cancel.on_signals().map_err(|error| demo::fault("experiment", error))?;
    let mut steps = Steps::new("calibrate", "{prefix} {bar:24} {pos}/{len} {elapsed} {msg}", output);
    let mut on_step = |told: Told<'_>| match told {
        Told::Step(done, of, doing) => steps.step(done, of, doing),
        Told::Figure(figure) => steps.print(figure),
    };
    let result = std::thread::scope(|scope| scope.spawn(|| work(client.clone(), &request, &mut on_step)).join());
    match result {
        Ok(measured) => measured.map_err(fault),
        Err(_) => Err(Fault::new(Code::Internal, object, "the measurement ended by itself")),
    }
}

impl Show for Verified {
    const EMPTY: &'static str = "nothing was measured";
    const HEADERS: &'static [&'static str] = &["beside", "fsync mean", "fsync p99", "neighbour", "isolated"];

    fn row(&self) -> Vec<String> {
        let times = |ratio: f64, limit: f64| format!("{ratio:.1}x alone (<= {limit:.1}x)");
        vec![
            self.neighbour.clone(),
            times(self.mean_ratio, self.mean_ratio_limit),
            times(self.p99_ratio, self.p99_ratio_limit),
            format!("{:.0} % of fair (>= {:.0} %)", self.neighbour_pct, self.neighbour_pct_limit),
            if self.is_met() { "yes" } else { "no" }.to_owned(),
        ]
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        Self::HEADERS.iter().copied().zip(self.row()).collect()
    }
}
