//! What AWS does with a signed request: Signature Version 4, checked by what its documentation says and nothing of the code
//! that signs.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "it is part of tests")]

use hmac::{Hmac, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sha2::{Digest, Sha256};

use crate::front::Asked;

/// All but what AWS leaves as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// So long a signature is good, before and after its time.
const GOOD_FOR_S: i64 = 5 * 60;

/// Who may ask, and for what.
#[derive(Debug, Clone)]
pub struct Account {
    pub key_id: String,
    pub secret: String,
    pub token: Option<String>,
    pub region: &'static str,
    pub service: &'static str,
}

/// Whether the request is signed by that account, at this time in seconds since 1970.
pub fn verify(asked: &Asked, account: &Account, now: i64) -> Result<(), &'static str> {
    let signed = asked.authorization().strip_prefix("AWS4-HMAC-SHA256 ");
    let signed = signed.ok_or("Missing Authentication Token")?;
    let part = |name: &str| {
        let mut parts = signed.split(',').map(str::trim);
        parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    };
    let scope = part("Credential").ok_or("no credential")?;
    let names = part("SignedHeaders").ok_or("no signed headers")?;
    let signature = part("Signature").ok_or("no signature")?;

    let date = asked.header("x-amz-date").ok_or("no date")?;
    let at = seconds(date).ok_or("the date cannot be read")?;
    if (now - at).abs() > GOOD_FOR_S {
        return Err("Signature expired");
    }
    let (key_id, scope) = scope.split_once('/').ok_or("no scope")?;
    if key_id != account.key_id {
        return Err("The security token included in the request is invalid");
    }
    let (day, region, service) = (&date[..8], account.region, account.service);
    if scope != format!("{day}/{region}/{service}/aws4_request") {
        return Err("Credential should be scoped correctly");
    }
    if asked.header("x-amz-security-token") != account.token.as_deref() {
        return Err("The security token included in the request is invalid");
    }
    let names: Vec<&str> = names.split(';').collect();
    let must = |name: &str| name == "host" || name.starts_with("x-amz-");
    let given = asked.headers.iter().map(|(name, _)| name.as_str());
    if !given
        .filter(|name| must(name))
        .all(|name| names.contains(&name))
    {
        return Err("a header is not signed");
    }
    let body = hex(&Sha256::digest(&asked.body));
    if asked
        .header("x-amz-content-sha256")
        .is_some_and(|it| it != body)
    {
        return Err("the body is another");
    }
    let canonical = canonical(asked, &names, &body);
    let canonical = hex(&Sha256::digest(canonical));
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{canonical}");
    let mut key = format!("AWS4{}", account.secret).into_bytes();
    for step in [day, region, service, "aws4_request"] {
        key = hmac(&key, step);
    }
    if hex(&hmac(&key, &text)) == signature {
        Ok(())
    } else {
        Err("The request signature we calculated does not match the signature you provided")
    }
}

fn canonical(asked: &Asked, names: &[&str], body: &str) -> String {
    let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
    // What came is encoded once more, as everywhere but in S3.
    let encoded = |text: &[u8]| percent_encode(text, ENCODED).to_string();
    let segments: Vec<String> = path.split('/').map(|it| encoded(it.as_bytes())).collect();
    let again = |text: &str| encoded(&percent_decode_str(text).collect::<Vec<u8>>());
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<(String, String)> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (again(name), again(value)))
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let headers: String = names
        .iter()
        .map(|name| {
            let value = asked.header(name).unwrap_or_default();
            let words: Vec<&str> = value.split(' ').filter(|word| !word.is_empty()).collect();
            format!("{name}:{}\n", words.join(" "))
        })
        .collect();
    let (method, path, query) = (&asked.method, segments.join("/"), pairs.join("&"));
    let names = names.join(";");
    format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{body}")
}

/// `20150830T123600Z` in seconds since 1970.
fn seconds(date: &str) -> Option<i64> {
    if date.len() != 16 || !date.is_ascii() {
        return None;
    }
    let number = |from: usize, to: usize| date[from..to].parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
    // Years begin in March, so that a leap day is the last.
    let (year, month) = if month < 3 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
