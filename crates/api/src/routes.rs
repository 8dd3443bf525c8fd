//! The routes of the API: one table, from which the router (`http`), the OpenAPI document (`openapi`) and the client (`client`) come.
//!
//! A row has the method, path, parameters, body and answer of a route. It becomes a function that returns the typed [`Route`]: a
//! handler or a call with other types does not compile, and a row without a handler fails a test
//! (`http::tests::every_documented_path_is_there`).
//!
//! Does not: handle requests, or speak HTTP.

mod body;
mod path;
mod query;

use std::fmt;
use std::marker::PhantomData;

use crate::wire::{
    CostsStore, DeviceArbiter, DeviceControl, DeviceMeasure, DeviceView, Done, HeatRow, HoldStart, HoldView, HostView,
    ImageImport, JobView, LeaseCreate, LeaseReply, LeaseView, Observation, PoolCreate, PoolMove, PoolView,
    ProfileStore, ReceiveView, RunStart, RunView, TenantCreate, TenantSet, TenantView, TrimView, VolumeCheck,
    VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize, VolumeRollback, VolumeSend, VolumeView,
};
use bulkhead_core::model::{Calibration, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::report::HostReport;
use bulkhead_core::stream::StreamHeader;
use hyper::Method;
use utoipa::openapi::Schema;
use uuid::Uuid;

pub use self::body::{Answer, Body, Json, NoContent, Stream, Text};
pub use self::path::{Device, PathParams, Run};
pub use self::query::{JobQuery, NoQuery, ObservationQuery, Query, Receive, Remove, VolumeFilter, Wait, Write};
use crate::openapi::{ListFaults, ObjectFaults, ObserveFaults, StreamFaults, WriteFaults};

/// A route, typed by its path parameters, query, body ([`Json`], or `()` for none) and answer.
#[derive(Debug)]
pub struct Route<A, Q, B, R> {
    pub method: Method,
    /// With `{name}` in place of each parameter.
    pub path: &'static str,
    types: PhantomData<fn(A, Q, B) -> R>,
}

impl<A: PathParams, Q: Query, B: Body, R> Route<A, Q, B, R> {
    fn new(method: Method, path: &'static str) -> Self {
        Self { method, path, types: PhantomData }
    }

    /// The request target (RFC 9112, 3.2.1).
    pub fn target(&self, params: &A, query: &Q) -> String {
        let mut params = params.segments().into_iter();
        let segment = |segment: &'static str| {
            let param = if segment.starts_with('{') { params.next() } else { None };
            param.map_or_else(|| segment.to_owned(), |param| path::escape(&param))
        };
        let path: Vec<String> = self.path.split('/').map(segment).collect();
        query::with_query(path.join("/"), query)
    }

    fn info(&self) -> RouteInfo {
        let names = self.path.split(['{', '}']).skip(1).step_by(2);
        RouteInfo { method: self.method.clone(), path: self.path, params: names.zip(A::schemas()).collect() }
    }
}

/// A row of the table, without its types.
pub struct RouteInfo {
    pub method: Method,
    pub path: &'static str,
    /// The parameters of its path, with their schemas.
    pub params: Vec<(&'static str, Schema)>,
}

impl fmt::Debug for RouteInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteInfo").field("method", &self.method).field("path", &self.path).finish_non_exhaustive()
    }
}

/// The second type, or the first one if there is no second.
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

