//! The SELinux mount option: what the kubelet passes, and which volumes are refused. The case `csi_selinux` of the lab has the mounts.

use bulkhead_core::error::Code;
use bulkhead_core::model::SelinuxContext;
use tonic::Code as Grpc;

use super::node::{Host, with_flags, writer};
use super::{refused, request};
use crate::capability::Use;
use crate::proto::NodePublishVolumeRequest;

const ONE: &str = "system_u:object_r:container_file_t:s0:c1,c2";
const OTHER: &str = "system_u:object_r:container_file_t:s0:c3,c4";

/// As the kubelet writes it.
fn flag(context: &str) -> String {
    format!("context={context:?}")
}

#[test]
fn the_context_is_read_as_the_kubelet_and_classes_write_it() {
    let one: SelinuxContext = ONE.parse().unwrap();
    let plain = "context=system_u:object_r:container_file_t:s0";
    let quoted = flag(ONE);
    for (flags, context) in [
        (vec![quoted.as_str()], Some(one.clone())),
        (vec!["noatime", &quoted, "noexec"], Some(one.clone())),
        (vec![&format!("noatime,{quoted},noexec")], Some(one.clone())),
        (vec![&quoted, &quoted], Some(one)),
        (vec![plain], Some("system_u:object_r:container_file_t:s0".parse().unwrap())),
        (vec!["noatime", ""], None),
    ] {
        let read = Use::parse(&with_flags(&flags)).unwrap();
        assert_eq!(read.selinux_context, context, "{flags:?}");
        assert_eq!((read.flags.noatime, read.flags.readonly), (flags.concat().contains("noatime"), false));
    }
}

#[test]
fn what_is_no_context_or_hides_another_option_is_refused() {
    let (one, other) = (flag(ONE), flag(OTHER));
    for flags in [
        vec!["context"],
        vec!["context="],
        vec!["context=\"\""],
        vec!["context=container_file_t"],
        // Without quotes, a comma separates options.
        vec!["context=system_u:object_r:container_file_t:s0:c1,c2"],
        vec!["context=\"u:r:t:s0"],
        vec!["context=u:r:t:s0\""],
        vec!["context=\"u:r:t:s0\"x"],
        vec!["context=\"u:r:t:s0,suid=\""],
        vec!["context=\"u:r:t:s0\\\",dev\""],
        vec!["context=\"u:r:t:s0\",dev"],
        vec!["context=\"u:r:t:s0", "c1\""],
        vec!["CONTEXT=u:r:t:s0"],
        vec!["fscontext=u:r:t:s0"],
        vec!["defcontext=u:r:t:s0"],
        vec!["rootcontext=u:r:t:s0"],
        vec![&one, &other],
    ] {
        assert_eq!(Use::parse(&with_flags(&flags)).unwrap_err().code, Code::InvalidArgument, "{flags:?}");
    }
    let long = flag(&format!("u:r:{}", "t".repeat(255)));
    assert_eq!(Use::parse(&with_flags(&[&long])).unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test]
async fn a_staged_volume_has_one_context_until_it_is_unstaged() {
    let host = Host::start().await;
    let id = host.stack.create(request("v", 32)).await.unwrap().volume_id;
    let (one, other) = (with_flags(&[&flag(ONE)]), with_flags(&[&flag(OTHER)]));
    let contexts = async || {
        let leases = host.stack.daemon.lease_list().await.unwrap();
        let contexts = leases.into_iter().map(|lease| lease.selinux_context.map(String::from));
        contexts.collect::<Vec<Option<String>>>()
    };
    let (stage, second) = (host.path("stage"), host.path("pods"));
    for (first, others) in [(&one, [&other, &writer()]), (&writer(), [&one, &other])] {
        host.stage(&id, &stage, first.clone()).await.unwrap();
        let staged = contexts().await;
        host.stage(&id, &stage, first.clone()).await.unwrap();
        for wanted in others {
            let (code, text) = refused(host.stage(&id, &stage, wanted.clone()).await);
            assert!(code == Grpc::AlreadyExists && text.contains("SELinux"), "{code}: {text}");
            let (code, text) = refused(host.stage(&id, &second, wanted.clone()).await);
            assert!(code == Grpc::FailedPrecondition && text.contains("SELinux"), "{code}: {text}");
            let publish =
                NodePublishVolumeRequest { volume_capability: Some(wanted.clone()), ..host.publication(&id, "pods/a") };
            let (code, text) = refused(host.publish(publish).await);
            assert!(code == Grpc::FailedPrecondition && text.contains("SELinux"), "{code}: {text}");
        }
        assert_eq!(contexts().await, staged);
        host.stage(&id, &second, first.clone()).await.unwrap();
        for path in [&stage, &second] {
            host.unstage(&id, path).await.unwrap();
        }
        assert_eq!(host.n_leases().await, 0);
    }
    host.stage(&id, &stage, other).await.unwrap();
    assert_eq!(contexts().await, [Some(OTHER.to_owned())]);
}
