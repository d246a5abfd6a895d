//! Reading TOML. The messages are our own: toml's `Display` quotes the source line, which may hold a password.

use std::{fs, path::Path};

use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue, Error},
};

use super::{
    PoolConfig,
    boot::{BootConfig, WarningCode},
    budget::BudgetConfig,
    error::{ConfigError, Problem, printable},
    fleet::{ExternalPool, FleetConfig},
    leaf::{Leaf, Named, Overlay, POOLER, fields_of},
    origin::Origins,
    partition::PartitionConfig,
    pooler::PoolerConfig,
    seats::SeatsConfig,
};

impl PoolConfig {
    /// Reads a configuration from TOML text.
    ///
    /// # Errors
    /// Every key that is unknown, or whose value is not of its type, with its line; or the first place that
    /// is not TOML. No value is repeated in a message. What is missing, out of range or contradictory is for
    /// [`resolve`](Self::resolve) to say.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PoolConfig;
    ///
    /// let error = PoolConfig::from_toml("[fleet]\nmax_replicas = 'three'").unwrap_err();
    /// assert_eq!(error.problems()[0].field, "fleet.max_replicas");
    /// assert_eq!(error.problems()[0].origin.as_deref(), Some("line 2"));
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Reader::new(text, None).read()
    }

    /// Reads a configuration from a TOML file.
    ///
    /// # Errors
    /// As [`from_toml`](Self::from_toml), with the path beside each line; or that the file cannot be read.
    pub fn from_toml_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let name = path.as_ref().display().to_string();
        let text = fs::read_to_string(&path)
            .map_err(|error| Problem::new(&name, format!("cannot be read: {error}")))?;
        Reader::new(&text, Some(&name)).read()
    }
}

/// A value with its place in the text.
type Value<'a> = Spanned<DeValue<'a>>;

/// A key and a value.
type Entry<'v, 'a> = (&'v Spanned<DeString<'a>>, &'v Value<'a>);

