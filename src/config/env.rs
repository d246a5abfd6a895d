//! Reading environment variables.

use std::ffi::OsString;

use super::{
    ANALYTICAL, PoolConfig, TRANSACTIONAL,
    boot::WarningCode,
    budget::BudgetConfig,
    error::{ConfigError, Problem, printable},
    fleet::ExternalPool,
    leaf::{Leaf, LeafError, Named, Overlay, POOLER, fields_of, is_name},
    partition::PartitionConfig,
    pooler::PoolerConfig,
    session,
};

impl PoolConfig {
    /// Reads a configuration from the environment variables that begin with `prefix` and `_`.
    ///
    /// With the prefix `SHOP_DB`:
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `SHOP_DB_SERVICE`, `SHOP_DB_URL` | as the fields |
    /// | `SHOP_DB_POOLER_MODE`, `_POOLER_MAX_CLIENT_CONN`, ... | the fields of `[pooler]` |
    /// | `SHOP_DB_FLEET_MAX_REPLICAS`, `_FLEET_SURGE`, `_FLEET_RESERVE`, `_FLEET_MODE` | the fields of `[fleet]` |
    /// | `SHOP_DB_FLEET_EXTERNAL` | `jobs=4,sessions=2`: name and size of each external pool |
    /// | `SHOP_DB_FLEET_SEATS_COUNT`, `_FLEET_SEATS_LEASE`, `_FLEET_SEATS_WAIT`, `_FLEET_SEATS_TABLE`, `_FLEET_SEATS_URL` | the fields of `[fleet.seats]` |
    /// | `SHOP_DB_BOOT_WHEN_UNAVAILABLE`, `_BOOT_WAIT`, `_BOOT_CHECK_TIMEOUT` | the fields of `[boot]` |
    /// | `SHOP_DB_BOOT_SILENCE` | `shared_server,max_lifetime`: the warnings that are not given |
    /// | `SHOP_DB_BUDGETS` | `main,reports`: the budgets that partitions share; default none |
    /// | `SHOP_DB_BUDGET_MAIN_CAPACITY`, `_BUDGET_MAIN_HAND_OVER` | the fields of a budget, whose name is in upper case, with `_` for `-` |
    /// | `SHOP_DB_PARTITIONS` | `transactional,analytical,batch`: the partitions in their order; default the two |
    /// | `SHOP_DB_TRANSACTIONAL_MAX_CONNECTIONS`, `SHOP_DB_BATCH_KIND`, ... | the fields of a partition, whose name is in upper case, with `_` for `-` |
    /// | `SHOP_DB_BATCH_SETTINGS_WORK_MEM`, `SHOP_DB_BATCH_SETTINGS_PG_TRGM__SIMILARITY_THRESHOLD`, ... | the settings of its sessions, with `__` for `.` |
    /// | `SHOP_DB_BATCH_POOLER_MODE`, ... | the fields of its `[partition.pooler]` |
    ///
    /// # Errors
    /// Every variable with the prefix that is unknown, or whose value is not UTF-8 or not of its type. No value
    /// is repeated in a message. What is missing or out of range is for [`resolve`](Self::resolve) to say.
    pub fn from_env(prefix: &str) -> Result<Self, ConfigError> {
        Self::default().apply_env(prefix)
    }

    /// [`from_env`](Self::from_env) on the given variables instead of the process's; others are left alone.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PoolConfig;
    ///
    /// let variables = [("SHOP_DB_SERVISE".to_owned(), "shop".to_owned())];
    /// let error = PoolConfig::from_vars("SHOP_DB", variables).unwrap_err();
    /// assert_eq!(error.problems()[0].field, "SHOP_DB_SERVISE");
    /// ```
    pub fn from_vars(
        prefix: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        Self::default().apply_vars(prefix, variables)
    }

