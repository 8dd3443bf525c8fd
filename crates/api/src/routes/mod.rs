//! The routes of the API: one table, from which the router (`http`), the OpenAPI document (`openapi`) and the client (`client`) come.
//!
//! A row says where a route is and what goes in and comes out. It becomes a function that returns the typed [`Route`]: a handler or
//! a call of other types does not compile, and a row without a handler fails a test (`http::tests::every_documented_path_is_there`).
//!
//! Does not: handle anything, or speak HTTP.

mod parts;

use std::fmt;
use std::marker::PhantomData;

use crate::wire::{
    DeviceControl, DeviceMeasure, DeviceView, Done, HeatRow, HoldStart, HoldView, HostView, ImageImport, JobView,
    LeaseCreate, LeaseReply, Observation, PoolCreate, PoolMove, PoolView, ReceiveView, RunStart, RunView, TenantCreate,
    TenantSet, TenantView, TrimView, VolumeCheck, VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize,
    VolumeRollback, VolumeSend, VolumeView,
};
use bulkhead_core::model::{Calibration, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::stream::StreamHeader;
use hyper::Method;
use utoipa::openapi::{OpenApi, Schema};
use uuid::Uuid;

pub use self::parts::{
    Answer, AtEnd, Body, Device, NoQuery, Nothing, OfPool, Place, Query, Receive, Remove, Run, Sent, Stream, Text,
    Wait, Waits, Write,
};
use crate::openapi::{ListFaults, ObjectFaults, ObserveFaults, StreamFaults, WriteFaults};

/// A route: what its path names, its query, its body ([`Sent`], or `()` for none), and its answer.
#[derive(Debug)]
pub struct Route<A, Q, B, R> {
    pub method: Method,
    /// With `{name}` for each variable part.
    pub path: &'static str,
    types: PhantomData<fn(A, Q, B) -> R>,
}

impl<A: Place, Q: Query, B: Body, R> Route<A, Q, B, R> {
    fn new(method: Method, path: &'static str) -> Self {
        Self { method, path, types: PhantomData }
    }

    /// The request target (RFC 9112, 3.2.1).
    pub fn target(&self, at: &A, query: &Q) -> String {
        let mut named = at.parts().into_iter();
        let part = |part: &'static str| {
            let name = if part.starts_with('{') { named.next() } else { None };
            name.map_or_else(|| part.to_owned(), |name| parts::escaped(&name))
        };
        let path: Vec<String> = self.path.split('/').map(part).collect();
        parts::with_query(path.join("/"), query)
    }

    fn listed(&self) -> Listed {
        let names = self.path.split(['{', '}']).skip(1).step_by(2);
        Listed { method: self.method.clone(), path: self.path, named: names.zip(A::schemas()).collect() }
    }
}

/// A row of the table, without its types.
pub struct Listed {
    pub method: Method,
    pub path: &'static str,
    /// The variable parts of its path.
    pub named: Vec<(&'static str, Schema)>,
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listed").field("method", &self.method).field("path", &self.path).finish_non_exhaustive()
    }
}

/// The first word where there is no second.
macro_rules! or {
    ($default:ty;) => {
        $default
    };
    ($default:ty; $given:ty) => {
        $given
    };
}

macro_rules! method {
    (get) => {
        Method::GET
    };
    (post) => {
        Method::POST
    };
    (patch) => {
        Method::PATCH
    };
    (delete) => {
        Method::DELETE
    };
}

/// One row: its answer is `json`, JSON that has no schema (`any`), `nothing`, or `text`.
macro_rules! route {
    (json($answer:ty) $faults:ident; $($row:tt)+) => {
        route! { @ [(status = 200, body = $answer), $faults] $answer; $($row)+ }
    };
    (any($answer:ty, $text:tt); $($row:tt)+) => {
        route! { @ [(status = 200, description = $text, body = serde_json::Value)] $answer; $($row)+ }
    };
    (nothing($text:tt) $faults:ident; $($row:tt)+) => {
        route! { @ [(status = 204, description = $text), $faults] Nothing; $($row)+ }
    };
    (text($media_type:tt, $text:tt); $($row:tt)+) => {
        route! { @ [(status = 200, description = $text, content_type = $media_type)] Text; $($row)+ }
    };
    (stream($answer:ty) $faults:ident; $($row:tt)+) => {
        route! {
            @ [
                (status = 101, description = "The connection is the stream of the job that the header Bulkhead-Job names: its outcome is there",
                    headers(("Bulkhead-Job" = u64, description = "The job"))),
                (status = 200, description = "What would be done, in a dry run", body = $answer),
                $faults
            ] Stream<$answer>; $($row)+
        }
    };
    (@ [$($responses:tt)+] $answer:ty; $(#[doc = $doc:tt])+ $id:ident: $method:ident $path:tt $tag:tt,
        at [$($at:ident)?] query [$($query:ident)?] body [$($body:ident)?]) => {
        $(#[doc = $doc])+
        #[utoipa::path($method, path = $path, tag = $tag, $(request_body = $body,)? $(params($query),)?
            responses($($responses)+))]
        #[must_use]
        pub fn $id() -> Route<or!((); $($at)?), or!(NoQuery; $($query)?), or!((); $(Sent<$body>)?), $answer> {
            Route::new(method!($method), $path)
        }
    };
}

