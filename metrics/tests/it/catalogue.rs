//! Tests that the page and the dashboard name the metrics that exist.

use std::collections::BTreeSet;

use millpond_metrics::{Kind, Metrics};

/// The names in Prometheus, as a query writes them.
fn names() -> BTreeSet<String> {
    let families = Metrics::new().families();
    let total = |kind| if kind == Kind::Counter { "_total" } else { "" };
    families.iter().map(|family| format!("{}{}", family.prometheus_name, total(family.kind))).collect()
}

#[test]
fn the_page_lists_each_metric() {
    let mut page =
        "| OpenTelemetry | Prometheus | unit | type | meaning |\n|---|---|---|---|---|\n".to_owned();
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
        page += &format!("| `{name}` | `{prometheus}` | `{unit}` | {kind} | {help} |\n");
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
