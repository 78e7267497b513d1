//! A child over its parent.
//!
//! Owns: one test per way of merging. Never: tests parsing.

use lodge_image::agentfile::{Agentfile, ConfigValue, ContextSource, Limit, NetworkAccess, Parent, merge};

use crate::{good, unset};

fn merged(parent: &str, child: &str) -> Agentfile {
    merge(good(&format!("FROM scratch\n{parent}")), good(&format!("FROM parent\n{child}")))
}

#[test]
fn an_empty_child_is_its_parent() {
    let parent = good(
        "FROM base\nRUNTIME r\nMODEL a/b\nCONFIG c=1\nCONTEXT A <<E\nx\nE\nEXEC [\"s\"]\nNETWORK none\n",
    );
    assert_eq!(merge(parent.clone(), good("FROM parent")), parent);
}

#[test]
fn single_values_are_replaced_when_the_child_has_them() {
    let doc = merged("MODEL a/b\nNAME p\nEXEC [\"p\"]\nNETWORK host\n", "MODEL c/d\nEXEC []\nNETWORK none\n");
    assert_eq!(doc.model.expect("model").value.to_string(), "c/d");
    assert_eq!(doc.name.expect("name").value, "p");
    assert_eq!(doc.exec.expect("exec").value, Vec::<String>::new());
    assert_eq!(doc.network.expect("network").value, NetworkAccess::None);
}

#[test]
fn a_childs_runtime_drops_the_parents_configs_and_only_those() {
    let parent = "RUNTIME old\nCONFIG a=1\nENV K=v\n";
    let kept = merged(parent, "CONFIG b=2\n");
    assert_eq!(kept.configs.iter().map(|c| c.key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let dropped = merged(parent, "CONFIG lost=3\nRUNTIME new\nCONFIG b=2\n");
    assert_eq!(dropped.configs.iter().map(|c| c.key.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(dropped.runtime.expect("runtime").value.to_string(), "new");
    assert_eq!(dropped.envs.len(), 1);
}

#[test]
fn a_required_config_of_the_parent_is_settled_by_the_child() {
    assert_eq!(unset(&merged("CONFIG room!\n", "NAME c\n")), ["room"]);
    let settled = merged("CONFIG room!\n", "CONFIG room=hall\n");
    assert!(unset(&settled).is_empty());
    assert_eq!(settled.configs[0].value, Some(ConfigValue::String("hall".to_owned())));
}

#[test]
fn keyed_items_are_replaced_in_place_and_new_ones_follow() {
    let doc = merged(
        "CONTEXT A <<E\n1\nE\nCONTEXT B <<E\n2\nE\nBIN t one\nADD f\nLABEL l=1\nARG x=1\nLIMIT pids 1\nMCP m host:a\nSERVICE s a\n",
        "CONTEXT C file://c\nCONTEXT A <<E\n3\nE\nBIN t two\nADD g f\nLABEL l=2\nARG x=2\nLIMIT pids 2\nMCP m host:b\nSERVICE s b\n",
    );
    let contexts: Vec<_> = doc.contexts.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(contexts, ["A", "B", "C"]);
    assert_eq!(doc.contexts[0].source, ContextSource::Inline("3".to_owned()));
    assert_eq!(doc.bins.iter().map(|b| b.source.to_string()).collect::<Vec<_>>(), ["two"]);
    assert_eq!(doc.adds.iter().map(|a| a.src.value.as_str()).collect::<Vec<_>>(), ["g"]);
    assert_eq!(doc.labels.iter().map(|l| l.value.as_str()).collect::<Vec<_>>(), ["2"]);
    assert_eq!(doc.args.iter().map(|a| a.value.as_deref()).collect::<Vec<_>>(), [Some("2")]);
    assert_eq!(doc.limits.iter().map(|l| &l.value).collect::<Vec<_>>(), [&Limit::Pids(2)]);
    assert_eq!((doc.mcps.len(), doc.mcps[0].line), (1, 11));
    assert_eq!(doc.services.iter().map(|s| s.image.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn capabilities_and_skills_form_a_union_and_schedules_add_up() {
    let lines = "CAPABILITY note_save note_list\nSKILL s\nSCHEDULE @daily \"x\"\nON p \"y\"\n";
    let doc = merged(lines, &format!("CAPABILITY job_wait\n{lines}"));
    assert_eq!(
        doc.capabilities.iter().map(|c| c.value.as_str()).collect::<Vec<_>>(),
        ["note_save", "note_list", "job_wait"]
    );
    assert_eq!((doc.skills.len(), doc.schedules.len(), doc.ons.len()), (1, 2, 2));
}

#[test]
fn a_chain_flattens_the_same_from_either_end() {
    let grandparent =
        good("FROM scratch\nRUNTIME r1\nCONFIG a=1\nCONFIG b=1\nENV K=1\nCONTEXT A <<E\n1\nE\n");
    let parent = good("FROM grandparent\nRUNTIME r2\nCONFIG b=2\nENV L=2\nCONTEXT B <<E\n2\nE\n");
    let child = good("FROM parent\nCONFIG c=3\nENV K=3\nCONTEXT A <<E\n3\nE\n");
    let upwards = merge(grandparent.clone(), merge(parent.clone(), child.clone()));
    let downwards = merge(merge(grandparent, parent), child);
    assert_eq!(upwards.from.value, Parent::Scratch);
    assert_eq!(upwards, downwards);
    assert_eq!(upwards.configs.iter().map(|c| c.key.as_str()).collect::<Vec<_>>(), ["b", "c"]);
}
