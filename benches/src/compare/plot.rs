//! How cost grows, as plots.

use std::path::Path;

use plotters::prelude::*;

use super::result::{At, Comparison, OURS, PER_SECOND, Read, named, of_times};

const SIZE: (u32, u32) = (720, 420);
/// One for each store, in their order.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x33, 0x33, 0x33),
    RGBColor(0x1b, 0x7f, 0x3b),
    RGBColor(0xe0, 0x8a, 0x00),
    RGBColor(0x7b, 0x3f, 0xa8),
    RGBColor(0x1f, 0x6f, 0xc0),
    RGBColor(0xc8, 0x2c, 0x2c),
];

/// A figure of a workload against its size, a line for each store.
pub(super) struct Plot {
    /// The file's name, and what it shows.
    pub(super) file: &'static str,
    pub(super) title: &'static str,
    workload: &'static str,
    /// What the axes are of.
    x: &'static str,
    y: &'static str,
    read: Read,
}

const PLOTS: [Plot; 8] = [
    Plot {
        file: "compare-uncontended.svg",
        title: "Locks that nobody else wants",
        workload: "uncontended",
        x: "tasks, each with a lock of its own",
        y: "pairs a second",
        read: |round| named(PER_SECOND)(round),
    },
    Plot {
        file: "compare-contended.svg",
        title: "One lock, wanted by the tasks of one process",
        workload: "contended",
        x: "tasks",
        y: "hand-overs a second",
        read: |round| named(PER_SECOND)(round),
    },
    Plot {
        file: "compare-waits.svg",
        title: "One lock, wanted by the tasks of one process",
        workload: "contended",
        x: "tasks",
        y: "wait, p99, ms",
        read: |round| of_times("wait", |times| ms(times.p99))(round),
    },
    Plot {
        file: "compare-share.svg",
        title: "One more holder of a share",
        workload: "share",
        x: "holders",
        y: "acquire and release, median, ms",
        read: |round| of_times("pair", |times| ms(times.p50))(round),
    },
    Plot {
        file: "compare-tree.svg",
        title: "A tree lock",
        workload: "tree",
        x: "depth",
        y: "acquire and release, median, ms",
        read: |round| of_times("pair", |times| ms(times.p50))(round),
    },
    Plot {
        file: "compare-siblings.svg",
        title: "A tree lock while 100 siblings are held",
        workload: "tree beside siblings",
        x: "depth",
        y: "acquire and release, median, ms",
        read: |round| of_times("pair", |times| ms(times.p50))(round),
    },
    Plot {
        file: "compare-documents.svg",
        title: "Document locks in one acquisition",
        workload: "documents",
        x: "ids",
        y: "acquire, s",
        read: |round| of_times("acquire", |times| ms(times.p50) / 1e3)(round),
    },
    Plot {
        file: "compare-refused.svg",
        title: "Document locks of which the last one is held",
        workload: "documents",
        x: "ids",
        y: "until it is refused, s",
        read: |round| of_times("refused", |times| ms(times.p50) / 1e3)(round),
    },
];

fn ms(us: u64) -> f64 {
    super::result::to_f64(us) / 1e3
}

/// Draws each into the folder; those of which nothing was measured are left out.
pub(super) fn all(found: &Comparison, folder: &Path) -> Vec<Plot> {
    PLOTS
        .into_iter()
        .filter(|plot| {
            let lines = lines(found, plot);
            let any = lines.iter().any(|(_, points)| !points.is_empty());
            if any {
                let file = folder.join(plot.file);
                draw(plot, &lines, &file).expect("the plot can be drawn");
            }
            any
        })
        .collect()
}

type Lines<'a> = Vec<(&'a str, Vec<(f64, f64)>)>;

fn lines<'a>(found: &'a Comparison, plot: &Plot) -> Lines<'a> {
    let points = |store| {
        let sizes = found.sizes(plot.workload).into_iter();
        let point = |size| {
            let at = At {
                store,
                of: OURS,
                workload: plot.workload,
                size,
            };
            let figure = found.figure(at, plot.read)?.median();
            // There is no zero on these axes.
            (figure > 0.0).then_some((f64::from(size), figure))
        };
        sizes.filter_map(point).collect()
    };
    let stores = found.stores.iter().map(|store| store.name.as_str());
    stores.map(|store| (store, points(store))).collect()
}

fn draw(plot: &Plot, lines: &Lines<'_>, file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|(_, points)| points);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        let greatest = points().map(of).fold(0.0, f64::max);
        (least / 1.5)..(greatest * 1.5)
    };
    let mut chart = ChartBuilder::on(&area)
        .caption(plot.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(
            range(|point| point.0).log_scale(),
            range(|point| point.1).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc(plot.x)
        .y_desc(plot.y)
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    for ((store, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        if points.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                colour.stroke_width(2),
            ))?
            .label(*store)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        let circles = points.iter().map(|at| Circle::new(*at, 3, colour.filled()));
        chart.draw_series(circles)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    area.present()?;
    Ok(())
}

/// A number with as many digits as it needs.
fn short(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
