use super::*;

const VDA: DevNo = DevNo::new(254, 0);
const QOS: QosLine = QosLine {
    enable: true,
    ctrl: Ctrl::User,
    rpct: Percent::from_hundredths(9500),
    rlat_us: 10_000,
    wpct: Percent::from_hundredths(9512),
    wlat_us: 20_000,
    min_pct: Percent::from_hundredths(5000),
    max_pct: Percent::from_hundredths(15_000),
};

fn fake(qos: &str, model: &str) -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::under(dir.path());
    fs::create_dir_all(&roots.cgroup).unwrap();
    fs::write(qos_path(&roots), qos).unwrap();
    fs::write(model_path(&roots), model).unwrap();
    (dir, roots)
}

#[test]
fn percents_keep_two_decimals() {
    for (text, hundredths) in [("95.00", 9500), ("0.05", 5), ("100", 10_000), ("12.5", 1250), ("10000.00", 1_000_000)] {
        assert_eq!(text.parse(), Ok(Percent::from_hundredths(hundredths)), "{text}");
    }
    assert_eq!(Percent::from_hundredths(1205).to_string(), "12.05");
    for bad in ["", ".5", "-1", "+1", "1.234", "1.-2", "99999999999", "max", "5%"] {
        assert!(bad.parse::<Percent>().is_err(), "{bad}");
    }
}

#[test]
fn lines_of_the_kernel_are_parsed() {
    // Debian 6.12, after writing a user model; the second device is `ctrl=auto`.
    let qos = "254:0 enable=1 ctrl=user rpct=95.00 rlat=10000 wpct=95.12 wlat=20000 min=50.00 max=150.00\n\
               254:16 enable=0 ctrl=auto rpct=0.00 rlat=250000 wpct=0.00 wlat=250000 min=1.00 max=10000.00\n";
    let model = "254:0 ctrl=user model=linear rbps=30000000 rseqiops=600 rrandiops=200 wbps=30000000 wseqiops=600 wrandiops=200\n\
                 254:16 ctrl=auto model=linear rbps=174019176 rseqiops=41708 rrandiops=370 wbps=178075866 wseqiops=42705 wrandiops=378\n";
    let (_dir, roots) = fake(qos, model);
    let (q, m) = read(&roots, VDA).unwrap().unwrap();
    assert_eq!(q, QOS);
    assert_eq!((m.ctrl, m.rbps, m.wrandiops), (Ctrl::User, 30_000_000, 200));
    let (q, m) = read(&roots, DevNo::new(254, 16)).unwrap().unwrap();
    assert_eq!((q.enable, q.ctrl, q.max_pct, m.ctrl), (false, Ctrl::Auto, Percent::VRATE_MAX, Ctrl::Auto));
    assert_eq!(read(&roots, DevNo::new(8, 0)).unwrap(), None);
    assert!(is_active(&roots, VDA).unwrap());
    assert!(!is_active(&roots, DevNo::new(254, 16)).unwrap());
}

#[test]
fn lines_round_trip() {
    assert_eq!(QosLine::parse(&QOS.line(VDA)), Some((VDA, QOS)));
    assert_eq!(QosLine { ctrl: Ctrl::Auto, ..QOS }.line(VDA), "254:0 enable=1 ctrl=auto");
    for bad in ["", "254:0", "254:0 enable=1", "vda enable=1 ctrl=user", "254:0 enable=2 ctrl=user"] {
        assert_eq!(QosLine::parse(bad), None, "{bad}");
        assert_eq!(ModelLine::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_write_returns_the_old_line_and_is_verified() {
    let (_dir, roots) = fake("", "");
    assert_eq!(write_qos(&roots, VDA, &QOS).unwrap(), None);
    assert_eq!(write_qos(&roots, VDA, &QosLine { rlat_us: 1, ..QOS }).unwrap(), Some(QOS));
    assert!(disable(&roots, VDA).unwrap().unwrap().enable);
    assert!(!is_active(&roots, VDA).unwrap());
    assert!(!disable(&roots, VDA).unwrap().unwrap().enable);
    assert_eq!(disable(&roots, DevNo::new(1, 1)).unwrap(), None);
}

#[test]
fn a_missing_controller_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::under(dir.path());
    assert!(matches!(read(&roots, VDA), Err(IocostError::Unsupported { .. })));
    assert!(!is_active(&roots, VDA).unwrap());
    assert!(matches!(write_qos(&roots, VDA, &QOS), Err(IocostError::Unsupported { .. })));
    assert_eq!(disable(&roots, VDA).unwrap(), None);
    assert!(!is_supported(&roots));
}
