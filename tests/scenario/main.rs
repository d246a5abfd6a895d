//! The scenario of the example, on the Postgres of the tests: isolation is measured in every run of the tests.
//!
//! It is a binary of its own, so that it runs alone: it measures, and the other tests would be its noise. Of its own
//! tests those that measure go one at a time.

#[path = "../support/postgres/mod.rs"]
mod postgres;

#[path = "../../examples/reporting_starves_checkout/scenario/mod.rs"]
mod run;

use std::time::Duration;

use partitioned_pool::TokioPostgres;
use serde_json::Value;
use tokio::sync::Mutex;

use postgres::{Postgres, Source, Want};
use run::calls::Tally;
use run::layout::{Driven, Kind};
use run::measure::LayoutFigures;
use run::plan::{ANALYTICAL, Phase, Plan};
use run::report::Table;
use run::variant::{Reports, Variant};
use run::verdict::{Finding, judge};
use run::{Experiment, json, picture};

#[cfg(feature = "sqlx")]
use partitioned_pool::Sqlx as Another;
#[cfg(not(feature = "sqlx"))]
use partitioned_pool::TokioPostgres as Another;

/// A shared machine takes the processors away for a moment now and then. That can make a run slow, or useless; such
/// a run is repeated. All must be well in one of them.
const RUNS: u32 = 4;

/// What a short run may add to the p99.
const SLACK: Duration = Duration::from_millis(10);

/// Whether the machine may be to blame: there was nothing but slowness, or the run itself says that it tells nothing.
fn may_be_the_machine(findings: &[Finding]) -> bool {
    let useless = |finding: &Finding| matches!(finding, Finding::ShowsNothing(_));
    let slower = |finding: &Finding| matches!(finding, Finding::Slower(_));
    !findings.is_empty() && (findings.iter().any(useless) || findings.iter().all(slower))
}

async fn run_once<D: Driven>(server: &Postgres, variant: Variant) -> (Experiment, Vec<Finding>) {
    println!("{} {variant}", server.describe());
    let tell = |progress: &_| println!("{progress}");
    let experiment = run::run::<D>(server, variant, &Plan::QUICK, tell);
    let experiment = experiment.await.unwrap();
    println!("{}", Table(&experiment));
    let findings = judge(&experiment);
    findings.iter().for_each(|finding| println!("{finding}"));
    (experiment, findings)
}

