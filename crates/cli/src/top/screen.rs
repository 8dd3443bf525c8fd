//! The live screen: a table, and below it, of the selected container, the causes of its fsync waits and its journal I/O by device.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_api::wire::Observation;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::identity::Identity;
use bulkhead_core::observe::activity::{BlameView, ContainerView};
use bulkhead_core::observe::record::Kind;
use clap::ValueEnum as _;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};

use super::{HEADERS, hold_lines, row, sorted, summary};
use crate::advice;
use crate::args::{SortKey, TopArgs};
use crate::observe::{Source, rate, waited};
use crate::output::escaped;

/// Longest wait for a key press before new figures are drawn.
const KEYS: Duration = Duration::from_millis(100);

/// The contents and settings of the screen.
struct Screen {
    seen: Option<Observation>,
    failure: Option<Fault>,
    sort: SortKey,
    selected: Option<Identity>,
    interval: f64,
    paused: bool,
}

/// Runs until `q`, Escape or Ctrl-C.
///
/// # Errors
/// If the terminal cannot be used. Errors of the source are shown, and it is polled again.
pub(super) fn run(args: &TopArgs, source: Source) -> Result<(), Fault> {
    // A request may take long (the first one loads the BPF programs); keys are handled in the meantime.
    let (answers, answered) = mpsc::channel();
    let (requests, requested) = mpsc::channel::<()>();
    thread::spawn(move || {
        while requested.recv().is_ok() {
            if answers.send(source.observe(Duration::ZERO)).is_err() {
                return;
            }
        }
    });
    let screen =
        Screen { seen: None, failure: None, sort: args.sort, selected: None, interval: args.interval, paused: false };
    let mut terminal = ratatui::try_init().map_err(|error| unusable(&error))?;
    let outcome = interact(&mut terminal, screen, &requests, &answered);
    ratatui::restore();
    outcome
}

fn unusable(error: &std::io::Error) -> Fault {
    Fault::new(Code::Internal, "terminal", format!("cannot use it ({error})")).hint("`--once` prints one table")
}

fn interact(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    requests: &mpsc::Sender<()>,
    answered: &mpsc::Receiver<Result<Observation, Fault>>,
) -> Result<(), Fault> {
    let ended = || Fault::new(Code::Internal, "top", "its thread has ended");
    let mut before: Option<Observation> = None;
    let mut requested_at = Instant::now();
    requests.send(()).map_err(|_| ended())?;
    let mut waiting = true;
    loop {
        match answered.try_recv() {
            Ok(answer) => {
                waiting = false;
                screen.take(answer, &mut before);
            }
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return Err(ended()),
        }
        // The first difference is shown after a second or less.
        let interval = if screen.seen.is_none() { screen.interval.min(1.0) } else { screen.interval };
        if !waiting && !screen.paused && requested_at.elapsed().as_secs_f64() >= interval {
            requested_at = Instant::now();
            waiting = true;
            requests.send(()).map_err(|_| ended())?;
        }
        terminal.draw(|frame| screen.draw(frame)).map_err(|error| unusable(&error))?;
        if event::poll(KEYS).map_err(|error| unusable(&error))?
            && let Event::Key(key) = event::read().map_err(|error| unusable(&error))?
            && key.kind == KeyEventKind::Press
        {
            let interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(());
            }
            screen.key(key.code);
        }
    }
}

impl Screen {
    fn take(&mut self, answer: Result<Observation, Fault>, before: &mut Option<Observation>) {
        match answer {
            Ok(now) => {
                if let Some(before) = before {
                    self.seen = Some(now.since(before));
                }
                *before = Some(now);
                self.failure = None;
            }
            Err(fault) => self.failure = Some(fault),
        }
    }

