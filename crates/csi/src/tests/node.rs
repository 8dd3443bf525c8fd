//! The node's calls, with bind mounts of the kernel in a mount namespace of their own. The daemon's host is simulated: in place of each
//! volume that it has mounted, the test mounts a tmpfs.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_api::client::Removal;
use tonic::{Code, Request, Response, Status};

use super::{LIMIT, Mode, Stack, answer, block, capability, refused, request};
use crate::TOPOLOGY;
use crate::node::{Node, Settings};
use crate::proto::node_server::Node as Service;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_usage::Unit;
use crate::proto::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
};

/// A daemon, and the node service in front of it.
pub(super) struct Host {
    pub(super) stack: Stack,
    pub(super) node: Node,
    pub(super) kubelet: PathBuf,
}

impl Host {
    pub(super) async fn start() -> Self {
        Self::start_on("node-1").await
    }

    pub(super) async fn start_on(node_id: &str) -> Self {
        let stack = Stack::start_on(node_id).await;
        let kubelet = stack.dir.path().join("kubelet");
        std::fs::create_dir_all(kubelet.join("pods")).unwrap();
        std::fs::create_dir_all(kubelet.join("stage")).unwrap();
        let settings = Settings { node: node_id.to_owned(), ..settings(&kubelet) };
        let node = Node::new(stack.daemon.clone(), settings);
        Self { stack, node, kubelet }
    }

    pub(super) fn path(&self, below: &str) -> String {
        self.kubelet.join(below).display().to_string()
    }

    pub(super) async fn stage(&self, id: &str, path: &str, capability: VolumeCapability) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: path.to_owned(),
            volume_capability: Some(capability),
            ..Default::default()
        };
        answer(self.node.node_stage_volume(Request::new(request))).await.map(drop)
    }

    pub(super) async fn unstage(&self, id: &str, path: &str) -> Result<(), Status> {
        let (volume_id, staging_target_path) = (id.to_owned(), path.to_owned());
        let request = NodeUnstageVolumeRequest { volume_id, staging_target_path };
        answer(self.node.node_unstage_volume(Request::new(request))).await.map(drop)
    }

    pub(super) async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        answer(self.node.node_publish_volume(Request::new(request))).await.map(drop)
    }

    pub(super) async fn unpublish(&self, id: &str, path: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: path.to_owned() };
        answer(self.node.node_unpublish_volume(Request::new(request))).await.map(drop)
    }

    /// A request to publish a volume that is staged at `stage`.
    pub(super) fn publication(&self, id: &str, target: &str) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.path("stage"),
            target_path: self.path(target),
            volume_capability: Some(writer()),
            ..Default::default()
        }
    }

    pub(super) async fn n_leases(&self) -> usize {
        self.stack.daemon.lease_list().await.unwrap().len()
    }

    /// Creates and stages a volume, and mounts a tmpfs where the simulated host has only claimed to mount the volume.
    async fn staged(&self, name: &str) -> String {
        let id = self.stack.create(request(name, 32)).await.unwrap().volume_id;
        self.stage(&id, &self.path("stage"), writer()).await.unwrap();
        let leases = self.stack.daemon.lease_list().await.unwrap();
        let lease = leases.iter().find(|lease| lease.volume.to_string() == id).unwrap();
        std::fs::create_dir_all(&lease.mounted_at).unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=1M,nosuid", name, lease.mounted_at.to_str().unwrap()]);
        std::fs::write(lease.mounted_at.join("name"), name).unwrap();
        id
    }
}

pub(super) fn node(stack: &Stack, kubelet: &Path) -> Node {
    Node::new(stack.daemon.clone(), settings(kubelet))
}

fn settings(kubelet: &Path) -> Settings {
    Settings { node: "node-1".to_owned(), kubelet_dir: kubelet.to_owned(), patience: LIMIT }
}

pub(super) fn writer() -> VolumeCapability {
    capability(Mode::SingleNodeWriter, "ext4")
}