static ALONE: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_starve_checkout_in_one_pool_and_not_in_partitions() {
    let _alone = ALONE.lock().await;
    let server = postgres::start(run::want()).await.unwrap();
    let usual = async || run_once::<TokioPostgres>(&server, Variant::default()).await;
    let (mut experiment, mut findings) = usual().await;
    for _ in 1..RUNS {
        if may_be_the_machine(&findings) {
            (experiment, findings) = usual().await;
        }
    }
    assert_eq!(findings, []);
    the_json_says_what_was_measured(&experiment);
    the_picture_is_whole(&experiment);
    the_verdict_sees_when_isolation_fails(&experiment);
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

fn the_json_says_what_was_measured(experiment: &Experiment) {
    let whole: Value = serde_json::from_str(&json::json(experiment)).unwrap();
    assert_eq!(keys(&whole), ["layouts", "postgres"]);
    assert_eq!(
        keys(&whole["postgres"]),
        ["max_connections", "source", "version"]
    );
    let layouts = whole["layouts"].as_array().unwrap();
    let names: Vec<_> = layouts
        .iter()
        .map(|l| l["layout"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["shared", "partitioned"]);
    let incident = &layouts[1]["phases"][1];
    assert_eq!(incident["phase"], "incident");
    assert_eq!(
        keys(incident),
        ["checkout", "peak_backends", "phase", "reports"]
    );
    assert_eq!(
        keys(&incident["checkout"]),
        [
            "failed", "late", "max_ms", "ok", "p50_ms", "p99_ms", "rejected", "started"
        ]
    );
    let reports = serde_json::json!({"started": 50, "ok": 10, "rejected": 40, "failed": 0});
    assert_eq!(incident["reports"], reports);
    assert_eq!(incident["checkout"]["started"], 600);
}

fn the_picture_is_whole(experiment: &Experiment) {
    let svg = picture::svg(experiment);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("partitions none") && !svg.contains("NaN"));
    assert!(svg.len() < 100_000, "{} bytes", svg.len());
}

/// What isolation is not: the figures of the shared pool, said to be those of the partitions.
fn the_verdict_sees_when_isolation_fails(experiment: &Experiment) {
    let shared = experiment.layout(Kind::Shared);
    let pretended = LayoutFigures {
        layout: Kind::Partitioned,
        ..shared.clone()
    };
    let partitioned = LayoutFigures {
        layout: Kind::Shared,
        ..experiment.layout(Kind::Partitioned).clone()
    };
    let findings = judge(&Experiment {
        layouts: [partitioned, pretended],
        ..experiment.clone()
    });
    let text: Vec<_> = findings.iter().map(Finding::to_string).collect();
    let text = text.join("\n");
    let lost = shared.phase(Phase::Incident).checkout.lost();
    for told in [
        format!("isolation failed: {lost} of 600 checkouts in phase incident had no success"),
        "isolation failed: the server had up to 50 connections of the pool in phase incident, and the plan is 30".into(),
        "isolation failed: of 50 reports 50 ran and 0 were rejected".into(),
        "the experiment shows nothing: with the shared pool only 0 of 600 checkouts".into(),
    ] {
        assert!(text.contains(&told), "{told}\nis not in\n{text}");
    }
    // Against a baseline that was slow itself, a shared pool that times out is not slower.
    let p99 = |phase| shared.phase(phase).latency.unwrap().p99;
    let slower =
        p99(Phase::Incident) > (p99(Phase::Before) * 6 / 5).max(p99(Phase::Before) + SLACK);
    assert_eq!(text.contains("the p99 of checkout was"), slower, "{text}");
}

const SCAN: Variant = Variant {
    reports: Reports::Scan,
    standby: false,
};

/// On every machine: of reports that scan nothing is repeated, and nothing rests on how fast anything was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_that_scan_may_slow_checkout_down_and_never_have_its_slots() {
    let _alone = ALONE.lock().await;
    let server = postgres::start(run::want()).await.unwrap();
    let (experiment, findings) = run_once::<TokioPostgres>(&server, SCAN).await;
    assert_eq!(findings, []);
    let reports = |kind| &experiment.layout(kind).phase(Phase::Incident).reports;
    let (shared, partitioned) = (reports(Kind::Shared), reports(Kind::Partitioned));
    assert_eq!((shared.ok, shared.rejected), (50, 0));
    assert_eq!((partitioned.ok, partitioned.rejected), (10, 40));
    what_is_shared_is_said(&experiment);
    the_variant_is_in_the_json(&experiment);
    slowness_is_told_and_not_judged(&experiment);
    the_verdict_sees_reports_in_slots_of_checkout(&experiment);
    the_verdict_sees_reports_that_do_not_scan(&experiment);
}

fn what_is_shared_is_said(experiment: &Experiment) {
    let table = Table(experiment).to_string();
    for told in [
        "slots       isolated: ",
        "CPU         shared: the p99 of checkout went from ",
        "10 at a time read ",
    ] {
        assert!(table.contains(told), "{told}\nis not in\n{table}");
    }
    let svg = picture::svg(experiment);
    assert!(svg.contains("slots are divided; CPUs are not"));
    assert!(svg.contains("reporting_starves_checkout -- --reports scan<"));
    assert!(!svg.contains("NaN"));
}

fn the_variant_is_in_the_json(experiment: &Experiment) {
    let whole: Value = serde_json::from_str(&json::json(experiment)).unwrap();
    assert_eq!(whole["variant"]["reports"], "scan");
    assert_eq!(whole["variant"]["standby"], Value::Null);
    let more = &whole["layouts"][1]["phases"][1]["variant"];
    assert!(more["rows_read"].as_u64().unwrap() > 0);
    assert!(more["peak_reports"].as_u64().unwrap() <= 10);
}

/// The same run with the partitions' figures of the incident made into others.
fn with(experiment: &Experiment, make: impl FnOnce(&mut LayoutFigures)) -> Experiment {
    let mut partitioned = experiment.layout(Kind::Partitioned).clone();
    make(&mut partitioned);
    Experiment {
        layouts: [experiment.layout(Kind::Shared).clone(), partitioned],
        ..experiment.clone()
    }
}

