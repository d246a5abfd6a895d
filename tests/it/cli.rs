//! The binary, as people run it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use partitioned_pool::config::PoolConfig;
use serde_json::Value;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_partitioned-pool");

fn plan(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("plan").args(arguments);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

fn run(arguments: &[&str]) -> Output {
    plan(arguments).output().unwrap()
}

/// With the description on standard input.
fn fed(arguments: &[&str], text: &str) -> Output {
    let mut command = plan(arguments);
    command.arg("-").stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[track_caller]
pub(crate) fn stdout(output: &Output, code: i32) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(code == 2 || error.is_empty(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
pub(crate) fn json(output: &Output, code: i32) -> Value {
    serde_json::from_str(&stdout(output, code)).unwrap()
}

/// One line on standard error, nothing on standard output, exit code 2.
#[track_caller]
pub(crate) fn refused(output: &Output) -> String {
    assert_eq!(stdout(output, 2), "");
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    let error = error.trim_end().strip_prefix("partitioned-pool: ");
    error.expect("the program says who it is").to_owned()
}

/// Two regular flows on three slots of one pool, of which one has an incident.
const SMALL: &str = r#"
length = "30s"
incident = ["10s", "20s"]
layout = "shared"
budget = [{ capacity = 3 }]

[[flow]]
name = "pay"
rate_per_replica = 4
arrivals = "regular"
hold = "125ms"
hold_shape = "fixed"
deadline = "1s"

[[flow]]
name = "report"
kind = "analytical"
rate_per_replica = 0.7
arrivals = "regular"
hold = "500ms"
hold_shape = "fixed"
hold_in_incident = "20s"
"#;

#[test]
fn a_small_day_is_simulated_call_by_call() {
    let text = stdout(&fed(&["simulate"], SMALL), 0);
    let expected = "\
before: 10 s, 28.3 % of 3 connections held on average

flow    came  served  of them  full  too short  waited  late  wait p99
pay       40      40    100 %     0          0       0     0         0
report     8       8    100 %     0          0       0     0         0
";
    assert!(text.starts_with(expected), "{text}");
    let incident = text.split("\n\n").find(|part| part.starts_with("incident"));
    assert!(incident.is_some(), "{text}");
    assert!(text.contains("blast radius: pay loses"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 120),
        "{text}"
    );
}

#[test]
fn a_simulation_as_json_counts_every_call() {
    let json = json(&fed(&["simulate", "--json"], SMALL), 0);
    let spans = json["spans"].as_array().unwrap();
    let names: Vec<_> = spans.iter().map(|span| &span["span"]).collect();
    assert_eq!(names, ["before", "incident", "after"]);
    let pay = &spans[0]["flows"][0];
    assert_eq!(
        (&pay["flow"], &pay["arrived"], &pay["served"]),
        (&"pay".into(), &40.into(), &40.into())
    );
    for flow in spans
        .iter()
        .flat_map(|span| span["flows"].as_array().unwrap())
    {
        let of = |value: &Value| value.as_u64().unwrap();
        let refused = flow["refused"]
            .as_object()
            .unwrap()
            .values()
            .map(of)
            .sum::<u64>();
        let ended = ["served", "late", "running", "waiting"].map(|what| of(&flow[what]));
        assert_eq!(of(&flow["arrived"]), refused + ended.iter().sum::<u64>());
    }
    assert_eq!(json["blast_radius"][0]["flow"], "pay");
}

#[test]
fn the_published_figures_are_reproduced() {
    let text = stdout(&run(&["reference"]), 0);
    assert!(
        text.contains("103 published figures, all reproduced: "),
        "{text}"
    );
    let json = json(&run(&["reference", "--json"]), 0);
    assert_eq!(
        (&json["differ"], json["figures"].as_array().unwrap().len()),
        (&0.into(), 103)
    );
    let by = |what: &str| {
        let figures = json["figures"].as_array().unwrap().iter();
        figures.filter(|figure| figure["by"] == what).count()
    };
    let said = format!(
        "{} through the ledger, {} by formula",
        by("ledger"),
        by("formula")
    );
    assert!(by("formula") > 0 && text.contains(&said), "{said}");
    assert_eq!(by("ledger") + by("formula"), 103);
}

/// An example with other settings: each pair is found in it, and replaced.
fn changed(file: &str, settings: &[[&str; 2]]) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    settings.iter().fold(text, |text, [from, to]| {
        assert!(text.contains(from), "{file} says {from}");
        text.replace(from, to)
    })
}

/// For each class: calls that came in the incident, started, rejected.
fn in_incident(text: &str) -> Vec<[u64; 3]> {
    let json = json(&fed(&["simulate", "--json"], text), 0);
    let classes = json["classes"].as_array().unwrap().iter();
    let number = |value: &Value| value.as_u64().unwrap();
    let class = |class: &Value| {
        let refused = class["refused"].as_object().unwrap().values();
        let [came, started] = ["arrived", "started"].map(|what| number(&class[what]));
        [came, started, refused.map(number).sum()]
    };
    classes.map(class).collect()
}

// The figures of these two tests were computed from the published rules by a program of its own, which has
// nothing in common with this one.

#[test]
fn ten_workers_run_with_settings_of_their_own() {
    let settings = [["workers = 10", "workers = 12"], ["queue = 2", "queue = 5"]];
    let twelve = changed("examples/plan/ten-workers.toml", &settings);
    assert_eq!(in_incident(&twelve), [[90, 29, 61], [120, 120, 0]]);
    let mix = changed("tests/data/mix.toml", &[]);
    let expected = [[85, 26, 59], [68, 34, 34], [34, 7, 27]];
    assert_eq!(in_incident(&mix), expected);
}

/// For each layout, healthy and then slow: served by flow, dropped by flow, idle slots, and a hundred times the
/// slots that are busy on average.
fn by_layout(text: &str) -> Vec<(String, Vec<u64>)> {
    let json = json(&fed(&["simulate", "--json"], text), 0);
    let number = |value: &Value| value.as_u64().unwrap();
    let run = |run: &Value| {
        let flows = run["flows"].as_array().unwrap();
        let of = |what| flows.iter().map(move |flow| number(&flow[what]));
        let busy = format!("{:.2}", run["average_busy"].as_f64().unwrap()).replace('.', "");
        let rest = [number(&run["idle_slots"]), busy.parse().unwrap()];
        let figures = of("served").chain(of("dropped")).chain(rest).collect();
        let (layout, day) = (&run["layout"], &run["day"]);
        (format!("{layout} {day}").replace('"', ""), figures)
    };
    json["runs"].as_array().unwrap().iter().map(run).collect()
}

#[test]
fn two_flows_run_with_settings_of_their_own() {
    let is = |text: &str, expected: &[(&str, [u64; 6])]| {
        let expected = expected.iter();
        let expected = expected.map(|(run, figures)| ((*run).to_owned(), figures.to_vec()));
        assert_eq!(by_layout(text), expected.collect::<Vec<_>>());
    };
    let settings = [
        ["seed = 20260801", "seed = 7"],
        ["slots = 32", "slots = 20"],
        [
            "[[28, 4], [24, 8], [20, 12], [16, 16], [27, 5]]",
            "[[14, 6]]",
        ],
    ];
    let seven = changed("examples/plan/two-flows.toml", &settings);
    is(
        &seven,
        &[
            ("single pool 20 healthy", [13452, 3164, 3056, 701, 0, 1404]),
            ("single pool 20 slowdown", [9784, 2322, 6724, 1543, 0, 1627]),
            ("14/6 healthy", [12696, 3009, 3812, 856, 8397, 1328]),
            ("14/6 slowdown", [12696, 1548, 3812, 2317, 8314, 1459]),
        ],
    );
    is(
        &changed("tests/data/bursty.toml", &[]),
        &[
            ("single pool 25 healthy", [5699, 2809, 3332, 1639, 0, 1881]),
            ("single pool 25 slowdown", [4758, 2347, 4273, 2101, 0, 2000]),
            ("10/15 healthy", [4867, 3026, 4164, 1422, 7064, 1855]),
            ("10/15 slowdown", [3489, 3026, 5542, 1422, 8904, 1963]),
            ("20/5 healthy", [8327, 1058, 704, 3390, 19825, 1531]),
            ("20/5 slowdown", [6502, 1058, 2529, 3390, 10518, 1856]),
        ],
    );
}

#[test]
fn the_published_settings_in_files_give_the_published_figures() {
    let ten = json(
        &run(&["simulate", "examples/plan/ten-workers.toml", "--json"]),
        0,
    );
    let started: Vec<_> = ten["classes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|class| class["started"].as_u64())
        .collect();
    assert_eq!(started, [Some(26), Some(120)]);
    let text = stdout(&run(&["simulate", "examples/plan/two-flows.toml"]), 0);
    let row = "24/8            slowdown           16,448         1,947               172          2,011      19,196         18.90";
    assert!(text.contains(row), "{text}");
}

#[test]
fn every_example_runs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/plan");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|e| e == "toml"))
        .collect();
    assert!(files.len() >= 5);
    for file in files {
        stdout(
            &run(&["simulate", file.to_str().unwrap()]),
            if file.ends_with("shop.toml") { 2 } else { 0 },
        );
    }
}

/// The block of the README behind this comment.
pub(crate) fn shown_in_the_readme(command: &str) -> String {
    let readme = std::fs::read_to_string("README.md").unwrap();
    let block = readme
        .split(&format!("<!-- {command} -->\n```text\n"))
        .nth(1)
        .unwrap();
    block.split("\n```").next().unwrap().to_owned()
}

#[test]
fn the_readme_shows_what_is_printed() {
    for command in ["size", "compare"] {
        let text = stdout(&run(&[command, "examples/plan/shop.toml"]), 0);
        let shown = shown_in_the_readme(&format!("plan {command}"));
        assert!(shown.lines().count() > 6 && text.contains(&shown), "{text}");
    }
}

#[test]
fn layouts_are_compared_over_the_same_calls() {
    let json = json(&fed(&["compare", "--json"], SMALL), 0);
    let layouts = json["layouts"].as_array().unwrap();
    let names: Vec<_> = layouts
        .iter()
        .map(|layout| layout["layout"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["fixed", "shared", "borrowing"]);
    let struck = |n: usize| layouts[n]["blast_radius"].as_array().unwrap().len();
    assert_eq!(
        [0, 1, 2].map(struck),
        [0, 1, 0],
        "only the shared pool takes payments down"
    );
    let arrived = |n: usize| &layouts[n]["incident"]["flows"][0]["arrived"];
    assert!(arrived(0) == arrived(1) && arrived(1) == arrived(2));
    assert_eq!(json["sweep"].as_array().unwrap().len(), 2);
    let text = stdout(&fed(&["compare"], SMALL), 0);
    assert!(
        text.lines().all(|line| line.chars().count() <= 120),
        "{text}"
    );
}

#[test]
fn no_more_refusals_are_stranded_than_there_are() {
    let flow = |name: &str| {
        format!("[[flow]]\nname = \"{name}\"\nrate_per_replica = 60\nhold = \"40ms\"\n")
    };
    let text = "length = \"60s\"\n[[budget]]\ncapacity = 9\n".to_owned();
    let text = text + &flow("a") + &flow("b") + &flow("c");
    let json = json(&fed(&["compare", "--json"], &text), 0);
    let sum = |value: &Value| -> u64 {
        let counts = value.as_object().unwrap().values();
        counts.map(|count| count.as_u64().unwrap()).sum()
    };
    for layout in json["layouts"].as_array().unwrap() {
        for day in ["healthy", "incident"] {
            let flows = layout[day]["flows"].as_array().unwrap().iter();
            let refused: u64 = flows.map(|flow| sum(&flow["refused"])).sum();
            let stranded = layout["stranded"][day].as_u64().unwrap();
            assert!(stranded <= refused, "{layout}");
            assert_eq!(stranded > 0, layout["layout"] != "shared", "{layout}");
        }
    }
}

#[test]
fn a_layout_of_the_file_is_compared_too() {
    let other = "[[also]]\nname = \"mine\"\n[[also.partition]]\nname = \"pay\"\nreserved = 2\nmax_connections = 3\n\
                 [[also.partition]]\nname = \"report\"\nreserved = 0\nmax_connections = 1\n";
    let text = stdout(&fed(&["compare"], &format!("{SMALL}{other}")), 0);
    assert!(text.contains("\nmine       healthy   pay"), "{text}");
}

const SIZED: &str = r#"
service = "shop"
[fleet]
max_replicas = 3
surge = 1
[server]
max_connections = 100

[[flow]]
name = "checkout"
partition = "transactional"
rate_of_fleet = 300
hold = "40ms"
hold_shape = "fixed"
headroom_percent = 150
deadline = "1s"

[[flow]]
name = "reports"
partition = "analytical"
rate_per_replica = 2
hold = "500ms"
"#;

#[test]
fn sizes_are_proposed_with_their_reasons_and_the_pool_takes_them() {
    let folder = tempfile::tempdir().unwrap();
    let (toml, svg) = (folder.path().join("pool.toml"), folder.path().join("a.svg"));
    let files = [
        "--toml",
        toml.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ];
    let output = fed(&[&["size"], files.as_slice()].concat(), SIZED);
    let text = stdout(&output, 0);
    assert!(
        text.starts_with("shop: these sizes fit, and keep their promises in simulation"),
        "{text}"
    );
    assert!(
        text.contains("reserved                6 = ceil((300/s / 3 replicas) x 0.04 s x 1.5)"),
        "{text}"
    );
    let config = std::fs::read_to_string(&toml).unwrap();
    assert!(
        text.contains(config.trim_end()),
        "what is printed is what is written"
    );
    let settings = PoolConfig::from_toml_file(&toml)
        .unwrap()
        .resolve()
        .unwrap();
    assert_eq!(settings.partitions[0].reserved, 6);
    well_formed(&std::fs::read_to_string(&svg).unwrap());

    // The proposal, put back into the description, is found healthy.
    let sizes = config.split("[[budget]]").nth(1).unwrap();
    let output = fed(&["size"], &format!("{SIZED}\n[[budget]]{sizes}"));
    assert!(stdout(&output, 0).starts_with("shop: these sizes are healthy"));
}

#[test]
fn sizes_that_do_not_fit_are_said_with_what_would() {
    let crowded = SIZED
        .replace("max_replicas = 3", "max_replicas = 30")
        .replace("rate_of_fleet = 300", "rate_of_fleet = 3000");
    let text = stdout(&fed(&["size"], &crowded), 1);
    assert!(
        text.starts_with("shop: what the flows need does not fit the server"),
        "{text}"
    );
    assert!(
        text.contains("Largest fleet that fits:") && text.contains("Largest partitions that fit"),
        "{text}"
    );
    assert!(
        text.contains("With the largest partitions that fit, the flows would lose:"),
        "{text}"
    );
    assert!(
        !text.contains("As the service's configuration"),
        "nothing to copy that does not fit"
    );
    let json = json(&fed(&["size", "--json"], &crowded), 1);
    assert_eq!(
        (&json["fits"], &json["good"]),
        (&false.into(), &false.into())
    );
    assert!(json["fleet"]["largest_fleet"].is_number() && json["largest"]["toml"].is_string());
}

#[test]
fn sizes_that_do_not_fit_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let toml = folder.path().join("pool.toml");
    let crowded = SIZED.replace("max_connections = 100", "max_connections = 20");
    let arguments = ["size", "--toml", toml.to_str().unwrap()];
    let text = stdout(&fed(&arguments, &crowded), 1);
    let told = format!("{} is not written: these sizes do not fit.", toml.display());
    assert!(text.ends_with(&format!("{told}\n")), "{text}");
    let json = json(&fed(&[&arguments[..], &["--json"]].concat(), &crowded), 1);
    assert_eq!(json["toml_written"], false);
    assert!(!toml.exists());
}

#[test]
fn limits_are_not_stated_where_sizes_are_proposed() {
    for (key, value) in [
        ("reserved", "1"),
        ("max_waiters", "3"),
        ("acquire_timeout", "\"1s\""),
        ("statement_timeout", "\"1s\""),
    ] {
        let partition = format!("[[partition]]\nname = \"transactional\"\n{key} = {value}\n");
        let told = refused(&fed(&["size"], &format!("{SIZED}{partition}")));
        let expected = format!("partition transactional: size proposes {key} itself; leave it out");
        assert!(told.contains(&expected), "{told}");
    }
}

#[test]
fn a_promise_that_too_few_calls_show_is_marked() {
    let rare = SIZED.replace("rate_per_replica = 2", "rate_per_replica = 0.01");
    let text = stdout(&fed(&["size"], &rare), 0);
    let told =
        "shop: these sizes fit, and break no promise in simulation; not all are shown (marked ?)";
    assert!(text.starts_with(told), "{text}");
    let sentence = "? reports is not shown: only ";
    let marked = text.lines().filter(|line| line.contains(" (0.00 %) ? "));
    assert!(text.contains(sentence) && marked.count() == 2, "{text}");

    let sizes = "[[partition]]\nname = \"transactional\"\nmax_connections = 14\n\
        [[partition]]\nname = \"analytical\"\nmax_connections = 2\n";
    let text = stdout(&fed(&["size"], &format!("{rare}{sizes}")), 0);
    let told = "shop: nothing wrong was seen with these sizes, but not every promise is shown";
    assert!(text.starts_with(told) && text.contains(sentence), "{text}");
}

#[test]
fn given_sizes_that_are_too_small_are_told_so() {
    let sizes = "[[partition]]\nname = \"transactional\"\nmax_connections = 4\n[[partition]]\nname = \"analytical\"\nmax_connections = 6\n";
    let text = stdout(&fed(&["size"], &format!("{SIZED}{sizes}")), 1);
    assert!(
        text.contains("wrong: transactional is too small for a healthy day: checkout loses"),
        "{text}"
    );
    assert!(
        text.contains("carries") && text.contains("100.0/s"),
        "{text}"
    );
}

#[test]
fn what_is_wrong_with_a_description_is_said_in_one_line_with_its_place() {
    let flow = |line: &str| format!("[[flow]]\nname = \"a\"\nhold = \"1s\"\n{line}\n");
    let rate = "expected calls per second, above 0 and at most 1e9";
    for (text, problem) in [
        (flow("rate_per_replica = -1"), format!("line 4: rate_per_replica: {rate}, found -1")),
        (flow("rate_per_replica = 0"), format!("line 4: rate_per_replica: {rate}, found 0")),
        (flow("rate_per_replica = nan"), format!("line 4: rate_per_replica: {rate}, found NaN")),
        (flow("rate_per_replica = inf"), format!("line 4: rate_per_replica: {rate}, found inf")),
        (flow("rate_per_replica = 1e300"), format!("line 4: rate_per_replica: {rate}, found 1e300")),
        (flow("rate = 5"), "line 4: unknown key `rate`; known here are `name`,".to_owned()),
        (flow("rate_per_replica = 5\ndeadline = 40"), "line 5: deadline: expected a time with its unit, such as \"40ms\" or \"10min\", found 40".to_owned()),
        (flow("rate_per_replica = 5\nkind = \"batch\""), "line 5: kind: unknown variant `batch`".to_owned()),
        (flow(""), "line 1: flow a: state one of rate_per_replica, rate_of_fleet and arrivals_csv".to_owned()),
        (flow("arrivals_csv = \"nowhere.csv\""), "line 1: nowhere.csv cannot be read".to_owned()),
        (flow("rate_per_replica = 5\nhold_p99 = \"10min\""), "line 1: flow a: hold_p99 must be from 1 to 14.9 times the mean".to_owned()),
        (flow("rate_per_replica = 5\npartition = \"analytical\"\nkind = \"transactional\""), "line 1: flow a: kind: the partition analytical is always analytical; leave kind out".to_owned()),
        (flow("rate_per_replica = 5") + "[[partition]]\nname = \"transactional\"\nkind = \"analytical\"", "line 5: partition transactional: kind: the partition transactional is always transactional; leave kind out".to_owned()),
        ("layout = \"fixed\"\nstep = \"1ns\"\n[[budget]]\ncapacity = 2\n".to_owned() + &flow("rate_per_replica = 5"), "line 2: a step of 1ns makes more than".to_owned()),
        ("layout = \"fixed\"\n[[budget]]\ncapacity = 1\n".to_owned() + &flow("rate_per_replica = 5") + "[[flow]]\nname = \"b\"\nhold = \"1s\"\nrate_per_replica = 5", "line 2: a capacity of 1 is not even one slot for each of 2 partitions".to_owned()),
        ("layout = \"fixed\"\n".to_owned() + &flow("rate_per_replica = 5"), ": no capacity is stated".to_owned()),
        (flow("rate_per_replica = 5").repeat(2), "line 5: flow a: is there twice".to_owned()),
        ("layout = \"borrowing\"\n[[budget]]\ncapacity = 1\n".to_owned() + &flow("rate_per_replica = 5"), "line 2: a capacity of 1 cannot be lent: it takes one slot for each of 1 transactional partitions, and one more".to_owned()),
        (String::new(), ": there is no flow; describe each as [[flow]]".to_owned()),
        ("flow = 3".to_owned(), "line 1: flow: invalid type".to_owned()),
        ("[[flow".to_owned(), "line 1: ".to_owned()),
        ("model = \"three\"".to_owned(), "line 1: model must be \"flows\", \"ten_workers\" or \"two_flows\"".to_owned()),
        ("model = \"ten_workers\"\nworker = 3".to_owned(), "line 2: unknown key `worker`; known here are `seconds`, `incident`, `workers`, `class`".to_owned()),
        ("model = \"ten_workers\"\nworkers = 0".to_owned(), " line 2: workers must be 1 or more".to_owned()),
        ("model = \"two_flows\"\nrounds = 4000000000".to_owned(), "makes more than 1000000 points".to_owned()),
        ("model = \"two_flows\"\nrounds = 1000000\nsplits = []\n[[flow]]\nname = \"a\"\narrivals_per_second = 69000.0\nhold_rounds = 1".to_owned(), "690000000 calls are expected".to_owned()),
        ("model = \"ten_workers\"\nseconds = 4000000000".to_owned(), "must last more than nothing and at most ten years".to_owned()),
        (flow("rate_per_replica = 5") + "[[budget]]\nname = \"m\"\ncapacity = 9\n[[partition]]\nname = \"a\"\nbudget = \"m\"\nreserved = 4\nmax_connections = 3", "line 8: partition a: reserved is above max_connections".to_owned()),
        ("model = \"two_flows\"\nseed = 0".to_owned(), " line 2: a seed of 0 gives nothing but zeros".to_owned()),
        (flow("rate_per_replica = 1e9") + "[[budget]]\ncapacity = 9\n[[partition]]\nname = \"a\"\nmax_connections = 9", "calls are expected; a run may have".to_owned()),
        (flow("rate_per_replica = 5") + "[[partition]]\nname = \"b\"\nmax_connections = 9", ": flows call the partition a, which is not stated".to_owned()),
        (flow("rate_per_replica = 5") + "[[partition]]\nname = \"a\"\nmax_connections = 0", "line 7: max_connections: expected a whole number from 1 to 262143, found 0".to_owned()),
        (flow("rate_per_replica = 5") + "[[partition]]\nname = \"a\"\nbudget = \"x\"\nmax_connections = 3", "line 5: partition a: there is no [[budget]] with name = \"x\"".to_owned()),
    ] {
        let said = refused(&fed(&["simulate"], &text));
        assert!(said.starts_with("standard input") && said.contains(&problem), "{text}\nsaid: {said}");
    }
}

#[test]
fn layouts_that_are_compared_are_of_one_size_and_have_their_own_names() {
    let flow = |name: &str| {
        format!("[[flow]]\nname = \"{name}\"\nrate_per_replica = 20\nhold = \"40ms\"\n")
    };
    let partition = |of: &str, name: &str, max: u32| {
        format!("[[{of}]]\nname = \"{name}\"\nmax_connections = {max}\n")
    };
    let text = "length = \"60s\"\n[[budget]]\nname = \"main\"\ncapacity = 500\n".to_owned()
        + &partition("partition", "a", 3)
        + &partition("partition", "b", 4)
        + &flow("a")
        + &flow("b");
    let compared = json(&fed(&["compare", "--json"], &text), 0);
    assert_eq!(compared["capacity"], 7, "the budget is nobody's");
    for layout in compared["layouts"].as_array().unwrap() {
        assert_eq!(layout["healthy"]["capacity"], 7, "{layout}");
    }
    let also = |name: &str| {
        let parts = partition("also.partition", "a", 3) + &partition("also.partition", "b", 3);
        format!("[[also]]\nname = \"{name}\"\n{parts}")
    };
    let lines = text.lines().count();
    for (others, name, line) in [
        (also("fixed"), "fixed", lines + 1),
        (also("mine") + &also("mine"), "mine", lines + 9),
    ] {
        let said = refused(&fed(&["compare"], &(text.clone() + &others)));
        let expected = format!("line {line}: layout {name}: is there twice; names are unique");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn an_incident_in_which_nothing_happens_is_told_so() {
    let text = "length = \"60s\"\nlayout = \"shared\"\nincident = [\"10s\", \"20s\"]\n[[budget]]\ncapacity = 10\n\
                [[flow]]\nname = \"a\"\nrate_per_replica = 20\nhold = \"40ms\"\n";
    let said = stdout(&fed(&["simulate"], text), 0);
    assert!(
        said.contains("nothing happens in the incident: state hold_in_incident")
            && !said.contains("blast radius"),
        "{said}"
    );
    assert!(json(&fed(&["simulate", "--json"], text), 0)["blast_radius"].is_null());
    let text = text.to_owned() + "hold_in_incident = \"1s\"\n";
    let said = stdout(&fed(&["simulate"], &text), 0);
    assert!(
        said.contains("blast radius") && !said.contains("nothing happens"),
        "{said}"
    );
}

#[test]
fn what_is_wrong_with_a_file_of_times_is_said_with_both_places() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("junk.csv"), "O.5\n1\n").unwrap();
    for key in [
        "arrivals_csv = \"junk.csv\"\nhold = \"1s\"",
        "rate_per_replica = 1\nhold_csv = \"junk.csv\"",
    ] {
        let file = folder.path().join("day.toml");
        std::fs::write(&file, format!("seed = 1\n[[flow]]\nname = \"a\"\n{key}\n")).unwrap();
        let said = refused(&run(&["simulate", file.to_str().unwrap()]));
        let csv = folder.path().join("junk.csv");
        let expected = format!(
            "{} line 2: {} line 1: \"O.5\" is not a number of seconds",
            file.display(),
            csv.display()
        );
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn what_is_wrong_with_a_model_is_said_with_its_line() {
    let class =
        |name: &str| format!("[[class]]\nname = \"{name}\"\nmax = 9\narrivals_per_second = 1\n");
    let flow = |name: &str| {
        format!("[[flow]]\nname = \"{name}\"\narrivals_per_second = 9\nhold_rounds = 1\n")
    };
    let ten = |text: &str| format!("model = \"ten_workers\"\n{text}");
    let two = |text: &str| format!("model = \"two_flows\"\n{text}");
    for (text, problem) in [
        (
            ten(&(class("a") + &class("a"))),
            "line 6: name: \"a\" is there twice; names are unique",
        ),
        (
            ten(&(class("a") + &class(""))),
            "line 6: name: \"\" is no name; one has 1 to 64 characters",
        ),
        (
            ten(&class("a\\u0007b")),
            "line 2: name: \"a\\u{7}b\" is no name",
        ),
        (
            ten(&class(&"a".repeat(65))),
            "is no name; one has 1 to 64 characters",
        ),
        (
            ten("class = []"),
            "line 2: [[class]]: there is none; state one at least",
        ),
        (
            ten("incident = [40, 70]"),
            "line 2: an incident is [from, until], within the 60 seconds of the run, not [40, 70]",
        ),
        (
            ten("incident = [9, 9]"),
            "line 2: an incident is [from, until]",
        ),
        (
            ten("seconds = 20"),
            "standard input: an incident is [from, until], within the 20 seconds of the run, not [10, 40]",
        ),
        (
            ten("workers = 8"),
            "standard input: class search: max is above the workers that there are",
        ),
        (
            ten(&(class("a") + "reserved = 10")),
            "line 2: class a: reserved is above max",
        ),
        (
            ten(&(class("a") + "reserved = 9\n" + &class("b") + "reserved = 2")),
            "the classes reserve 11 workers, and there are 10",
        ),
        (
            two(&(flow("a") + &flow("a"))),
            "line 6: name: \"a\" is there twice",
        ),
        (
            two("splits = [[30, 2], [16, 15]]"),
            "line 2: split 16/15: these are 31 slots, and slots is 32",
        ),
        (
            two("seed = 3\nsplits = [[10, 10, 12]]"),
            "line 3: split 10/10/12: it needs a pool for each flow, and there are 2",
        ),
        (
            two("slots = 0\nsplits = []"),
            "line 2: slots must be 1 or more",
        ),
        (
            two("slowdown_starts_at_round = 4000"),
            "line 2: the slowdown begins after the run has ended",
        ),
    ] {
        let said = refused(&fed(&["simulate"], &text));
        assert!(
            said.starts_with("standard input") && said.contains(problem),
            "{text}\nsaid: {said}"
        );
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let said = refused(&run(&["simulate", "no-such-file.toml"]));
    assert!(
        said.starts_with("no-such-file.toml cannot be read: "),
        "{said}"
    );
    let said = refused(&run(&[
        "simulate",
        "examples/plan/ten-workers.toml",
        "--svg",
        "no-such-folder/a.svg",
    ]));
    assert!(
        said.starts_with("no-such-folder/a.svg cannot be written: "),
        "{said}"
    );
    let said = refused(&run(&["size", "examples/plan/ten-workers.toml"]));
    assert!(said.contains("a model is simulated, not sized"), "{said}");
    let said = refused(&fed(&["size"], SMALL));
    assert!(
        said.contains("state [fleet] with max_replicas and surge, and [server]"),
        "{said}"
    );
}

#[test]
fn a_wrong_command_line_is_bad_input_and_help_is_not() {
    for arguments in [
        &["plan"][..],
        &["plan", "size"],
        &["plan", "grow", "x"],
        &[],
    ] {
        let output = Command::new(BINARY).args(arguments).output().unwrap();
        refused(&output);
    }
    let help = stdout(&run(&["--help"]), 0);
    assert!(
        ["size", "simulate", "compare", "reference"]
            .iter()
            .all(|c| help.contains(c)),
        "{help}"
    );
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = plan(&["reference"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn pictures_are_well_formed_and_show_every_flow() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("a.svg");
    let draw = |arguments: &[&str], text: &str| {
        let arguments = [arguments, &["--svg", svg.to_str().unwrap()]].concat();
        stdout(&fed(&arguments, text), 0);
        let text = std::fs::read_to_string(&svg).unwrap();
        well_formed(&text);
        text
    };
    let day = draw(&["simulate"], SMALL);
    assert!(day.contains(">pay<") && day.contains(">report<") && day.contains("slots held"));
    assert_eq!(
        day.matches("<polyline").count(),
        4,
        "two panels of two flows"
    );
    let compared = draw(&["compare"], SMALL);
    assert!(compared.contains("calls lost with fixed partitions"));
    let two = std::fs::read_to_string("examples/plan/two-flows.toml").unwrap();
    let two = draw(&["simulate"], &two);
    assert!(two.contains("single pool 32") && two.contains("tracking, slowdown"));
}

/// Tags open and close in pairs, every attribute has a value, and no bare `&` or NaN is in it.
#[track_caller]
fn well_formed(svg: &str) {
    let mut open = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag ends");
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap();
        assert!(tag.matches('"').count() % 2 == 0, "{tag}");
        assert!(!tag.contains("NaN") && !tag.contains("inf"), "{tag}");
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, false) => open.push(name),
            (false, true) => {}
        }
        let entities = text.split('&').skip(1);
        assert!(
            entities.into_iter().all(|rest| rest.contains(';')),
            "{text}"
        );
    }
    assert!(open.is_empty() && svg.starts_with("<svg "), "{open:?}");
}
