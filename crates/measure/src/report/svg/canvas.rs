//! Writing SVG: a card that grows downwards (title, subtitle, legend, whatever is drawn, source), so that nothing overlaps.
//!
//! Self-contained and without scripts. Colours are classes, so that a page in dark mode changes them.

use std::fmt::Write as _;

use crate::report::text::{escape, wrap_by};

/// Space between the card's edge and what is on it.
pub const MARGIN: f64 = 26.0;

/// Colours of what is compared: vermillion, amber, blue, green, purple, grey (Okabe and Ito, told apart by the colour-blind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hue {
    Vermillion,
    Amber,
    Blue,
    Green,
    Purple,
    Grey,
}

impl Hue {
    pub fn of_layout(layout: &str) -> Self {
        match layout {
            "shared" | "loop" | "off" => Self::Vermillion,
            "own" | "lv" | "shared+published" => Self::Amber,
            "own+accounting" | "bulkhead" | "shared+hold" | "drr" => Self::Blue,
            "blockd" | "blockd+accounting" | "base" => Self::Green,
            "raw" | "own+accounting-cpu" => Self::Grey,
            _ => Self::Purple,
        }
    }

    fn class(self) -> char {
        match self {
            Self::Vermillion => 'v',
            Self::Amber => 'a',
            Self::Blue => 'b',
            Self::Green => 'g',
            Self::Purple => 'p',
            Self::Grey => 'y',
        }
    }

    pub fn fill(self) -> String {
        format!("f{}", self.class())
    }

    pub fn stroke(self) -> String {
        format!("s{}", self.class())
    }
}

/// The classes used in every picture. Scoped by `.bh`, so that several pictures can stand in one page.
const STYLE: &str = "\
.bh text{font-family:system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif;fill:#1f2328}\
.bh .card{fill:#fff;stroke:#d1d9e0}.bh .dim{fill:#59636e}.bh .strong{font-weight:600}\
.bh .grid{stroke:#e6eaef}.bh .axis{stroke:#8c959f}.bh .mark{stroke:#1f2328}.bh .hollow{fill:none;stroke:#59636e}\
.bh .halo{stroke:#fff;stroke-width:3.5;stroke-linejoin:round;paint-order:stroke}\
.bh .whisker{stroke:#1f2328}.bh .target{stroke:#1a7f37}.bh .good{fill:#1a7f37}.bh .inside{fill:#fff}.bh .onamber{fill:#1f2328}\
.bh .fv{fill:#d55e00}.bh .fa{fill:#e09a00}.bh .fb{fill:#0072b2}.bh .fg{fill:#009e73}.bh .fp{fill:#b0558a}.bh .fy{fill:#b4bcc5}\
.bh .sv{stroke:#d55e00}.bh .sa{stroke:#e09a00}.bh .sb{stroke:#0072b2}.bh .sg{stroke:#009e73}.bh .sp{stroke:#b0558a}.bh .sy{stroke:#b4bcc5}\
@media (prefers-color-scheme:dark){\
.bh text{fill:#e6edf3}.bh .card{fill:#12161c;stroke:#30363d}.bh .dim{fill:#9aa4af}\
.bh .grid{stroke:#262c34}.bh .axis{stroke:#6e7681}.bh .mark{stroke:#e6edf3}.bh .hollow{stroke:#9aa4af}\
.bh .halo{stroke:#12161c}.bh .whisker{stroke:#f0f6fc}.bh .target{stroke:#57d07a}.bh .good{fill:#57d07a}.bh .inside{fill:#0d1117}.bh .onamber{fill:#0d1117}\
.bh .fv{fill:#f0803c}.bh .fa{fill:#f2b632}.bh .fb{fill:#56b4e9}.bh .fg{fill:#2cc295}.bh .fp{fill:#d98cb8}.bh .fy{fill:#59636e}\
.bh .sv{stroke:#f0803c}.bh .sa{stroke:#f2b632}.bh .sb{stroke:#56b4e9}.bh .sg{stroke:#2cc295}.bh .sp{stroke:#d98cb8}.bh .sy{stroke:#59636e}}";

/// Where a text hangs on its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub struct Font {
    pub size: f64,
    pub class: &'static str,
}

pub const TITLE: Font = Font { size: 19.0, class: "strong" };
pub const SUBTITLE: Font = Font { size: 13.0, class: "dim" };
pub const HEADING: Font = Font { size: 13.0, class: "strong" };
pub const LABEL: Font = Font { size: 12.5, class: "" };
pub const STRONG: Font = Font { size: 12.5, class: "strong" };
pub const TICK: Font = Font { size: 11.5, class: "dim" };
pub const SMALL: Font = Font { size: 11.0, class: "dim" };
/// On a bar.
pub const INSIDE: Font = Font { size: 11.5, class: "inside strong" };
pub const ON_AMBER: Font = Font { size: 11.5, class: "onamber strong" };
/// Beside a bar, where a line may pass behind.
pub const VALUE: Font = Font { size: 12.5, class: "halo" };
pub const STRONG_VALUE: Font = Font { size: 12.5, class: "halo strong" };
pub const SMALL_VALUE: Font = Font { size: 11.0, class: "halo dim" };
pub const TARGET: Font = Font { size: 11.0, class: "good" };

/// A card that grows.
#[derive(Debug)]
pub struct Card {
    body: String,
    title: String,
    pub width: f64,
    /// Where the next thing is drawn.
    pub y: f64,
}

