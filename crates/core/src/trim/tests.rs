use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::action::ServerAction;
use crate::backend::backend;
use crate::model::{Pool, PoolSource, Provision, ReadFrom, Server};

fn pool(source: PoolSource) -> Pool {
    Pool { name: "p".parse().unwrap(), uuid: Uuid::nil(), source }
}

fn file(server: Server) -> Pool {
    pool(PoolSource::File { directory: "/srv".into(), server })
}

fn lvm(thin_pool: Option<&str>) -> Pool {
    pool(PoolSource::Lvm { vg: "vg".to_owned(), thin_pool: thin_pool.map(str::to_owned), device: None })
}

fn volume(provision: Provision) -> Volume {
    Volume { provision, ..Volume::sample() }
}

fn refusal(pool: &Pool, volume: &Volume) -> Option<String> {
    check(backend(pool).as_ref(), volume).err().map(|fault| {
        assert_eq!(fault.code, Code::Unsupported);
        fault.cause
    })
}

#[test]
fn only_volumes_that_return_space_and_were_not_written_in_advance_are_trimmed() {
    let (full, on_demand) = (volume(Provision::Full), volume(Provision::OnDemand));
    let layered = |volume: &Volume| Volume { layered: true, ..volume.clone() };
    let clone = Volume { origin: Some("s".parse().unwrap()), ..on_demand.clone() };
    let shared = Volume { read_from: ReadFrom::HostCache, ..clone.clone() };
    let snapshot = Volume { read_only: true, ..clone.clone() };
    for server in [Server::Auto, Server::Loop] {
        assert_eq!(refusal(&file(server), &on_demand), None);
        let why = refusal(&file(server), &full).unwrap();
        assert!(why.contains("written in advance"), "{why}");
    }
    assert_eq!(refusal(&file(Server::Auto), &layered(&on_demand)), None);
    assert_eq!(
        refusal(&file(Server::Auto), &layered(&Volume { read_from: ReadFrom::HostCache, ..clone.clone() })),
        None
    );
    assert!(refusal(&file(Server::Auto), &layered(&full)).unwrap().contains("refuses discards"));
    assert_eq!(refusal(&lvm(Some("thin")), &on_demand), None);
    assert_eq!(refusal(&lvm(Some("thin")), &clone), None);
    assert!(refusal(&lvm(Some("thin")), &shared).unwrap().contains("refuses discards"));
    assert!(refusal(&lvm(Some("thin")), &full).unwrap().contains("written in advance"));
    assert!(refusal(&lvm(None), &full).unwrap().contains("keeps its space"));
    for pool in [file(Server::Auto), lvm(Some("thin"))] {
        assert!(refusal(&pool, &snapshot).unwrap().contains("read-only"));
    }
}

proptest! {
    /// A volume is refused exactly if its block server would refuse the discards.
    #[test]
    fn a_block_server_gets_only_discards_that_it_accepts(
        (full, layered, cloned, shared, thin) in any::<(bool, bool, bool, bool, bool)>(),
    ) {
        let pool = if thin { lvm(Some("thin")) } else { file(Server::Auto) };
        let volume = Volume {
            layered: layered && !thin,
            origin: cloned.then(|| "s".parse().unwrap()),
            read_from: if shared { ReadFrom::HostCache } else { ReadFrom::Disk },
            ..volume(if full { Provision::Full } else { Provision::OnDemand })
        };
        let backend = backend(&pool);
        let served = backend.open(&volume, None).into_iter().find_map(|action| match action {
            Action::Server(ServerAction::AttachImage { spec, .. }) => Some(spec.discards),
            _ => None,
        });
        let is_trimmed = check(backend.as_ref(), &volume).is_ok();
        prop_assert_eq!(is_trimmed, served.unwrap_or(!full));
    }

    /// The steps cover the range without gaps, up to the end.
    #[test]
    fn the_steps_cover_the_whole_range_once(size in 1u64..5 << 40) {
        let volume = Volume { size_bytes: Bytes(size), ..volume(Provision::OnDemand) };
        let tenant = "t".parse().unwrap();
        let mut next = 0;
        while let Some(action) = step(&volume, Path::new("/mnt"), &tenant, Bytes(next)) {
            let Action::Mount(MountAction::TrimFs { start_bytes, length_bytes, cgroup, .. }) = action else { panic!("another action") };
            prop_assert_eq!(start_bytes, Bytes(next));
            prop_assert!(length_bytes.0 > 0 && length_bytes <= CHUNK);
            prop_assert_eq!(cgroup, slices::server(&tenant));
            next += length_bytes.0;
        }
        prop_assert_eq!(next, size);
    }
}
