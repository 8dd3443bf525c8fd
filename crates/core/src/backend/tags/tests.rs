use super::*;
use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

fn volumes() -> impl Strategy<Value = Volume> {
    let state = prop_oneof![
        Just(VolumeState::Creating),
        Just(VolumeState::Ready),
        Just(VolumeState::Removing),
        (0u64..1 << 50).prop_map(|n| VolumeState::Resizing { to_bytes: Bytes(n) }),
        (0u64..1 << 50).prop_map(|n| VolumeState::ReplacingJournal { to_bytes: Bytes(n) }),
    ];
    let unfilled = proptest::option::of((0u64..1 << 50).prop_map(Bytes));
    let origin = proptest::option::of("[a-z][a-z0-9]{0,8}");
    let subdir = proptest::option::of("[a-z][a-z0-9]{0,8}".prop_map(|name| name.parse().expect("a valid name")));
    let names = proptest::option::of("[a-z][a-z0-9]{0,8}".prop_map(|name| name.parse().expect("a valid name")));
    let front_end = proptest::sample::select(FrontEnd::ALL.as_slice());
    let maker = (proptest::option::of(front_end), names, proptest::option::of(any::<u64>()));
    let mount = (any::<(bool, bool)>(), subdir).prop_map(|((suid, dev), subdir)| MountOptions { suid, dev, subdir });
    let fs = proptest::sample::select([VolumeFs::Ext4, VolumeFs::Xfs, VolumeFs::None].as_slice());
    (any::<u128>(), (fs, any::<(bool, bool, bool, bool)>()), origin, unfilled, mount, maker, state).prop_map(
        |(uuid, (fs, (full, fast_commit, read_only, shared)), origin, unfilled, mount_options, maker, state)| Volume {
            mount_options,
            created_by: maker.0,
            default_tenant: maker.1,
            created_unix_seconds: maker.2,
            pool: "p".parse().expect("a valid name"),
            name: "v".parse().expect("a valid name"),
            uuid: Uuid::from_u128(uuid),
            size_bytes: Bytes::mib(64),
            fs,
            provision: if full { Provision::Full } else { Provision::OnDemand },
            fast_commit,
            read_only,
            origin: origin.map(|o| o.parse().expect("a valid name")),
            layered: false,
            flatten: false,
            unfilled_from_bytes: unfilled,
            read_from: if shared { ReadFrom::HostCache } else { ReadFrom::Disk },
            domain: None,
            state,
        },
    )
}

proptest! {
    #[test]
    fn tags_carry_the_whole_record(volume in volumes()) {
        let read = volume_from_tags(&volume.pool, "v", volume.size_bytes, &tags_of(&volume));
        prop_assert_eq!(read, Ok(Some(volume)));
    }

    #[test]
    fn tags_use_only_what_lvm_allows(volume in volumes()) {
        for tag in tags_of(&volume) {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "_+.-/=!:&#".contains(c);
            prop_assert_eq!(tag.chars().find(|&c| !allowed(c)), None);
        }
    }

    #[test]
    fn a_lost_tag_is_reported_not_guessed(volume in volumes(), lost in 1usize..4) {
        let mut tags = tags_of(&volume);
        tags.remove(lost);
        let error = volume_from_tags(&volume.pool, "v", volume.size_bytes, &tags).map_err(|f| f.code);
        prop_assert_eq!(error, Err(Code::Corrupt));
    }
}

/// As docs/formats/state.md has them.
#[test]
fn tags_of_version_1_are_read() {
    let text = "bulkhead.volume=00000000-0000-0000-0000-000000000007 bulkhead.fs=xfs bulkhead.provision=on_demand \
        bulkhead.state=resizing:8192 bulkhead.read_only bulkhead.origin=o bulkhead.unfilled=4096 bulkhead.share=base \
        bulkhead.suid bulkhead.dev bulkhead.subdir=data bulkhead.created_by=docker bulkhead.tenant=db bulkhead.created=1700000000";
    let tags: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let volume = volume_from_tags(&"p".parse().unwrap(), "v", Bytes(4096), &tags).unwrap().unwrap();
    let subdir = Some("data".parse().unwrap());
    let expected = Volume {
        mount_options: MountOptions { suid: true, dev: true, subdir },
        created_by: Some(FrontEnd::Docker),
        default_tenant: Some("db".parse().unwrap()),
        created_unix_seconds: Some(1_700_000_000),
        pool: "p".parse().unwrap(),
        name: "v".parse().unwrap(),
        uuid: Uuid::from_u128(7),
        size_bytes: Bytes(4096),
        fs: VolumeFs::Xfs,
        provision: Provision::OnDemand,
        fast_commit: false,
        read_only: true,
        origin: Some("o".parse().unwrap()),
        layered: false,
        flatten: false,
        unfilled_from_bytes: Some(Bytes(4096)),
        read_from: ReadFrom::HostCache,
        domain: None,
        state: VolumeState::Resizing { to_bytes: Bytes(8192) },
    };
    assert_eq!((&volume, tags_of(&volume)), (&expected, tags.clone()));
    // Earlier versions wrote none of the last six.
    let earlier = volume_from_tags(&volume.pool, "v", Bytes(4096), &tags[..8]).unwrap().unwrap();
    let least = Volume {
        mount_options: MountOptions::default(),
        created_by: None,
        default_tenant: None,
        created_unix_seconds: None,
        ..expected
    };
    assert_eq!(earlier, least);
}

#[test]
fn foreign_logical_volumes_are_left_alone() {
    let pool: Name = "p".parse().expect("a valid name");
    assert_eq!(volume_from_tags(&pool, "root", Bytes(0), &["other".into()]), Ok(None));
}
