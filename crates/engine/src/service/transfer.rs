//! Sending and receiving snapshots, as jobs with workers.

use bulkhead_api::wire::{Done, JobResult, ReceiveView, VolumeSend, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::work::{Outcome, ReceiveTask, Task};

use super::import::unexpected_outcome;
use super::{Reply, Service, Terms};
use crate::engine::Engine;
use crate::locks::Claim;
use crate::work::WorkerJob;

impl Service {
    /// Sends a snapshot, after making it immutable.
    ///
    /// # Errors
    /// Those of [`Engine::volume_send`].
    pub(crate) async fn volume_send(
        &self,
        volume: VolumeRef,
        request: VolumeSend,
        terms: Terms,
    ) -> Result<Reply<Done<VolumeView>>, Fault> {
        let worker_job = Sending { volume, request };
        if !terms.dry_run {
            return self.start_worker_job(worker_job, terms).await.map(Reply::Stream);
        }
        let planned = self.change(terms, worker_job.operation(), worker_job.claim(), move |engine| {
            let Done { steps, dry_run, .. } = engine.volume_send(&worker_job.volume, &worker_job.request, true)?;
            Ok(Done { object: None, steps, dry_run })
        });
        planned.await.map(Reply::Planned)
    }

    /// Starts or resumes receiving a snapshot as a volume. `tenant` pays, if one is named.
    ///
    /// # Errors
    /// Those of [`Engine::volume_receive`] and [`Engine::check_can_pay`].
    pub(crate) async fn volume_receive(
        &self,
        volume: VolumeRef,
        header: StreamHeader,
        tenant: Option<Name>,
        terms: Terms,
    ) -> Result<Reply<Done<ReceiveView>>, Fault> {
        let worker_job = Receiving { volume, header, tenant };
        if !terms.dry_run {
            return self.start_worker_job(worker_job, terms).await.map(Reply::Stream);
        }
        let planned = self.change(terms, worker_job.operation(), worker_job.claim(), move |engine| {
            engine.check_can_pay(worker_job.payer())?;
            engine.volume_receive(&worker_job.volume, &worker_job.header, true)
        });
        planned.await.map(Reply::Planned)
    }
}

struct Sending {
    volume: VolumeRef,
    request: VolumeSend,
}

impl WorkerJob for Sending {
    fn operation(&self) -> String {
        format!("send volume {}", self.volume)
    }

    fn claim(&self) -> Claim {
        let from = self.request.from.as_ref();
        let from = from.map(|name| VolumeRef { pool: self.volume.pool.clone(), name: name.clone() });
        Claim::default().volumes(std::iter::once(&self.volume).chain(&from))
    }

    fn prepare(&self, engine: &Engine) -> Result<(Task, Option<Name>), Fault> {
        let done = engine.volume_send(&self.volume, &self.request, false)?;
        let nothing = || Fault::new(Code::Internal, format!("volume {}", self.volume), "there is nothing to send");
        let task = done.object.ok_or_else(nothing)?;
        let tenant = engine.sender_pays(&self.volume, &task)?;
        Ok((Task::Send(task), tenant))
    }

    fn last_step(&self) -> Option<String> {
        None
    }

    fn finish(&self, _engine: &Engine, outcome: Outcome) -> Result<JobResult, Fault> {
        match outcome {
            Outcome::Sent { read_bytes } => Ok(JobResult::Sent { read_bytes }),
            other => Err(unexpected_outcome(&self.volume, &other)),
        }
    }
}

struct Receiving {
    volume: VolumeRef,
    header: StreamHeader,
    /// The tenant that the request names as payer.
    tenant: Option<Name>,
}

impl WorkerJob for Receiving {
    fn operation(&self) -> String {
        format!("receive volume {}", self.volume)
    }

    fn claim(&self) -> Claim {
        Claim::default().volume(&self.volume)
    }

    fn payer(&self) -> Option<&Name> {
        self.tenant.as_ref()
    }

    fn prepare(&self, engine: &Engine) -> Result<(Task, Option<Name>), Fault> {
        let view = engine.volume_receive(&self.volume, &self.header, false)?.object;
        let nothing = || Fault::new(Code::Internal, format!("volume {}", self.volume), "it has no staging file");
        let part = view.ok_or_else(nothing)?.part;
        let tenant = match &self.tenant {
            Some(named) => Some(named.clone()),
            None => engine.receiver_pays(&self.volume, &self.header)?,
        };
        Ok((
            Task::Receive(ReceiveTask { volume: self.volume.clone(), header: self.header.clone(), staging_file: part }),
            tenant,
        ))
    }

    fn last_step(&self) -> Option<String> {
        Some(format!("create volume {} from the received snapshot", self.volume))
    }

    fn finish(&self, engine: &Engine, outcome: Outcome) -> Result<JobResult, Fault> {
        match outcome {
            Outcome::Received => {
                engine.volume_received(&self.volume, &self.header, false).map(Box::new).map(JobResult::Received)
            }
            other => Err(unexpected_outcome(&self.volume, &other)),
        }
    }
}
