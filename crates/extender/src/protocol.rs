//! The extender's protocol, `k8s.io/kube-scheduler/extender/v1`: requests and answers as JSON.
//!
//! Go's names are those of the fields, and its decoder ignores case; earlier schedulers wrote them with a small letter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Highest score of a node.
pub const MAX_SCORE: i64 = 10;

/// The request of both verbs.
#[derive(Debug, Deserialize)]
pub struct Args {
    /// The pod that is to be scheduled.
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Pod,
    /// The candidates as objects, unless the configuration says `nodeCacheCapable: true`.
    #[serde(rename = "Nodes", alias = "nodes", default)]
    pub nodes: Option<Nodes>,
    /// Their names, if it does.
    #[serde(rename = "NodeNames", alias = "nodeNames", alias = "nodenames", default)]
    pub node_names: Option<Vec<String>>,
}

/// A pod, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Pod {
    /// Names, labels, annotations.
    #[serde(default)]
    pub metadata: Metadata,
}

/// Metadata of an object, as far as they matter here.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// The name.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// The UID.
    pub uid: String,
    /// The labels.
    #[serde(deserialize_with = "null_is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    #[serde(deserialize_with = "null_is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Nodes as objects, kept as they came.
#[derive(Debug, Deserialize)]
pub struct Nodes {
    /// The objects.
    #[serde(default)]
    pub items: Vec<Box<RawValue>>,
}

/// What the filter answers.
#[derive(Debug, Default, Serialize)]
pub struct FilterResult<'a> {
    /// Nodes that remain, as objects.
    #[serde(rename = "Nodes")]
    pub nodes: Option<NodeList<'a>>,
    /// Their names.
    #[serde(rename = "NodeNames")]
    pub node_names: Option<Vec<&'a str>>,
    /// Nodes that do not, each with the reason; removing other pods might help.
    #[serde(rename = "FailedNodes")]
    pub failed: BTreeMap<&'a str, String>,
    /// Nodes on which removing pods would not help.
    #[serde(rename = "FailedAndUnresolvableNodes")]
    pub unresolvable: BTreeMap<&'a str, String>,
    /// Why nothing could be decided; always empty.
    #[serde(rename = "Error")]
    pub error: &'static str,
}

/// A list of nodes.
#[derive(Debug, Serialize)]
pub struct NodeList<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: BTreeMap<&'static str, &'static str>,
    items: Vec<&'a RawValue>,
}

impl<'a> NodeList<'a> {
    /// With these objects.
    #[must_use]
    pub const fn new(items: Vec<&'a RawValue>) -> Self {
        Self { kind: "NodeList", api_version: "v1", metadata: BTreeMap::new(), items }
    }
}

/// The score of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostPriority<'a> {
    /// Its name.
    #[serde(rename = "Host")]
    pub host: &'a str,
    /// 0 to [`MAX_SCORE`].
    #[serde(rename = "Score")]
    pub score: i64,
}

impl Args {
    /// The names of the candidates, in order, and their objects if those were sent.
    ///
    /// # Errors
    /// For an object that has no name.
    pub fn candidates(&self) -> Result<Vec<(String, Option<&RawValue>)>, String> {
        if let Some(names) = &self.node_names {
            return Ok(names.iter().map(|name| (name.clone(), None)).collect());
        }
        #[derive(Deserialize)]
        struct Node {
            metadata: Metadata,
        }
        let items = self.nodes.iter().flat_map(|nodes| &nodes.items);
        let named = items.enumerate().map(|(index, item)| {
            let node: Node =
                serde_json::from_str(item.get()).map_err(|error| format!("Nodes.items[{index}]: {error}"))?;
            Ok((node.metadata.name, Some(&**item)))
        });
        named.collect()
    }
}
