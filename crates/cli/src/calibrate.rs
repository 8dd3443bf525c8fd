//! `bulkhead device calibrate`: measures here, with the daemon making what is needed, and has the daemon store the result.

use bulkhead_bench::calibrate::{self, Request, Told};
use bulkhead_bench::cgroup_run::Cancel;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::Calibration;
use bulkhead_engine::client::Client;

use crate::args::CalibrateArgs;
use crate::demo;
use crate::output::Output;
use crate::parse::{self, invalid};
use crate::progress::Steps;
use crate::show;

/// Measures a device, or takes the lines that were given, and has them stored.
///
/// # Errors
/// Wrong arguments, `PermissionDenied` without root, what the measurement failed with, and the daemon's faults.
pub(crate) async fn run(args: CalibrateArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let object = format!("device {}", args.device);
    let given = args.iocost.calibration();
    let was_measured = given.is_none();
    let calibration = match given {
        Some(calibration) => calibration,
        None if args.write.dry_run => {
            return Err(invalid(object, "measuring uses the device, which a dry run must not")
                .cure("leave `--dry-run` away, or give `--model` and `--qos`"));
        }
        None => measure(&args, client, output)?,
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
fn measure(args: &CalibrateArgs, client: &Client, output: &Output) -> Result<Calibration, Fault> {
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
    let result =
        std::thread::scope(|scope| scope.spawn(|| calibrate::run(client.clone(), &request, &mut on_step)).join());
    match result {
        Ok(measured) => measured.map_err(fault),
        Err(_) => Err(Fault::new(Code::Internal, object, "the measurement ended by itself")),
    }
}