    /// Overrides this configuration, usually read from a file, with environment variables.
    ///
    /// The variables are those of [`from_env`](Self::from_env); each replaces one field, and
    /// `.._FLEET_EXTERNAL` the whole list. A configuration that has partitions keeps them in their order, so
    /// `.._PARTITIONS` is then an error; and so is `.._BUDGETS` if it has budgets.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    ///
    /// # Examples
    /// A file for everything but the URL, which is a secret:
    /// ```
    /// use partitioned_pool::config::{ConfigError, PoolConfig, Settings};
    ///
    /// fn settings() -> Result<Settings, ConfigError> {
    ///     PoolConfig::from_toml_file("pool.toml")?.apply_env("SHOP_DB")?.resolve()
    /// }
    /// ```
    pub fn apply_env(self, prefix: &str) -> Result<Self, ConfigError> {
        self.apply_os_vars(prefix, std::env::vars_os())
    }

    /// [`apply_env`](Self::apply_env) with the given variables instead of the process's.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn apply_vars(
        self,
        prefix: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let variables = variables.into_iter();
        self.apply_os_vars(
            prefix,
            variables.map(|(name, value)| (name.into(), value.into())),
        )
    }

    fn apply_os_vars(
        self,
        prefix: &str,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        check_prefix(prefix)?;
        let mut reader = Reader {
            prefix,
            config: self,
            problems: Vec::new(),
        };
        let variables = reader.decode(variables);
        reader.list_budgets(&variables);
        reader.list_partitions(&variables);
        reader.refuse_ambiguous_names();
        reader.apply(&variables);
        reader.config.origins.note_variables(prefix);
        ConfigError::check(reader.problems)?;
        Ok(reader.config)
    }
}

/// The variable that states `field`.
pub(super) fn variable(prefix: &str, field: &str) -> String {
    let rest = match field.split_once('.') {
        _ if field.starts_with(ExternalPool::LIST) => ExternalPool::LIST,
        Some((PartitionConfig::LIST, field)) if field.contains('.') => {
            return format!("{prefix}_{}", upper(&with_dots_doubled(field)));
        }
        Some((BudgetConfig::LIST, rest)) if rest.contains('.') => field,
        _ if field.starts_with(PartitionConfig::LIST) => "partitions",
        _ if field.starts_with(BudgetConfig::LIST) => "budgets",
        _ => field,
    };
    format!("{prefix}_{}", upper(rest))
}

/// The dots in the name of a setting, which is the third part of its field, as a variable writes them.
fn with_dots_doubled(field: &str) -> String {
    let between = format!(".{}.", session::TABLE);
    match field.split_once(&between) {
        Some((partition, name)) => format!("{partition}{between}{}", name.replace('.', "__")),
        None => field.to_owned(),
    }
}

/// The setting that the end of a variable's name means: `settings_work_mem` is `settings.work_mem`.
fn in_table(key: &str, table: Option<&str>) -> Option<String> {
    let name = key.strip_prefix(table?)?.strip_prefix('_')?;
    Some(format!("{}.{}", table?, name.replace("__", ".")))
}

fn upper(name: &str) -> String {
    name.to_ascii_uppercase().replace(['-', '.'], "_")
}

fn check_prefix(prefix: &str) -> Result<(), ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !prefix.is_empty() && !prefix.ends_with('_') && prefix.chars().all(allowed) {
        return Ok(());
    }
    let problem =
        "the prefix of the variables is of letters, digits and _, and does not end with _";
    Err(Problem::new(printable(prefix), problem).into())
}

/// A variable: its name without prefix, and its value.
type Variable = (String, String);

