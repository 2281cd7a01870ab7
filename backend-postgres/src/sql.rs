//! What the server runs, each part in a file of its own, and the statements that call it.

use std::fmt::Write as _;

use lockcore::backend::Namespace;

/// The version of the stored shape.
pub(crate) const VERSION: i64 = 3;
/// What makes the stored shape from nothing. Nothing brings it there from an older version, whose programs do not see who waits.
const SCHEMA: &str = include_str!("../server/schema.sql");
/// The functions, which are made anew where their text is another one. One that takes or returns something else than before
/// has another name, or belongs to another version: programs live that call the one before.
const FUNCTIONS: &[&str] = &[
    include_str!("../server/common.sql"),
    include_str!("../server/wakeups.sql"),
    include_str!("../server/sessions.sql"),
    include_str!("../server/claims.sql"),
    include_str!("../server/inspect.sql"),
    include_str!("../server/revoke.sql"),
];
const GRANT: &str = include_str!("../server/grant.sql");
/// Of every function that is called from outside. Plans are made for tables that were found empty or huge alike.
const SETTINGS: &str = "SET search_path = pg_catalog, {ns}, pg_temp \
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off \
    SET enable_mergejoin = off SET enable_material = off SET jit = off";
/// What the functions for one flat key need of them, whose statements join nothing: each costs a microsecond.
const FEWER_SETTINGS: &str = "SET search_path = pg_catalog, {ns}, pg_temp \
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off";

/// What makes a namespace, from nothing but perhaps an empty schema; of one that is there, what brings its functions up to
/// date.
pub(crate) fn migration(namespace: &Namespace, is_there: bool, exists: bool) -> String {
    let mut text = String::new();
    if !exists {
        text += "CREATE SCHEMA {ns};\n";
    }
    if !is_there {
        text += SCHEMA;
    }
    text.extend(FUNCTIONS.iter().copied());
    let made_by = made_by();
    let _ = write!(text, "\nCOMMENT ON FUNCTION {{ns}}.about() IS '{made_by}';");
    for_namespace(&text, namespace)
}

/// What is said of the functions in a namespace: the program's version, and a number that is another one with their text.
fn made_by() -> String {
    let all = FUNCTIONS.iter().chain([&SETTINGS, &FEWER_SETTINGS]);
    let bytes = all.flat_map(|text| text.bytes());
    // FNV-1a.
    let number = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |number, byte| {
        (number ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("lockkeeper {} {number:016x}", env!("CARGO_PKG_VERSION"))
}

/// Whether functions of which this is said have to make way for ours. Those of a newer program do not: it would put them
/// back.
pub(crate) fn make_way(said: Option<&str>) -> bool {
    let ours = made_by();
    said != Some(&ours) && said.and_then(version) <= version(&ours)
}

fn version(said: &str) -> Option<Vec<u64>> {
    let version = said.strip_prefix("lockkeeper ")?.split([' ', '-', '+']);
    let numbers = version.take(1).flat_map(|version| version.split('.'));
    numbers.map(|number| number.parse().ok()).collect()
}

/// What asks whether all that is called from outside is there, and may be called.
pub(crate) fn fits(namespace: &Namespace) -> String {
    let signatures = GRANT.lines().filter_map(|line| {
        let line = line.trim_end_matches(',');
        line.strip_prefix("    {ns}.")
    });
    let all: Vec<String> = signatures
        .map(|called| format!("'{{ns}}.{called}'"))
        .collect();
    let text = format!(
        "SELECT bool_and(coalesce(has_function_privilege(to_regprocedure(called), 'EXECUTE'), false)) AS r_fits
         FROM unnest(ARRAY[{}]) called",
        all.join(",")
    );
    for_namespace(&text, namespace)
}

/// What gives a role the rights that it needs.
pub(crate) fn grant(namespace: &Namespace, role: &str) -> String {
    for_namespace(GRANT, namespace).replace("{role}", &identifier(role))
}

fn for_namespace(text: &str, namespace: &Namespace) -> String {
    text.replace("{settings}", SETTINGS)
        .replace("{fewer_settings}", FEWER_SETTINGS)
        .replace("{ns}", &identifier(namespace.as_str()))
        .replace("{name}", namespace.as_str())
}

/// A name as the server reads it.
pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// An argument of a function.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Flag(bool),
    Int(i64),
    MaybeInt(Option<i64>),
    Ints(Vec<Option<i64>>),
    Text(Option<String>),
    Texts(Vec<String>),
    Bytes(Vec<u8>),
    ManyBytes(Vec<Vec<u8>>),
}

impl Value {
    /// The value as a part of a statement. Nothing of what it says can be taken for anything else: it is in hex.
    pub(crate) fn literal(&self, text: &mut String) {
        let _ = match self {
            Value::Flag(flag) => write!(text, "{flag}"),
            Value::Int(number) => literal_int(text, Some(*number)),
            Value::MaybeInt(number) => literal_int(text, *number),
            Value::Ints(numbers) => list(text, numbers, "bigint", |text, number| {
                literal_int(text, *number)
            }),
            Value::Text(None) => write!(text, "NULL::text"),
            Value::Text(Some(value)) => literal_text(text, value),
            Value::Texts(values) => list(text, values, "text", |text, value| {
                literal_text(text, value)
            }),
            Value::Bytes(bytes) => literal_bytes(text, bytes),
            Value::ManyBytes(many) => list(text, many, "bytea", |text, bytes| {
                literal_bytes(text, bytes)
            }),
        };
    }
}

fn list<T>(
    text: &mut String,
    values: &[T],
    of: &str,
    mut each: impl FnMut(&mut String, &T) -> std::fmt::Result,
) -> std::fmt::Result {
    text.push_str("ARRAY[");
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        each(text, value)?;
    }
    write!(text, "]::{of}[]")
}

