//! The instructions Lodge adds: LIMIT, NETWORK, MCP, SKILL, SERVICE, SCHEDULE and ON.
//!
//! Owns: what each takes and what it does to the document. Never: decides whether what it asks for is granted.

use super::cursor::{KeyValue, LocatedWord, PairValue, TokenCursor};
use super::directives::{bin_source, hold, image_ref, path_name};
use super::document::{
    Agentfile, Mcp, McpSource, NetworkAccess, On, Schedule, Service, ServiceNeed, put, put_once,
};
use super::limit::{Limit, LimitKey};
use super::mistake::{FormMistake, NameOf, ValueMistake};
use super::rules;

pub(super) fn limit(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let LocatedWord { at, text } = cursor.word("a key")?;
    let Some(key) = LimitKey::read(&text) else {
        cursor.fault(at, ValueMistake::UnknownLimit { found: text });
        return None;
    };
    let value = cursor.word_or_text("a value")?;
    match Limit::read(key, &value.text) {
        Ok(limit) => {
            let repeated = put_once(&mut doc.limits, cursor.at(at, limit));
            refuse_second(cursor, at, Some(key.word()), repeated);
        }
        Err(mistake) => cursor.fault(value.at, mistake),
    }
    Some(())
}

pub(super) fn network(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let first = cursor.word("`none`, `public`, `lan`, `host` or a list of hosts")?;
    let first_at = first.at;
    let mut words = vec![first];
    while let Some(word) = cursor.word_if_any() {
        words.push(word);
    }
    let hosts = split_at_commas(words);
    let value = match hosts.as_slice() {
        [] => return cursor.missing("a host"),
        [only] if let Some(network) = NetworkAccess::from_word(&only.text) => network,
        _ => {
            for host in &hosts {
                if host.text.starts_with('#') {
                    let (keyword, found) = (cursor.keyword, host.text.clone());
                    cursor.fault(host.at, FormMistake::Unexpected { keyword, found });
                    return None;
                }
                hold(cursor, host.at, rules::network_host(&host.text));
            }
            NetworkAccess::Allow(hosts.into_iter().map(|host| host.text).collect())
        }
    };
    match &doc.network {
        Some(first) => {
            let repeated = Err(first.line);
            refuse_second(cursor, first_at, None, repeated);
        }
        None => doc.network = Some(cursor.at(first_at, value)),
    }
    Some(())
}

pub(super) fn mcp(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let word = cursor.word("a name")?;
    let at = word.at;
    let name = path_name(cursor, word, NameOf::McpServer);
    let target = cursor.word("a URL, an image or `host:program`")?;
    let source = if target.text.contains("://") {
        hold(cursor, target.at, rules::mcp_url(&target.text));
        McpSource::Url(target.text)
    } else {
        let program = bin_source(cursor, target);
        McpSource::Program { program, args: cursor.arguments()? }
    };
    let repeated = put_once(&mut doc.mcps, Mcp { line, name: name.clone(), source });
    refuse_second(cursor, at, Some(&name), repeated);
    Some(())
}

pub(super) fn skill(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let word = cursor.word("a skill")?;
    let at = word.at;
    let value = image_ref(cursor, word);
    put(&mut doc.skills, cursor.at(at, value));
    Some(())
}

pub(super) fn service(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let LocatedWord { at, text: name } = cursor.word("a name")?;
    hold(cursor, at, rules::service_name(&name));
    let word = cursor.word("an image")?;
    let image = image_ref(cursor, word);
    let need = if cursor.flag("optional") { ServiceNeed::Optional } else { ServiceNeed::Required };
    let mut envs: Vec<(String, String)> = Vec::new();
    let mut healthcheck = None;
    while !cursor.is_empty() {
        let KeyValue { key, value } = cursor.pair("`KEY=value`")?;
        match value.map(PairValue::into_string) {
            Some(value) if key.text == "healthcheck" => {
                hold(cursor, key.at, rules::not_empty("healthcheck command", &value));
                healthcheck = Some(value);
            }
            Some(value) if rules::service_env_key(&key.text).is_ok() => {
                match envs.iter_mut().find(|(k, _)| *k == key.text) {
                    Some((_, old)) => *old = value,
                    None => envs.push((key.text, value)),
                }
            }
            Some(_) | None => {
                cursor.fault(key.at, ValueMistake::ServiceOption { found: key.text });
                return None;
            }
        }
    }
    let repeated =
        put_once(&mut doc.services, Service { line, name: name.clone(), image, need, envs, healthcheck });
    refuse_second(cursor, at, Some(&name), repeated);
    Some(())
}

pub(super) fn schedule(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let LocatedWord { at, text: cron } = cursor.word_or_text("a cron expression")?;
    if let Err(mistake) = rules::cron(&cron) {
        cursor.fault(at, mistake);
        return None;
    }
    let prompt = not_empty(cursor, "prompt", "a prompt")?;
    doc.schedules.push(Schedule { line, cron, prompt });
    Some(())
}

pub(super) fn on(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let LocatedWord { at, text: pattern } = cursor.word_or_text("a pattern")?;
    hold(cursor, at, rules::not_empty("pattern", &pattern));
    let prompt = not_empty(cursor, "prompt", "a prompt")?;
    doc.ons.push(On { line, pattern, prompt });
    Some(())
}

fn not_empty(cursor: &mut TokenCursor<'_>, what: &'static str, missing: &'static str) -> Option<String> {
    let LocatedWord { at, text } = cursor.text_or_body(missing)?;
    hold(cursor, at, rules::not_empty(what, &text));
    Some(text)
}

fn refuse_second(cursor: &mut TokenCursor<'_>, at: usize, key: Option<&str>, put: Result<(), u32>) {
    if let Err(first_line) = put {
        let keyword = cursor.keyword;
        cursor.fault(at, FormMistake::Repeated { keyword, key: key.map(str::to_owned), first_line });
    }
}

fn split_at_commas(words: Vec<LocatedWord>) -> Vec<LocatedWord> {
    let mut hosts = Vec::new();
    for word in words {
        let mut at = word.at;
        for part in word.text.split(',') {
            if !part.is_empty() {
                hosts.push(LocatedWord { at, text: part.to_owned() });
            }
            at += part.len() + 1;
        }
    }
    hosts
}
