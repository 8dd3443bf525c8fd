//! Image sources of `docker save` before version 1.10, without `manifest.json`: `repositories` names the topmost layer of each image, and the
//! directory of a layer contains `json`, which names the layer below, and `layer.tar`. None has a digest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::StageOptions;
use crate::choose::{Candidate, Candidates};
use crate::error::{ImageError, ImportError};
use crate::image_layer::{ExpectedDigest, ImageLayer};
use crate::platform::Platform;
use crate::reference;
use crate::store::Store;

/// The list of images in such an archive.
const REPOSITORIES: &str = "repositories";

/// Limit of images in an archive.
const MAX_IMAGES: usize = 4096;

/// The fields of a layer's document that are used.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    parent: Option<String>,
    #[serde(flatten)]
    platform: Platform,
}

/// A directory with the contents of such an archive.
#[derive(Debug)]
pub(crate) struct LegacyArchive {
    pub(crate) store: Store,
    /// The topmost layer of each image, by image name.
    images: Vec<(String, String)>,
}

impl LegacyArchive {
    /// Opens a directory with the contents of such an archive; returns the store if it contains something else.
    pub(crate) fn open(store: Store) -> Result<Result<Self, Store>, ImportError> {
        if !store.has(REPOSITORIES) {
            return Ok(Err(store));
        }
        // A tree can contain another file of that name.
        let bytes = match store.read(REPOSITORIES, &store.file(Path::new(REPOSITORIES), REPOSITORIES)?) {
            Err(ImportError::Image { reason: ImageError::TooLarge(_), .. }) => return Ok(Err(store)),
            read => read?,
        };
        let Ok(repositories) = serde_json::from_slice::<BTreeMap<String, BTreeMap<String, String>>>(&bytes) else {
            return Ok(Err(store));
        };
        let images = repositories.into_iter().flat_map(|(repository, tags)| {
            tags.into_iter().map(move |(tag, layer)| (format!("{repository}:{tag}"), layer))
        });
        let images: Vec<(String, String)> = images.collect();
        if images.len() > MAX_IMAGES {
            return Err(store.error(ImageError::TooMany));
        }
        let is_one = images.iter().any(|(_, layer)| store.has(&format!("{layer}/json")));
        Ok(if is_one { Ok(Self { store, images }) } else { Err(store) })
    }

    /// The layers of the selected image, lowest first.
    pub(crate) fn layers(&self, options: &StageOptions) -> Result<Vec<ImageLayer>, ImportError> {
        let mut images = self.images.clone();
        if let Some(name) = &options.reference {
            let names = |(name, layer): &(String, String)| vec![name.clone(), layer.clone()];
            images = reference::select(images, names, name).map_err(|reason| self.store.error(reason))?;
        }
        let mut found = Candidates::new();
        for (name, layer) in images {
            match self.document(&layer) {
                Ok(mut document) => {
                    if document.platform.architecture.is_empty() {
                        document.platform = options.platform.clone();
                    }
                    let (id, platform) = (layer.clone(), document.platform);
                    found.add(Candidate { id, name: Some(name), platform, image: layer }, options);
                }
                Err(ImportError::Image { reason: ImageError::Missing(what), .. }) => found.add_missing(what),
                Err(error) => return Err(error),
            }
        }
        let top = found.choose(options).map_err(|reason| self.store.error(reason))?;
        let (mut layers, mut next) = (Vec::new(), Some(top));
        while let Some(id) = next {
            let (name, path) = (format!("layer {id}"), PathBuf::from(&id).join("layer.tar"));
            // Missing files are reported before anything is unpacked.
            self.store.file(&path, &name)?;
            layers.push(ImageLayer { name, path, digest: ExpectedDigest::Unknown });
            // Ends a chain that forms a loop.
            self.store.check_n_layers(layers.len())?;
            next = self.document(&id)?.parent.filter(|parent| !parent.is_empty());
        }
        layers.reverse();
        Ok(layers)
    }

    fn document(&self, layer: &str) -> Result<Document, ImportError> {
        let name = format!("{layer}/json");
        self.store.parse(&name, &self.store.read(&name, &self.store.file(Path::new(&name), &name)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{contents, reason};
    use serde_json::json;
    use std::fs;

    fn layer(at: &Path, id: &str, parent: Option<&str>, content: &str) {
        fs::create_dir(at.join(id)).unwrap();
        let document = json!({"id": id, "parent": parent, "os": "linux", "architecture": "amd64", "created": "2014"});
        fs::write(at.join(id).join("json"), document.to_string()).unwrap();
        fs::write(at.join(id).join("layer.tar"), content).unwrap();
    }

    fn options(reference: Option<&str>) -> StageOptions {
        StageOptions {
            platform: "linux/amd64".parse().unwrap(),
            reference: reference.map(str::to_owned),
            strict: false,
        }
    }

    fn open(at: &Path) -> Option<LegacyArchive> {
        LegacyArchive::open(Store::open(at, "it").unwrap()).unwrap().ok()
    }

    #[test]
    fn layers_are_found_from_the_top_down() {
        let dir = tempfile::tempdir().unwrap();
        for (id, parent, content) in
            [("aa", None, "base"), ("cc", Some("aa"), "middle"), ("bb", Some("cc"), "top"), ("dd", Some("ee"), "cut")]
        {
            layer(dir.path(), id, parent, content);
        }
        let repositories = json!({"app": {"1": "bb", "latest": "bb"}, "base": {"latest": "aa"}, "cut": {"1": "dd"}});
        fs::write(dir.path().join("repositories"), repositories.to_string()).unwrap();
        let legacy = open(dir.path()).unwrap();
        let chosen = |name| contents(&legacy.store, &legacy.layers(&options(Some(name))).unwrap());
        assert_eq!(
            (chosen("app:1"), chosen("app")),
            (vec!["base".into(), "middle".into(), "top".into()], chosen("bb"))
        );
        assert_eq!(chosen("base"), ["base"]);
        assert!(matches!(reason(legacy.layers(&options(None))), ImageError::Ambiguous(_)));
        assert_eq!(reason(legacy.layers(&options(Some("cut:1")))), ImageError::Missing("layer ee".to_owned()));
        // A loop ends at the limit of layers.
        fs::remove_dir_all(dir.path().join("aa")).unwrap();
        layer(dir.path(), "aa", Some("bb"), "base");
        assert!(matches!(reason(legacy.layers(&options(Some("app")))), ImageError::Layers { .. }));
    }

    #[test]
    fn another_file_named_repositories_is_part_of_a_tree() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["deb http://deb.debian.org/debian bookworm main", "{}", r#"{"a": {"b": "missing"}}"#] {
            fs::write(dir.path().join("repositories"), text).unwrap();
            assert!(open(dir.path()).is_none(), "{text}");
        }
    }
}
