//! Names of images as Docker and containerd write them: with or without a registry and a tag.

use std::collections::BTreeSet;

use crate::choose::join_limited;
use crate::error::{ImageError, shown};

/// Default registry, tag and owner of a name.
const REGISTRY: &str = "docker.io";
const TAG: &str = "latest";
const OWNER: &str = "library";

/// Selects the items that match `reference`: by exact name, else by canonical name, else by tag.
pub(crate) fn select<T>(
    mut items: Vec<T>,
    names: impl Fn(&T) -> Vec<String>,
    reference: &str,
) -> Result<Vec<T>, ImageError> {
    let whole = canonical(reference);
    let ways: [&dyn Fn(&str) -> bool; 3] = [
        &|name| name == reference || name.strip_prefix("sha256:") == Some(reference),
        &|name| canonical(name) == whole,
        &|name| tag(name) == Some(reference),
    ];
    let way = ways.into_iter().find(|way| items.iter().any(|item| names(item).iter().any(|name| way(name))));
    match way {
        Some(way) => {
            items.retain(|item| names(item).iter().any(|name| way(name)));
            Ok(items)
        }
        None => {
            let found: BTreeSet<String> = items.iter().filter_map(|item| names(item).into_iter().next()).collect();
            let found = join_limited(found.iter().map(|name| format!("\"{}\"", shown(name.as_bytes()))));
            Err(ImageError::NoReference { wanted: shown(reference.as_bytes()), found })
        }
    }
}

/// The tag of a name.
fn tag(name: &str) -> Option<&str> {
    let (_, tag) = name.rsplit_once(':')?;
    // With a slash, this is a port and a path.
    (!tag.contains('/')).then_some(tag)
}

/// The canonical name, with registry and tag.
fn canonical(name: &str) -> String {
    let is_registry = |part: &&str| part.contains(['.', ':']) || *part == "localhost";
    let (registry, rest) = match name.split_once('/').filter(|(first, _)| is_registry(first)) {
        Some(("index.docker.io", rest)) => (REGISTRY, rest),
        Some(parts) => parts,
        None => (REGISTRY, name),
    };
    let owner = if registry == REGISTRY && !rest.contains('/') { format!("{OWNER}/") } else { String::new() };
    let tag = if tag(rest).is_some() { String::new() } else { format!(":{TAG}") };
    format!("{registry}/{owner}{rest}{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_in_canonical_form() {
        for (name, full) in [
            ("alpine", "docker.io/library/alpine:latest"),
            ("alpine:3.20", "docker.io/library/alpine:3.20"),
            ("docker.io/library/alpine:3.20", "docker.io/library/alpine:3.20"),
            ("index.docker.io/alpine", "docker.io/library/alpine:latest"),
            ("someone/app", "docker.io/someone/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("quay.io/a/b:1", "quay.io/a/b:1"),
        ] {
            assert_eq!(canonical(name), full, "{name}");
        }
    }

    #[test]
    fn the_most_exact_match_of_a_reference_wins() {
        let items = vec![
            vec!["docker.io/library/alpine:latest", "latest"],
            vec!["docker.io/library/redis:latest", "latest"],
            vec!["quay.io/redis:7", "7"],
            vec!["sha256:0123"],
        ];
        let selected = |reference: &str| {
            let names = |item: &Vec<&str>| item.iter().map(|name| (*name).to_owned()).collect();
            select(items.clone(), names, reference).map(|items| items.iter().map(|item| item[0]).collect::<Vec<_>>())
        };
        assert_eq!(selected("redis").unwrap(), ["docker.io/library/redis:latest"]);
        assert_eq!(selected("quay.io/redis:7").unwrap(), ["quay.io/redis:7"]);
        assert_eq!(selected("latest").unwrap().len(), 2);
        assert_eq!((selected("7").unwrap(), selected("0123").unwrap()), (vec!["quay.io/redis:7"], vec!["sha256:0123"]));
        match selected("redis:8") {
            Err(ImageError::NoReference { wanted, found }) => {
                assert!(wanted == "redis:8" && found.starts_with("\"docker.io/library/alpine:latest\", "), "{found}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(select(vec![["a:1"]], |item| item.map(str::to_owned).to_vec(), "1").unwrap(), [["a:1"]]);
    }
}