macro_rules! routes {
    ($($(#[doc = $doc:tt])+ $id:ident: $method:ident $path:tt, $tag:tt
        $(, at $at:ident)? $(, query $query:ident)? $(, body $body:ident)?
        => $kind:ident($($answer:tt)+) $(, $faults:ident)?;)+) => {
        $(route! {
            $kind($($answer)+) $($faults)?; $(#[doc = $doc])+ $id: $method $path $tag,
            at [$($at)?] query [$($query)?] body [$($body)?]
        })+

        /// What the rows say in OpenAPI, but for the variable parts of their paths ([`Listed::named`]).
        #[derive(Debug, utoipa::OpenApi)]
        #[openapi(paths($($id),+))]
        pub struct Paths;

        /// All rows, in the order of the table.
        pub fn all() -> Vec<Listed> {
            vec![$($id().listed()),+]
        }
    };
}

routes! {
    /// Lists the pools.
    pool_list: get "/v1/pools", "pools"
        => json(Vec<PoolView>), ListFaults;
    /// Makes a pool, or takes one over that describes itself by this name. Idempotent.
    pool_create: post "/v1/pools", "pools", query Write, body PoolCreate
        => json(Done<PoolView>), WriteFaults;
    /// Shows a pool.
    pool_inspect: get "/v1/pools/{name}", "pools", at Name
        => json(PoolView), ObjectFaults;
    /// Says where a pool in a directory is now. Idempotent.
    pool_move: post "/v1/pools/{name}/move", "pools", at Name, query Write, body PoolMove
        => json(Done<PoolView>), WriteFaults;
    /// Removes an empty pool. Idempotent.
    pool_remove: delete "/v1/pools/{name}", "pools", at Name, query Write
        => json(Done<PoolView>), WriteFaults;
    /// Lists the volumes of all pools, or of one.
    volume_list: get "/v1/volumes", "volumes", query OfPool
        => json(Vec<VolumeView>), ObjectFaults;
    /// Makes a volume with an empty file system. Idempotent.
    volume_create: post "/v1/volumes", "volumes", query Write, body VolumeCreate
        => json(Done<VolumeView>), WriteFaults;
    /// Shows a volume.
    volume_inspect: get "/v1/volumes/{pool}/{name}", "volumes", at VolumeRef
        => json(VolumeView), ObjectFaults;
    /// Removes a volume and its data; one that is mounted only with `force`. Idempotent.
    volume_remove: delete "/v1/volumes/{pool}/{name}", "volumes", at VolumeRef, query Remove
        => json(Done<VolumeView>), WriteFaults;
    /// Changes a volume's size. Idempotent.
    volume_resize: post "/v1/volumes/{pool}/{name}/resize", "volumes", at VolumeRef, query Write, body VolumeResize
        => json(Done<VolumeView>), WriteFaults;
    /// Makes a snapshot or a clone in the same pool. Idempotent.
    volume_copy: post "/v1/volumes/{pool}/{name}/copy", "volumes", at VolumeRef, query Write, body VolumeCopy
        => json(Done<VolumeView>), WriteFaults;
    /// Makes a volume that no tenant holds what a snapshot of it holds; what was written since is lost.
    volume_rollback: post "/v1/volumes/{pool}/{name}/rollback", "volumes", at VolumeRef, query Write, body VolumeRollback
        => json(Done<VolumeView>), WriteFaults;
    /// Has a copied volume copy what it still shares, while it is in use, or stop that. Idempotent.
    volume_flatten: post "/v1/volumes/{pool}/{name}/flatten", "volumes", at VolumeRef, query Write, body VolumeFlatten
        => json(Done<VolumeView>), WriteFaults;
    /// Shows what volumes have read of what they share: from the disk, from the host's page cache, or from a sibling's.
    heatmap: get "/v1/heatmap", "volumes"
        => json(Vec<HeatRow>), ListFaults;
    /// Sends a snapshot, after it was made sure that it never changes: the connection is upgraded to `bulkhead-stream`, and has the
    /// stream until it is closed.
    volume_send: post "/v1/volumes/{pool}/{name}/send", "volumes", at VolumeRef, query Write, body VolumeSend
        => stream(Done<VolumeView>), StreamFaults;
    /// Receives a snapshot as a volume, or goes on with it: the connection is upgraded to `bulkhead-stream`, and the stream, with its
    /// header, is what comes next. What was received stays when it breaks off.
    volume_receive: post "/v1/volumes/{pool}/{name}/receive", "volumes", at VolumeRef, query Receive, body StreamHeader
        => stream(Done<ReceiveView>), StreamFaults;
    /// Tells how far the receiving of a volume is.
    volume_receiving: get "/v1/volumes/{pool}/{name}/receive", "volumes", at VolumeRef
        => json(ReceiveView), ObjectFaults;
    /// Gives up what was received of a volume so far. Idempotent.
    volume_receive_abort: delete "/v1/volumes/{pool}/{name}/receive", "volumes", at VolumeRef, query Write
        => json(Done<ReceiveView>), WriteFaults;
    /// Imports an image: the connection is upgraded to `bulkhead-stream`, and a tar archive (plain, gzip or zstd), of a tree or of an OCI
    /// layout, is what comes next. The job ends with the connection.
    volume_import: post "/v1/volumes/{pool}/{name}/import", "volumes", at VolumeRef, query Write, body ImageImport
        => stream(Done<ReceiveView>), StreamFaults;
    /// Checks the file system of a volume that is not mounted.
    volume_check: post "/v1/volumes/{pool}/{name}/check", "volumes", at VolumeRef, query Write, body VolumeCheck
        => json(Done<VolumeView>), WriteFaults;
    /// Has a mounted volume give what its files no longer use back to its pool; others have the volume after each GiB. Ends when the client
    /// goes away.
    volume_trim: post "/v1/volumes/{pool}/{name}/trim", "volumes", at VolumeRef, query Write
        => json(Done<TrimView>), WriteFaults;
    /// Gives a volume that no tenant has a device without mounting it. Idempotent.
    volume_map: post "/v1/volumes/{pool}/{name}/map", "volumes", at VolumeRef, query Write
        => json(Done<VolumeView>), WriteFaults;
    /// Takes the device of a mapped volume away. Idempotent.
    volume_unmap: delete "/v1/volumes/{pool}/{name}/map", "volumes", at VolumeRef, query Write
        => json(Done<VolumeView>), WriteFaults;
    /// Lists the tenants.
    tenant_list: get "/v1/tenants", "tenants"
        => json(Vec<TenantView>), ListFaults;
    /// Makes a tenant and mounts its volumes. Idempotent.
    tenant_create: post "/v1/tenants", "tenants", query Write, body TenantCreate
        => json(Done<TenantView>), WriteFaults;
    /// Shows a tenant.
    tenant_inspect: get "/v1/tenants/{name}", "tenants", at Name
        => json(TenantView), ObjectFaults;
    /// Changes a tenant's share, limits and volumes. Idempotent.
    tenant_set: patch "/v1/tenants/{name}", "tenants", at Name, query Write, body TenantSet
        => json(Done<TenantView>), WriteFaults;
    /// Removes a tenant; with `force` its processes are killed. Its volumes stay. Idempotent.
    tenant_remove: delete "/v1/tenants/{name}", "tenants", at Name, query Remove
        => json(Done<TenantView>), WriteFaults;
    /// Mounts volumes for a tenant for as long as a process lives.
    lease_create: post "/v1/leases", "leases", query Wait, body LeaseCreate
        => json(LeaseReply), WriteFaults;
    /// Gives a lease back. Idempotent.
    lease_remove: delete "/v1/leases/{id}", "leases", at Uuid, query Wait
        => nothing("There is no such lease any more"), WriteFaults;
    /// Puts a command into a tenant, in a cgroup of its own; below a tenant that is a unit of systemd's, a scope.
    run_start: post "/v1/tenants/{name}/runs", "tenants", at Name, query Wait, body RunStart
        => json(RunView), WriteFaults;
    /// Ends what a command has left running, and gives back the leases of the process that waited for it. Idempotent.
    run_end: delete "/v1/tenants/{name}/runs/{pid}", "tenants", at Run, query Wait
        => nothing("Nothing of it is left"), WriteFaults;
    /// Lists the block devices: physical ones, and those stacked on them.
    device_list: get "/v1/devices", "devices"
        => json(Vec<DeviceView>), ListFaults;
    /// Shows a block device, and whether shares have an effect on it.
    device_inspect: get "/v1/devices/{name}", "devices", at Device
        => json(DeviceView), ObjectFaults;
    /// Puts a controller in force on a physical device, or what was in force before Bulkhead changed it. Idempotent.
    device_control: post "/v1/devices/{name}/control", "devices", at Device, query Write, body DeviceControl
        => json(Done<DeviceView>), WriteFaults;
    /// Records a calibration that was measured on the device, and applies it where io.cost is in force.
    device_calibrate: post "/v1/devices/{name}/calibrate", "devices", at Device, query Write, body Calibration
        => json(Done<DeviceView>), WriteFaults;
    /// Begins to measure an io.cost model of a device, which is recorded, or what the recorded one does: on scratch volumes of a pool, for
    /// minutes. Returns its job.
    device_measure: post "/v1/devices/{name}/measure", "devices", at Device, query Wait, body DeviceMeasure
        => json(JobView), WriteFaults;
    /// Lists the shares that are held.
    hold_list: get "/v1/holds", "hold"
        => json(Vec<HoldView>), ListFaults;
    /// Holds shares of containers on a device, journal I/O included, in place of what was held on it; the same request again renews a
    /// lease.
    hold_start: post "/v1/holds", "hold", query Write, body HoldStart
        => json(Done<HoldView>), WriteFaults;
    /// Ends what is held on a device: the weights are as before. Idempotent.
    hold_stop: delete "/v1/holds/{device}", "hold", at Device, query Write
        => json(Done<HoldView>), WriteFaults;
    /// Lists the jobs: operations that are under way, and those that ended lately.
    job_list: get "/v1/jobs", "jobs"
        => json(Vec<JobView>), ListFaults;
    /// Shows a job, at once or when it has ended.
    job_inspect: get "/v1/jobs/{id}", "jobs", at u64, query AtEnd
        => json(JobView), ObjectFaults;
    /// Has a job end as soon as all that it did can be undone; at once while it waits. One that has ended, or cannot be undone any more,
    /// is what it is. Idempotent.
    job_cancel: delete "/v1/jobs/{id}", "jobs", at u64
        => json(JobView), ObjectFaults;
    /// Shows who wrote which journal bytes and who waited for whom in fsync: sums since the daemon began to observe, which are
    /// compared with an earlier answer to see what happens now. The first question begins the observation.
    observation: get "/v1/observation", "observe", query Waits
        => json(Observation), ObserveFaults;
    /// What was observed, for Prometheus. A scrape every two minutes or more often keeps the observation going.
    metrics_text: get "/metrics", "observe"
        => text("application/openmetrics-text", "Metrics, in the format that is accepted");
    /// Shows what the daemon is and sees.
    host: get "/v1/host", "host"
        => json(HostView), ListFaults;
    /// Answers while the daemon lives, also during a long operation.
    healthz: get "/v1/healthz", "host"
        => any(serde_json::Value, "The daemon answers");
    /// This document.
    openapi: get "/v1/openapi.json", "host"
        => any(OpenApi, "The OpenAPI document");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_route_is_at_a_place_of_its_own_and_each_variable_part_has_a_type() {
        let all = all();
        let places: BTreeSet<_> = all.iter().map(|route| (route.path, route.method.as_str())).collect();
        assert_eq!(places.len(), all.len());
        for route in all {
            assert_eq!(route.path.matches('{').count(), route.named.len(), "{}", route.path);
        }
    }

    #[test]
    fn a_target_has_what_its_path_names_escaped_and_what_is_not_the_default_of_its_query() {
        assert_eq!(pool_list().target(&(), &NoQuery {}), "/v1/pools");
        let volume: VolumeRef = "file/v".parse().unwrap();
        let write = Write { dry_run: true, wait_seconds: None }.waiting(Some(Duration::from_secs(7)));
        assert_eq!(volume_map().target(&volume, &write), "/v1/volumes/file/v/map?dry_run=true&wait_seconds=7");
        assert_eq!(volume_map().target(&volume, &Write::default().waiting(None)), "/v1/volumes/file/v/map");
        let remove = Remove { force: true, ..Remove::default() };
        assert_eq!(tenant_remove().target(&"db".parse().unwrap(), &remove), "/v1/tenants/db?force=true");
        let device = Device("/dev/a b?\u{e9}".to_owned());
        assert_eq!(device_inspect().target(&device, &NoQuery {}), "/v1/devices/%2Fdev%2Fa%20b%3F%C3%A9");
        assert_eq!(lease_remove().target(&Uuid::nil(), &Wait::default()), format!("/v1/leases/{}", Uuid::nil()));
        assert_eq!(job_cancel().target(&12, &NoQuery {}), "/v1/jobs/12");
        assert_eq!(observation().target(&(), &Waits { waits_seconds: 0.5 }), "/v1/observation?waits_seconds=0.5");
        assert_eq!(volume_list().target(&(), &OfPool { pool: None }), "/v1/volumes");
        assert_eq!(volume_list().target(&(), &OfPool { pool: Some("p".parse().unwrap()) }), "/v1/volumes?pool=p");
    }
}
