//! A chart of a few series, as an SVG file, as an HTML page, or as text in the terminal.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use kuva::backend::svg::SvgBackend;
use kuva::backend::terminal::TerminalBackend;
use kuva::plot::{LegendPosition, LinePlot, ScatterPlot};
use kuva::render::annotations::ReferenceLine;
use kuva::render::figure::Figure;
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use super::text::one_line;
use crate::fault::Hint;

/// Colours that differ in lightness too, for those who do not see all hues and for print (Okabe and Ito 2008).
const COLORS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"];

/// Where a chart goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// An SVG file.
    Svg(PathBuf),
    /// A page of its own, with the chart and a table.
    Html(PathBuf),
    /// Text on stdout.
    Terminal,
}

impl FromStr for Target {
    type Err = String;

    /// `-`, or a file that ends in `.svg` or `.html`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = PathBuf::from(text);
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if text == "-" => Ok(Self::Terminal),
            Some("svg") => Ok(Self::Svg(path)),
            Some("html" | "htm") => Ok(Self::Html(path)),
            _ => Err("a plot is `-`, or a file that ends in .svg or .html".to_owned()),
        }
    }
}

impl Target {
    /// Refuses a target that cannot be written, before the work whose result it is for.
    ///
    /// # Errors
    ///
    /// A folder that is not there, or a folder in place of the file.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let path = match self {
            Self::Svg(path) | Self::Html(path) => path,
            Self::Terminal => return Ok(()),
        };
        let cannot = |why: &str| {
            Hint::error(
                format!("cannot write the plot to `{}`: {why}", path.display()),
                "name a file in a folder that is there and can be written",
            )
        };
        if path.is_dir() {
            return Err(cannot("it is a folder"));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match fs::metadata(folder) {
            Ok(folder) if !folder.is_dir() => return Err(cannot("what should be its folder is a file")),
            Ok(_) => {}
            Err(_) => return Err(cannot("its folder is not there")),
        }
        // Opened without being emptied: what was there stays until there is something to write.
        if path.exists()
            && let Err(error) = fs::OpenOptions::new().append(true).open(path)
        {
            return Err(cannot(&error.to_string()));
        }
        Ok(())
    }
}

/// A chart.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// The upper end of the y axis, for charts that are compared; else where the data ends.
    pub(crate) y_max: Option<f64>,
    /// A level that must not be passed, and its name.
    pub(crate) bound: Option<(f64, String)>,
}

/// An axis: its text, and whether equal steps are equal factors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) log: bool,
}

/// Points that belong together, in the order in which a line joins them.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    /// The text of the legend; empty for none.
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) style: Style,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Points joined by straight lines.
    Line,
    /// Dots alone.
    Dots,
}

/// The numbers beside a chart on a page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// A title, charts one below the other, and a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plate {
    pub(crate) title: String,
    pub(crate) charts: Vec<Chart>,
    /// Stands below the charts on a page.
    pub(crate) table: Table,
}

/// Writes `plate` to `target`.
pub(crate) fn write(target: &Target, plate: &Plate) -> anyhow::Result<()> {
    match target {
        Target::Svg(path) => write_file(path, &svg(&plate.charts)),
        Target::Html(path) => write_file(path, &html(plate)),
        Target::Terminal => {
            let mut out = io::stdout().lock();
            let plain =
                std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) || !out.is_terminal();
            for chart in &plate.charts {
                out.write_all(terminal(chart, plain, plate.charts.len() > 1, terminal_columns()).as_bytes())?;
            }
            Ok(())
        }
    }
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write the plot to `{}`", path.display()))
}

/// The charts as one SVG document, one below the other.
pub(crate) fn svg(charts: &[Chart]) -> String {
    let scene = match charts {
        [chart] => {
            let (plots, layout) = panel(chart, (860.0, 520.0), true);
            render_multiple(plots, layout)
        }
        _ => {
            let panels = charts.iter().map(|chart| panel(chart, (860.0, 260.0), true));
            let (plots, layouts) = panels.unzip();
            Figure::new(charts.len(), 1)
                .with_plots(plots)
                .with_layouts(layouts)
                .with_cell_size(860.0, 260.0)
                .with_keep_panel_legends()
                .render()
        }
    };
    SvgBackend::new().render_scene(&scene)
}

