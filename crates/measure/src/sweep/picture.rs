//! The course of a workload's throughput over its number of copies, with its knee and its valley, as SVG.

use bulkhead_advise::course::{Step, knee, valley};

use super::figure as f;
use super::summary::courses;
use crate::report::labels;
use crate::report::svg::canvas::{Anchor, Card, Hue, Key, MARGIN, SMALL, STRONG, TICK, text_width};
use crate::report::svg::scale::Scale;
use crate::report::svg::{WIDE, stem_of};
use crate::report::text::{number, percent};
use crate::result::{Cell, Experiment};

/// A picture for each workload that was run with several numbers of copies: stem of its file's name, and the SVG.
#[must_use]
pub fn pictures(experiment: &Experiment) -> Vec<(String, String)> {
    let of = |(workload, course): (&str, Vec<(Step, &Cell)>)| {
        (course.len() > 1)
            .then(|| (stem_of(&[&experiment.name, workload]), picture(experiment, workload, &course, &[])))
    };
    courses(experiment).into_iter().filter_map(of).collect()
}

/// The course of a workload as measured, and as predicted before, unless that is empty.
#[must_use]
pub fn picture(experiment: &Experiment, workload: &str, course: &[(Step, &Cell)], predicted: &[Step]) -> String {
    let steps: Vec<Step> = course.iter().map(|(step, _)| *step).collect();
    let subtitle = "Operations per second of all copies together; whiskers: smallest and largest round.";
    let mut card = Card::new(WIDE, &format!("{workload}: throughput of more and more copies"), subtitle);
    let line = |hue, dash, width, text: &str| (Key::Line { hue, dash, width }, text.to_owned());
    let mut legend = vec![line(Hue::Blue, "", 3.0, "measured"), line(Hue::Grey, "6 4", 2.0, "as many times one copy")];
    legend.extend((!predicted.is_empty()).then(|| line(Hue::Amber, "2 4", 3.0, "predicted before")));
    card.legend(&legend);
    let spread = |cell: &Cell| cell.figure(f::OPS_PER_S).map_or((0.0, 0.0), |spread| (spread.min, spread.max));
    let foreseen = predicted.iter().map(|step| step.per_s);
    let highest = course.iter().map(|(_, cell)| spread(cell).1).chain(foreseen).fold(0.0, f64::max);
    let most = steps.last().map_or(1.0, |step| f64::from(step.copies));

    let (top, bottom) = (card.y + 16.0, card.y + 296.0);
    let y = Scale::linear(highest * 1.1, bottom, top);
    let ticks = y.ticks(8);
    let label_width = ticks.iter().map(|tick| text_width(&number(*tick), TICK)).fold(0.0, f64::max);
    let (left, right) = (MARGIN + 14.0 + label_width, WIDE - MARGIN - 20.0);
    let x = Scale::exact(most, left, right);
    for tick in ticks {
        card.line([left, y.at(tick), right, y.at(tick)], "grid", 1.0, "");
        card.text(left - 7.0, y.at(tick) + 4.0, Anchor::End, TICK, &number(tick));
    }
    card.line([left, bottom, right, bottom], "axis", 1.0, "");
    let mut last = f64::NEG_INFINITY;
    for step in &steps {
        let (at, text) = (x.at(f64::from(step.copies)), step.copies.to_string());
        if at - last > text_width(&text, TICK) + 6.0 {
            card.text(at, bottom + 17.0, Anchor::Middle, TICK, &text);
            last = at;
        }
    }
    card.text((left + right) / 2.0, bottom + 36.0, Anchor::Middle, SMALL, "copies");

    if let Some(one) = steps.first().filter(|one| one.copies == 1 && one.per_s > 0.0) {
        let end = most.min(highest * 1.1 / one.per_s);
        card.path(&[(x.at(1.0), y.at(one.per_s)), (x.at(end), y.at(end * one.per_s))], &Hue::Grey.stroke(), 2.0, "6 4");
    }
    let point = |step: &Step| (x.at(f64::from(step.copies)), y.at(step.per_s));
    card.path(&steps.iter().map(point).collect::<Vec<_>>(), &Hue::Blue.stroke(), 3.0, "");
    if !predicted.is_empty() {
        card.path(&predicted.iter().map(point).collect::<Vec<_>>(), &Hue::Amber.stroke(), 3.0, "2 4");
    }
    for (step, cell) in course {
        let ((at, height), (min, max)) = (point(step), spread(cell));
        card.line([at, y.at(min), at, y.at(max)], "mark", 1.2, "");
        card.rect([at - 3.5, height - 3.5, 7.0, 7.0], &Hue::Blue.fill());
    }
    if let Some(step) = knee(&steps).and_then(|at| steps.iter().find(|step| step.copies == at)) {
        let (at, height) = point(step);
        let anchor = if at + 40.0 > right { Anchor::End } else { Anchor::Middle };
        card.text(at, height - 12.0, anchor, STRONG, &format!("knee: {}", step.copies));
    }
    if let Some(found) = valley(&steps) {
        let (at, height) = point(&found.bottom);
        let part = percent(100.0 * found.bottom.per_s / found.before.per_s);
        card.text(at, height - 12.0, Anchor::End, STRONG, &format!("valley: {part} of {} copies", found.before.copies));
    }
    card.y = bottom + 42.0;
    card.finish(&labels::source(experiment))
}
