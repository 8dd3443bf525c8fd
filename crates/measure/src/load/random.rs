//! Pseudo-random numbers of loads and experiments: the same in each run.

/// A xorshift generator (Marsaglia 2003, "Xorshift RNGs", 64 bits).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Thread `index` of a load has a sequence of its own.
    pub fn new(index: usize) -> Self {
        Self(0x1234_5678_9abc_def1 ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next().checked_rem(n).unwrap_or(0)
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A size with a gamma distribution of shape 1.5, as Filebench's file sets have by default, of at least 1 and at most 8 times the mean.
    pub fn size(&mut self, mean: u64) -> u64 {
        // Shape 1 is an exponential distribution, shape 1/2 half the square of a normal one (Box and Muller 1958).
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        let sum = -self.unit().ln() + normal * normal / 2.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range below")]
        let size = (sum / 1.5 * mean as f64) as u64;
        size.clamp(1, mean.saturating_mul(8).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_their_mean_and_numbers_their_range() {
        let mut random = Random::new(3);
        let sizes: Vec<u64> = (0..20_000).map(|_| random.size(16 << 10)).collect();
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
        assert!((15_500.0..17_000.0).contains(&mean), "{mean}");
        assert!(sizes.iter().all(|size| (1..=8 * (16 << 10)).contains(size)));
        assert!((0..1000).all(|_| random.below(7) < 7) && random.below(0) == 0);
    }
}