fn exclusive() -> VolumeCapability {
    capability(Mode::SingleNodeSingleWriter, "")
}

pub(super) fn with_flags(flags: &[&str]) -> VolumeCapability {
    let mut capability = writer();
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }
    capability
}

#[expect(clippy::disallowed_methods, reason = "a test's own mounts")]
pub(super) fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

/// Runs a test again, in a process with a mount namespace of its own; `true` in that process.
#[expect(clippy::disallowed_methods, reason = "the test's own program, in another mount namespace")]
pub(super) fn in_own_mounts(test: &str) -> bool {
    const INSIDE: &str = "BULKHEAD_TEST_OWN_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(program);
    let output = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("Operation not permitted") {
        println!("skipped: a mount namespace needs root");
        return false;
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}{text}");
    false
}

#[tokio::test]
async fn root_a_staged_volume_is_published_as_often_as_asked_and_repeated_calls_change_nothing() {
    if !in_own_mounts(
        "tests::node::root_a_staged_volume_is_published_as_often_as_asked_and_repeated_calls_change_nothing",
    ) {
        return;
    }
    let mut host = Host::start().await;
    let id = host.staged("v").await;
    host.stage(&id, &host.path("stage"), writer()).await.unwrap();
    assert_eq!(host.stack.daemon.lease_list().await.unwrap()[0].mounts, Some(1));
    host.node = node(&host.stack, &host.kubelet);

    for target in ["pods/a", "pods/a", "pods/b"] {
        host.publish(host.publication(&id, target)).await.unwrap();
        // The driver is restarted.
        host.node = node(&host.stack, &host.kubelet);
    }
    std::fs::write(host.kubelet.join("pods/a/file"), "x").unwrap();
    assert_eq!(std::fs::read_to_string(host.kubelet.join("pods/b/file")).unwrap(), "x");

    let read_only = NodePublishVolumeRequest { readonly: true, ..host.publication(&id, "pods/ro") };
    host.publish(read_only.clone()).await.unwrap();
    host.publish(read_only).await.unwrap();
    assert!(std::fs::write(host.kubelet.join("pods/ro/file"), "y").is_err());
    let (code, text) = refused(host.publish(host.publication(&id, "pods/ro")).await);
    assert_eq!(code, Code::AlreadyExists, "{text}");

    for _ in 0..2 {
        for target in ["pods/a", "pods/b", "pods/ro"] {
            host.unpublish(&id, &host.path(target)).await.unwrap();
            assert!(!host.kubelet.join(target).exists());
        }
        host.unstage(&id, &host.path("stage")).await.unwrap();
        assert_eq!(host.n_leases().await, 0);
    }
    let late = refused(host.publish(host.publication(&id, "pods/a")).await);
    assert_eq!(late.0, Code::FailedPrecondition, "{}", late.1);
}

#[tokio::test]
async fn root_mount_flags_are_those_of_the_capability_and_an_exclusive_volume_is_published_once() {
    if !in_own_mounts(
        "tests::node::root_mount_flags_are_those_of_the_capability_and_an_exclusive_volume_is_published_once",
    ) {
        return;
    }
    let host = Host::start().await;
    let id = host.staged("v").await;
    let with = |capability, target| NodePublishVolumeRequest {
        volume_capability: Some(capability),
        ..host.publication(&id, target)
    };
    host.publish(with(with_flags(&["noexec", "nodev"]), "pods/a")).await.unwrap();
    let options = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let options = options.lines().find(|line| line.contains("/kubelet/pods/a ")).unwrap().to_owned();
    assert!(["noexec", "nodev", "nosuid"].iter().all(|flag| options.contains(flag)), "{options}");
    host.publish(host.publication(&id, "pods/a")).await.unwrap();
    host.publish(with(with_flags(&["noexec"]), "pods/b")).await.unwrap();
    host.unpublish(&id, &host.path("pods/b")).await.unwrap();

    let (code, text) = refused(host.publish(with(exclusive(), "pods/b")).await);
    assert_eq!(code, Code::FailedPrecondition, "{text}");
    assert!(text.contains("pods/a"), "{text}");
    host.unpublish(&id, &host.path("pods/a")).await.unwrap();
    for _ in 0..2 {
        host.publish(with(exclusive(), "pods/b")).await.unwrap();
    }
    host.unpublish(&id, &host.path("pods/b")).await.unwrap();
}

