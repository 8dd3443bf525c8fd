//! When a workload has become steady, and how exactly its rate is known then.
//!
//! Owns: the end of the warm-up by the marginal standard error rule (MSER; White 1997, "An Effective Truncation Heuristic for Bias
//! Reduction in Simulation Output"), and the confidence interval by batch means. Does not: read figures, or decide how long to wait.

/// Fewest figures behind the warm-up from which a rate is known.
const FEWEST: usize = 10;
/// Number of batches, each of which is as good as independent of the others.
const BATCHES: usize = 5;
/// 97.5th percentile of Student's t with 4 degrees of freedom.
const T: f64 = 2.776;

/// A figure at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Since the start, s.
    pub(super) at: f64,
    /// Operations per second since the figure before.
    pub(super) per_s: f64,
}

/// The mean of a steady rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mean {
    /// The mean.
    pub(super) per_s: f64,
    /// Half of the width of its 95 % confidence interval; 0 of a single figure.
    pub(super) half: f64,
}

impl Mean {
    /// Whether the interval is narrow enough: at most this part of the mean.
    #[must_use]
    pub(super) fn is_within(self, part: f64) -> bool {
        self.half <= part * self.per_s
    }
}

/// The end of the warm-up, s since the start: the moment behind which the standard error of the mean is least. `None` if that is in the later
/// half, so that the figures may not have become steady yet, or if there are too few.
pub(super) fn warm_up(points: &[Point]) -> Option<f64> {
    let n = points.len();
    let mut least: Option<(f64, usize)> = None;
    for cut in 0..=n.checked_sub(FEWEST)? {
        let behind = &points[cut..];
        let error = variance(behind) / behind.len() as f64;
        if least.is_none_or(|(least, _)| error < least) {
            least = Some((error, cut));
        }
    }
    let (_, cut) = least?;
    (2 * cut <= n).then(|| if cut == 0 { 0.0 } else { points[cut - 1].at })
}

/// The mean of the figures behind a moment; `None` if there are too few for an interval.
pub(super) fn mean(points: &[Point], from: f64) -> Option<Mean> {
    let behind: Vec<f64> = points.iter().filter(|point| point.at > from).map(|point| point.per_s).collect();
    if behind.len() < FEWEST {
        return None;
    }
    // The oldest figures that do not fill a batch are left out of the interval.
    let size = behind.len() / BATCHES;
    let batches: Vec<f64> = behind.rchunks_exact(size).take(BATCHES).map(average).collect();
    let center = average(&batches);
    let squares: f64 = batches.iter().map(|batch| (batch - center).powi(2)).sum();
    let half = T * (squares / (BATCHES * (BATCHES - 1)) as f64).sqrt();
    Some(Mean { per_s: average(&behind), half })
}

fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn variance(points: &[Point]) -> f64 {
    let n = points.len().max(1) as f64;
    let mean = points.iter().map(|point| point.per_s).sum::<f64>() / n;
    points.iter().map(|point| (point.per_s - mean).powi(2)).sum::<f64>() / n
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures each second.
    fn points(per_s: impl IntoIterator<Item = f64>) -> Vec<Point> {
        per_s.into_iter().zip(1..).map(|(per_s, at)| Point { at: f64::from(at), per_s }).collect()
    }

    /// Alternates around a value by a hundredth.
    fn steady(value: f64) -> impl Iterator<Item = f64> {
        (0..).map(move |n| value * if n % 2 == 0 { 1.01 } else { 0.99 })
    }

    #[test]
    fn a_warm_up_is_cut_off() {
        let rising = (0..8).map(|n| 100.0 * f64::from(n));
        let points = points(rising.chain(steady(1000.0).take(30)));
        let from = warm_up(&points).unwrap();
        assert!((7.0..=9.0).contains(&from), "{from}");
        let mean = mean(&points, from).unwrap();
        assert!((mean.per_s - 1000.0).abs() < 2.0 && mean.is_within(0.02), "{mean:?}");
    }

    #[test]
    fn what_is_steady_from_the_start_has_no_warm_up() {
        assert!(warm_up(&points(steady(50.0).take(20))).unwrap() < 2.0);
        assert_eq!(warm_up(&points([0.0; 12])), Some(0.0), "nothing is steady too");
    }

    #[test]
    fn a_rate_that_keeps_rising_is_not_steady() {
        let points = points((0..40).map(|n| 10.0 * f64::from(n)));
        assert_eq!(warm_up(&points), None);
        assert!(!mean(&points, 0.0).unwrap().is_within(0.1));
    }

    #[test]
    fn few_figures_are_not_enough() {
        assert_eq!(warm_up(&points(steady(5.0).take(FEWEST - 1))), None);
        assert_eq!(mean(&points(steady(5.0).take(20)), 11.0), None);
        assert_eq!(warm_up(&[]), None);
    }
}
