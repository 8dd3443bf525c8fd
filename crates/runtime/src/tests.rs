//! Tests of arguments and bundles, as engines hand them over.

mod arguments;
mod bundles;