struct Reader<'a> {
    prefix: &'a str,
    config: PoolConfig,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    /// The variables with the prefix; in the order of their names, so that messages have an order.
    fn decode(&mut self, variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<Variable> {
        let mut found = Vec::new();
        for (name, value) in variables {
            let name = name.to_string_lossy();
            let rest = name
                .strip_prefix(self.prefix)
                .and_then(|rest| rest.strip_prefix('_'));
            match (rest, value.into_string()) {
                (None, _) => {}
                (Some(rest), Ok(value)) => found.push((rest.to_owned(), value)),
                (Some(rest), Err(_)) => self.report(rest, "its value is not UTF-8"),
            }
        }
        found.sort();
        found
    }

    /// Makes sure that each budget which a variable can name is there.
    fn list_budgets(&mut self, variables: &[Variable]) {
        match variables.iter().find(|(name, _)| name == "BUDGETS") {
            None => {}
            Some(_) if !self.config.budgets.is_empty() => {
                self.report("BUDGETS", "the configuration has budgets already; unset it");
            }
            Some((_, names)) => {
                for name in self.listed("BUDGETS", names, "main,reports") {
                    self.config.budgets.push(BudgetConfig {
                        name: Some(name),
                        ..BudgetConfig::default()
                    });
                }
            }
        }
    }

    /// Makes sure that each partition which a variable can name is there.
    fn list_partitions(&mut self, variables: &[Variable]) {
        match variables.iter().find(|(name, _)| name == "PARTITIONS") {
            None => self.add_partitions([TRANSACTIONAL, ANALYTICAL].into_iter()),
            Some(_) if !self.config.partitions.is_empty() => {
                self.report(
                    "PARTITIONS",
                    "the configuration has partitions already, and keeps their order; unset it",
                );
            }
            Some((_, names)) => {
                for name in self.listed("PARTITIONS", names, "transactional,analytical,batch") {
                    self.add_partition(&name);
                }
            }
        }
    }

    /// The names in the value of a variable; none if it is no list of names.
    fn listed(&mut self, variable: &str, names: &str, example: &str) -> Vec<String> {
        let names: Vec<_> = names.split(',').map(str::trim).collect();
        if names.iter().all(|name| is_name(name)) {
            return names.into_iter().map(str::to_owned).collect();
        }
        let problem = format!("expected names with commas between, such as {example}");
        self.report(variable, problem);
        Vec::new()
    }

    fn add_partitions<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        for name in names {
            if !self
                .config
                .partitions
                .iter()
                .any(|partition| partition.name() == Some(name))
            {
                self.add_partition(name);
            }
        }
    }

    fn add_partition(&mut self, name: &str) {
        let name = Some(name.to_owned());
        self.config.partitions.push(PartitionConfig {
            name,
            ..PartitionConfig::default()
        });
    }

    fn refuse_ambiguous_names(&mut self) {
        let owned = |(_, name): (usize, &str)| name.to_owned();
        let budgets: Vec<_> = names(&self.config.budgets).map(owned).collect();
        let partitions: Vec<_> = names(&self.config.partitions).map(owned).collect();
        self.refuse_twins("budgets", "BUDGET_", &budgets);
        self.refuse_twins("partitions", "", &partitions);
        for name in &partitions {
            let own = upper(name);
            let is_in = |table: &str| own == table || own.starts_with(&format!("{table}_"));
            if ["FLEET", "BOOT", "BUDGET", "POOLER"].into_iter().any(is_in) {
                let problem = format!(
                    "is ambiguous: rename the partition {name}, whose variables are not its own"
                );
                self.report(&own, problem);
            }
        }
    }

    fn refuse_twins(&mut self, list: &str, before: &str, names: &[String]) {
        for (index, name) in names.iter().enumerate() {
            let own = upper(name);
            let is_twin = |other: &&String| *other != name && upper(other) == own;
            if let Some(twin) = names[..index].iter().find(is_twin) {
                let problem =
                    format!("is ambiguous: the {list} {twin} and {name} have the same variables");
                self.report(&format!("{before}{own}"), problem);
            }
        }
    }

    fn apply(&mut self, variables: &[Variable]) {
        if variables
            .iter()
            .any(|(name, value)| name == "BOOT_WHEN_UNAVAILABLE" && value != "wait")
        {
            self.config.boot.wait = None;
        }
        let is_list = |name: &str| name == "PARTITIONS" || name == "BUDGETS";
        for (name, value) in variables.iter().filter(|(name, _)| !is_list(name)) {
            if let Err(problem) = self.apply_one(name, value) {
                self.report(name, problem);
            }
        }
    }

    fn apply_one(&mut self, name: &str, value: &str) -> Result<(), String> {
        if name == "FLEET_EXTERNAL" {
            return self.external_pools(value);
        }
        if name == "BOOT_SILENCE" {
            return self.silence(value);
        }
        let (part, key) = self.target(name).ok_or_else(|| self.unknown())?;
        let value = Leaf::Untyped(value);
        let config = &mut self.config;
        let (path, result) = match part {
            Part::Pool => (key.clone(), config.set(&key, value)),
            Part::Pooler => {
                let pooler = config.pooler.get_or_insert_default();
                (format!("{POOLER}.{key}"), pooler.set(&key, value))
            }
            Part::Fleet => (format!("fleet.{key}"), config.fleet.set(&key, value)),
            Part::Seats => {
                let seats = config.fleet.seats.get_or_insert_default();
                (format!("fleet.seats.{key}"), seats.set(&key, value))
            }
            Part::Boot => (format!("boot.{key}"), config.boot.set(&key, value)),
            Part::Budget(index) => set_one(&mut config.budgets, index, &key, value),
            Part::Partition(index) => set_one(&mut config.partitions, index, &key, value),
        };
        result.map_err(|error| error.to_string())?;
        self.config.origins.note(path, self.full(name));
        Ok(())
    }

    /// The part of the configuration, and its field, that a variable means.
    fn target(&self, name: &str) -> Option<(Part, String)> {
        if name.contains(|c: char| c.is_ascii_lowercase()) {
            return None;
        }
        let key = name.to_ascii_lowercase();
        if key == "service" || key == "url" {
            return Some((Part::Pool, key));
        }
        if let Some(name) = name.strip_prefix("BUDGET_") {
            let (index, key) = target_of(&self.config.budgets, name)?;
            return Some((Part::Budget(index), key));
        }
        let tables = [
            ("pooler_", Part::Pooler),
            ("fleet_seats_", Part::Seats),
            ("fleet_", Part::Fleet),
            ("boot_", Part::Boot),
        ];
        let table = tables
            .into_iter()
            .find_map(|(table, part)| Some((part, key.strip_prefix(table)?.to_owned())));
        let partition = |(index, key)| (Part::Partition(index), key);
        table.or_else(|| target_of(&self.config.partitions, name).map(partition))
    }

    fn external_pools(&mut self, text: &str) -> Result<(), String> {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        let pools = items.map(external_pool).collect::<Option<Vec<_>>>();
        let pools =
            pools.ok_or("expected name=size with commas between, such as jobs=4,sessions=2")?;
        for (index, pool) in pools.iter().enumerate() {
            for field in ["", ".name", ".size"] {
                let origin = self.full("FLEET_EXTERNAL");
                self.config
                    .origins
                    .note(format!("{}{field}", pool.path(index)), origin);
            }
        }
        self.config.fleet.external = pools;
        Ok(())
    }

    fn silence(&mut self, text: &str) -> Result<(), String> {
        let codes = text
            .split(',')
            .map(str::trim)
            .filter(|code| !code.is_empty());
        let codes = codes.map(WarningCode::read).collect::<Result<_, _>>()?;
        self.config.boot.silence = Some(codes);
        let origin = self.full("BOOT_SILENCE");
        self.config.origins.note("boot.silence".to_owned(), origin);
        Ok(())
    }

    fn unknown(&self) -> String {
        let partitions = names(&self.config.partitions);
        let partitions = partitions.map(|(_, name)| format!("{}_..", upper(name)));
        let partitions = partitions.collect::<Vec<_>>().join(", ");
        format!(
            "unknown variable; known after {}_ are SERVICE, URL, POOLER_.., FLEET_.., BOOT_.., BUDGETS, BUDGET_<name>_.., \
             PARTITIONS, and of the partitions {partitions}",
            self.prefix
        )
    }

    fn full(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    fn report(&mut self, name: &str, problem: impl Into<String>) {
        self.problems
            .push(Problem::new(printable(&self.full(name)), problem));
    }
}