/// One row. Its answer is `json`, JSON without a schema (`any`), `no_content`, `text` or `stream`.
macro_rules! route {
    (json($answer:ty) $faults:ident; $($row:tt)+) => {
        route! { @ [(status = 200, body = $answer), $faults] $answer; $($row)+ }
    };
    (any($answer:ty, $text:tt); $($row:tt)+) => {
        route! { @ [(status = 200, description = $text, body = serde_json::Value)] $answer; $($row)+ }
    };
    (no_content($text:tt) $faults:ident; $($row:tt)+) => {
        route! { @ [(status = 204, description = $text), $faults] NoContent; $($row)+ }
    };
    (text($media_type:tt, $text:tt); $($row:tt)+) => {
        route! { @ [(status = 200, description = $text, content_type = $media_type)] Text; $($row)+ }
    };
    (stream($answer:ty) $faults:ident; $($row:tt)+) => {
        route! {
            @ [
                (status = 101, description = "The connection now carries the stream. The header Bulkhead-Job has the number of the job, which has the result",
                    headers(("Bulkhead-Job" = u64, description = "Number of the job"))),
                (status = 200, description = "In a dry run: the planned steps", body = $answer),
                $faults
            ] Stream<$answer>; $($row)+
        }
    };
    (@ [$($responses:tt)+] $answer:ty; $(#[doc = $doc:tt])+ $id:ident: $method:ident $path:tt $tag:tt,
        params [$($path_params:ident)?] query [$($query:ident)?] body [$($body:ident)?]) => {
        $(#[doc = $doc])+
        #[utoipa::path($method, path = $path, tag = $tag, $(request_body = $body,)? $(params($query),)?
            responses($($responses)+))]
        #[must_use]
        pub fn $id() -> Route<or!((); $($path_params)?), or!(NoQuery; $($query)?), or!((); $(Json<$body>)?), $answer> {
            Route::new(method!($method), $path)
        }
    };
}

