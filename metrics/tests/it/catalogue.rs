//! Tests that the page and the dashboard name the metrics that exist.

use std::collections::BTreeSet;

use millpond_metrics::{Family, Kind, Metrics};

/// The names in Prometheus, as a query writes them.
fn names() -> BTreeSet<String> {
    let families = Metrics::new().families();
    let total = |kind| if kind == Kind::Counter { "_total" } else { "" };
    families.iter().map(|family| format!("{}{}", family.prometheus_name, total(family.kind))).collect()
}

#[test]
fn the_page_lists_each_metric() {
    let mut page =
        "| OpenTelemetry | Prometheus | unit | type | labels | meaning |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for (family, prometheus) in Metrics::new().families().iter().map(|family| {
        let total = if family.kind == Kind::Counter { "_total" } else { "" };
        (family, format!("{}{total}", family.prometheus_name))
    }) {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::UpDownCounter => "up-down counter",
            _ => "gauge",
        };
        let (name, unit, help) = (family.name, family.unit, family.help);
        let labels = labels_of(family).join(", ");
        page += &format!("| `{name}` | `{prometheus}` | `{unit}` | {kind} | {labels} | {help} |\n");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/metrics.md");
    if std::env::var_os("MILLPOND_WRITE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        page,
        "metrics.md is outdated; run MILLPOND_WRITE=1 cargo test -p millpond-metrics --all-features \
         --test it catalogue::"
    );
}

/// The labels in Prometheus, as the pages write them.
fn labels_of(family: &Family) -> Vec<String> {
    family.labels.iter().map(|label| format!("`{}`", label.replace('.', "_"))).collect()
}

/// The book's table names the labels of each metric: in the row that names it, or else in the row whose
/// pattern fits with the most letters.
#[test]
fn the_book_names_the_labels_of_each_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/metrics.md");
    let page = std::fs::read_to_string(path).expect("the book has a page on metrics");
    let rows: Vec<(Vec<&str>, &str)> = page
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
        .map(|(patterns, labels)| (patterns.split(", ").map(|it| it.trim_matches('`')).collect(), labels))
        .collect();
    for family in Metrics::new().families() {
        let total = if family.kind == Kind::Counter { "_total" } else { "" };
        let name = family.prometheus_name.clone() + total;
        let fits = |pattern: &&&str| match pattern.split_once('*') {
            Some((start, end)) => name.starts_with(start) && name.ends_with(end),
            None => name == **pattern,
        };
        let fit = |patterns: &[&str]| patterns.iter().filter(fits).map(|pattern| pattern.len()).max();
        let row = rows.iter().filter_map(|(patterns, labels)| Some((fit(patterns)?, *labels))).max();
        assert_eq!(row.map(|(_, labels)| labels), Some(&*labels_of(&family).join(", ")), "{name}");
    }
}

/// The words of a query that begin like a metric.
fn metrics_in(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("millpond_") || word.starts_with("hw_gpu_"))
}

#[test]
fn the_dashboard_asks_for_exactly_the_metrics() {
    let text = include_str!("../../grafana.json");
    let board: serde_json::Value = serde_json::from_str(text).expect("the dashboard is JSON");
    let panels = board["panels"].as_array().expect("the dashboard has panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("a panel has queries"));
    let queries = targets.map(|target| target["expr"].as_str().expect("a query is a text"));
    let variables = board["templating"]["list"].as_array().expect("the dashboard has variables");
    let queries = queries.chain(variables.iter().filter_map(|variable| variable["query"].as_str()));
    let asked: BTreeSet<String> = queries.flat_map(metrics_in).map(str::to_owned).collect();
    assert_eq!(asked, names());
}