#[tokio::test]
async fn root_paths_that_lead_elsewhere_and_what_is_in_the_way_are_refused() {
    if !in_own_mounts("tests::node::root_paths_that_lead_elsewhere_and_what_is_in_the_way_are_refused") {
        return;
    }
    let host = Host::start().await;
    let (id, other) = (host.staged("v").await, host.staged("w").await);
    let elsewhere = host.stack.dir.path().join("elsewhere");
    std::fs::create_dir_all(elsewhere.join("sub")).unwrap();
    symlink(&elsewhere, host.kubelet.join("link")).unwrap();
    symlink(elsewhere.join("sub"), host.kubelet.join("pods/link")).unwrap();
    std::fs::write(host.kubelet.join("pods/file"), "").unwrap();
    std::fs::create_dir(host.kubelet.join("pods/full")).unwrap();
    std::fs::write(host.kubelet.join("pods/full/file"), "").unwrap();
    let publish = async |target: &str| refused(host.publish(host.publication(&id, target)).await).0;
    for target in ["../elsewhere/x", "pods/../../elsewhere/x", "link/x", "pods/link", "/etc/x", "", "pods/.."] {
        assert_eq!(publish(target).await, Code::InvalidArgument, "{target}");
    }
    for target in ["pods/file", "pods/file/x", "pods/none/x", "pods/full"] {
        assert_eq!(publish(target).await, Code::FailedPrecondition, "{target}");
    }
    assert!(std::fs::read_dir(&elsewhere).unwrap().count() == 1);

    // Another mount at the target, and above it.
    host.publish(host.publication(&other, "pods/w")).await.unwrap();
    assert_eq!(publish("pods/w").await, Code::FailedPrecondition);
    assert_eq!(publish("pods/w/x").await, Code::InvalidArgument);
    let unpublished = refused(host.unpublish(&id, &host.path("pods/w")).await);
    assert_eq!(unpublished.0, Code::FailedPrecondition, "{}", unpublished.1);
    assert!(host.kubelet.join("pods/w/name").exists());

    // A directory into which files were put, and one in use.
    let unpublished = refused(host.unpublish(&id, &host.path("pods/full")).await);
    assert_eq!(unpublished.0, Code::FailedPrecondition, "{}", unpublished.1);
    let open = std::fs::File::create(host.kubelet.join("pods/w/open")).unwrap();
    assert_eq!(refused(host.unpublish(&other, &host.path("pods/w")).await).0, Code::FailedPrecondition);
    drop(open);
    host.unpublish(&other, &host.path("pods/w")).await.unwrap();

    for target in ["../elsewhere/x", "link/x", "/etc"] {
        assert_eq!(refused(host.unpublish(&id, &host.path(target)).await).0, Code::InvalidArgument, "{target}");
        assert_eq!(refused(host.stage(&id, &host.path(target), writer()).await).0, Code::InvalidArgument, "{target}");
    }
    assert_eq!(refused(host.stage(&id, &host.path("none"), writer()).await).0, Code::InvalidArgument);
    assert_eq!(refused(host.stage(&id, &host.path("pods/file"), writer()).await).0, Code::FailedPrecondition);
}

