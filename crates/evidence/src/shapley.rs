//! The fair share of each participant in a joint cost (L. S. Shapley, "A value for n-person games", 1953).

/// The Shapley value of each of `n` players (at most 16): its marginal cost, averaged over all orders of arrival. `cost` returns the cost of a
/// set of players, with bit `i` for player `i`. The values sum to the cost of all players.
#[must_use]
pub(crate) fn values(n: usize, cost: impl Fn(usize) -> f64) -> Vec<f64> {
    let factorial = |k: usize| (1..=k).map(|i| i as f64).product::<f64>();
    let value = |player: usize| {
        let without = (0..1usize << n).filter(|set| set & 1 << player == 0);
        without
            .map(|set| {
                let before = set.count_ones() as usize;
                let orders = factorial(before) * factorial(n - before - 1) / factorial(n);
                orders * (cost(set | 1 << player) - cost(set))
            })
            .sum()
    };
    (0..n).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_cost_is_halved_and_an_own_one_is_not() {
        // Player 0 costs 4, player 1 costs 10, and together they save 2.
        let costs = [0.0, 4.0, 10.0, 12.0];
        assert_eq!(values(2, |set| costs[set]), [3.0, 9.0]);
    }

    #[test]
    fn values_sum_to_the_cost_of_all() {
        let costs = [0.0, 3.0, 7.0, 8.0, 5.0, 11.0, 9.0, 20.0];
        let sum: f64 = values(3, |set| costs[set]).iter().sum();
        assert!((sum - 20.0).abs() < 1e-9, "{sum}");
    }
}
