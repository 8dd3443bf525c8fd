//! Arguments of `bulkhead tenant` and `bulkhead run`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::Write;

#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// Create a tenant: its cgroups, share, limits and volumes
    Create {
        /// Name of the tenant
        name: String,
        /// I/O weight under contention, 1 to 10000
        #[arg(long, value_name = "N", default_value = "100", allow_hyphen_values = true)]
        share: String,
        /// Hard limit on the I/O of a device, in bytes per second (rbps, wbps) or operations per second (riops, wiops), for example
        /// vda:wbps=50M,riops=100; can be repeated for other devices
        #[arg(long = "limit", value_name = "DEV:KEY=N,…")]
        limits: Vec<String>,
        /// Promise that 99 % of the tenant's fsyncs take at most this long, for example 20ms: while they take longer, other tenants with
        /// volumes on the same device are throttled
        #[arg(long, value_name = "TIME")]
        fsync_p99: Option<String>,
        /// Volume to attach, which is then kept mounted for the tenant; can be repeated
        #[arg(long = "volume", value_name = "POOL/VOLUME")]
        volumes: Vec<String>,
        #[command(flatten)]
        write: Write,
    },
    /// List tenants
    Ls,
    /// Show a tenant
    Inspect {
        /// Name of the tenant
        name: String,
    },
    /// Wait until all volumes of a tenant are mounted
    ///
    /// If it fails, the error names a volume that is not mounted, and the cause. The unit bulkhead-tenant@NAME.service runs this command; units that need the
    /// volumes declare Requires= and After= on it.
    Ready {
        /// Name of the tenant
        name: String,
        /// Seconds to wait
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        timeout: u64,
    },
    /// Change a tenant; unspecified settings stay unchanged
    Set(TenantSetArgs),
    /// Remove a tenant; its volumes are kept
    Rm {
        /// Name of the tenant
        name: String,
        /// Remove it even if processes run in it, after killing them
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        write: Write,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TenantSetArgs {
    /// Name of the tenant
    pub(crate) name: String,
    /// New I/O weight, 1 to 10000
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) share: Option<String>,
    /// Hard limit on the I/O of a device, in bytes per second (rbps, wbps) or operations per second (riops, wiops), for example
    /// vda:wbps=50M,riops=100; can be repeated for other devices. Replaces all existing limits
    #[arg(long = "limit", value_name = "DEV:KEY=N,…", conflicts_with = "no_limits")]
    pub(crate) limits: Vec<String>,
    /// Remove all hard limits
    #[arg(long)]
    pub(crate) no_limits: bool,
    /// Promise that 99 % of the tenant's fsyncs take at most this long, for example 20ms; `none` removes the promise
    #[arg(long, value_name = "TIME")]
    pub(crate) fsync_p99: Option<String>,
    /// Volume to attach, which is then kept mounted for the tenant; can be repeated
    #[arg(long, value_name = "POOL/VOLUME")]
    pub(crate) attach: Vec<String>,
    /// Volume to detach and unmount; can be repeated
    #[arg(long, value_name = "POOL/VOLUME")]
    pub(crate) detach: Vec<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Tenant to run the command in
    #[arg(long, short)]
    pub(crate) tenant: String,
    /// Volume, and its mount point for the command; with `:ro` it is read-only; can be repeated
    #[arg(long = "volume", short, value_name = "POOL/VOLUME:/PATH[:ro]")]
    pub(crate) volumes: Vec<String>,
    /// Command and its arguments; processes that it leaves running in the background are killed when it ends
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct EnterArgs {
    #[arg(long)]
    pub(crate) tenant: String,
    /// Process that waits for the command
    #[arg(long)]
    pub(crate) run: u32,
    #[arg(long, num_args = 3, allow_hyphen_values = true, value_names = ["SOURCE", "TARGET", "MODE"])]
    pub(crate) bind: Vec<OsString>,
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}