/// A page that needs no other file and no network.
pub(crate) fn html(plate: &Plate) -> String {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
    let title = escaped(&plate.title);
    let _ = writeln!(page, "<title>{title}</title>");
    page.push_str(
        "<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n\
         body { font: 16px/1.4 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; \
         color: #222; background: #fff }\n\
         svg { max-width: 100%; height: auto }\n\
         table { border-collapse: collapse; font-variant-numeric: tabular-nums }\n\
         th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd }\n\
         td.text, th:first-child { text-align: left }\n</style>\n",
    );
    let _ = writeln!(page, "<h1>{title}</h1>\n<figure>\n{}\n</figure>\n<table>", svg(&plate.charts));
    let row = |cells: &[String], tag: &str| {
        let is_text = |cell: &str| !cell.starts_with(|c: char| c.is_ascii_digit());
        let class = |cell: &str| if is_text(cell) && tag == "td" { " class=\"text\"" } else { "" };
        let cells: String =
            cells.iter().map(|cell| format!("<{tag}{}>{}</{tag}>", class(cell), escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    page.push_str(&row(&plate.table.head, "th"));
    for cells in &plate.table.rows {
        page.push_str(&row(cells, "td"));
    }
    page.push_str("</table>\n</html>\n");
    page
}

/// The chart in `columns` by 28 characters, or by 16 as one of several; `plain` leaves the colours out.
pub(crate) fn terminal(chart: &Chart, plain: bool, short: bool, columns: u16) -> String {
    let rows: u8 = if short { 16 } else { 28 };
    // Letters one below the other do not fit beside a short chart: its axis is named in the title.
    let mut chart = chart.clone();
    if short {
        let axis = std::mem::take(&mut chart.y.label);
        chart.title = format!("{} ({axis})", chart.title);
    }
    if plain {
        tell_apart_without_colour(&mut chart);
    }
    let (plots, layout) = panel(&chart, (10.0 * f64::from(columns), 20.0 * f64::from(rows)), false);
    let text =
        TerminalBackend::new(columns.into(), rows.into()).render_scene(&render_multiple(plots, layout));
    // What is black on paper has the colour of other text here, which may be light on dark.
    let text = if plain { without_escapes(&text) } else { text.replace("\u{1b}[38;2;0;0;0m", "\u{1b}[39m") };
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// Without colours all lines look alike: of several, those after the first are dots in the middle of their steps.
fn tell_apart_without_colour(chart: &mut Chart) {
    for series in chart.series.iter_mut().skip(1).filter(|series| series.style == Style::Line) {
        series.style = Style::Dots;
        series.points = series
            .points
            .chunks(2)
            .filter_map(|step| {
                let (first, last) = (step.first()?, step.last()?);
                Some((f64::midpoint(first.0, last.0), f64::midpoint(first.1, last.1)))
            })
            .collect();
        series.name.push_str(" (dots)");
    }
}

/// How wide a chart in the terminal may be.
fn terminal_columns() -> u16 {
    let columns = console::Term::stdout().size_checked().map_or(100, |(_, columns)| columns);
    columns.clamp(60, 100)
}

/// `boxed` gives the legend a frame and a ground; as characters they would be a black block.
fn panel(chart: &Chart, (width, height): (f64, f64), boxed: bool) -> (Vec<Plot>, Layout) {
    let mut plots = Vec::new();
    for (series, color) in chart.series.iter().zip(COLORS.iter().cycle()) {
        let points = series.points.iter().copied();
        plots.push(match series.style {
            Style::Line => {
                let plot = LinePlot::new().with_data(points).with_color(*color).with_stroke_width(2.0);
                Plot::Line(if series.name.is_empty() { plot } else { plot.with_legend(label(&series.name)) })
            }
            Style::Dots => {
                let plot = ScatterPlot::new().with_data(points).with_color(*color).with_size(5.0);
                Plot::Scatter(if series.name.is_empty() {
                    plot
                } else {
                    plot.with_legend(label(&series.name))
                })
            }
        });
    }
    let mut layout = Layout::auto_from_plots(&plots)
        .with_width(width)
        .with_height(height)
        .with_title(label(&chart.title))
        .with_x_label(label(&chart.x.label))
        .with_y_label(label(&chart.y.label))
        .with_tick_format(TickFormat::Custom(Arc::new(tick)))
        .with_legend_position(LegendPosition::InsideTopRight)
        .with_legend_box(boxed);
    if !boxed {
        // A character is wider than the layout thinks: 10 units, as the scene is 1000 units and 100 characters wide.
        let longest = chart.series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0);
        layout = layout.with_legend_width(longest as f64 * 10.0 + 40.0);
    }
    if let Some(y_max) = chart.y_max {
        layout = layout.with_y_axis_max(y_max);
    }
    if chart.x.log {
        layout = layout.with_log_x();
    }
    if chart.y.log {
        layout = layout.with_log_y();
    }
    if let Some((level, name)) = &chart.bound {
        layout = layout.with_reference_line(ReferenceLine::horizontal(*level).with_label(label(name)));
    }
    (plots, layout)
}

/// The text of a tick, short enough not to be cut off at the edge: `2.5`, `400`, `20k`, `1M`.
fn tick(value: f64) -> String {
    let steps = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")];
    let (value, word) = steps
        .into_iter()
        .find(|(from, _)| value.abs() >= *from)
        .map_or((value, ""), |(from, word)| (value / if word == "k" { 1e3 } else { from }, word));
    let text = format!("{value:.3}");
    format!("{}{word}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A dollar sign begins mathematics in a label, unless it is escaped.
fn label(text: &str) -> String {
    one_line(text).replace('$', "\\$")
}

fn escaped(text: &str) -> String {
    one_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Leaves out the colour sequences, `ESC [ … m`.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart {
            title: "cost <a> & $b\u{1}\u{fffe}".to_owned(),
            series: vec![Series {
                name: "c".to_owned(),
                points: vec![(1.0, 10.0), (10.0, 1.0)],
                style: Style::Line,
            }],
            ..Chart::default()
        }
    }

    #[test]
    fn targets_are_told_by_their_end() {
        assert_eq!("-".parse(), Ok(Target::Terminal));
        assert_eq!("a/b.svg".parse(), Ok(Target::Svg("a/b.svg".into())));
        assert_eq!("b.html".parse(), Ok(Target::Html("b.html".into())));
        assert!("b.png".parse::<Target>().is_err());
    }

    #[test]
    fn ticks_are_short() {
        let rows = [(0.0, "0"), (0.25, "0.25"), (9000.0, "9000"), (2e4, "20k"), (1e6, "1M"), (2.5e9, "2.5G")];
        for (value, text) in rows {
            assert_eq!(tick(value), text);
        }
    }

    #[test]
    fn names_cannot_add_markup() {
        let page = html(&Plate {
            title: "<a>\u{1}\u{fffe}".to_owned(),
            charts: vec![chart(), chart()],
            table: Table { head: vec!["<h>".to_owned()], rows: vec![vec!["<r>".to_owned()]] },
        });
        for markup in ["\u{1}", "\u{fffe}", "<a>", "<h>", "<r>"] {
            assert!(!page.contains(markup), "{markup}");
        }
        assert!(page.contains("<svg") && page.contains("&lt;r&gt;"));
    }

    #[test]
    fn plain_text_has_no_escapes() {
        let text = terminal(&chart(), true, false, 100);
        assert!(!text.contains('\u{1b}') && text.lines().count() > 10);
    }
}
