//! The specification of a block server: actions contain it, the server's process gets it as its argument, and the
//! server records it beside its device (`formats::servers`), where the daemon finds it for a successor.
//!
//! Does not: contain the queue depth of a new device, or whether a device is taken over. Both belong to one start of a
//! server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::cgroup::CgroupPath;
use crate::model::{ReadFrom, Volume, read_from_tag};

/// The hidden command of `bulkhead` that starts a block server. Its argument is a [`ServeSpec`] as JSON, so that `ps`
/// shows volume and image first.
pub const COMMAND: &str = "blockd";

/// What a block server serves, and how. Its JSON is in files that outlive the daemon (docs/formats/state.md): a new
/// field needs a default, and unknown fields are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeSpec {
    /// The volume, whose mark the device gets.
    pub volume: Uuid,
    /// Its image: a file, or a block device if `below` is set.
    pub image: PathBuf,
    /// Whether discarded ranges are freed. Only for an image that was provisioned on demand: elsewhere the next write
    /// would change metadata of the host's file system again.
    pub discards: bool,
    /// The image depends on layers, or was copied: without its attribute (`formats::layer`) it must not be served.
    #[serde(default)]
    pub layered: bool,
    /// For the device of a thin volume: the device of an immutable snapshot, from which shared blocks are read
    /// (`sys::thin`).
    #[serde(default)]
    pub below: Option<PathBuf>,
    /// Whether the content of the image's layers is copied into it.
    #[serde(default)]
    pub flatten: bool,
    /// From where it reads blocks of layers.
    #[serde(rename = "share", default, with = "read_from_tag")]
    pub read_from: ReadFrom,
    /// Its sharing domain.
    #[serde(default)]
    pub domain: String,
    /// The cgroup to serve in; `None` stays where it is started.
    #[serde(default)]
    pub cgroup: Option<CgroupPath>,
}

impl ServeSpec {
    /// An image without layers, with the volume's mode of sharing, served where the server is started.
    #[must_use]
    pub fn new(volume: &Volume, image: PathBuf) -> Self {
        Self {
            volume: volume.uuid,
            image,
            discards: false,
            layered: false,
            below: None,
            flatten: false,
            read_from: volume.read_from,
            domain: volume.sharing_domain(),
            cgroup: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Action, ServerAction};
    use crate::model::Server;

    fn spec() -> ServeSpec {
        ServeSpec {
            volume: Uuid::from_u128(7),
            image: "/srv/pool/v.img".into(),
            discards: true,
            layered: true,
            below: Some("/dev/vg/base".into()),
            flatten: true,
            read_from: ReadFrom::Peers,
            domain: "file/".to_owned(),
            cgroup: Some("bulkhead.slice/server".parse().unwrap()),
        }
    }

    /// The JSON of an answer has each field beside the action's name, as it had before the fields had a type of their
    /// own.
    #[test]
    fn the_json_of_an_action_has_the_fields_at_its_top() {
        let action = Action::Server(ServerAction::AttachImage { server: Server::Loop, spec: spec() });
        let json = serde_json::json!({
            "action": "attach_image",
            "server": "loop",
            "volume": "00000000-0000-0000-0000-000000000007",
            "image": "/srv/pool/v.img",
            "discards": true,
            "layered": true,
            "below": "/dev/vg/base",
            "flatten": true,
            "share": "drr",
            "domain": "file/",
            "cgroup": "bulkhead.slice/server",
        });
        assert_eq!(serde_json::to_value(&action).unwrap(), json);
        assert_eq!(serde_json::from_value::<Action>(json).unwrap(), action);
    }

    #[test]
    fn specs_of_earlier_versions_are_read_and_unknown_fields_ignored() {
        let text = r#"{"volume":"00000000-0000-0000-0000-000000000007","image":"/v.img","discards":false,"share":"drr","new":[1]}"#;
        let read: ServeSpec = serde_json::from_str(text).unwrap();
        let plain = ServeSpec {
            image: "/v.img".into(),
            discards: false,
            layered: false,
            below: None,
            flatten: false,
            read_from: ReadFrom::Peers,
            domain: String::new(),
            cgroup: None,
            ..spec()
        };
        assert_eq!(read, plain);
    }
}
