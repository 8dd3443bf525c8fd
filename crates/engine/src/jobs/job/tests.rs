use super::*;

fn spec(wait_limit: Option<Duration>) -> JobSpec {
    JobSpec { operation: "remove volume p/v".to_owned(), request: None, wait_limit }
}

#[test]
fn each_part_has_the_time_limit_of_its_job() {
    let mut job = Job::new(1, spec(Some(Duration::from_secs(5))), false);
    job.started = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
    job.begin_part().unwrap();
    assert_eq!(job.keep_waiting(), Ok(()));
    job.state().part = None;
    assert_eq!(job.keep_waiting().map_err(|fault| fault.code), Err(Code::InUse));
    let (cancelled, stopped) = (Job::new(2, spec(None), false), Job::new(3, spec(None), false));
    cancelled.cancel();
    stopped.stop_waiting();
    let refused = [cancelled, stopped].map(|job| job.begin_part().map_err(|fault| fault.code));
    assert_eq!(refused, [Err(Code::Cancelled), Err(Code::Unavailable)]);
}
