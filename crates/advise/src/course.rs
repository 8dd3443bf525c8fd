//! What a course of throughputs over a number of copies shows: its knee, and a throughput valley.
//!
//! Owns: the definitions. Does not: measure or predict the course.

/// Part of the highest cumulative throughput that the knee reaches.
const KNEE: f64 = 0.95;
/// Part of an earlier cumulative throughput below which a later one lies in a valley.
const VALLEY: f64 = 0.8;

/// Cumulative throughput of a number of copies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Number of copies.
    pub copies: u32,
    /// Their operations per second together.
    pub per_s: f64,
}

/// A fall of the cumulative throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Valley {
    /// The last number of copies before it with nearly the highest throughput up to it.
    pub before: Step,
    /// The lowest step behind.
    pub bottom: Step,
}

/// The smallest number of copies that reaches nearly the highest cumulative throughput; `None` without steps. More copies gain little or nothing.
#[must_use]
pub fn knee(course: &[Step]) -> Option<u32> {
    let most = course.iter().map(|step| step.per_s).fold(0.0, f64::max);
    course.iter().find(|step| step.per_s >= KNEE * most).map(|step| step.copies)
}

/// The first fall of the cumulative throughput with more copies, by more than a fifth (Bhimani et al. 2016, figures 6 and 7); `None` if it does
/// not fall. Steps are in the order of their copies.
#[must_use]
pub fn valley(course: &[Step]) -> Option<Valley> {
    let (mut before, mut most) = (None::<Step>, 0.0_f64);
    for (index, step) in course.iter().enumerate() {
        if let Some(before) = before.filter(|before| step.per_s < VALLEY * before.per_s) {
            let behind = course[index..].iter().copied();
            let bottom = behind.min_by(|a, b| a.per_s.total_cmp(&b.per_s))?;
            return Some(Valley { before, bottom });
        }
        most = most.max(step.per_s);
        if step.per_s >= KNEE * most {
            before = Some(*step);
        }
    }
    None
}

/// How equal throughputs are, 1/n to 1 (Jain, Chiu and Hawe 1984); 1 without any.
#[must_use]
pub fn fairness(throughputs: &[f64]) -> f64 {
    let (sum, squares) = throughputs.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares > 0.0 { sum * sum / (squares * throughputs.len() as f64) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(per_s: &[f64]) -> Vec<Step> {
        per_s.iter().zip(1..).map(|(per_s, copies)| Step { copies, per_s: *per_s }).collect()
    }

    #[test]
    fn a_knee_is_where_more_copies_gain_little() {
        assert_eq!(knee(&course(&[10.0, 19.0, 26.0, 28.0, 28.5])), Some(4));
        assert_eq!(knee(&course(&[10.0, 10.0])), Some(1));
        assert_eq!(knee(&[]), None);
    }

    #[test]
    fn a_valley_is_a_fall_behind_the_best() {
        let valley = valley(&course(&[100.0, 180.0, 250.0, 120.0, 60.0, 65.0])).unwrap();
        assert_eq!((valley.before.copies, valley.bottom.copies), (3, 5));
        // Which of equals is the highest does not matter.
        let plateau = super::valley(&course(&[100.0, 99.0, 98.0, 30.0])).unwrap();
        assert_eq!((plateau.before.copies, plateau.bottom.copies), (3, 4));
        assert_eq!(super::valley(&course(&[10.0, 20.0, 18.0, 17.0])), None);
        assert_eq!(super::valley(&[]), None);
    }

    #[test]
    fn equal_throughputs_are_fair() {
        assert!((fairness(&[3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((fairness(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert!((fairness(&[]) - 1.0).abs() < 1e-12);
    }
}