macro_rules! routes {
    ($($(#[doc = $doc:tt])+ $id:ident: $method:ident $path:tt, $tag:tt
        $(, params $params:ident)? $(, query $query:ident)? $(, body $body:ident)?
        => $kind:ident($($answer:tt)+) $(, $faults:ident)?;)+) => {
        $(route! {
            $kind($($answer)+) $($faults)?; $(#[doc = $doc])+ $id: $method $path $tag,
            params [$($params)?] query [$($query)?] body [$($body)?]
        })+

        /// The rows as OpenAPI paths, without path parameters ([`RouteInfo::params`]).
        #[derive(Debug, utoipa::OpenApi)]
        #[openapi(paths($($id),+))]
        pub struct Paths;

        /// All rows, in the order of the table.
        pub fn table() -> Vec<RouteInfo> {
            vec![$($id().info()),+]
        }
    };
}

routes! {
    /// Lists all pools.
    pool_list: get "/v1/pools", "pools"
        => json(Vec<PoolView>), ListFaults;
    /// Creates a pool, or adopts an existing one whose own records have this name. Idempotent. `has_data` if the source contains other
    /// data.
    pool_create: post "/v1/pools", "pools", query Write, body PoolCreate
        => json(Done<PoolView>), WriteFaults;
    /// Shows a pool.
    pool_inspect: get "/v1/pools/{name}", "pools", params Name
        => json(PoolView), ObjectFaults;
    /// Records the new directory of a directory pool whose files have been moved. Idempotent.
    pool_move: post "/v1/pools/{name}/move", "pools", params Name, query Write, body PoolMove
        => json(Done<PoolView>), WriteFaults;
    /// Removes an empty pool. `in_use` while it contains volumes. Idempotent.
    pool_remove: delete "/v1/pools/{name}", "pools", params Name, query Write
        => json(Done<PoolView>), WriteFaults;
    /// Lists the volumes of all pools, or of one.
    volume_list: get "/v1/volumes", "volumes", query VolumeFilter
        => json(Vec<VolumeView>), ObjectFaults;
    /// Creates a volume with an empty file system. Idempotent.
    volume_create: post "/v1/volumes", "volumes", query Write, body VolumeCreate
        => json(Done<VolumeView>), WriteFaults;
    /// Shows a volume.
    volume_inspect: get "/v1/volumes/{pool}/{name}", "volumes", params VolumeRef
        => json(VolumeView), ObjectFaults;
    /// Removes a volume and its data. `in_use` if it is mounted, unless `force` is set. Idempotent.
    volume_remove: delete "/v1/volumes/{pool}/{name}", "volumes", params VolumeRef, query Remove
        => json(Done<VolumeView>), WriteFaults;
    /// Resizes a volume, its journal, or both. Idempotent.
    volume_resize: post "/v1/volumes/{pool}/{name}/resize", "volumes", params VolumeRef, query Write, body VolumeResize
        => json(Done<VolumeView>), WriteFaults;
    /// Creates a snapshot or a clone in the same pool. Idempotent.
    volume_copy: post "/v1/volumes/{pool}/{name}/copy", "volumes", params VolumeRef, query Write, body VolumeCopy
        => json(Done<VolumeView>), WriteFaults;
    /// Reverts a volume that is not attached to a tenant to one of its snapshots. Everything written since the snapshot is lost.
    volume_rollback: post "/v1/volumes/{pool}/{name}/rollback", "volumes", params VolumeRef, query Write, body VolumeRollback
        => json(Done<VolumeView>), WriteFaults;
    /// Starts to copy the blocks that a volume shares with its layers into its own image, while it is in use; or stops copying. Idempotent.
    volume_flatten: post "/v1/volumes/{pool}/{name}/flatten", "volumes", params VolumeRef, query Write, body VolumeFlatten
        => json(Done<VolumeView>), WriteFaults;
    /// Shows from where volumes have read the blocks that they share: from disk, from the host's page cache, or from a peer's page cache.
    heatmap: get "/v1/heatmap", "volumes"
        => json(Vec<HeatRow>), ListFaults;
    /// Sends a snapshot. The connection is upgraded to `bulkhead-stream` and carries the stream until it is closed. The snapshot is made
    /// immutable first.
    volume_send: post "/v1/volumes/{pool}/{name}/send", "volumes", params VolumeRef, query Write, body VolumeSend
        => stream(Done<VolumeView>), StreamFaults;
    /// Receives a snapshot as a volume, or resumes an interrupted transfer. The connection is upgraded to `bulkhead-stream`; the client then
    /// sends the stream, starting with its header. If the connection is lost, the received data is kept.
    volume_receive: post "/v1/volumes/{pool}/{name}/receive", "volumes", params VolumeRef, query Receive, body StreamHeader
        => stream(Done<ReceiveView>), StreamFaults;
    /// Shows the progress of an unfinished transfer to a volume.
    volume_receiving: get "/v1/volumes/{pool}/{name}/receive", "volumes", params VolumeRef
        => json(ReceiveView), ObjectFaults;
    /// Discards the received data of an unfinished transfer. Idempotent.
    volume_receive_abort: delete "/v1/volumes/{pool}/{name}/receive", "volumes", params VolumeRef, query Write
        => json(Done<ReceiveView>), WriteFaults;
    /// Imports an image. The connection is upgraded to `bulkhead-stream`; the client then sends a tar archive (plain, gzip or zstd) that
    /// contains a directory tree, an OCI image layout or the output of `docker save`. If the connection is lost, the job is cancelled.
    volume_import: post "/v1/volumes/{pool}/{name}/import", "volumes", params VolumeRef, query Write, body ImageImport
        => stream(Done<ReceiveView>), StreamFaults;
    /// Checks, and repairs if requested, the file system of a volume that is not mounted.
    volume_check: post "/v1/volumes/{pool}/{name}/check", "volumes", params VolumeRef, query Write, body VolumeCheck
        => json(Done<VolumeView>), WriteFaults;
    /// Discards the blocks of a mounted volume that no file uses, which returns them to the pool. Other operations on the volume can run after
    /// each GiB. Ends when the client disconnects.
    volume_trim: post "/v1/volumes/{pool}/{name}/trim", "volumes", params VolumeRef, query Write
        => json(Done<TrimView>), WriteFaults;
    /// Provides the block device of a volume that is not attached to a tenant, without mounting it. Idempotent.
    volume_map: post "/v1/volumes/{pool}/{name}/map", "volumes", params VolumeRef, query Write
        => json(Done<VolumeView>), WriteFaults;
    /// Removes the block device of a mapped volume. Idempotent.
    volume_unmap: delete "/v1/volumes/{pool}/{name}/map", "volumes", params VolumeRef, query Write
        => json(Done<VolumeView>), WriteFaults;
    /// Lists all tenants.
    tenant_list: get "/v1/tenants", "tenants"
        => json(Vec<TenantView>), ListFaults;
    /// Creates a tenant and mounts its volumes. Idempotent.
    tenant_create: post "/v1/tenants", "tenants", query Write, body TenantCreate
        => json(Done<TenantView>), WriteFaults;
    /// Shows a tenant.
    tenant_inspect: get "/v1/tenants/{name}", "tenants", params Name
        => json(TenantView), ObjectFaults;
    /// Changes a tenant's share, limits and volumes. Idempotent.
    tenant_set: patch "/v1/tenants/{name}", "tenants", params Name, query Write, body TenantSet
        => json(Done<TenantView>), WriteFaults;
    /// Removes a tenant; its volumes are kept. `in_use` if processes run in it, unless `force` is set, which kills them. Idempotent.
    tenant_remove: delete "/v1/tenants/{name}", "tenants", params Name, query Remove
        => json(Done<TenantView>), WriteFaults;
    /// Stores what a tenant demands of its host, for the host's report. Replaces an earlier profile.
    profile_store: post "/v1/tenants/{name}/profile", "tenants", params Name, query Write, body ProfileStore
        => json(Done<TenantView>), WriteFaults;
    /// Lists the leases: volumes that are mounted until a process ends or a front end returns them.
    lease_list: get "/v1/leases", "leases"
        => json(Vec<LeaseView>), ListFaults;
    /// Mounts volumes for a tenant, until a process ends or a front end returns them.
    lease_create: post "/v1/leases", "leases", query Wait, body LeaseCreate
        => json(LeaseReply), WriteFaults;
    /// Ends a lease; that of a front end's user once it was returned as often as it was requested.
    lease_remove: delete "/v1/leases/{id}", "leases", params Uuid, query Wait
        => no_content("The lease has ended"), WriteFaults;
    /// Moves a command into a tenant, in its own cgroup; in a scope if the tenant is managed by systemd.
    run_start: post "/v1/tenants/{name}/runs", "tenants", params Name, query Wait, body RunStart
        => json(RunView), WriteFaults;
    /// Kills the processes that a command has left running, and ends the leases of the process that waited for it. Idempotent.
    run_end: delete "/v1/tenants/{name}/runs/{pid}", "tenants", params Run, query Wait
        => no_content("No process of the run is left"), WriteFaults;
    /// Lists all block devices, physical and stacked.
    device_list: get "/v1/devices", "devices"
        => json(Vec<DeviceView>), ListFaults;
    /// Shows a block device, and whether shares have an effect on it.
    device_inspect: get "/v1/devices/{name}", "devices", params Device
        => json(DeviceView), ObjectFaults;
    /// Enables an I/O controller on a physical device, or restores the configuration from before Bulkhead changed it. Idempotent.
    device_control: post "/v1/devices/{name}/control", "devices", params Device, query Write, body DeviceControl
        => json(Done<DeviceView>), WriteFaults;
    /// Has the block servers of volumes on a physical device with an arm take turns, or not. Idempotent.
    device_arbiter: post "/v1/devices/{name}/arbiter", "devices", params Device, query Write, body DeviceArbiter
        => json(Done<DeviceView>), WriteFaults;
    /// Stores a calibration of a device, and applies it if io.cost is enabled there.
    device_calibrate: post "/v1/devices/{name}/calibrate", "devices", params Device, query Write, body Calibration
        => json(Done<DeviceView>), WriteFaults;
    /// Starts to measure the io.cost model of a device, and stores the result; or measures the effect of the stored calibration. Uses scratch
    /// volumes of a pool, and takes minutes. Returns the job.
    device_measure: post "/v1/devices/{name}/measure", "devices", params Device, query Wait, body DeviceMeasure
        => json(JobView), WriteFaults;
    /// Stores what the requests of the devices below a directory cost, for the host's report. Replaces earlier costs of the same devices.
    costs_store: post "/v1/costs", "devices", query Write, body CostsStore
        => json(Done<DeviceView>), WriteFaults;
    /// Lists all holds.
    hold_list: get "/v1/holds", "hold"
        => json(Vec<HoldView>), ListFaults;
    /// Starts to enforce the shares of containers on a device, journal I/O included. Replaces an existing hold on the device. Repeating the
    /// request renews a lease.
    hold_start: post "/v1/holds", "hold", query Write, body HoldStart
        => json(Done<HoldView>), WriteFaults;
    /// Ends the hold on a device and restores the previous weights. Idempotent.
    hold_stop: delete "/v1/holds/{device}", "hold", params Device, query Write
        => json(Done<HoldView>), WriteFaults;
    /// Lists the jobs: operations that are in progress or ended recently.
    job_list: get "/v1/jobs", "jobs"
        => json(Vec<JobView>), ListFaults;
    /// Shows a job, params once or when it has ended.
    job_inspect: get "/v1/jobs/{id}", "jobs", params u64, query JobQuery
        => json(JobView), ObjectFaults;
    /// Cancels a job and undoes what it has done: at once while it waits, else before its next step. No effect on a job that has ended or
    /// that can no longer be undone. Idempotent.
    job_cancel: delete "/v1/jobs/{id}", "jobs", params u64
        => json(JobView), ObjectFaults;
    /// Shows which container wrote which journal bytes, and whose writes delayed whose fsync. The figures are sums since the daemon started
    /// to observe: the difference of two answers is what happened in between. The first request starts the observation.
    observation: get "/v1/observation", "observe", query ObservationQuery
        => json(Observation), ObserveFaults;
    /// Shows the observation as Prometheus metrics. The observation continues as long as scrapes are at most two minutes apart.
    metrics_text: get "/metrics", "observe"
        => text("application/openmetrics-text", "Metrics, in a format that the request accepts");
    /// Shows facts about the host, and the daemon's findings.
    host: get "/v1/host", "host"
        => json(HostView), ListFaults;
    /// Shows what plans have to know of the host: processors, memory, devices with their costs, and tenants with their demands.
    host_report: get "/v1/report", "host"
        => json(HostReport), ListFaults;
    /// Succeeds while the daemon runs; long operations do not delay the answer.
    healthz: get "/v1/healthz", "host"
        => any(serde_json::Value, "The daemon is running");
    /// Returns this document.
    openapi: get "/v1/openapi.json", "host"
        => any(serde_json::Value, "The OpenAPI document");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn routes_are_unique_and_each_path_parameter_has_a_schema() {
        let table = table();
        let unique: BTreeSet<_> = table.iter().map(|route| (route.path, route.method.as_str())).collect();
        assert_eq!(unique.len(), table.len());
        for route in table {
            assert_eq!(route.path.matches('{').count(), route.params.len(), "{}", route.path);
        }
    }

    #[test]
    fn a_target_escapes_path_parameters_and_omits_default_query_parameters() {
        assert_eq!(pool_list().target(&(), &NoQuery {}), "/v1/pools");
        let volume: VolumeRef = "file/v".parse().unwrap();
        let write = Write { dry_run: true, wait_seconds: None }.with_wait(Some(Duration::from_secs(7)));
        assert_eq!(volume_map().target(&volume, &write), "/v1/volumes/file/v/map?dry_run=true&wait_seconds=7");
        assert_eq!(volume_map().target(&volume, &Write::default().with_wait(None)), "/v1/volumes/file/v/map");
        let remove = Remove { force: true, ..Remove::default() };
        assert_eq!(tenant_remove().target(&"db".parse().unwrap(), &remove), "/v1/tenants/db?force=true");
        let device = Device("/dev/a b?\u{e9}".to_owned());
        assert_eq!(device_inspect().target(&device, &NoQuery {}), "/v1/devices/%2Fdev%2Fa%20b%3F%C3%A9");
        assert_eq!(lease_remove().target(&Uuid::nil(), &Wait::default()), format!("/v1/leases/{}", Uuid::nil()));
        assert_eq!(job_cancel().target(&12, &NoQuery {}), "/v1/jobs/12");
        assert_eq!(
            observation().target(&(), &ObservationQuery { waits_seconds: 0.5 }),
            "/v1/observation?waits_seconds=0.5"
        );
        assert_eq!(volume_list().target(&(), &VolumeFilter::default()), "/v1/volumes");
        let filter =
            VolumeFilter { pool: Some("p".parse().unwrap()), name: Some("v".parse().unwrap()), complete: true };
        assert_eq!(volume_list().target(&(), &filter), "/v1/volumes?complete=true&name=v&pool=p");
    }
}