/// The part of the configuration that a variable means.
#[derive(Debug, Clone, Copy)]
enum Part {
    Pool,
    Pooler,
    Fleet,
    Seats,
    Boot,
    /// By its index.
    Budget(usize),
    /// By its index.
    Partition(usize),
}

/// Each of a list that has a name which can be part of a variable, with its index.
fn names<T: Named>(list: &[T]) -> impl Iterator<Item = (usize, &str)> {
    let indexed = list.iter().enumerate();
    let named = indexed.filter_map(|(index, item)| Some((index, item.name()?)));
    named.filter(|(_, name)| is_name(name))
}

/// The one of a list, and its field, that a variable means.
///
/// One name may begin with another, so a field that exists is looked for before one that does not.
fn target_of<T: Named>(list: &[T], variable: &str) -> Option<(usize, String)> {
    let candidates = names(list).filter_map(|(index, name)| {
        let key = variable.strip_prefix(&upper(name))?.strip_prefix('_')?;
        Some((index, key.to_ascii_lowercase()))
    });
    let candidates: Vec<_> = candidates.filter(|(_, key)| key != "name").collect();
    let known = candidates.iter().find(|(_, key)| is_field_of::<T>(key));
    let in_table = || {
        let mut all = candidates.iter();
        all.find_map(|(index, key)| Some((*index, in_table(key, T::TABLE)?)))
    };
    let known = known.cloned().or_else(in_table);
    known.or_else(|| candidates.first().cloned())
}

