//! Axes: mapping of values to positions, and ticks at round values. Total: any input results in a finite scale.

/// Maximum number of orders of magnitude of a logarithmic axis.
const MAX_DECADES: f64 = 9.0;

/// A mapping of values to positions.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Linear from 0 to a little above `high`.
    pub fn linear(high: f64, from: f64, to: f64) -> Self {
        let high = if high.is_finite() && high > 1e-300 { high.min(1e300) } else { 1.0 };
        Self { log: false, low: 0.0, high: high * 1.03, from, to }
    }

    /// Linear from 0 to exactly `high`.
    pub fn exact(high: f64, from: f64, to: f64) -> Self {
        Self { log: false, low: 0.0, high, from, to }
    }

    /// Logarithmic over all positive values, ending at 1, 2 or 5 times a power of ten.
    pub fn log(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if high <= 0.0 {
            (low, high) = (1.0, 10.0);
        }
        let high = round_up(high.clamp(1e-6, 1e12));
        let low = round_down(low.clamp(high / 10_f64.powf(MAX_DECADES), high));
        let low = if low >= high { high / 10.0 } else { low };
        Self { log: true, low, high, from, to }
    }

    /// The position of a value; values outside of the scale are at its ends.
    pub fn at(&self, value: f64) -> f64 {
        let value = if value.is_nan() { self.low } else { value.clamp(self.low, self.high) };
        let part = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + part * (self.to - self.from)
    }

    /// Round values to write at the axis.
    pub fn ticks(&self, at_most: usize) -> Vec<f64> {
        let mut ticks = Vec::new();
        if self.log {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades * 3.0 + 1.0 <= at_most as f64 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let mut power = 10_f64.powf(self.low.log10().floor());
            while power <= self.high * 1.001 && ticks.len() < 40 {
                ticks.extend(steps.iter().map(|step| step * power));
                power *= 10.0;
            }
            ticks.retain(|tick| *tick >= self.low * 0.999 && *tick <= self.high * 1.001);
        } else {
            let step = step(self.high, at_most.max(2) as f64);
            let mut tick = 0.0;
            while tick <= self.high * 1.001 && ticks.len() < 40 {
                ticks.push(tick);
                tick += step;
            }
        }
        let every = ticks.len().div_ceil(at_most.max(2)).max(1);
        ticks.into_iter().step_by(every).collect()
    }
}

/// Distance of ticks on a linear axis: 1, 2, 2.5 or 5 times a power of ten, for at most `at_most` ticks.
fn step(high: f64, at_most: f64) -> f64 {
    let power = 10_f64.powf((high / at_most).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0, 20.0].into_iter().map(|n| n * power);
    let step = steps.into_iter().find(|step| (high / step * 1.001).floor() + 1.0 <= at_most).unwrap_or(power * 50.0);
    if step.is_finite() && step > 0.0 { step } else { 1.0 }
}

fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|n| n * power).find(|round| *round >= value * 0.999).unwrap_or(power * 10.0)
}

fn round_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [5.0, 2.0].into_iter().map(|n| n * power).find(|round| *round <= value * 1.001).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = Scale::log([17.0, 3357.0].into_iter(), 0.0, 100.0);
        assert_eq!(scale.ticks(8), [10.0, 100.0, 1000.0]);
        let scale = Scale::exact(100.0, 0.0, 100.0);
        assert_eq!(scale.ticks(8), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(scale.ticks(5), [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert!((scale.at(50.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn hostile_values_give_a_finite_scale() {
        for values in [vec![], vec![0.0], vec![f64::NAN, f64::INFINITY], vec![1e-300, 1e300], vec![-5.0], vec![7.0]] {
            let log = Scale::log(values.iter().copied(), 0.0, 100.0);
            let linear = Scale::linear(values.first().copied().unwrap_or(0.0), 0.0, 100.0);
            for value in [0.0, -1.0, 1e300, f64::NAN, f64::INFINITY, 3.0] {
                assert!(log.at(value).is_finite() && linear.at(value).is_finite(), "{values:?} {value}");
            }
            assert!(log.ticks(6).len() <= 6 && linear.ticks(6).len() <= 6);
        }
    }
}
