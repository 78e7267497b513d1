//! Reading the configuration again: checked whole, then swapped whole, or nothing changes.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use lodge_proto::{Overridden, Reloaded, SettingChange};
use serde_json::Value;

use super::file::Keys;
use super::table::{SETTINGS, WhenApplied};
use super::{AppliedSettings, Config, ConfigError, SettingInEffect, SettingSource};

/// What a reload would change, checked and not yet in effect.
#[derive(Debug)]
pub struct ReloadPlan {
    next: AppliedSettings,
    pub told: Reloaded,
}

impl Config {
    /// Reads the same sources again. Every mistake in them is found here.
    pub fn reread(&self) -> Result<ReloadPlan, ConfigError> {
        let (file, yaml, mistakes) = self.given.file()?;
        let mut next = self.given.values(file.as_deref(), &yaml, mistakes)?;
        let now = self.in_effect();
        let mut told = Reloaded {
            file: file.as_ref().map(|file| file.display().to_string()),
            changed: Vec::new(),
            needs_restart: Vec::new(),
            overridden: Vec::new(),
        };
        let mut waiting = BTreeMap::new();
        for setting in SETTINGS {
            let name = setting.name;
            let (Some(from), Some(to)) = (now.values.get(name), next.get(name).cloned()) else { continue };
            told.overridden.extend(overridden(name, &yaml, &to));
            if from.shown == to.shown {
                continue;
            }
            let change =
                SettingChange { key: name.to_owned(), from: from.shown.clone(), to: to.shown.clone() };
            match setting.change {
                WhenApplied::Reload => told.changed.push(change),
                WhenApplied::Restart => {
                    told.needs_restart.push(change);
                    waiting.insert(name, to.shown);
                    next.insert(name, from.clone());
                }
            }
        }
        told.needs_restart.extend(self.other_data_dir(&yaml));
        let next = AppliedSettings::new(file, next, waiting);
        next.check_together()?;
        Ok(ReloadPlan { next, told })
    }

    /// Applies the settings. Everything that starts from now on uses them.
    pub fn swap(&self, reread: ReloadPlan) {
        *self.in_effect.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(reread.next);
    }

    /// What a person should know of the settings.
    pub fn warnings(&self) -> Vec<String> {
        let in_effect = self.in_effect();
        let waits = in_effect.waiting.iter().map(|(name, value)| {
            let now = in_effect.values.get(name).map(|setting| plain(&setting.shown));
            let (to, from) = (plain(value), now.unwrap_or_default());
            format!("settings: {name} is {from}; the file says {to}, from the next start on")
        });
        waits.chain(self.passed_over.iter().map(|what| format!("settings: {what}"))).collect()
    }

    /// A state directory that the file names, and that would be another.
    fn other_data_dir(&self, yaml: &Keys) -> Option<SettingChange> {
        let dir = yaml.get("data-dir")?.value.as_str()?;
        let resolved = std::path::Path::new(dir).canonicalize().unwrap_or_else(|_| dir.into());
        let differs = self.data_dir_source == SettingSource::File && resolved != self.data_dir;
        differs.then(|| SettingChange {
            key: "data-dir".to_owned(),
            from: Value::from(self.data_dir.display().to_string()),
            to: Value::from(dir),
        })
    }
}

/// A value of the file that does not count, because a flag or a variable goes before it.
fn overridden(name: &str, yaml: &Keys, effective: &SettingInEffect) -> Option<Overridden> {
    let written = &yaml.get(name)?.value;
    match effective.source {
        SettingSource::Flag | SettingSource::Env => Some(Overridden {
            key: name.to_owned(),
            by: effective.source.word().to_owned(),
            value: effective.shown.clone(),
            file: written.clone(),
        }),
        SettingSource::File | SettingSource::Default => None,
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
