//! Quantiles of a time from its mean and variance.
//!
//! The time is taken to be gamma distributed: exponential times in a row are, and a gamma with a small variance is close to normal.

/// Standard normal quantiles of 95 and 99 percent.
const Z95: f64 = 1.644_853_627;
const Z99: f64 = 2.326_347_874;

use super::Times;

/// A time's mean and quantiles, by the approximation of Wilson and Hilferty (PNAS 17(12), 1931).
pub(super) fn times(mean: f64, variance: f64) -> Times {
    if mean <= 0.0 {
        return Times::default();
    }
    Times { mean, p95: quantile(mean, variance, Z95), p99: quantile(mean, variance, Z99) }
}

fn quantile(mean: f64, variance: f64, z: f64) -> f64 {
    let part = variance / (9.0 * mean * mean);
    mean * (1.0 - part + z * part.sqrt()).max(0.0).powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exponential_time_has_its_known_quantiles() {
        let times = times(1.0, 1.0);
        assert!((times.p95 / 20f64.ln() - 1.0).abs() < 0.02, "{times:?}");
        assert!((times.p99 / 100f64.ln() - 1.0).abs() < 0.02, "{times:?}");
    }

    #[test]
    fn a_constant_time_is_its_own_quantile() {
        let times = times(3.0, 0.0);
        assert!((times.p99 - 3.0).abs() < 1e-12);
    }
}