/// What a legend entry shows before its text.
#[derive(Clone, Debug)]
pub enum Key {
    Box(Hue),
    Hollow,
    Line { hue: Hue, dash: &'static str, width: f64 },
}

impl Card {
    pub fn new(width: f64, title: &str, subtitle: &str) -> Self {
        let mut card = Self { body: String::new(), title: title.to_owned(), width, y: MARGIN };
        let room = width - 2.0 * MARGIN;
        card.paragraph(title, TITLE, room, 24.0);
        card.paragraph(subtitle, SUBTITLE, room, 18.0);
        card
    }

    /// Text in as many lines as it needs; `y` moves below it.
    pub fn paragraph(&mut self, text: &str, font: Font, room: f64, line_height: f64) {
        for line in wrap_by(text, |line| text_width(line, font) <= room) {
            self.y += line_height;
            self.text(MARGIN, self.y - line_height * 0.28, Anchor::Start, font, &line);
        }
    }

    /// A legend in as many rows as it needs.
    pub fn legend(&mut self, entries: &[(Key, String)]) {
        let mut x = MARGIN;
        self.y += 10.0;
        let right = self.width - MARGIN;
        if !entries.is_empty() {
            self.y += 18.0;
        }
        for (key, text) in entries {
            let swatch = if matches!(key, Key::Line { .. }) { 30.0 } else { 14.0 };
            let text = fit(text, LABEL, right - MARGIN - swatch - 6.0);
            let width = swatch + 6.0 + text_width(&text, LABEL);
            if x > MARGIN && x + width > right {
                x = MARGIN;
                self.y += 20.0;
            }
            let y = self.y;
            match key {
                Key::Box(hue) => self.rect([x, y - 10.0, 12.0, 12.0], &hue.fill()),
                Key::Hollow => self.rect([x + 0.5, y - 9.5, 11.0, 11.0], "hollow"),
                Key::Line { hue, dash, width } => {
                    self.line([x, y - 4.0, x + 26.0, y - 4.0], &hue.stroke(), *width, dash);
                }
            }
            self.text(x + swatch + 6.0, y, Anchor::Start, LABEL, &text);
            x += width + 22.0;
        }
        self.y += 8.0;
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, font: Font, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let class = if font.class.is_empty() { String::new() } else { format!(" class=\"{}\"", font.class) };
        let (x, y, size, text) = (px(x), px(y), px(font.size), escape(text));
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"{anchor}\"{class}>{text}</text>\n"
        ));
    }

    /// Text that is read from below to above, centred on its point.
    pub fn upright(&mut self, x: f64, y: f64, font: Font, text: &str) {
        let (x, y, size, text) = (px(x), px(y), px(font.size), escape(text));
        let class = font.class;
        self.push(format_args!(
            "<text transform=\"translate({x} {y}) rotate(-90)\" font-size=\"{size}\" text-anchor=\"middle\" class=\"{class}\">{text}</text>\n"
        ));
    }

    /// `[x, y, width, height]`
    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], class: &str) {
        let (x, y, width, height) = (px(x), px(y), px(width.max(0.0)), px(height.max(0.0)));
        self.push(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" class=\"{class}\"/>\n"
        ));
    }

    /// `[x1, y1, x2, y2]`
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], class: &str, width: f64, dash: &str) {
        let (x1, y1, x2, y2, width) = (px(x1), px(y1), px(x2), px(y2), px(width));
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        self.push(format_args!(
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"{class}\" stroke-width=\"{width}\"{dash}/>\n"
        ));
    }

    pub fn path(&mut self, points: &[(f64, f64)], class: &str, width: f64, dash: &str) {
        let mut path = String::new();
        for (idx, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{} {}", if idx == 0 { "M" } else { "L" }, px(*x), px(*y));
        }
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let width = px(width);
        self.push(format_args!(
            "<path d=\"{path}\" class=\"{class}\" fill=\"none\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}/>\n"
        ));
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.body.write_fmt(text);
    }

    /// The picture, with the line that says where its figures come from.
    pub fn finish(mut self, source: &str) -> String {
        self.y += 8.0;
        let room = self.width - 2.0 * MARGIN;
        self.paragraph(source, SMALL, room, 15.0);
        let (width, height) = (px(self.width), px(self.y + MARGIN * 0.7));
        let title = escape(&self.title);
        let (card_width, card_height) = (px(self.width - 1.0), px(self.y + MARGIN * 0.7 - 1.0));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             class=\"bh\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect x=\"0.5\" y=\"0.5\" width=\"{card_width}\" height=\"{card_height}\" rx=\"8\" class=\"card\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// A coordinate: finite, one digit.
fn px(value: f64) -> String {
    let value = if value.is_finite() { value.clamp(-1e5, 1e5) } else { 0.0 };
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// How wide a text is at most, without a font to ask: a little more than the widest of the usual sans-serif fonts.
pub fn text_width(text: &str, font: Font) -> f64 {
    let em = |letter: char| match letter {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.32,
        'f' | 't' | 'r' | 'I' | ' ' | '(' | ')' | '[' | ']' | '/' | '-' => 0.40,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '—' => 0.95,
        'A'..='Z' | '&' | '+' | '=' | '<' | '>' | '×' | '≤' => 0.74,
        other if other.is_ascii() => 0.61,
        other if u32::from(other) < 0x2e80 => 0.75,
        _ => 1.05,
    };
    let bold = if font.class.contains("strong") { 1.06 } else { 1.0 };
    text.chars().map(em).sum::<f64>() * font.size * bold
}

/// The text, cut to what fits.
pub fn fit(text: &str, font: Font, room: f64) -> String {
    if text_width(text, font) <= room {
        return text.to_owned();
    }
    let mut cut: Vec<char> = text.chars().collect();
    while cut.pop().is_some() {
        let shorter = cut.iter().chain(['…'].iter()).collect::<String>();
        if text_width(&shorter, font) <= room {
            return shorter;
        }
    }
    String::new()
}
