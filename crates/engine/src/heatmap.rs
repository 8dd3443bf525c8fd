//! The heat map: which volumes read whose blocks. Block servers count by UUIDs; this adds names.

use std::collections::HashMap;

use bulkhead_api::wire::HeatRow;
use bulkhead_core::backend;
use bulkhead_core::error::Fault;
use bulkhead_core::heat::HeatSource;
use bulkhead_core::model::{PoolSource, ReadFrom, Volume};
use bulkhead_core::units::Bytes;
use uuid::Uuid;

use crate::engine::Engine;

impl Engine {
    /// What open volumes have read of shared blocks since they were opened, the largest amount first.
    ///
    /// # Errors
    /// When the pools cannot be listed.
    pub fn heatmap(&self) -> Result<Vec<HeatRow>, Fault> {
        let mut volumes: HashMap<Uuid, String> = HashMap::new();
        let mut layers: HashMap<Uuid, (usize, String)> = HashMap::new();
        let mut rows = Vec::new();
        for pool in self.pools()?.into_iter().filter_map(Result::ok) {
            let backend = backend::backend(&pool);
            let Ok(found) = self.volumes_in(&pool) else { continue };
            let on_lvm = matches!(pool.source, PoolSource::Lvm { .. });
            let shares = |volume: &Volume| volume.layered || on_lvm && volume.read_from != ReadFrom::Disk;
            for volume in found.into_iter().filter_map(Result::ok).filter(shares) {
                let reference = volume.reference();
                volumes.insert(volume.uuid, reference.to_string());
                // A layer gets the name of the snapshot that is nearest to it in a backing chain.
                let on = self.host().layers(&backend.device(&volume)).ok().flatten().filter(|_| volume.read_only);
                for (depth, layer) in on.into_iter().flat_map(|on| on.below).enumerate() {
                    let known = layers.entry(layer.id).or_insert((depth, reference.to_string()));
                    if depth < known.0 {
                        *known = (depth, reference.to_string());
                    }
                }
                // A thin volume has no layers; the source is the snapshot that it was made from.
                let origin = volume.origin.as_ref().filter(|_| on_lvm).map(|name| format!("{}/{name}", pool.name));
                let counts = self.host().read_counts(volume.uuid)?.counts;
                rows.extend(counts.into_iter().map(|count| (reference.clone(), origin.clone(), count)));
            }
        }
        let short = |id: Uuid| id.to_string().split('-').next().unwrap_or_default().to_owned();
        let mut rows: Vec<HeatRow> = rows
            .into_iter()
            .map(|(reader, origin, count)| HeatRow {
                source_name: match count.source {
                    HeatSource::Disk(layer) | HeatSource::Cache(layer) => origin
                        .unwrap_or_else(|| layers.get(&layer).map_or_else(|| short(layer), |(_, name)| name.clone())),
                    HeatSource::Peer(volume) => volumes.get(&volume).cloned().unwrap_or_else(|| short(volume)),
                },
                reader,
                source: count.source,
                requests: count.requests,
                bytes: count.bytes,
                disk_reads_saved: if count.source.saves_the_disk() { count.requests } else { 0 },
            })
            .collect();
        // A snapshot may have several layers, which are not shown.
        let mut merged: Vec<HeatRow> = Vec::new();
        rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        for row in rows {
            let kind = |row: &HeatRow| std::mem::discriminant(&row.source);
            let same = |other: &&mut HeatRow| {
                (&other.reader, &other.source_name, kind(other)) == (&row.reader, &row.source_name, kind(&row))
            };
            match merged.iter_mut().find(same) {
                Some(other) => {
                    other.requests += row.requests;
                    other.bytes = Bytes(other.bytes.0 + row.bytes.0);
                    other.disk_reads_saved += row.disk_reads_saved;
                }
                None => merged.push(row),
            }
        }
        let mut rows = merged;
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.reader.cmp(&b.reader)));
        Ok(rows)
    }
}
