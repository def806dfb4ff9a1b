//! The plots: a file for each sweep, a panel for each figure, a line for each allocator. Times are on a
//! logarithmic axis. The swept value grows by a factor, so its steps are equally wide.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::data::{Case, Data, distinct};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Outcome = Result<(), Box<dyn Error>>;

/// A panel: one figure of one workload, over the swept value.
struct Panel {
    title: &'static str,
    workload: &'static str,
    /// The swept value, in words and as a number.
    over: (&'static str, fn(&Case) -> u64),
    figure: fn(&Case) -> Option<f64>,
}

const LIVE: (&str, fn(&Case) -> u64) = ("blocks live", |case| case.live);
const STREAMS: (&str, fn(&Case) -> u64) = ("streams", |case| case.streams);
const FREED: (&str, fn(&Case) -> u64) = ("% of the heap's blocks freed", |case| case.freed_percent);
const THREADS: (&str, fn(&Case) -> u64) = ("threads", |case| case.threads);

const fn panel(
    title: &'static str,
    workload: &'static str,
    over: (&'static str, fn(&Case) -> u64),
    figure: fn(&Case) -> Option<f64>,
) -> Panel {
    Panel { title, workload, over, figure }
}

const STEP: fn(&Case) -> Option<f64> = |case| case.ns_per_step;
const P99: fn(&Case) -> Option<f64> = |case| case.p99_ns;
const RATE: fn(&Case) -> Option<f64> = Case::million_steps;
const TAKEN: fn(&Case) -> Option<f64> = Case::taken_over_live;

const FILES: [(&str, &[Panel]); 4] = [
    (
        "live.svg",
        &[panel("ns a step", "churn", LIVE, STEP), panel("99th percentile, ns", "churn", LIVE, P99)],
    ),
    (
        "streams.svg",
        &[panel("ns a step", "streams", STREAMS, STEP), panel("taken / live", "streams", STREAMS, TAKEN)],
    ),
    (
        "fragmented.svg",
        &[panel("ns a step", "fragmented", FREED, STEP), panel("taken / live", "fragmented", FREED, TAKEN)],
    ),
    (
        "threads.svg",
        &[
            panel("own streams, M steps/s", "threads_own_stream", THREADS, RATE),
            panel("one stream, M steps/s", "threads_one_stream", THREADS, RATE),
            panel("freed by another, M steps/s", "cross_thread_free", THREADS, RATE),
        ],
    ),
];

const HEIGHT: u32 = 420;
const PANEL_WIDTH: u32 = 440;
const LEGEND_WIDTH: u32 = 210;
const LEGEND_LINE: i32 = 22;
const FONT: &str = "sans-serif";

/// The colours of peers, in the order of their lines; millpond's lines are thick, in black and blue.
const COLOURS: [RGBColor; 9] = [
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
    RGBColor(100, 149, 90),
];
const OURS: [RGBColor; 3] = [RGBColor(0, 0, 0), RGBColor(31, 119, 180), RGBColor(90, 170, 230)];
const LIMIT: RGBColor = RGBColor(160, 160, 160);

/// Draws a file for each sweep with data, and returns their names.
pub(crate) fn draw(data: &Data, folder: &Path) -> Result<Vec<&'static str>, Box<dyn Error>> {
    let styles = styles(data);
    let mut drawn = Vec::new();
    for (file, panels) in FILES {
        let is_there = |panel: &Panel| data.cases.iter().any(|case| case.workload == panel.workload);
        if !panels.iter().any(is_there) {
            continue;
        }
        let path = folder.join(file);
        let width = PANEL_WIDTH * panels.len() as u32 + LEGEND_WIDTH;
        let root = SVGBackend::new(&path, (width, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let (left, legend) = root.split_horizontally(width - LEGEND_WIDTH);
        for (area, panel) in left.split_evenly((1, panels.len())).iter().zip(panels) {
            lines(area, panel, data, &styles)?;
        }
        let shown = |name: &str| {
            let of = |case: &Case| {
                case.stack == name && panels.iter().any(|panel| panel.workload == case.workload)
            };
            data.cases.iter().any(|case| of(case) && case.ns_per_step.is_some())
        };
        let shown: Vec<_> = styles.iter().filter(|(name, _)| shown(name)).collect();
        draw_legend(&legend, &shown)?;
        root.present()?;
        drawn.push(file);
    }
    Ok(drawn)
}

/// Returns the styles; an allocator has one colour in all plots.
fn styles(data: &Data) -> Vec<(String, ShapeStyle)> {
    let (mut ours, mut peers) = (OURS.iter().cycle(), COLOURS.iter().cycle());
    let names = distinct(&data.cases, |case| case.stack.clone());
    let style = |name: &String| {
        if name == "mimalloc" {
            return LIMIT.stroke_width(2);
        }
        let is_ours = name.contains('+');
        let colour = if is_ours { ours.next() } else { peers.next() };
        colour.unwrap_or(&BLACK).stroke_width(if is_ours { 4 } else { 2 })
    };
    let mut style = style;
    names.iter().map(|name| (name.clone(), style(name))).collect()
}

fn lines(area: &Area<'_>, panel: &Panel, data: &Data, styles: &[(String, ShapeStyle)]) -> Outcome {
    let (over, number) = panel.over;
    let cases: Vec<&Case> = data.cases.iter().filter(|case| case.workload == panel.workload).collect();
    let figures = cases.iter().filter_map(|case| (panel.figure)(case)).filter(|figure| *figure > 0.0);
    let (least, most) = figures.fold((f64::MAX, 0.0_f64), |(low, high), f| (low.min(f), high.max(f)));
    let mut steps = distinct(&cases, |case| number(case));
    steps.sort_unstable();
    if most == 0.0 || steps.is_empty() {
        return Ok(());
    }
    let last = (steps.len() - 1) as f64;
    let (low, high) = (least / 1.1, most * 1.1);
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, (FONT, 16))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.2..last + 0.2, (low..high).log_scale().with_key_points(ticks(low, high)))?;
    let name = |at: &f64| {
        let is_step = (at - at.round()).abs() < 0.01 && *at >= -0.01;
        steps.get(at.round() as usize).filter(|_| is_step).map_or_else(String::new, u64::to_string)
    };
    chart
        .configure_mesh()
        .x_labels(steps.len() + 1)
        .x_label_formatter(&name)
        .x_desc(over)
        .y_label_formatter(&|figure| short(*figure))
        .light_line_style(WHITE)
        .label_style((FONT, 13))
        .draw()?;
    for (stack, style) in styles {
        let mine = cases.iter().filter(|case| case.stack == *stack);
        let mut points: Vec<(f64, f64)> = mine
            .filter_map(|case| {
                let at = steps.iter().position(|step| *step == number(case))?;
                (panel.figure)(case).map(|figure| (at as f64, figure))
            })
            .collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        chart.draw_series(LineSeries::new(points.iter().copied(), *style))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, style.filled())))?;
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, styles: &[&(String, ShapeStyle)]) -> Outcome {
    for (index, (name, style)) in styles.iter().enumerate() {
        let y = 40 + index as i32 * LEGEND_LINE;
        area.draw(&PathElement::new(vec![(5, y), (30, y)], *style))?;
        area.draw(&Text::new(name.clone(), (36, y - 6), (FONT, 13)))?;
    }
    Ok(())
}

/// Returns the lines of a logarithmic axis: round figures, more of them if it is short.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let digits: &[f64] = match high / low {
        ratio if ratio > 8.0 => &[1.0, 2.0, 5.0],
        ratio if ratio > 2.0 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
        _ => &[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    };
    let figures = (-2..9).flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
    figures.filter(|figure| (low..=high).contains(figure)).collect()
}

/// Formats a figure for an axis.
fn short(figure: f64) -> String {
    match figure {
        f if f >= 1e6 => format!("{}M", f / 1e6),
        f if f >= 1e3 => format!("{}k", f / 1e3),
        f if f >= 1.0 => format!("{f:.1}").trim_end_matches(".0").to_owned(),
        f => format!("{f:.2}"),
    }
}
