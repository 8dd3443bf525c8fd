use super::*;

const VOLUME: Uuid = Uuid::from_u128(7);

#[test]
fn counts_are_written_as_earlier_daemons_read_them() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    assert_eq!(read(&roots, VOLUME).unwrap(), ReadCounts::default());
    let (layer, peer) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let mut counts = ReadCounts::default();
    for source in [HeatSource::Disk(layer), HeatSource::Peer(peer), HeatSource::Disk(layer)] {
        counts.count(source, 4096);
    }
    let path = file_path(&roots, VOLUME);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    write(&path, &counts).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(
        text,
        r#"{"version":1,"counts":[{"source":{"from":"disk","id":"00000000-0000-0000-0000-000000000001"},"requests":2,"bytes":8192},{"source":{"from":"sibling","id":"00000000-0000-0000-0000-000000000002"},"requests":1,"bytes":4096}]}"#
    );
    assert_eq!(read(&roots, VOLUME).unwrap(), counts);
    fs::write(&path, text.replace("sibling", "peer")).unwrap();
    assert_eq!(read(&roots, VOLUME).unwrap(), counts);
}

#[test]
fn clean_up_removes_the_counts_of_one_volume() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let other = Uuid::from_u128(8);
    let directory = servers::dir(&roots).join(DIR);
    fs::create_dir_all(&directory).unwrap();
    servers::clean_up(&roots, VOLUME).unwrap();
    for name in [VOLUME.to_string(), format!(".{VOLUME}.12.0.tmp"), other.to_string()] {
        fs::write(directory.join(name), r#"{"version":1,"counts":[]}"#).unwrap();
    }
    assert_eq!(read(&roots, VOLUME).unwrap(), ReadCounts::default());
    fs::write(directory.join(VOLUME.to_string()), r#"{"version":2,"counts":[]}"#).unwrap();
    assert!(read(&roots, VOLUME).is_err());
    servers::clean_up(&roots, VOLUME).unwrap();
    let left: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [std::ffi::OsString::from(other.to_string())]);
}