fn literal_int(text: &mut String, number: Option<i64>) -> std::fmt::Result {
    match number {
        Some(number) => write!(text, "'{number}'::bigint"),
        None => write!(text, "NULL::bigint"),
    }
}

fn literal_bytes(text: &mut String, bytes: &[u8]) -> std::fmt::Result {
    text.push_str("decode('");
    for byte in bytes {
        write!(text, "{byte:02x}")?;
    }
    text.write_str("','hex')")
}

fn literal_text(text: &mut String, value: &str) -> std::fmt::Result {
    text.push_str("convert_from(");
    literal_bytes(text, value.as_bytes())?;
    text.write_str(",'UTF8')")
}

/// A call of one of the functions.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) function: &'static str,
    pub(crate) values: Vec<Value>,
    /// One of the values is nothing for a log.
    pub(crate) secret: bool,
}

impl Call {
    pub(crate) fn new(function: &'static str, values: impl Into<Vec<Value>>) -> Self {
        Self {
            function,
            values: values.into(),
            secret: false,
        }
    }

    /// The statement with a parameter for each value.
    pub(crate) fn with_parameters(&self, schema: &str) -> String {
        let mut text = format!("SELECT * FROM {schema}.{}(", self.function);
        for number in 1..=self.values.len() {
            let comma = if number > 1 { "," } else { "" };
            let _ = write!(text, "{comma}${number}");
        }
        text + ")"
    }

    /// The statement with the values in it.
    pub(crate) fn with_literals(&self, schema: &str) -> String {
        let mut text = format!("SELECT * FROM {schema}.{}(", self.function);
        for (at, value) in self.values.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            value.literal(&mut text);
        }
        text + ")"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_the_same_with_parameters_and_with_literals() {
        let call = Call::new(
            "f",
            [
                Value::Flag(true),
                Value::Int(-5),
                Value::MaybeInt(None),
                Value::Ints(vec![Some(1), None]),
                Value::Text(Some("a'é".into())),
                Value::Text(None),
                Value::Texts(vec!["\\".into(), String::new()]),
                Value::Bytes(vec![0, 255]),
                Value::ManyBytes(vec![]),
            ],
        );
        assert_eq!(
            call.with_parameters("\"n\""),
            "SELECT * FROM \"n\".f($1,$2,$3,$4,$5,$6,$7,$8,$9)"
        );
        assert_eq!(
            call.with_literals("\"n\""),
            "SELECT * FROM \"n\".f(true,'-5'::bigint,NULL::bigint,ARRAY['1'::bigint,NULL::bigint]::bigint[],\
             convert_from(decode('6127c3a9','hex'),'UTF8'),NULL::text,\
             ARRAY[convert_from(decode('5c','hex'),'UTF8'),convert_from(decode('','hex'),'UTF8')]::text[],\
             decode('00ff','hex'),ARRAY[]::bytea[])"
        );
    }

    #[test]
    fn functions_make_way_for_those_of_a_program_that_is_not_older() {
        let ours = made_by();
        let (_, number) = ours.rsplit_once(' ').unwrap();
        let own = env!("CARGO_PKG_VERSION");
        for (said, expected) in [
            (ours.clone(), false),
            (format!("lockkeeper {own} 0"), true),
            (format!("lockkeeper 0.0.999 {number}"), true),
            (format!("lockkeeper {own}.1 {number}"), false),
            (format!("lockkeeper 10{own}-rc.1 0"), false),
            ("lockkeeper x.1 0".to_owned(), true),
            ("a comment".to_owned(), true),
        ] {
            assert_eq!(make_way(Some(&said)), expected, "{said}");
        }
        assert!(make_way(None));
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
        let sql = grant(&Namespace::parse("fs-1").unwrap(), "a\"; DROP TABLE x");
        assert!(sql.contains("SCHEMA \"fs-1\" TO \"a\"\"; DROP TABLE x\";"));
        assert!(!sql.contains('{'));
        let sql = migration(&Namespace::parse("fs-1").unwrap(), false, false);
        for word in ["{ns}", "{settings}", "{fewer_settings}", "{name}"] {
            assert!(!sql.contains(word), "{word}");
        }
    }
}
