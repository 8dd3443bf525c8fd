//! Streams of snapshots: what is sent and received by workers, as jobs.

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::wire::{Done, JobResult, ReceiveView, VolumeSend, VolumeView};
use bulkhead_core::work::{Outcome, ReceiveTask, Task};

use super::import::other_work;
use super::{Reply, Service, Terms};
use crate::engine::Engine;
use crate::locks::Claim;
use crate::work::Errand;

impl Service {
    /// Sends a snapshot, after it was made sure that it never changes.
    ///
    /// # Errors
    /// Those of [`Engine::volume_send`].
    pub(crate) async fn volume_send(
        &self,
        volume: VolumeRef,
        request: VolumeSend,
        terms: Terms,
    ) -> Result<Reply<Done<VolumeView>>, Fault> {
        let errand = Sending { volume, request };
        if !terms.dry_run {
            return self.begin(errand, terms).await.map(Reply::Stream);
        }
        let planned = self.change(terms, errand.operation(), errand.claim(), move |engine| {
            let Done { steps, dry_run, .. } = engine.volume_send(&errand.volume, &errand.request, true)?;
            Ok(Done { object: None, steps, dry_run })
        });
        planned.await.map(Reply::Planned)
    }

    /// Receives a snapshot as a volume, or goes on with it. `tenant` pays, if one is named.
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
        let errand = Receiving { volume, header, tenant };
        if !terms.dry_run {
            return self.begin(errand, terms).await.map(Reply::Stream);
        }
        let planned = self.change(terms, errand.operation(), errand.claim(), move |engine| {
            engine.check_can_pay(errand.payer())?;
            engine.volume_receive(&errand.volume, &errand.header, true)
        });
        planned.await.map(Reply::Planned)
    }
}

struct Sending {
    volume: VolumeRef,
    request: VolumeSend,
}

impl Errand for Sending {
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
            other => Err(other_work(&self.volume, &other)),
        }
    }
}

struct Receiving {
    volume: VolumeRef,
    header: StreamHeader,
    /// The tenant that was named to pay.
    tenant: Option<Name>,
}

impl Errand for Receiving {
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
        Ok((Task::Receive(ReceiveTask { volume: self.volume.clone(), header: self.header.clone(), part }), tenant))
    }

    fn last_step(&self) -> Option<String> {
        Some(format!("create volume {} from what was received", self.volume))
    }

    fn finish(&self, engine: &Engine, outcome: Outcome) -> Result<JobResult, Fault> {
        match outcome {
            Outcome::Received => {
                engine.volume_received(&self.volume, &self.header, false).map(Box::new).map(JobResult::Received)
            }
            other => Err(other_work(&self.volume, &other)),
        }
    }
}
