use super::command::check_tag;
use super::*;

// Debian 13 (lvm2 2.03.31), see the first line of each file's group: a thick volume with a thick snapshot, a thin pool
// with a thin volume and three snapshots (plain, read-only, with activation skip), and internal volumes (-a).
const LVS: &str = include_str!("../../tests/fixtures/lvs-2.03.31.json");
const VGS: &str = include_str!("../../tests/fixtures/vgs-2.03.31.json");

#[test]
fn groups_are_read() {
    let groups = parse_vgs(VGS).unwrap();
    let [group] = groups.as_slice() else { panic!("{groups:?}") };
    assert_eq!((group.name.as_str(), group.extent_size, group.pv_count), ("testvg", Bytes::mib(4), 1));
    assert!(group.free < group.size && !group.partial);
    assert_eq!(group.tags, ["bulkhead.pool=db", "vt"]);
    assert_eq!(parse_vgs(r#"{"report":[{"vg":[]}],"log":[]}"#).unwrap(), []);
    assert!(parse_vgs("").is_err());
}

#[test]
fn volumes_are_read() {
    let volumes = parse_lvs(LVS).unwrap();
    let get = |name: &str| volumes.iter().find(|volume| volume.name == name).unwrap();
    assert!(volumes.iter().all(|volume| !volume.name.starts_with('[')));
    let thick = get("lin1");
    assert_eq!((&thick.kind, thick.size, thick.active, thick.open), (&LvKind::Linear, Bytes::mib(64), true, false));
    assert_eq!(thick.tags, ["a", "bulkhead.volume=db/data"]);
    assert_eq!((thick.path.as_path(), thick.data_percent), (Path::new("/dev/testvg/lin1"), None));
    assert_eq!(get("csn1").kind, LvKind::ThickSnapshot { origin: "lin1".into() });
    let pool = get("tp1");
    assert_eq!(pool.kind, LvKind::ThinPool);
    assert!(pool.metadata_percent.unwrap() > 0.0 && pool.open && !pool.read_only);
    let thin = get("th1");
    assert_eq!(thin.kind, LvKind::Thin { pool: "tp1".into(), origin: None });
    assert!(thin.dev.is_some() && thin.open && thin.data_percent.unwrap() > 0.0);
    let snapshot = get("sn2");
    assert_eq!(snapshot.kind, LvKind::Thin { pool: "tp1".into(), origin: Some("th1".into()) });
    assert!(snapshot.read_only && !snapshot.activation_skip);
    assert_eq!(thick.allocated(), thick.size);
    let filled = |pct| Lv { data_percent: pct, ..thin.clone() }.allocated().0;
    assert_eq!([None, Some(0.0), Some(0.01)].map(filled), [0; 3]);
    assert!(filled(Some(50.0)) < thin.size.0 / 2 && filled(Some(50.0)) > thin.size.0 / 100 * 49);
    let skipped = get("sn3");
    assert_eq!((skipped.active, skipped.open, skipped.dev), (false, false, None));
    assert!(skipped.activation_skip && !skipped.read_only);
}

#[test]
fn names_and_tags_are_validated() {
    for name in ["vg0", "a-b", "x_y.z+1", &"n".repeat(63)] {
        assert!(check_vg(name).is_ok(), "{name}");
    }
    for name in ["", "-y", "--yes", "a b", "a/b", ".", "..", "a;b", "ü", &"n".repeat(64)] {
        assert!(check_vg(name).is_err() && Lvm::new(Vec::new).lv("vg", name).is_err(), "{name}");
    }
    for tag in ["a", "bulkhead.volume=db/data", "x!y:z&w#h=1", "@"] {
        assert_eq!(check_tag(tag).is_ok(), tag != "@", "{tag}");
    }
    for tag in ["", "-a", "a b", "a,b", "a\"b", "{}", &"t".repeat(1025)] {
        assert!(check_tag(tag).is_err(), "{tag}");
    }
}

#[test]
fn commands_have_the_expected_arguments() {
    let line = |command: Result<Command, LvmError>| {
        command.unwrap().tool(SYNCHRONOUS).command_line().replacen(" --config global{use_aio=0}", "", 1)
    };
    assert_eq!(
        line(linear_args("vg", "lv", Bytes::mib(64), &["a", "b=c"])),
        "lvm lvcreate --addtag a --addtag b=c --yes -Wy -Zy --type linear -n lv -L 131072s vg"
    );
    assert_eq!(
        line(thin_pool_args("vg", "pool", Bytes::mib(1))),
        "lvm lvcreate --yes -Zy --type thin-pool -n pool -L 2048s vg"
    );
    assert_eq!(
        line(thin_args("vg", "pool", "lv", Bytes(1), &[])),
        "lvm lvcreate --yes --type thin -n lv -V 1s --thinpool pool vg"
    );
    assert_eq!(
        line(snapshot_args("vg", "lv", "snap", &["t"], true)),
        "lvm lvcreate --addtag t --yes -s -kn -ay -pr -n snap vg/lv"
    );
    let without = Command::new("vgcreate").arg("vg").arg("--").tool(WITHOUT_UDEV).command_line();
    assert!(without.starts_with("lvm vgcreate --config activation{") && without.ends_with("} vg --"), "{without}");
    assert!(snapshot_args("vg", "lv", "snap", &[], true).unwrap().suspends());
    assert!(Command::new("lvremove").suspends() && !Command::new("lvs").suspends());
    assert!(Command::new("lvchange").args(["--yes", READ_ONLY_FLAG, "vg/lv"]).suspends());
    assert!(!Command::new("lvchange").args(["--yes", "-ay", "vg/lv"]).suspends());
    assert!(matches!(linear_args("vg", "lv", Bytes(0), &[]), Err(LvmError::ZeroSize { .. })));
    assert!(matches!(linear_args("vg", "lv", Bytes(1), &["-x"]), Err(LvmError::BadTag(_))));
    assert!(matches!(thin_args("vg", "-p", "lv", Bytes(1), &[]), Err(LvmError::BadName { .. })));
}

#[test]
fn the_filter_excludes_ublk_devices_and_includes_the_administrators_filter() {
    assert_eq!(filter(&[3], None), r#"devices{global_filter=["r|^/dev/ublkb3(p[0-9]+)?$|"]}"#);
    assert_eq!(
        filter(&[3, 11], Some(r#"["a|/dev/sd|","r|.*|"]"#)),
        r#"devices{global_filter=["r|^/dev/ublkb3(p[0-9]+)?$|","r|^/dev/ublkb11(p[0-9]+)?$|","a|/dev/sd|","r|.*|"]}"#
    );
    assert!(filter(&[0], Some(r#""r|/dev/cdrom|""#)).ends_with(r#"$|","r|/dev/cdrom|"]}"#));
}

#[test]
fn a_full_pool_is_reported() {
    let pool = parse_lvs(LVS).unwrap().into_iter().find(|volume| volume.name == "tp1").unwrap();
    assert_eq!(full_pool(&pool), None);
    let full = Lv { data_percent: Some(100.0), ..pool.clone() };
    assert_eq!(full_pool(&full).unwrap(), "thin pool testvg/tp1 is full");
    assert!(full_pool(&Lv { metadata_percent: Some(96.0), ..pool }).unwrap().contains("metadata"));
}
