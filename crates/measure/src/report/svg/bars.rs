//! Bars with whiskers in panels: one panel for each neighbour, one row for each configuration, published values hollow.

use super::canvas::{
    Anchor, Card, HEADING, Hue, INSIDE, LABEL, MARGIN, ON_AMBER, SMALL, SMALL_VALUE, STRONG, STRONG_VALUE, TARGET,
    TICK, VALUE, fit, text_width,
};
use super::scale::Scale;
use crate::report::text::wrap_by;
use crate::result::Spread;

/// Space between panels.
const GAP: f64 = 26.0;
/// Thickness of a bar, and of a hollow one below it.
const BAR: f64 = 15.0;
const HOLLOW: f64 = 8.0;

/// What a row shows.
#[derive(Clone, Debug)]
pub enum Content {
    /// One bar with its whiskers.
    Bar(Hue, Spread),
    /// Parts of a whole.
    Stack(Vec<(Hue, f64)>),
    /// Nothing was measured.
    Absent,
}

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    pub label: String,
    pub ours: bool,
    pub content: Content,
    /// A published value.
    pub paper: Option<f64>,
}

/// One panel.
#[derive(Clone, Debug)]
pub struct Panel {
    pub heading: String,
    pub rows: Vec<Row>,
    /// A line to reach or to stay below, with its words.
    pub target: Option<(f64, String)>,
}

/// Panels with one scale.
#[derive(Debug)]
pub struct Band {
    pub axis: String,
    /// `Some(base)`: logarithmic, bars start at `base`. `None`: linear from 0.
    pub log_from: Option<f64>,
    /// End of a linear scale that is not found from the values.
    pub until: Option<f64>,
    /// Values at bars; the axis title says the unit, ticks do not.
    pub write: fn(f64) -> String,
    pub tick: fn(f64) -> String,
    /// Whether panels are headed also where another band stands above.
    pub headed: bool,
    pub panels: Vec<Panel>,
}

impl Band {
    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        let rows = self.panels.iter().flat_map(|panel| &panel.rows);
        let of_rows = rows.flat_map(|row| {
            let bar = match &row.content {
                Content::Bar(_, spread) => [Some(spread.min), Some(spread.max)],
                Content::Stack(_) | Content::Absent => [None, None],
            };
            bar.into_iter().flatten().chain(row.paper)
        });
        let targets = self.panels.iter().filter_map(|panel| panel.target.as_ref().map(|(value, _)| *value));
        of_rows.chain(targets).chain(self.log_from)
    }

    /// The widest name of a row.
    pub fn label_width(&self) -> f64 {
        let rows = self.panels.iter().flat_map(|panel| &panel.rows);
        rows.map(|row| text_width(&row.label, if row.ours { STRONG } else { LABEL })).fold(0.0, f64::max)
    }

    fn scale(&self, from: f64, to: f64) -> Scale {
        match (self.log_from, self.until) {
            (Some(_), _) => Scale::log(self.values(), from, to),
            (None, Some(until)) => Scale::exact(until, from, to),
            (None, None) => Scale::linear(self.values().filter(|v| v.is_finite()).fold(0.0, f64::max), from, to),
        }
    }

    /// Room for the values behind the bars.
    fn value_width(&self) -> f64 {
        let rows = || self.panels.iter().flat_map(|panel| &panel.rows);
        let texts = rows().filter_map(|row| match &row.content {
            Content::Bar(_, spread) => Some((self.write)(spread.median)),
            Content::Stack(_) | Content::Absent => None,
        });
        let bars = texts.map(|text| text_width(&text, STRONG)).fold(0.0, f64::max);
        let papers =
            rows().filter_map(|row| row.paper).map(|paper| text_width(&(self.write)(paper), SMALL)).fold(0.0, f64::max);
        if bars + papers == 0.0 { 4.0 } else { bars.max(papers) + 8.0 }
    }
}