fn set_one<T: Named>(
    list: &mut [T],
    index: usize,
    key: &str,
    value: Leaf<'_>,
) -> (String, Result<(), LeafError>) {
    let item = &mut list[index];
    let path = item.path(index);
    match pooler_key::<T>(key).and_then(|key| Some((key, item.pooler()?))) {
        Some((key, pooler)) => (format!("{path}.{POOLER}.{key}"), pooler.set(key, value)),
        None => (format!("{path}.{key}"), item.set(key, value)),
    }
}

fn is_field_of<T: Named>(key: &str) -> bool {
    let of_pooler = |key| fields_of::<PoolerConfig>().contains(&key);
    fields_of::<T>().contains(&key) || pooler_key::<T>(key).is_some_and(of_pooler)
}

/// The field of the pooler within a `T` that a key means, if a `T` has one.
fn pooler_key<T: Named>(key: &str) -> Option<&str> {
    let has_pooler = fields_of::<T>().contains(&POOLER);
    let key = key.strip_prefix(POOLER)?.strip_prefix('_')?;
    has_pooler.then_some(key)
}

fn external_pool(item: &str) -> Option<ExternalPool> {
    let (name, size) = item.split_once('=')?;
    Some(ExternalPool::new(name.trim(), size.trim().parse().ok()?))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_value_that_is_not_utf8_is_an_error_that_names_the_variable() {
        let variables = [("SHOP_DB_URL".into(), OsString::from_vec(vec![b's', 0xff]))];
        let error = PoolConfig::default()
            .apply_os_vars("SHOP_DB", variables.into_iter())
            .unwrap_err();
        assert_eq!(error.problems()[0].field, "SHOP_DB_URL");
        assert_eq!(error.problems()[0].problem, "its value is not UTF-8");
    }

    #[test]
    fn values_of_other_variables_may_be_anything() {
        let variables = [("OTHER".into(), OsString::from_vec(vec![0xff]))];
        assert!(
            PoolConfig::default()
                .apply_os_vars("SHOP_DB", variables.into_iter())
                .is_ok()
        );
    }

    #[test]
    fn a_field_has_one_variable() {
        for (field, name) in [
            ("url", "SHOP_DB_URL"),
            ("fleet.max_replicas", "SHOP_DB_FLEET_MAX_REPLICAS"),
            ("fleet.external.jobs.size", "SHOP_DB_FLEET_EXTERNAL"),
            (
                "partition.batch-night.max_hold",
                "SHOP_DB_BATCH_NIGHT_MAX_HOLD",
            ),
            (
                "partition.batch-night.settings.work_mem",
                "SHOP_DB_BATCH_NIGHT_SETTINGS_WORK_MEM",
            ),
            (
                "partition.batch.settings.pg_trgm.similarity_threshold",
                "SHOP_DB_BATCH_SETTINGS_PG_TRGM__SIMILARITY_THRESHOLD",
            ),
            ("partition.batch", "SHOP_DB_PARTITIONS"),
            ("pooler.mode", "SHOP_DB_POOLER_MODE"),
            ("partition.batch.pooler.mode", "SHOP_DB_BATCH_POOLER_MODE"),
            ("budget.main.hand_over", "SHOP_DB_BUDGET_MAIN_HAND_OVER"),
            ("budget.main", "SHOP_DB_BUDGETS"),
            ("budget[2].name", "SHOP_DB_BUDGETS"),
            ("partition[2].name", "SHOP_DB_PARTITIONS"),
        ] {
            assert_eq!(variable("SHOP_DB", field), name);
        }
    }
}
