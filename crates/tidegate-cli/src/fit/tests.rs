use std::fs;

use clap::Parser;
use tidegate_sim::{Costs, Keys};

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// The flags of a command line, as `fit` reads them.
fn args(flags: &str) -> Args {
    let words = ["fit", "--trace", "azure.csv"].into_iter().chain(flags.split_whitespace());
    Cli::try_parse_from(words).unwrap().args
}

/// The Azure sample, cost 1.
fn azure() -> Arrivals {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/azure_llm_2023_code.csv");
    let text = fs::read_to_string(path).unwrap();
    let time = |line: &str| {
        let time = line.split(',').next().unwrap().replace(' ', "T") + "Z";
        u64::try_from(time.parse::<jiff::Timestamp>().unwrap().as_nanosecond()).unwrap()
    };
    Arrivals { times: text.lines().skip(1).map(time).collect(), ..Arrivals::default() }
}

/// The worked example, with times from zero.
fn worked() -> Arrivals {
    let times = [0, 0, 1, 1, 4].map(|second| second * 1_000_000_000);
    Arrivals { times: times.to_vec(), ..Arrivals::default() }
}

fn text(flags: &str, arrivals: &Arrivals) -> String {
    let args = args(flags);
    text::report(&find(&args, arrivals).unwrap(), &args)
}

#[test]
fn a_report_at_a_glance() {
    insta::assert_snapshot!(text("--rate 5 --rate 10/s --reject-at-most 0.1%", &azure()));
}

#[test]
fn a_rate_below_the_mean_is_called_so() {
    assert!(text("--rate 2.5", &azure()).contains("slower than the mean"));
    assert!(!text("--rate 3", &azure()).contains("slower than the mean"));
}

#[test]
fn waits_instead_of_rejections() {
    insta::assert_snapshot!(text("--rate 5 --wait", &azure()));
    insta::assert_snapshot!(text("--rate 5 --wait --burst 50", &azure()));
}

#[test]
fn the_worked_example_in_json() {
    let args = args("--rate 20/min --json --reject-at-most 20%");
    insta::assert_snapshot!(json::report(&find(&args, &worked()).unwrap()).unwrap());
}

#[test]
fn a_key_is_named() {
    let keys = Keys { ids: vec![0, 1, 0, 1, 1], names: vec!["ann".into(), "bob".into()] };
    let arrivals = Arrivals { costs: Costs::Each(vec![1, 2, 1, 2, 2]), keys: Some(keys), ..worked() };
    insta::assert_snapshot!(text("--rate 1", &arrivals));
}

#[test]
fn one_instant_has_no_proposal() {
    let arrivals = Arrivals { times: vec![7; 3], ..Arrivals::default() };
    insta::assert_snapshot!(text("--rate 1", &arrivals));
}

#[test]
fn wrong_flags_are_usage_errors() {
    for flags in ["--rate x", "--wait", "--reject-at-most 1%", "--rate 1 --burst 3", "--rate 1 --plot a.png"]
    {
        let words = ["fit", "--trace", "t"].into_iter().chain(flags.split_whitespace());
        assert_eq!(Cli::try_parse_from(words).unwrap_err().exit_code(), 2, "{flags}");
    }
}

#[test]
fn the_curve_can_be_drawn() {
    let args = args("--rate 5 --rate 10");
    let arrivals = azure();
    let found = find(&args, &arrivals).unwrap();
    let curve = found.curve.as_ref().unwrap();
    let chart = chart::chart(&found, curve);
    assert!(chart.x.log && chart.y.log);
    let page = plot::html(&chart::plate(&found, curve));
    assert!(page.contains("5/s burst 508") && page.contains("507.925165"));
    let points = chart.series[0].points.iter();
    assert!(points.clone().zip(points.skip(1)).all(|(a, b)| a.0 < b.0 && a.1 >= b.1));
    let text = plot::terminal(&chart, true, false, 100);
    assert!(text.contains("asked: 10/s burst 319") && text.lines().all(|line| line.chars().count() <= 100));
}
