//! Tests of the JSON and the message of each action.

use super::*;

/// Clients of other versions, `--dry-run --output json` and the processes that carry out an action read this JSON; the facets are not in it.
#[test]
fn the_json_and_the_message_of_an_action_do_not_depend_on_its_facet() {
    let lines: Vec<&str> = include_str!("examples.txt").lines().collect();
    for pair in lines.chunks(2) {
        let [json, sentence] = pair else { panic!("a line without another: {pair:?}") };
        let action: Action = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(serde_json::to_string(&action).unwrap(), *json);
        assert_eq!(action.to_string(), sentence.trim_start());
    }
    assert_eq!(lines.len(), 2 * 64, "each action has an example");
}