#[tokio::test]
async fn root_a_volume_that_is_gone_or_not_mounted_is_reported_and_can_be_unpublished() {
    if !in_own_mounts("tests::node::root_a_volume_that_is_gone_or_not_mounted_is_reported_and_can_be_unpublished") {
        return;
    }
    let host = Host::start().await;
    let id = host.staged("v").await;
    host.publish(host.publication(&id, "pods/a")).await.unwrap();
    let mounted_at = host.stack.daemon.lease_list().await.unwrap()[0].mounted_at.clone();
    run("umount", &[mounted_at.to_str().unwrap()]);
    let (code, text) = refused(host.publish(host.publication(&id, "pods/b")).await);
    assert_eq!(code, Code::Unavailable, "{text}");
    // What is left at the target is recognised by its device.
    let target = host.kubelet.join("pods/a");
    let unrecognised = refused(host.unpublish(&id, &host.path("pods/a")).await);
    assert!(unrecognised.0 == Code::FailedPrecondition && target.join("name").exists(), "{}", unrecognised.1);
    make_device("/dev/tvg/v", std::fs::metadata(&target).unwrap().dev());
    host.unpublish(&id, &host.path("pods/a")).await.unwrap();
    assert!(!target.exists());
    // It is mounted again by a repeated call, and given back as often.
    host.stage(&id, &host.path("stage"), writer()).await.unwrap();
    host.unstage(&id, &host.path("stage")).await.unwrap();
    assert_eq!(host.n_leases().await, 0);

    std::fs::create_dir(&target).unwrap();
    for gone in ["fast/none", "nothing has this id"] {
        assert_eq!(refused(host.stage(gone, &host.path("stage"), writer()).await).0, Code::NotFound);
        assert_eq!(refused(host.publish(host.publication(gone, "pods/a")).await).0, Code::NotFound);
        for _ in 0..2 {
            host.unstage(gone, &host.path("stage")).await.unwrap();
            host.unpublish(gone, &host.path("pods/a")).await.unwrap();
            assert!(!target.exists());
        }
    }
}

/// A device node with the number of a mounted file system, in a `/dev` of this mount namespace.
fn make_device(path: &str, dev: u64) {
    run("mount", &["-t", "tmpfs", "dev", "/dev"]);
    std::fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
    let (major, minor) = (rustix::fs::major(dev).to_string(), rustix::fs::minor(dev).to_string());
    run("mknod", &[path, "b", &major, &minor]);
}

#[tokio::test]
async fn root_another_program_s_mount_is_never_unmounted() {
    if !in_own_mounts("tests::node::root_another_program_s_mount_is_never_unmounted") {
        return;
    }
    let host = Host::start().await;
    let (id, target) = (host.staged("v").await, host.kubelet.join("pods/a"));
    let target_path = host.path("pods/a");
    let refuses = async |id: &str| {
        let (code, text) = refused(host.unpublish(id, &target_path).await);
        assert_eq!(code, Code::FailedPrecondition, "{text}");
        assert!(text.contains("unmount it") && target.join("foreign").exists(), "{text}");
    };
    std::fs::create_dir(&target).unwrap();
    run("mount", &["-t", "tmpfs", "foreign", &target_path]);
    std::fs::write(target.join("foreign"), "").unwrap();
    for gone in [id.as_str(), "fast/none", "nothing has this id"] {
        refuses(gone).await;
    }
    run("umount", &[&target_path]);

    // Also one that covers the volume.
    host.publish(host.publication(&id, "pods/a")).await.unwrap();
    run("mount", &["-t", "tmpfs", "foreign", &target_path]);
    std::fs::write(target.join("foreign"), "").unwrap();
    refuses(&id).await;
    run("umount", &[&target_path]);
    host.unpublish(&id, &target_path).await.unwrap();
}

