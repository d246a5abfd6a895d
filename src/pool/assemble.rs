//! From settings to partitions: a driver for each, and a budget for those that share one.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::admission::ClassId;
use crate::config::{BudgetSettings, ConfigError, PartitionSettings, Settings};
use crate::driver::Driver;
use crate::observe::{Observer, Watch};

use super::Partition;
use super::budget::{Budget, Member};
use super::core::Core;
use super::on_connect::{OnConnect, Prepares};
use super::seat::Tenancy;

/// A field, and what is wrong with it.
type Problem = (String, String);

/// All partitions, in the order of the settings. Connects to nothing yet.
pub(super) fn partitions<D: Driver>(
    settings: &Settings,
    options: &D::Options,
    observer: Option<&dyn Observer>,
    on_connect: Option<&OnConnect<D>>,
    tenancy: Option<&Arc<Tenancy>>,
) -> Result<Vec<Partition<D>>, ConfigError> {
    let drivers = drivers::<D>(&settings.partitions, options)?;
    one_server_each(settings, &drivers)?;
    let mut drivers: Vec<_> = drivers.into_iter().map(Some).collect();
    let mut partitions: Vec<_> = settings.partitions.iter().map(|_| None).collect();
    for budget in &settings.budgets {
        let of_budget = budget.partitions.iter();
        let members = of_budget.map(|at| {
            let driver = drivers[*at].take();
            let driver = driver.expect("bug: a partition in two budgets");
            (*at, &settings.partitions[*at], driver)
        });
        for (at, core) in cores(budget, members.collect(), observer, on_connect, tenancy) {
            partitions[at] = Some(Partition::new(core));
        }
    }
    let all = partitions.into_iter();
    let all: Vec<_> = all
        .map(|partition| partition.expect("bug: a partition in no budget"))
        .collect();
    introduce(&all);
    Ok(all)
}

/// Makes the partitions of each server known to each other.
fn introduce<D: Driver>(partitions: &[Partition<D>]) {
    for one in partitions {
        let others = partitions.iter().filter(|other| {
            one.endpoint().hosts == other.endpoint().hosts && !Arc::ptr_eq(&one.core, &other.core)
        });
        let others = others.map(|other| Arc::downgrade(&other.core));
        one.core.introduce(others.collect());
    }
}

/// A driver for each partition.
fn drivers<D: Driver>(
    partitions: &[PartitionSettings],
    options: &D::Options,
) -> Result<Vec<D>, ConfigError> {
    let mut drivers = Vec::with_capacity(partitions.len());
    let mut problems: Vec<Problem> = Vec::new();
    let mut told = Vec::new();
    for partition in partitions {
        match D::new(partition, options, &drivers) {
            Ok(driver) => drivers.push(driver),
            Err(_) if told.contains(&&partition.url) => {}
            Err(problem) => {
                told.push(&partition.url);
                problems.push((url_of(partition), problem));
            }
        }
    }
    if problems.is_empty() {
        return Ok(drivers);
    }
    Err(ConfigError::of_fields(problems))
}

/// A budget is of one server.
fn one_server_each<D: Driver>(settings: &Settings, drivers: &[D]) -> Result<(), ConfigError> {
    let hosts = |at: usize| &drivers[at].endpoint().hosts;
    let mut problems = Vec::new();
    for budget in &settings.budgets {
        let first = budget.partitions[0];
        for at in budget
            .partitions
            .iter()
            .filter(|at| hosts(**at) != hosts(first))
        {
            let partition = &settings.partitions[*at];
            let problem = format!(
                "leads to another server than partition.{}; the partitions of a budget ({}) share one",
                settings.partitions[first].name, budget.name
            );
            problems.push((url_of(partition), problem));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(ConfigError::of_fields(problems))
}

fn url_of(partition: &PartitionSettings) -> String {
    format!("partition.{}.url", partition.name)
}

/// The partitions of one budget, with their positions in the settings.
fn cores<D: Driver>(
    budget: &BudgetSettings,
    members: Vec<(usize, &PartitionSettings, D)>,
    observer: Option<&dyn Observer>,
    on_connect: Option<&OnConnect<D>>,
    tenancy: Option<&Arc<Tenancy>>,
) -> Vec<(usize, Arc<Core<D>>)> {
    let known: Vec<Member<'_, D>> = members.iter().map(|(_, of, d)| (*of, d)).collect();
    let shared = Arc::new(Budget::new(budget.clone(), &known));
    let core = |(class, (at, settings, driver)): (usize, (usize, &PartitionSettings, D))| {
        let watch = Watch(observer.map(|o| o.partition(&settings.name)));
        let class = ClassId::new(class);
        let prepares = Prepares::new(on_connect.cloned());
        let runtime = Handle::current();
        let settings = settings.clone();
        let core = Core::new(settings, driver, class, &shared, watch, prepares, runtime);
        (at, Arc::new(core.seated(tenancy.cloned())))
    };
    let cores: Vec<_> = members.into_iter().enumerate().map(core).collect();
    shared.introduce(cores.iter().map(|(_, core)| Arc::downgrade(core)).collect());
    cores
}
