//! Objects of Kubernetes as values, and how those of two sources differ.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A template that prints the objects of the chart's file `objects` as a line of JSON.
pub(super) const TEMPLATE: &str = "\
    apiVersion: v1\n\
    kind: List\n\
    items: [\n\
    {{- range splitList \"\\n---\\n\" (printf \"\\n%s\" (.Files.Get \"objects\")) }}{{ fromYaml . | toJson }}, {{ end -}}\n\
    {}]\n";

/// Labels that only a chart's objects have: who manages them.
const LABELS_OF_HELM: [&str; 2] = ["helm.sh/chart", "app.kubernetes.io/managed-by"];

/// Containers are started at once, so that their order has no meaning.
const CONTAINERS: &str = "/spec/template/spec/containers";

/// Where objects come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Chart,
    /// With a namespace, which a chart does not have: Helm stores its release in it, so that it exists before.
    Manifests,
}

/// Objects by kind, namespace and name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Objects(BTreeMap<String, Value>);

impl Objects {
    /// Reads what [`TEMPLATE`] prints.
    pub(super) fn parse(printed: &str, source: Source) -> Result<Self> {
        let line = printed.lines().find_map(|line| line.strip_prefix("items: ")).context("helm printed no objects")?;
        let items: Vec<Value> = serde_json::from_str(line).context("helm printed no JSON")?;
        let mut objects = BTreeMap::new();
        for mut object in items.into_iter().filter(|object| object.as_object().is_some_and(|object| !object.is_empty()))
        {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let key = format!("{} {}/{}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
            ensure!(!text("/kind").is_empty() && !text("/metadata/name").is_empty(), "this is no object: {object}");
            match source {
                Source::Manifests if text("/kind") == "Namespace" => continue,
                Source::Manifests => {}
                Source::Chart => drop_labels_of_helm(&mut object).with_context(|| key.clone())?,
            }
            // Those that a patch of a kustomization adds are the first ones.
            if let Some(containers) = object.pointer_mut(CONTAINERS).and_then(Value::as_array_mut) {
                containers.sort_by_key(|container| container["name"].to_string());
            }
            ensure!(objects.insert(key.clone(), object).is_none(), "{key} is there twice");
        }
        ensure!(objects.len() > 3, "there are only {} objects", objects.len());
        Ok(Self(objects))
    }

    /// The first difference between these and others.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let keys = self.0.keys().chain(other.0.keys());
        keys.into_iter().find_map(|key| match (self.0.get(key), other.0.get(key)) {
            (Some(one), Some(other)) => difference(key, one, other),
            (Some(_), None) => Some(format!("only the former has {key}")),
            _ => Some(format!("only the latter has {key}")),
        })
    }
}

fn drop_labels_of_helm(object: &mut Value) -> Result<()> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut).context("it has no metadata")?;
    let labels = metadata.get_mut("labels").and_then(Value::as_object_mut).context("it has no labels")?;
    for label in LABELS_OF_HELM {
        labels.remove(label).with_context(|| format!("it has no label {label}"))?;
    }
    if labels.is_empty() {
        metadata.remove("labels");
    }
    Ok(())
}

fn difference(path: &str, one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(ones), Value::Object(others)) => {
            let null = Value::Null;
            let keys = ones.keys().chain(others.keys());
            keys.into_iter().find_map(|key| {
                difference(&format!("{path}.{key}"), ones.get(key).unwrap_or(&null), others.get(key).unwrap_or(&null))
            })
        }
        (Value::Array(ones), Value::Array(others)) if ones.len() == others.len() => {
            let pairs = ones.iter().zip(others).enumerate();
            pairs.into_iter().find_map(|(index, (one, other))| difference(&format!("{path}[{index}]"), one, other))
        }
        _ => (one != other).then(|| format!("{path}: {one} and {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the template prints for objects with these labels and specifications.
    fn printed(objects: &[(&str, &str, &str)]) -> String {
        let object = |(name, labels, spec): &(&str, &str, &str)| {
            format!("{{\"kind\":\"Pod\",\"metadata\":{{\"name\":\"{name}\"{labels}}},\"spec\":{spec}}}, ")
        };
        format!("---\nkind: List\nitems: [{{}}, {}{{}}]\n", objects.iter().map(object).collect::<String>())
    }

    #[test]
    fn objects_are_compared_without_order_and_labels_of_helm() {
        let labels = ",\"labels\":{\"helm.sh/chart\":\"c-1\",\"app.kubernetes.io/managed-by\":\"Helm\"}";
        let plain = [("a", "", "{\"x\":[1,{\"y\":2}]}"), ("b", "", "1"), ("c", "", "1"), ("d", "", "1")];
        let mut chart: Vec<_> = plain.iter().rev().map(|(name, _, spec)| (*name, labels, *spec)).collect();
        let read = |objects: &[_], source| Objects::parse(&printed(objects), source).unwrap();
        let manifests = read(&plain, Source::Manifests);
        assert_eq!(manifests.difference(&read(&chart, Source::Chart)), None);
        chart[3].2 = "{\"x\":[1,{\"y\":3}]}";
        let different = manifests.difference(&read(&chart, Source::Chart));
        assert_eq!(different.as_deref(), Some("Pod /a.spec.x[1].y: 2 and 3"));
        chart[3].2 = "{\"x\":[1]}";
        assert!(manifests.difference(&read(&chart, Source::Chart)).is_some());
        chart[3] = ("e", labels, "1");
        let different = manifests.difference(&read(&chart, Source::Chart));
        assert_eq!(different.as_deref(), Some("only the former has Pod /a"));

        assert!(Objects::parse(&printed(&plain), Source::Chart).is_err(), "labels are missing");
        assert!(Objects::parse(&printed(&[plain[0], plain[0]]), Source::Manifests).is_err(), "one twice");
        assert!(Objects::parse("---\nitems: [{}]\n", Source::Manifests).is_err(), "none");
        assert!(Objects::parse("---\nitems: [{\"Error\":\"yaml: line 1\"}, {}]\n", Source::Manifests).is_err());
    }
}