#[tokio::test]
async fn root_a_volume_that_is_deleted_behind_our_back_is_unpublished_and_unstaged() {
    if !in_own_mounts("tests::node::root_a_volume_that_is_deleted_behind_our_back_is_unpublished_and_unstaged") {
        return;
    }
    let host = Host::start().await;
    let (id, volume) = (host.staged("v").await, "fast/v".parse().unwrap());
    let (daemon, stage) = (host.stack.daemon.clone(), host.path("stage"));
    assert_eq!(
        daemon.volume_remove(&volume, Removal::default()).await.unwrap_err().code,
        bulkhead_core::error::Code::InUse
    );
    daemon.volume_remove(&volume, Removal { force: true, ..Removal::default() }).await.unwrap();
    assert_eq!(refused(host.publish(host.publication(&id, "pods/a")).await).0, Code::NotFound);
    for _ in 0..2 {
        host.unpublish(&id, &host.path("pods/a")).await.unwrap();
        host.unstage(&id, &stage).await.unwrap();
    }
    // One of that name, created later, has no lease of the earlier one.
    let id = host.stack.create(request("v", 32)).await.unwrap().volume_id;
    assert_eq!(host.n_leases().await, 0);
    assert_eq!(refused(host.publish(host.publication(&id, "pods/a")).await).0, Code::FailedPrecondition);
}

#[tokio::test]
async fn root_the_kubelet_s_directory_of_pods_can_be_a_mount_of_its_own() {
    if !in_own_mounts("tests::node::root_the_kubelet_s_directory_of_pods_can_be_a_mount_of_its_own") {
        return;
    }
    let host = Host::start().await;
    run("mount", &["-t", "tmpfs", "pods", &host.path("pods")]);
    std::fs::create_dir(host.kubelet.join("pods/uid")).unwrap();
    let id = host.staged("v").await;
    for _ in 0..2 {
        host.publish(host.publication(&id, "pods/uid/mount")).await.unwrap();
    }
    let (code, text) = refused(host.publish(host.publication(&id, "pods/uid/mount/x")).await);
    assert!(code == Code::InvalidArgument && text.contains("mount point"), "{text}");
    for _ in 0..2 {
        host.unpublish(&id, &host.path("pods/uid/mount")).await.unwrap();
    }
    assert_eq!(std::fs::read_dir(host.kubelet.join("pods/uid")).unwrap().count(), 0);
}

#[tokio::test]
async fn root_a_published_volume_has_statistics_and_is_expanded() {
    if !in_own_mounts("tests::node::root_a_published_volume_has_statistics_and_is_expanded") {
        return;
    }
    let host = Host::start().await;
    let id = host.staged("v").await;
    host.publish(host.publication(&id, "pods/a")).await.unwrap();
    let stats = async |id: &str, path: &str| {
        let (volume_id, volume_path) = (id.to_owned(), path.to_owned());
        let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        answer(host.node.node_get_volume_stats(Request::new(request))).await
    };
    for path in ["pods/a", "stage"] {
        let usage = stats(&id, &host.path(path)).await.unwrap().usage;
        assert_eq!([usage[0].unit(), usage[1].unit()], [Unit::Bytes, Unit::Inodes]);
        assert_eq!((usage[0].total, usage[0].used > 0), (1 << 20, true), "{path}");
        assert_eq!(usage[0].used + usage[0].available, usage[0].total);
        assert!(usage[1].total > usage[1].available && usage[1].available > 0);
    }
    for path in ["pods/b", "pods/a/x", "pods", "../x", "/etc"] {
        assert_eq!(refused(stats(&id, &host.path(path)).await).0, Code::NotFound, "{path}");
    }
    assert_eq!(refused(stats("fast/none", &host.path("pods/a")).await).0, Code::NotFound);
    for (id, path) in [("", "x"), (id.as_str(), "")] {
        assert_eq!(refused(stats(id, path).await).0, Code::InvalidArgument);
    }

    let expand = async |id: &str, path: &str, (required_bytes, limit_bytes)| {
        let request = NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: path.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
            ..Default::default()
        };
        answer(host.node.node_expand_volume(Request::new(request))).await.map(|reply| reply.capacity_bytes)
    };
    let path = host.path("pods/a");
    for required in [48 << 20, 48 << 20, 16 << 20] {
        assert_eq!(expand(&id, &path, (required, 0)).await.unwrap(), 48 << 20);
    }
    for range in [(0, 0), (1, 0), (0, i64::MAX)] {
        assert_eq!(expand(&id, &path, range).await.unwrap(), 48 << 20);
    }
    for range in [(0, 16 << 20), (1 << 50, 0), (i64::MAX, 0)] {
        assert_eq!(refused(expand(&id, &path, range).await).0, Code::OutOfRange, "{range:?}");
    }
    assert_eq!(refused(expand(&id, &path, (-1, 0)).await).0, Code::InvalidArgument);
    assert_eq!(refused(expand(&id, &host.path("pods/b"), (0, 0)).await).0, Code::NotFound);
    assert_eq!(refused(expand("fast/none", &path, (0, 0)).await).0, Code::NotFound);
}