fn slowness_is_told_and_not_judged(experiment: &Experiment) {
    let slow = with(experiment, |figures| {
        let checkout = &mut figures.phases[1].checkout;
        *checkout = Tally {
            started: 600,
            ok: 1,
            late: 599,
            ..Tally::default()
        };
    });
    assert_eq!(judge(&slow), []);
    let table = Table(&slow).to_string();
    let told = "599 of 600 checkouts lost (0 rejected, 0 failed, 599 late)";
    assert!(table.contains(told), "{table}");
    let asleep = Experiment {
        variant: Variant::default(),
        ..slow
    };
    let told = "isolation failed: 599 of 600 checkouts in phase incident had no success";
    let text: Vec<_> = judge(&asleep).iter().map(Finding::to_string).collect();
    assert!(text.join("\n").contains(told), "{text:?}");
}

fn the_verdict_sees_reports_in_slots_of_checkout(experiment: &Experiment) {
    let invaded = with(experiment, |figures| {
        figures.phases[1].primary.peak_reports = ANALYTICAL + 1;
        figures.phases[1].primary.peak_strays = 1;
    });
    let told = judge(&invaded);
    let told: Vec<_> = told.iter().map(Finding::to_string).collect();
    assert_eq!(
        told,
        [
            "isolation failed: 11 connections to the server ran reports in phase incident, and 10 may",
            "isolation failed: 1 connections to the server that are not the analytical partition's ran reports in phase \
             incident",
        ]
    );
    let table = Table(&invaded).to_string();
    assert!(table.contains("slots       NOT isolated"), "{table}");
}

fn the_verdict_sees_reports_that_do_not_scan(experiment: &Experiment) {
    let idle = with(experiment, |figures| figures.phases[1].rows = 0);
    let told: Vec<_> = judge(&idle).iter().map(Finding::to_string).collect();
    let expected =
        "the experiment shows nothing: with the partitioned layout the reports read nothing";
    assert_eq!(told, [expected]);
}

/// A server of this version that is ours to copy; else says why there is none.
async fn ours(major: u32) -> Option<Postgres> {
    let want = Want {
        version: Some(major),
        ..run::want()
    };
    let why = match postgres::start(want).await {
        Ok(server) if !matches!(server.source(), Source::Url { .. }) => return Some(server),
        Ok(_) => "a server that somebody named is not ours to copy".to_owned(),
        Err(missing) if missing.may_skip() => missing.to_string(),
        Err(missing) => panic!("{missing}"),
    };
    println!("SKIPPED: {why}");
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_standby_no_report_comes_near_the_primary() {
    let _alone = ALONE.lock().await;
    let Some(server) = ours(15).await else { return };
    let variant = Variant {
        standby: true,
        ..SCAN
    };
    let (experiment, findings) = run_once::<Another>(&server, variant).await;
    assert_eq!(findings, []);
    let incident = experiment.layout(Kind::Partitioned).phase(Phase::Incident);
    let standby = incident.standby.as_ref().unwrap();
    assert_eq!(incident.primary.peak_reports, 0);
    assert!((1..=10).contains(&standby.peak_reports), "{standby:?}");
    assert!(incident.reports.ok == 10 && standby.behind.is_some());

    let table = Table(&experiment).to_string();
    assert!(table.contains("standby     reports ran on it"), "{table}");
    let svg = picture::svg(&experiment);
    assert!(svg.contains("reports on a standby"));
    let whole: Value = serde_json::from_str(&json::json(&experiment)).unwrap();
    assert!(whole["variant"]["standby"]["version"].is_string());
    let more = &whole["layouts"][1]["phases"][1]["variant"]["standby"];
    let expected = ["behind_ms", "looks", "peak_backends", "peak_reports"];
    assert_eq!(keys(more), expected);

    // As if one had gone to the primary.
    let astray = with(&experiment, |figures| {
        figures.phases[1].primary.peak_reports = 1;
    });
    let told: Vec<_> = judge(&astray).iter().map(Finding::to_string).collect();
    let expected = "isolation failed: reports ran on the primary in phase incident, and they should on the standby";
    assert_eq!(told[0], expected);
}
