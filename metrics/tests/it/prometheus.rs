//! Tests the text for Prometheus with another crate's parser.

use millpond_core::DeviceMemoryResourceExt;
use millpond_metrics::{Kind, Metrics};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;
use prometheus_parse::{Labels, Scrape, Value};

use crate::{MIB, S, build, device, free};

fn parse(text: &str) -> Scrape {
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
}

fn has(labels: &Labels, name: &str, value: &str) -> bool {
    labels.get(&name.replace('.', "_")) == Some(value)
}

/// In both formats, a parser finds each value under its labels, and nothing else.
#[test]
fn a_parser_reads_the_values_back() {
    let device = device();
    let stack = build("cuda+pool:initial=4MiB,max=1GiB+limiting:limit=64MiB+statistics", &device);
    let budget = build("cuda+budget:name=parsed,limit=8MiB", &device);
    let metrics = Metrics::new();
    metrics.register(&stack, "train").unwrap();
    metrics.register(&budget, "etl").unwrap();
    let block = stack.allocate_bytes(MIB + 1, S).unwrap();
    stack.allocate_bytes(1 << 40, S).unwrap_err();

    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics.clone()));
    let mut plain = String::new();
    prometheus_text::encode(&mut plain, &registry).unwrap();
    let (mut families, open) = (metrics.families(), metrics.render());
    // Budgets of other tests change meanwhile.
    let here = device.device().to_string();
    families.iter_mut().for_each(|it| it.samples.retain(|one| one.labels[0] == ("device", here.clone())));
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    assert!(open.contains("# UNIT millpond_memory_live_bytes bytes\n"), "{open}");
    for (text, is_plain) in [(open, false), (plain, true)] {
        let mut found = parse(&text).samples;
        found.retain(|one| has(&one.labels, "device", &here));
        let count: usize = families.iter().map(|family| family.samples.len()).sum();
        assert_eq!(found.len(), count, "{text}");
        for family in &families {
            let is_counter = family.kind == Kind::Counter;
            let name = family.prometheus_name.clone() + if is_counter { "_total" } else { "" };
            for sample in &family.samples {
                let fits = |labels: &Labels| sample.labels.iter().all(|(is, of)| has(labels, is, of));
                // An empty label is none.
                let one = found.iter().find(|one| one.metric == name && fits(&one.labels));
                let one = one.unwrap_or_else(|| panic!("{name} {:?} is missing:\n{text}", sample.labels));
                let value = match one.value {
                    Value::Gauge(value) if !is_counter => value,
                    Value::Counter(value) if is_counter && is_plain => value,
                    // OpenMetrics declares the name without `_total`, which this parser does not know.
                    Value::Untyped(value) if is_counter && !is_plain => value,
                    ref other => panic!("{name} is a {:?}, but {other:?}", family.kind),
                };
                assert_eq!(value, sample.value as f64, "{name} {:?}", sample.labels);
            }
        }
    }
    free(&stack, block, MIB + 1);
}

#[test]
fn names_of_stacks_may_have_any_characters() {
    let device = device();
    let (stack, metrics) = (build("cuda+pool", &device), Metrics::new());
    metrics.register(&stack, "a \"b\"\\\nc{d=\"e\"} ü").unwrap();
    let text = metrics.render();
    let line = format!(
        "\nmillpond_memory_live_bytes{{device=\"{}\",stack=\"a \\\"b\\\"\\\\\\nc{{d=\\\"e\\\"}} ü\"}} 0\n",
        device.device()
    );
    assert!(text.contains(&line), "{text}");
}

#[test]
fn the_text_has_a_fixed_order() {
    let device = device();
    let stacks = ["c", "a", "b"].map(|name| (name, build("cuda+pool+pool+statistics", &device)));
    let [one, other] = [Metrics::new(), Metrics::new()];
    for (name, stack) in &stacks {
        one.register(stack, name).unwrap();
    }
    for (name, stack) in stacks.iter().rev() {
        other.register(stack, name).unwrap();
    }
    let of_device = |metrics: &Metrics| -> Vec<String> {
        let device = format!("device=\"{}\"", device.device());
        metrics.render().lines().filter(|line| line.contains(&device)).map(str::to_owned).collect()
    };
    assert_eq!(of_device(&one), of_device(&other));
    assert!(of_device(&one).iter().any(|line| line.contains("layer=\"pool#2\"")));
}