#[tokio::test]
async fn what_a_request_to_the_node_lacks_is_named() {
    let host = Host::start().await;
    let id = host.stack.create(request("v", 32)).await.unwrap().volume_id;
    let stage = |volume_id: &str, path: &str, volume_capability: Option<VolumeCapability>| {
        let (volume_id, staging_target_path) = (volume_id.to_owned(), path.to_owned());
        let request =
            NodeStageVolumeRequest { volume_id, staging_target_path, volume_capability, ..Default::default() };
        let node = host.node.clone();
        async move { refused(answer::<_>(node.node_stage_volume(Request::new(request))).await) }
    };
    let path = host.path("stage");
    for (id, path, capability, named) in [
        ("", path.as_str(), Some(writer()), "volume_id"),
        (&id, "", Some(writer()), "staging_target_path"),
        (&id, &path, None, "volume_capability"),
        (&id, &path, Some(block(Mode::SingleNodeWriter)), "a raw block device is requested, and the volume has ext4"),
        (&id, &path, Some(block(Mode::SingleNodeReaderOnly)), "would not prevent writes"),
        (&id, &path, Some(capability(Mode::SingleNodeWriter, "xfs")), "xfs"),
        (&id, &path, Some(capability(Mode::MultiNodeMultiWriter, "")), "ReadWriteOnce"),
        (&id, &path, Some(with_flags(&["discard"])), "noexec"),
    ] {
        let (code, text) = stage(id, path, capability).await;
        assert_eq!(code, Code::InvalidArgument, "{text}");
        assert!(text.contains(named), "{text}");
    }
    // Also for a volume that does not exist, for which the rest succeeds.
    for (id, path, field) in [("", "x", "volume_id"), ("none", "", "staging_target_path")] {
        let (code, text) = refused(host.unstage(id, path).await);
        assert!(code == Code::InvalidArgument && text.contains(field), "{text}");
    }
    for (id, path, field) in [("", "x", "volume_id"), ("none", "", "target_path")] {
        let (code, text) = refused(host.unpublish(id, path).await);
        assert!(code == Code::InvalidArgument && text.contains(field), "{text}");
    }
    assert_eq!(host.n_leases().await, 0);
    let unstaged = NodePublishVolumeRequest { staging_target_path: String::new(), ..host.publication(&id, "pods/a") };
    assert_eq!(refused(host.publish(unstaged).await).0, Code::FailedPrecondition);

    let info = answer(host.node.node_get_info(Request::new(NodeGetInfoRequest {}))).await.unwrap();
    assert_eq!(
        (info.node_id.as_str(), info.accessible_topology.unwrap().segments[TOPOLOGY].as_str()),
        ("node-1", "node-1")
    );
    let health = NodeGetVolumeHealthRequest { volume_id: id.clone(), ..Default::default() };
    let health: Result<Response<_>, _> = host.node.node_get_volume_health(Request::new(health)).await;
    assert_eq!(health.unwrap().into_inner().volume_health.unwrap().volume_id, id);
}