struct Reader<'a> {
    text: &'a str,
    file: Option<&'a str>,
    origins: Origins,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, file: Option<&'a str>) -> Self {
        Self {
            text,
            file,
            origins: Origins::default(),
            problems: Vec::new(),
        }
    }

    fn read(mut self) -> Result<PoolConfig, ConfigError> {
        let root = DeTable::parse(self.text).map_err(|error| self.not_toml(&error))?;
        let mut config = PoolConfig::default();
        for entry @ (key, value) in root.get_ref() {
            match key.get_ref().as_ref() {
                "fleet" => self.fleet(&mut config.fleet, value),
                "boot" => self.boot(&mut config.boot, value),
                "budget" => config.budgets = self.list(value),
                "partition" => config.partitions = self.list(value),
                _ => self.field(&mut config, "", entry),
            }
        }
        ConfigError::check(self.problems)?;
        config.origins = self.origins;
        Ok(config)
    }

    fn fleet(&mut self, fleet: &mut FleetConfig, value: &Value<'_>) {
        for entry @ (key, value) in self.expect_table("fleet", value).into_iter().flatten() {
            match key.get_ref().as_ref() {
                "external" => fleet.external = self.list(value),
                "seats" => self.seats(fleet.seats.get_or_insert_default(), value),
                _ => self.field(fleet, "fleet.", entry),
            }
        }
    }

    fn seats(&mut self, seats: &mut SeatsConfig, value: &Value<'_>) {
        let table = self.expect_table("fleet.seats", value);
        for entry in table.into_iter().flatten() {
            self.field(seats, "fleet.seats.", entry);
        }
    }

    fn boot(&mut self, boot: &mut BootConfig, value: &Value<'_>) {
        for entry @ (key, value) in self.expect_table("boot", value).into_iter().flatten() {
            match value.get_ref() {
                DeValue::Array(codes) if key.get_ref() == "silence" => {
                    boot.silence = Some(codes.iter().filter_map(|code| self.code(code)).collect());
                    self.origins
                        .note("boot.silence".to_owned(), self.place(key.span().start));
                }
                _ => self.field(boot, "boot.", entry),
            }
        }
    }

    fn code(&mut self, value: &Value<'_>) -> Option<WarningCode> {
        let text = value.get_ref().as_str().unwrap_or_default();
        let read = WarningCode::read(text);
        read.map_err(|problem| self.report("boot.silence", value.span().start, problem))
            .ok()
    }

    fn list<T: Named>(&mut self, value: &Value<'_>) -> Vec<T> {
        let DeValue::Array(items) = value.get_ref() else {
            let problem = format!(
                "write [[{}]], with two brackets and a key name, once for each",
                T::LIST
            );
            self.report(T::LIST, value.span().start, problem);
            return Vec::new();
        };
        items
            .iter()
            .enumerate()
            .map(|(index, item)| self.item(index, item))
            .collect()
    }

    /// The name is read first: it is part of the path of every other field.
    fn item<T: Named>(&mut self, index: usize, value: &Value<'_>) -> T {
        let mut item = T::default();
        let Some(table) = self.expect_table(&item.path(index), value) else {
            return item;
        };
        let (name, rest): (Vec<_>, Vec<_>) =
            table.iter().partition(|(key, _)| key.get_ref() == "name");
        for entry @ (key, value) in name.into_iter().chain(rest) {
            let path = format!("{}.", item.path(index));
            match (T::TABLE, value.get_ref()) {
                (Some(table), DeValue::Table(entries)) if key.get_ref() == table => {
                    for entry in entries {
                        self.entry(&mut item, &format!("{path}{table}."), table, entry);
                    }
                }
                _ => self.field(&mut item, &path, entry),
            }
        }
        self.origins
            .note(item.path(index), self.place(value.span().start));
        item
    }

    fn field<T: Overlay>(&mut self, target: &mut T, path: &str, entry: Entry<'_, '_>) {
        let key: &str = entry.0.get_ref();
        self.state(target, path, key, entry);
    }

    /// An entry of a table of `target` that is a statement of its own.
    fn entry<T: Overlay>(&mut self, target: &mut T, path: &str, table: &str, entry: Entry<'_, '_>) {
        let key = format!("{table}.{}", entry.0.get_ref());
        self.state(target, path, &key, entry);
    }

    fn state<T: Overlay>(
        &mut self,
        target: &mut T,
        path: &str,
        stated: &str,
        (key, value): Entry<'_, '_>,
    ) {
        let at = key.span().start;
        let field = format!("{path}{}", printable(key.get_ref()));
        if stated == POOLER
            && let Some(pooler) = target.pooler()
        {
            self.origins.note(field.clone(), self.place(at));
            for entry in self.expect_table(&field, value).into_iter().flatten() {
                self.field(pooler, &format!("{field}."), entry);
            }
            return;
        }
        match target.set(stated, leaf(value.get_ref())) {
            Ok(()) => self.origins.note(field, self.place(at)),
            Err(error) => self.report(&field, at, error.to_string()),
        }
    }

    fn expect_table<'v, 't>(
        &mut self,
        field: &str,
        value: &'v Value<'t>,
    ) -> Option<&'v DeTable<'t>> {
        if let DeValue::Table(table) = value.get_ref() {
            return Some(table);
        }
        self.report(field, value.span().start, "expected a table");
        None
    }

    fn report(&mut self, field: &str, at: usize, problem: impl Into<String>) {
        self.problems
            .push(Problem::new(field, problem).at(self.place(at)));
    }

    fn not_toml(&self, error: &Error) -> Problem {
        let at = error.span().map_or(0, |span| span.start);
        let problem = format!("is not TOML: {}", error.message());
        Problem::new(self.field_of_line(at), problem).at(self.place(at))
    }

    /// The field on the line of this byte, so that the message names one although nothing was parsed. Only a
    /// known one: without a parser, what stands before a `=` may be a part of a password.
    fn field_of_line(&self, at: usize) -> &str {
        let line = self.text.lines().nth(self.line(at) - 1).unwrap_or_default();
        let key = line.split('=').next().unwrap_or_default().trim();
        if is_field(key) { key } else { "the text" }
    }

    fn place(&self, at: usize) -> String {
        let line = self.line(at);
        self.file.map_or_else(
            || format!("line {line}"),
            |file| format!("{file} line {line}"),
        )
    }

    fn line(&self, at: usize) -> usize {
        self.text
            .get(..at)
            .unwrap_or_default()
            .matches('\n')
            .count()
            + 1
    }
}

fn is_field(key: &str) -> bool {
    let tables = [
        fields_of::<PoolConfig>(),
        fields_of::<FleetConfig>(),
        fields_of::<ExternalPool>(),
        fields_of::<SeatsConfig>(),
        fields_of::<BootConfig>(),
        fields_of::<BudgetConfig>(),
        fields_of::<PartitionConfig>(),
        fields_of::<PoolerConfig>(),
    ];
    tables.iter().any(|fields| fields.contains(&key))
}

fn leaf<'a>(value: &'a DeValue<'_>) -> Leaf<'a> {
    match value {
        DeValue::String(text) => Leaf::Text(text),
        DeValue::Integer(number) => {
            Leaf::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok())
        }
        DeValue::Float(number) => Leaf::Fraction(number.as_str()),
        DeValue::Boolean(flag) => Leaf::Flag(*flag),
        DeValue::Datetime(_) => Leaf::Other("a date"),
        DeValue::Array(_) => Leaf::Other("an array"),
        DeValue::Table(_) => Leaf::Other("a table"),
    }
}
