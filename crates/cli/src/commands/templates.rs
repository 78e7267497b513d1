//! The Agentfiles that `init` and `code` start from.
//!
//! Owns: filling them in. Never: where they are written.

use crate::args::TemplateArg;

const CODER: &str = include_str!("../../templates/coder.Agentfile");
const REVIEWER: &str = include_str!("../../templates/reviewer.Agentfile");
const OPS: &str = include_str!("../../templates/ops.Agentfile");
const BLANK: &str = include_str!("../../templates/blank.Agentfile");
/// What a scripted model does with the tools of the first three, and without tools.
const DEMO: &str = include_str!("../../templates/demo.yaml");
const BLANK_DEMO: &str = include_str!("../../templates/blank.yaml");

/// The file of the scripted model, beside the Agentfile.
pub(super) const SCRIPT_FILE: &str = "lodge-demo.yaml";
/// The model that reads it.
pub(super) const SCRIPT_MODEL: &str = "script/lodge-demo";

/// What an agent runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChosenModel {
    /// `provider/model`.
    Real(String),
    /// There is no provider yet.
    Scripted,
}

impl ChosenModel {
    pub(super) fn name(&self) -> &str {
        match self {
            ChosenModel::Real(name) => name,
            ChosenModel::Scripted => SCRIPT_MODEL,
        }
    }
}

/// A template, filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RenderedTemplate {
    pub agentfile: String,
    /// The contents of [`SCRIPT_FILE`], if the model is scripted.
    pub script: Option<String>,
}

/// `next` is the command after a provider was added.
pub(super) fn render(template: TemplateArg, name: &str, model: &ChosenModel, next: &str) -> RenderedTemplate {
    let (agentfile, script) = match template {
        TemplateArg::Coder => (CODER, DEMO),
        TemplateArg::Reviewer => (REVIEWER, DEMO),
        TemplateArg::Ops => (OPS, DEMO),
        TemplateArg::Blank => (BLANK, BLANK_DEMO),
    };
    let (demo, script) = match model {
        ChosenModel::Real(_) => (String::new(), None),
        ChosenModel::Scripted => (
            format!(
                "\n# With a real model this line can go.\nADD {SCRIPT_FILE} \"what the scripted model says\"\n"
            ),
            Some(script.replace("@NEXT@", next)),
        ),
    };
    let agentfile =
        agentfile.replace("@DEMO@\n", &demo).replace("@NAME@", name).replace("@MODEL@", model.name());
    RenderedTemplate { agentfile, script }
}

/// A name for an agent, made from a directory's.
pub(super) fn agent_name(text: &str) -> Option<String> {
    const NAME_MAX: usize = 40;
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    let name: String = text.to_lowercase().chars().map(fits).take(NAME_MAX).collect();
    let name = name.trim_matches(['-', '.', '_']);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_gives_a_name_that_an_agent_can_have() {
        for (dir, name) in [
            ("web", Some("web")),
            ("My Project!", Some("my-project")),
            (".config", Some("config")),
            ("日本", None),
            ("..", None),
        ] {
            assert_eq!(agent_name(dir).as_deref(), name, "{dir}");
        }
    }

    #[test]
    fn a_filled_in_template_has_no_placeholders_and_adds_a_script_only_when_it_needs_one() {
        for template in [TemplateArg::Coder, TemplateArg::Reviewer, TemplateArg::Ops, TemplateArg::Blank] {
            let scripted = render(template, "x", &ChosenModel::Scripted, "lodge code");
            assert!(scripted.agentfile.contains("MODEL script/lodge-demo\n"), "{}", scripted.agentfile);
            assert!(scripted.agentfile.contains("ADD lodge-demo.yaml"), "{}", scripted.agentfile);
            let real = render(template, "x", &ChosenModel::Real("a/b".to_owned()), "lodge code");
            assert!(real.agentfile.contains("MODEL a/b\n") && !real.agentfile.contains("ADD "));
            assert_eq!((real.script, scripted.agentfile.contains('@')), (None, false));
            assert!(!scripted.script.expect("a script").contains('@'));
        }
    }
}
