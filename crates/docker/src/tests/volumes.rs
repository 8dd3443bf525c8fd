//! The life of a volume, as Docker and Podman request it.

use std::path::Path;

use bulkhead_api::client::Removal;
use bulkhead_api::wire::{TenantCreate, VolumeCopy, VolumeCreate};
use bulkhead_core::model::FrontEnd;
use bulkhead_core::units::Bytes;
use serde_json::json;

use super::Stack;

#[tokio::test]
async fn a_volume_is_created_mounted_unmounted_and_removed_with_its_tenant() {
    let stack = Stack::start().await;
    stack.create("db", &[("size", "128M"), ("share", "300"), ("fsync-p99", "20ms")]).await.unwrap();
    let volume = stack.daemon.volume_inspect(&"fast/db".parse().unwrap()).await.unwrap();
    assert_eq!((volume.size_bytes, volume.created_by), (Bytes::mib(128), Some(FrontEnd::Docker)));
    let tenant = stack.daemon.tenant_inspect(&"db".parse().unwrap()).await.unwrap();
    assert_eq!((tenant.share.weight(), tenant.created_by), (300, Some(FrontEnd::Docker)));
    assert_eq!(tenant.fsync_p99_us, Some(20_000));

    let at = stack.mount("db", "1").await.unwrap();
    assert!(stack.is_mounted(&at));
    let shown = stack.get("db").await.unwrap();
    assert_eq!((shown["Mountpoint"].as_str(), shown["Status"]["tenant"].as_str()), (at.to_str(), Some("db")));
    stack.unmount("db", "1").await.unwrap();
    assert!(!stack.is_mounted(&at));

    stack.remove("db").await.unwrap();
    assert!(stack.listed().await.is_empty());
    assert!(stack.daemon.tenant_list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_volume_stays_mounted_until_its_last_user_has_unmounted_it() {
    let stack = Stack::start().await;
    stack.create("db", &[]).await.unwrap();
    let at = stack.mount("db", "1").await.unwrap();
    // `docker cp` mounts it a second time for a running container, with the same ID.
    assert_eq!(stack.mount("db", "1").await.unwrap(), at);
    stack.unmount("db", "1").await.unwrap();
    assert!(stack.is_mounted(&at));
    assert_eq!(stack.mount("db", "2").await.unwrap(), at);
    stack.unmount("db", "1").await.unwrap();
    stack.unmount("db", "1").await.unwrap();
    assert!(stack.is_mounted(&at));
    stack.unmount("db", "2").await.unwrap();
    assert!(!stack.is_mounted(&at));
    assert!(stack.daemon.lease_list().await.unwrap().is_empty());
}

#[tokio::test]
async fn requests_can_be_repeated() {
    let stack = Stack::start().await;
    for _ in 0..2 {
        stack.create("db", &[("size", "64M"), ("share", "10")]).await.unwrap();
    }
    let differs = stack.create("db", &[("size", "65M"), ("share", "10")]).await.unwrap_err();
    assert!(differs.contains("a volume of that name already exists"), "{differs}");
    let share = stack.create("db", &[("size", "64M"), ("share", "11")]).await.unwrap_err();
    assert!(share.starts_with("tenant db: it has share 10, not 11; omit --opt share"), "{share}");
    let promise = stack.create("db", &[("size", "64M"), ("fsync-p99", "20ms")]).await.unwrap_err();
    assert!(
        promise.starts_with("tenant db: its promised p99 of fsyncs is none, not 20ms; omit --opt fsync-p99"),
        "{promise}"
    );
    for _ in 0..2 {
        stack.remove("db").await.unwrap();
    }
    assert_eq!(stack.get("db").await.unwrap_err(), "volume db: there is no volume of that name");
    stack.unmount("db", "1").await.unwrap();
}

#[tokio::test]
async fn a_volume_that_cannot_be_created_leaves_no_tenant() {
    let stack = Stack::start().await;
    let error = stack.create("db", &[("fs", "xfs"), ("fast-commit", "true")]).await.unwrap_err();
    assert!(error.ends_with("; omit --opt fast-commit, or set --opt fs=ext4"), "{error}");
    assert!(stack.daemon.tenant_list().await.unwrap().is_empty());
    // One that existed before stays.
    let web = TenantCreate::new("web".parse().unwrap());
    stack.daemon.tenant_create(&web, false).await.unwrap();
    stack.create("db", &[("tenant", "web"), ("size", "1")]).await.unwrap_err();
    assert_eq!(stack.daemon.tenant_list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn several_volumes_can_have_one_tenant() {
    let stack = Stack::start().await;
    for name in ["a", "b"] {
        stack.create(name, &[("tenant", "web")]).await.unwrap();
        stack.mount(name, "1").await.unwrap();
    }
    let tenant = stack.daemon.tenant_inspect(&"web".parse().unwrap()).await.unwrap();
    assert_eq!(tenant.volumes.len(), 2);
    for name in ["a", "b"] {
        stack.unmount(name, "1").await.unwrap();
    }
    stack.remove("a").await.unwrap();
    assert_eq!(stack.daemon.tenant_list().await.unwrap().len(), 1);
    stack.remove("b").await.unwrap();
    assert!(stack.daemon.tenant_list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_clone_shares_blocks_with_its_origin() {
    let stack = Stack::start().await;
    stack.create("base", &[]).await.unwrap();
    let snapshot = VolumeCopy::new("snap".parse().unwrap(), true);
    stack.daemon.volume_copy(&"fast/base".parse().unwrap(), &snapshot, false).await.unwrap();
    stack.create("c1", &[("clone-of", "base")]).await.unwrap();
    stack.create("c2", &[("clone-of", "fast/snap")]).await.unwrap();
    let clone = stack.daemon.volume_inspect(&"fast/c1".parse().unwrap()).await.unwrap();
    assert_eq!((clone.origin, clone.read_only), (Some("base".parse().unwrap()), false));
    assert_eq!(clone.mount_options.subdir, Some("data".parse().unwrap()));
    // Snapshots cannot be mounted by containers.
    assert_eq!(stack.listed().await, ["base", "c1", "c2"]);
}

#[tokio::test]
async fn volumes_of_operators_can_be_used_and_stay_theirs() {
    let stack = Stack::start().await;
    let native = VolumeCreate::new("fast/native".parse().unwrap(), Bytes::mib(64));
    stack.daemon.volume_create(&native, false).await.unwrap();
    assert_eq!(stack.listed().await, ["native"]);
    let at = stack.mount("native", "1").await.unwrap();
    assert!(stack.is_mounted(&at));
    assert_eq!(stack.get("native").await.unwrap()["Status"]["tenant"], json!("native"));
    stack.unmount("native", "1").await.unwrap();
    stack.remove("native").await.unwrap();
    assert!(stack.daemon.tenant_list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_volume_of_another_tenant_is_mounted_for_that_tenant() {
    let stack = Stack::start().await;
    let native = VolumeCreate::new("fast/native".parse().unwrap(), Bytes::mib(64));
    stack.daemon.volume_create(&native, false).await.unwrap();
    let web = TenantCreate { volumes: vec![native.volume], ..TenantCreate::new("web".parse().unwrap()) };
    stack.daemon.tenant_create(&web, false).await.unwrap();
    let at = stack.mount("native", "1").await.unwrap();
    stack.unmount("native", "1").await.unwrap();
    // The tenant's own attachment outlives Docker's.
    assert!(stack.is_mounted(&at));
    let attached = stack.remove("native").await.unwrap_err();
    let expected = "it is mounted for tenant web; stop what uses it, then detach it: `bulkhead tenant set web --detach fast/native`";
    assert!(attached.contains(expected), "{attached}");
}

#[tokio::test]
async fn a_name_in_several_pools_means_the_default_one() {
    let mut stack = Stack::start_without_pools().await;
    stack.make_pool("fast", "tvg").await;
    stack.make_pool("slow", "vg").await;
    let choose = stack.create("db", &[]).await.unwrap_err();
    assert!(choose.contains("there are several pools (fast, slow), and no default; set --opt pool=POOL"), "{choose}");
    for pool in ["fast", "slow"] {
        let volume = format!("{pool}/db").parse().unwrap();
        stack.daemon.volume_create(&VolumeCreate::new(volume, Bytes::mib(64)), false).await.unwrap();
    }
    let several = stack.get("db").await.unwrap_err();
    assert!(several.contains("there is one in each of the pools fast, slow"), "{several}");
    assert!(stack.listed().await.is_empty());
    stack.stop_last().await;
    stack.start_plugin(Some("slow")).await;
    assert_eq!(stack.get("db").await.unwrap()["Status"]["volume"], json!("slow/db"));
    assert_eq!(stack.listed().await, ["db"]);
    // One that Docker has created keeps its name.
    stack.create("web", &[("pool", "fast")]).await.unwrap();
    let other = VolumeCreate::new("slow/web".parse().unwrap(), Bytes::mib(64));
    stack.daemon.volume_create(&other, false).await.unwrap();
    assert_eq!(stack.get("web").await.unwrap()["Status"]["volume"], json!("fast/web"));
}

#[tokio::test]
async fn without_a_pool_the_error_says_how_to_create_one() {
    let stack = Stack::start_without_pools().await;
    let error = stack.create("db", &[]).await.unwrap_err();
    assert!(error.ends_with("create one with `bulkhead pool create`"), "{error}");
}

#[tokio::test]
async fn users_are_remembered_when_daemon_and_plugin_restart() {
    let mut stack = Stack::start().await;
    stack.create("db", &[]).await.unwrap();
    let at = stack.mount("db", "1").await.unwrap();
    stack.stop_last().await;
    stack.stop_last().await;
    stack.limits.answer = std::time::Duration::ZERO;
    stack.start_plugin(None).await;
    let down = stack.get("db").await.unwrap_err();
    assert!(down.ends_with("start it: `systemctl start bulkhead`"), "{down}");
    stack.start_daemon().await;
    assert!(stack.is_mounted(&at));
    stack.mount("db", "2").await.unwrap();
    stack.unmount("db", "1").await.unwrap();
    assert!(stack.is_mounted(&at));
    stack.unmount("db", "2").await.unwrap();
    assert!(!stack.is_mounted(&at));
}

#[tokio::test]
async fn a_request_waits_for_a_daemon_that_restarts() {
    let mut stack = Stack::start().await;
    stack.create("db", &[]).await.unwrap();
    stack.stop_last().await;
    stack.stop_last().await;
    stack.start_plugin(None).await;
    let engine = stack.engine.clone();
    let request = serde_json::json!({ "Name": "db" }).to_string();
    let waiting = tokio::spawn(async move {
        engine.exchange(hyper::Method::POST, "/VolumeDriver.Get", request.into(), None).await.unwrap()
    });
    stack.start_daemon().await;
    let (status, _) = tokio::time::timeout(super::LIMIT, waiting).await.unwrap().unwrap();
    assert_eq!(status.as_u16(), 200);
}

#[tokio::test]
async fn a_lease_that_was_never_returned_does_not_keep_a_volume() {
    let stack = Stack::start().await;
    stack.create("db", &[]).await.unwrap();
    for _ in 0..2 {
        stack.mount("db", "of a container that Docker has forgotten").await.unwrap();
    }
    let in_use = stack.daemon.tenant_remove(&"db".parse().unwrap(), Removal::default()).await.unwrap_err();
    assert!(in_use.cause.contains("a container that may run elsewhere uses its volume fast/db"), "{in_use}");
    stack.remove("db").await.unwrap();
    assert!(stack.daemon.lease_list().await.unwrap().is_empty());
    assert!(stack.daemon.tenant_list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_volume_that_a_container_of_the_other_engine_uses_is_not_removed() {
    let mut stack = Stack::start().await;
    let (docker, podman) = (stack.engine.clone(), stack.start_plugin_of_podman().await);
    stack.create("db", &[]).await.unwrap();
    for (user, remover, [name, other]) in
        [(&docker, &podman, ["docker", "podman"]), (&podman, &docker, ["podman", "docker"])]
    {
        stack.engine = user.clone();
        let at = stack.mount("db", "1").await.unwrap();
        assert_eq!(stack.daemon.lease_list().await.unwrap()[0].user.as_ref().unwrap().front_end.as_str(), name);
        stack.engine = remover.clone();
        stack.mount("db", "2").await.unwrap();
        let error = stack.remove("db").await.unwrap_err();
        let expected = format!("volume fast/db: a container of {name} uses it; remove the containers of `{name} ps ");
        assert!(error.starts_with(&expected), "{other}: {error}");
        // Neither's lease has ended.
        assert_eq!(stack.daemon.lease_list().await.unwrap().len(), 2);
        stack.unmount("db", "2").await.unwrap();
        stack.engine = user.clone();
        stack.unmount("db", "1").await.unwrap();
        assert!(!stack.is_mounted(&at));
    }
    // Forgotten users of its own do not keep an engine from removing it.
    stack.mount("db", "forgotten").await.unwrap();
    stack.remove("db").await.unwrap();
    assert!(stack.daemon.lease_list().await.unwrap().is_empty());
}

/// Earlier versions recorded containers of Podman as Docker's.
#[tokio::test]
async fn a_lease_of_podman_that_an_earlier_version_has_recorded_is_returned() {
    let mut stack = Stack::start().await;
    let (docker, podman) = (stack.engine.clone(), stack.start_plugin_of_podman().await);
    stack.create("db", &[]).await.unwrap();
    let at = stack.mount("db", "1").await.unwrap();
    stack.engine = podman;
    // `podman cp` mounts it once more, and unmounts it.
    stack.mount("db", "1").await.unwrap();
    stack.unmount("db", "1").await.unwrap();
    assert!(stack.is_mounted(&at));
    stack.unmount("db", "1").await.unwrap();
    assert!(!stack.is_mounted(&at));
    stack.engine = docker;
    stack.remove("db").await.unwrap();
}

#[tokio::test]
async fn names_that_are_not_names_are_refused() {
    let stack = Stack::start().await;
    for name in ["", "../etc", "a/b", "a b", ".hidden", "-x", "snapshot1", &"x".repeat(65), "ü", "a\0b"] {
        for error in [stack.create(name, &[]).await, stack.mount(name, "1").await.map(drop), stack.remove(name).await] {
            let error = error.unwrap_err();
            assert!(error.starts_with(&format!("volume {name:?}: ")), "{name:?}: {error}");
        }
    }
    stack.create(&"0123456789abcdef".repeat(4), &[]).await.unwrap();
    for id in [String::new(), "x".repeat(256)] {
        let error = stack.mount(&"0123456789abcdef".repeat(4), &id).await.unwrap_err();
        assert!(error.starts_with("lease: the id of its user must have 1 to 255 bytes"), "{error}");
    }
    assert!(!Path::new("/etc/bulkhead").exists());
}

#[tokio::test]
async fn many_clients_at_once_get_what_they_asked_for() {
    let stack = std::sync::Arc::new(Stack::start().await);
    let all: Vec<_> = (0..40)
        .map(|n| {
            let stack = std::sync::Arc::clone(&stack);
            tokio::spawn(async move {
                // Every four share a volume.
                let name = format!("v{}", n / 4);
                stack.create(&name, &[]).await.unwrap();
                let at = stack.mount(&name, &n.to_string()).await.unwrap();
                assert!(stack.is_mounted(&at));
                stack.unmount(&name, &n.to_string()).await.unwrap();
            })
        })
        .collect();
    for task in all {
        task.await.unwrap();
    }
    assert!(stack.daemon.lease_list().await.unwrap().is_empty());
    let volumes = stack.daemon.volume_list(None).await.unwrap();
    assert_eq!(volumes.iter().filter(|volume| volume.mounted_at.is_none()).count(), 10);
}