/// Draws a band at the card's `y` and moves it below. `labels` is the room for names at the left.
pub fn draw(card: &mut Card, band: &Band, labels: f64) {
    let room = card.width - 2.0 * MARGIN;
    let n_panels = band.panels.len().max(1) as f64;
    let rows = || band.panels.iter().flat_map(|panel| &panel.rows);
    let has_paper = rows().any(|row| row.paper.is_some());
    if card.width < 600.0 {
        for panel in &band.panels {
            let row_height = 17.0 + BAR + if has_paper { HOLLOW + 3.0 } else { 0.0 } + 6.0;
            let area = Area { left: MARGIN, right: card.width - MARGIN, row_height, labels: Labels::Above };
            let bottom = panel_at(card, band, panel, &area);
            card.y = bottom + 14.0;
        }
        return;
    }
    let labels = labels.min(room * 0.3);
    let panel_width = (room - labels - 10.0 - GAP * (n_panels - 1.0)) / n_panels;
    let row_height = BAR + if has_paper { HOLLOW + 3.0 } else { 0.0 } + 9.0;
    let top = card.y;
    let mut bottom = top;
    let mut left = MARGIN + labels + 10.0;
    for (idx, panel) in band.panels.iter().enumerate() {
        card.y = top;
        let labels = if idx == 0 { Labels::Left(labels) } else { Labels::None };
        let area = Area { left, right: left + panel_width, row_height, labels };
        bottom = panel_at(card, band, panel, &area).max(bottom);
        left += panel_width + GAP;
    }
    card.y = bottom + 8.0;
}

/// Where the names of the rows go.
enum Labels {
    Left(f64),
    Above,
    None,
}

struct Area {
    left: f64,
    right: f64,
    row_height: f64,
    labels: Labels,
}

/// Draws one panel; returns its lower end, axis title included.
fn panel_at(card: &mut Card, band: &Band, panel: &Panel, area: &Area) -> f64 {
    let width = area.right - area.left;
    let mut top = card.y + 8.0;
    let stacked_up = matches!(area.labels, Labels::Above);
    if (band.headed || stacked_up) && band.panels.iter().any(|panel| !panel.heading.is_empty()) {
        let most = if stacked_up {
            lines(&panel.heading, width).len()
        } else {
            band.panels.iter().map(|panel| lines(&panel.heading, width).len()).max().unwrap_or(1)
        };
        for (idx, line) in lines(&panel.heading, width).iter().enumerate() {
            card.text(area.left, top + 14.0 + 16.0 * idx as f64, Anchor::Start, HEADING, line);
        }
        top += 16.0 * most as f64 + 4.0;
    }
    if band.panels.iter().any(|panel| panel.target.is_some()) {
        top += 16.0;
    }
    let scale = band.scale(area.left, area.right - band.value_width());
    let bottom = top + 8.0 + area.row_height * panel.rows.len() as f64;
    let below = axis(card, band, &scale, area, top, bottom);
    let stacked = panel.rows.iter().any(|row| matches!(row.content, Content::Stack(_)));
    if let Some((value, words)) = &panel.target {
        let at = scale.at(*value);
        if !stacked {
            card.line([at, top - 2.0, at, bottom], "target", 1.6, "5 3");
        }
        let text = fit(words, TARGET, width);
        let text_room = text_width(&text, TARGET);
        let start = (at - text_room / 2.0).clamp(area.left, (area.right - text_room).max(area.left));
        card.text(start, top - 6.0, Anchor::Start, TARGET, &text);
    }
    let mut y = top + 8.0;
    for row in &panel.rows {
        let bar_top = if matches!(area.labels, Labels::Above) { y + 16.0 } else { y };
        let font = if row.ours { STRONG } else { LABEL };
        match area.labels {
            Labels::Left(room) => {
                let text = fit(&row.label, font, room);
                card.text(area.left - 10.0, bar_top + BAR - 3.0, Anchor::End, font, &text);
            }
            Labels::Above => {
                let font = if row.ours { STRONG_VALUE } else { VALUE };
                card.text(area.left, bar_top - 4.0, Anchor::Start, font, &fit(&row.label, font, width));
            }
            Labels::None => {}
        }
        let line = panel.target.as_ref().map_or(f64::NEG_INFINITY, |(value, _)| scale.at(*value));
        content(card, band, &scale, row, &Place { top: bar_top, line, right: area.right });
        y += area.row_height;
    }
    if let (true, Some((value, _))) = (stacked, &panel.target) {
        // A whole covers the line: draw it on top.
        let at = scale.at(*value);
        card.line([at, top - 2.0, at, bottom], "mark", 2.0, "4 3");
    }
    below + 9.0
}

/// How many ticks of some width have room.
fn ticks_in(width: f64, each: f64) -> usize {
    (3..=8).rev().find(|n| f64::from(*n) * each <= width + each).map_or(2, |n: u8| usize::from(n))
}