    fn key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('s') => {
                let keys = SortKey::value_variants();
                let at = keys.iter().position(|key| *key == self.sort).unwrap_or(0);
                self.sort = keys[(at + 1) % keys.len()];
            }
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('+') => self.interval = (self.interval * 2.0).min(60.0),
            KeyCode::Char('-') => self.interval = (self.interval / 2.0).max(0.5),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            _ => {}
        }
    }

    /// Selects the next or the previous row.
    fn step(&mut self, by: isize) {
        let Some(seen) = &self.seen else { return };
        let views = sorted(seen, self.sort);
        let at = self.at(&views).map_or(0, |at| at.saturating_add_signed(by).min(views.len().saturating_sub(1)));
        self.selected = views.get(at).map(|view| view.identity.clone());
    }

    fn at(&self, views: &[&ContainerView]) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        views.iter().position(|view| view.identity.key() == selected.key())
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [head, body, details, keys] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(4),
            Constraint::Percentage(35),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        let help = format!(
            " q quit  s sort ({})  up/down select  p {}  -/+ every {} s",
            self.sort.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned()),
            if self.paused { "resume" } else { "pause" },
            self.interval
        );
        frame.render_widget(Paragraph::new(help).style(Style::new().add_modifier(Modifier::REVERSED)), keys);
        let Some(seen) = &self.seen else { return };
        let views = sorted(seen, self.sort);
        let selected = self.at(&views).or((!views.is_empty()).then_some(0));
        self.draw_table(frame, body, seen, &views, selected);
        if let Some(view) = selected.and_then(|at| views.get(at)) {
            draw_details(frame, details, seen, view);
        }
    }

    fn head(&self) -> Vec<Line<'static>> {
        let first = match (&self.seen, &self.failure) {
            (_, Some(fault)) => format!("{fault}  {}", advice::hint(fault)),
            (Some(seen), None) => summary(seen),
            (None, None) => "bulkhead: observing; the first figures will appear in a moment".to_owned(),
        };
        let limits = |seen: &Observation| seen.limits().into_iter().map(|finding| finding.evidence).collect();
        let notes = self.seen.as_ref().map(|seen| [limits(seen), hold_lines(seen)].concat().join("; "));
        let notes = notes.unwrap_or_default();
        vec![
            Line::styled(escaped(&first), Style::new().add_modifier(Modifier::BOLD)),
            Line::styled(escaped(&notes), Style::new().add_modifier(Modifier::BOLD)),
        ]
    }

    fn draw_table(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        seen: &Observation,
        views: &[&ContainerView],
        selected: Option<usize>,
    ) {
        let widths = [
            Constraint::Min(16),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(6),
            Constraint::Length(10),
            Constraint::Length(8),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Fill(1),
        ];
        let rows =
            views.iter().map(|view| Row::new(row(seen, view).into_iter().map(|text| Cell::from(escaped(&text)))));
        let headers = Row::new(HEADERS.map(str::to_uppercase)).style(Style::new().add_modifier(Modifier::BOLD));
        let table = Table::new(rows, widths)
            .header(headers)
            .column_spacing(1)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
    }
}

fn draw_details(frame: &mut Frame<'_>, area: Rect, seen: &Observation, view: &ContainerView) {
    let [left, right] = Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(area);
    let mut causes: Vec<&BlameView> = seen.blame.iter().filter(|blame| blame.victim == view.identity).collect();
    causes.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let total: f64 = causes.iter().map(|blame| blame.seconds).sum();
    let lines: Vec<Line<'_>> = causes.iter().map(|blame| Line::raw(cause(blame, view, total))).collect();
    let title = format!(" {} waited in fsync for ", escaped(&view.identity.name));
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), left);
    let lines: Vec<Line<'_>> = view
        .journal
        .iter()
        .map(|share| {
            let kinds = Kind::ALL.iter().filter(|kind| share.journal.of(**kind) > 0);
            let kinds: Vec<String> = kinds
                .map(|kind| {
                    format!(
                        "{} {}",
                        kind.word().replace('_', "-"),
                        rate(share.journal.of(*kind), seen.observed_seconds)
                    )
                })
                .collect();
            let mounted = seen.file_systems.iter().find(|fs| fs.device == share.device);
            let place = mounted.and_then(|fs| fs.mount_point.as_ref()).map(|path| format!(" {path}"));
            Line::raw(escaped(&format!("{}{}: {}", share.device, place.unwrap_or_default(), kinds.join(", "))))
        })
        .collect();
    let title = format!(" {} journals on ", escaped(&view.identity.name));
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), right);
}

/// A cause, with its part of the total as a bar.
fn cause(blame: &BlameView, victim: &ContainerView, total: f64) -> String {
    const WIDTH: f64 = 20.0;
    let part = if total > 0.0 { blame.seconds / total } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is from 0 to 20")]
    let filled = (part * WIDTH).round() as usize;
    let name = match &blame.culprit {
        Some(culprit) if *culprit == victim.identity => "itself".to_owned(),
        Some(culprit) => escaped(&culprit.name),
        None => "unknown".to_owned(),
    };
    format!("{:>9} {:3.0} % {:20} {name}", waited(blame.seconds), part * 100.0, "#".repeat(filled))
}
