use bulkhead_api::wire::JobState;

use super::*;

fn spec(wait_limit: Option<Duration>) -> JobSpec {
    JobSpec { operation: "remove volume p/v".to_owned(), request: None, wait_limit }
}

#[test]
fn a_cancelled_job_begins_no_further_step() {
    let jobs = Arc::new(Jobs::default());
    let running = jobs.begin(spec(None)).unwrap();
    running.job().begin_step(&"unmount", true).unwrap();
    running.job().mark_changed();
    assert_eq!(jobs.cancel(1).unwrap().state, JobState::Running);
    // This step cannot be undone, the next one can.
    running.job().begin_step(&"forget", false).unwrap();
    let fault = running.job().begin_step(&"remove", true).unwrap_err();
    // Undoing is not cancelled.
    running.job().begin_step(&"mount", true).unwrap();
    assert_eq!((fault.code, fault.object.as_str()), (Code::Cancelled, "job 1"));
    running.end::<()>(&Err(fault));
    let view = jobs.view(1).unwrap();
    assert_eq!((view.state, view.step.as_deref()), (JobState::Cancelled, Some("mount")));
    assert_eq!(jobs.cancel(2).unwrap_err().code, Code::NotFound);
}

#[test]
fn a_stopping_daemon_completes_begun_operations_and_waits_for_nothing() {
    let jobs = Arc::new(Jobs::default());
    let running = jobs.begin(spec(None)).unwrap();
    running.job().stop_waiting();
    assert_eq!(running.job().begin_step(&"remove", true), Ok(()));
    assert_eq!(running.job().keep_waiting().map_err(|fault| fault.code), Err(Code::Unavailable));
    let check = jobs.begin_check("check").unwrap();
    check.job().stop_waiting();
    assert_eq!(check.job().begin_step(&"mount", true).map_err(|fault| fault.code), Err(Code::Unavailable));
}

#[test]
fn a_job_that_timed_out_names_the_jobs_it_waited_for() {
    let jobs = Arc::new(Jobs::default());
    let (first, second) = (jobs.begin(spec(None)).unwrap(), jobs.begin(spec(Some(Duration::ZERO))).unwrap());
    second.job().set_waits_for(&[Arc::clone(first.job())]);
    let fault = second.job().keep_waiting().unwrap_err();
    assert_eq!(fault.code, Code::InUse);
    assert!(fault.cause.contains("job 1 (remove volume p/v)"), "{fault}");
}

#[test]
fn the_latest_ended_jobs_are_kept_but_short_checks_are_not() {
    let jobs = Arc::new(Jobs::default());
    for _ in 0..KEPT + 5 {
        jobs.begin(spec(None)).unwrap().end(&Ok(()));
    }
    drop(jobs.begin_check("check"));
    let views = jobs.views();
    assert_eq!((views.len(), views[0].id, views[0].state), (KEPT, 69, JobState::Done));
}

#[test]
fn slow_checks_do_not_displace_the_jobs_of_clients() {
    let mut table = Table::default();
    table.keep(Arc::new(Job::new(1, spec(None), false)));
    let check = |operation: &str| JobSpec { operation: operation.to_owned(), ..spec(None) };
    for id in 2..200 {
        let operation = if id % 2 == 0 { "check for drift" } else { "merge layers" };
        table.keep(Arc::new(Job::new(id, check(operation), true)));
    }
    assert_eq!(table.ended.iter().map(|job| job.id()).collect::<Vec<_>>(), [199, 198, 1]);
}