fn lines(heading: &str, width: f64) -> Vec<String> {
    wrap_by(heading, |line| text_width(line, HEADING) <= width)
}

/// Draws an axis with its title, on as many lines as it needs; returns the lower end of the last one.
fn axis(card: &mut Card, band: &Band, scale: &Scale, area: &Area, top: f64, bottom: f64) -> f64 {
    let mut last = f64::NEG_INFINITY;
    let room = text_width(&(band.tick)(1000.0), TICK).clamp(30.0, 60.0) + 8.0;
    for tick in scale.ticks(ticks_in(area.right - area.left - band.value_width(), room)) {
        let at = scale.at(tick);
        card.line([at, top, at, bottom], "grid", 1.0, "");
        let text = (band.tick)(tick);
        let half = text_width(&text, TICK) / 2.0;
        // Labels that would touch are left out; their line stays.
        if at - half > last + 8.0 && at + half < area.right + 16.0 {
            card.text(at, bottom + 16.0, Anchor::Middle, TICK, &text);
            last = at + half;
        }
    }
    let base = scale.at(band.log_from.unwrap_or(0.0));
    card.line([base, top, base, bottom], "axis", 1.0, "");
    let middle = (area.left + area.right - band.value_width()) / 2.0;
    let mut y = bottom + 19.0;
    for line in wrap_by(&band.axis, |line| text_width(line, SMALL) <= area.right - area.left) {
        y += 14.0;
        card.text(middle, y, Anchor::Middle, SMALL, &line);
    }
    y
}

/// Where a row is drawn, and the target line that its words avoid.
struct Place {
    top: f64,
    line: f64,
    right: f64,
}

fn content(card: &mut Card, band: &Band, scale: &Scale, row: &Row, place: &Place) {
    let top = place.top;
    let base = scale.at(band.log_from.unwrap_or(0.0));
    let middle = top + BAR / 2.0;
    match &row.content {
        Content::Absent => card.text(base + 5.0, top + BAR - 3.5, Anchor::Start, SMALL_VALUE, "not measured"),
        Content::Bar(hue, spread) => {
            let at = scale.at(spread.median);
            card.rect([base.min(at), top, (at - base).abs().max(1.5), BAR], &hue.fill());
            let (low, high) = (scale.at(spread.min), scale.at(spread.max));
            if high - low > 1.5 {
                card.line([low, middle, high, middle], "whisker", 1.3, "");
                card.line([low, middle - 4.0, low, middle + 4.0], "whisker", 1.3, "");
                card.line([high, middle - 4.0, high, middle + 4.0], "whisker", 1.3, "");
            }
            let font = if row.ours { STRONG_VALUE } else { VALUE };
            card.text(at.max(high).max(base) + 6.0, top + BAR - 3.0, Anchor::Start, font, &(band.write)(spread.median));
        }
        Content::Stack(parts) => {
            let mut sum = 0.0;
            for (hue, part) in parts.iter().filter(|(_, part)| part.is_finite() && *part > 0.0) {
                let (from, to) = (scale.at(sum), scale.at(sum + part));
                card.rect([from, top, to - from, BAR], &hue.fill());
                let text = (band.write)(*part);
                if to - from > text_width(&text, TICK) + 6.0 && *hue != Hue::Grey {
                    let font = if *hue == Hue::Amber { ON_AMBER } else { INSIDE };
                    let half = text_width(&text, TICK) / 2.0;
                    let spots = [from + half + 4.0, to - half - 4.0, (from + to) / 2.0];
                    let free = spots.iter().find(|spot| (*spot - place.line).abs() > half + 1.0);
                    let spot = free.copied().unwrap_or((from + to) / 2.0);
                    card.text(spot, top + BAR - 3.5, Anchor::Middle, font, &text);
                }
                sum += part;
            }
        }
    }
    if let Some(paper) = row.paper {
        let at = scale.at(paper);
        let top = top + BAR + 2.0;
        card.rect([base.min(at), top, (at - base).abs(), HOLLOW], "hollow");
        let room = place.right - at - 5.0;
        card.text(at + 5.0, top + HOLLOW, Anchor::Start, SMALL_VALUE, &fit(&(band.write)(paper), SMALL, room.max(0.0)));
    }
}
