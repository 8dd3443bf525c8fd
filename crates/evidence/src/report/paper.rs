//! Published figures, for comparison with experiments that only the evidence has.
//!
//! Source unless stated otherwise: the paper of `bulkhead_measure::report::paper`.

/// Mean fsync latency of tenants A (70 %) and B (30 %) that both call fsync often, Table 2.
pub(crate) fn pair_fsync_ms(layout: &str) -> Option<(f64, f64)> {
    match layout {
        "own" => Some((55.0, 53.0)),
        "own+accounting" | "own+accounting+hold" => Some((45.0, 86.0)),
        _ => None,
    }
}

/// Gain of the second container over reading from disk, if blocks come from the first one's cache (Zhao et al. 2016): on a hard disk, or on
/// flash.
pub(crate) fn clone_gain(layout: &str, is_spinning: bool) -> Option<f64> {
    (layout == "drr").then_some(if is_spinning { 10.0 } else { 2.4 })
}
