use super::*;

fn rules(line: &str) -> NetworkRules {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    NetworkRules::read(DefaultReach::Listed, &words).unwrap()
}

fn named(line: &str, host: &str, port: u16) -> bool {
    TargetHost::read(host).is_some_and(|host| rules(line).name(&host, port))
}

#[test]
fn a_list_names_hosts_and_ports_and_no_others() {
    let line = "api.example.com:443 *.pypi.org Plain.example 10.1.2.3 192.168.0.0/16 [2001:db8::1]:8080 2001:db8:5::/48";
    for (host, port) in [
        ("api.example.com", 443),
        ("API.Example.COM.", 443),
        ("files.pypi.org", 80),
        ("a.b.pypi.org", 443),
        ("plain.example", 1),
        ("10.1.2.3", 22),
        ("192.168.77.1", 80),
        ("[2001:db8::1]", 8080),
        ("[2001:db8:5:9::7]", 443),
        ("[::ffff:10.1.2.3]", 22),
    ] {
        assert!(named(line, host, port), "{host}:{port}");
    }
    for (host, port) in [
        ("api.example.com", 80),
        ("example.com", 443),
        ("xapi.example.com", 443),
        ("api.example.com.evil.test", 443),
        ("pypi.org", 443),
        ("evilpypi.org", 443),
        ("10.1.2.4", 22),
        ("192.169.0.1", 80),
        ("[2001:db8::1]", 80),
        ("[2001:db8::2]", 8080),
        ("[2001:db8:6::1]", 443),
    ] {
        assert!(!named(line, host, port), "{host}:{port}");
    }
}

#[test]
fn an_address_is_read_in_its_own_form_only() {
    for odd in
        ["0x7f.1", "127.1", "2130706433", "0177.0.0.1", "[::1%lo]", "::1", "a..b", "", ".", "a b", "a%2eb"]
    {
        assert_eq!(TargetHost::read(odd), None, "{odd}");
    }
    let long = "a.".repeat(200);
    assert_eq!(TargetHost::read(&long), None);
}

#[test]
fn no_list_opens_the_host_itself_its_links_or_its_clouds_secrets() {
    let everything = rules("0.0.0.0/0 ::/0 *.example.com");
    for closed in [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "169.254.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "100.100.100.200",
        "168.63.129.16",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd00:ec2:1::1",
        "::ffff:127.0.0.1",
        "::ffff:0:127.0.0.1",
        "::ffff:0:169.254.169.254",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ] {
        let address: IpAddr = closed.parse().unwrap();
        assert_eq!(
            everything.check(address, 80, AddressOwner::Elsewhere),
            Err(ClosedAddress::Always),
            "{closed}"
        );
    }
}

#[test]
fn a_name_leads_to_a_private_address_only_if_that_is_listed_too() {
    let names = rules("*.example.com");
    let both = rules("*.example.com 10.0.0.0/8 192.168.1.1:80 fd12::/16 203.0.113.9");
    for (address, port, place, open) in [
        ("203.0.113.7", 443, AddressOwner::Elsewhere, [true, true]),
        ("203.0.113.7", 443, AddressOwner::Own, [false, false]),
        ("203.0.113.9", 443, AddressOwner::Own, [false, true]),
        ("10.1.2.3", 443, AddressOwner::Own, [false, false]),
        ("10.1.2.3", 443, AddressOwner::Elsewhere, [false, true]),
        ("::ffff:10.1.2.3", 443, AddressOwner::Elsewhere, [false, true]),
        ("192.168.1.1", 80, AddressOwner::Elsewhere, [false, true]),
        ("192.168.1.1", 81, AddressOwner::Elsewhere, [false, false]),
        ("100.64.0.1", 80, AddressOwner::Elsewhere, [false, false]),
        ("fd12::1", 80, AddressOwner::Elsewhere, [false, true]),
        ("fc00::1", 80, AddressOwner::Elsewhere, [false, false]),
        ("2001:db8::1", 80, AddressOwner::Elsewhere, [true, true]),
    ] {
        let address: IpAddr = address.parse().unwrap();
        let found = [&names, &both].map(|rules| rules.check(address, port, place).is_ok());
        assert_eq!(found, open, "{address}:{port} {place:?}");
    }
}

#[test]
fn a_word_without_meaning_is_reported() {
    for word in [
        "http://a.example",
        "a.example:0",
        "10.0.0.0/33",
        "*.10.0.0.1",
        "*.[::1]",
        "a b",
        "*",
        "300.1.1.1",
        "loopback:0",
        "loopback:x",
    ] {
        assert_eq!(NetworkRules::read(DefaultReach::Listed, &[word.to_owned()]), Err(word.to_owned()));
    }
}

#[test]
fn public_is_what_is_routed_and_lan_adds_private_ranges_and_neither_opens_the_host() {
    let [public, lan] =
        [DefaultReach::Public, DefaultReach::Lan].map(|reach| NetworkRules::read(reach, &[]).unwrap());
    for (address, open) in [
        ("203.0.113.7", [true, true]),
        ("2001:db8::1", [true, true]),
        ("10.1.2.3", [false, true]),
        ("172.16.0.1", [false, true]),
        ("192.168.1.1", [false, true]),
        ("100.64.0.1", [false, true]),
        ("fd00::1", [false, true]),
        ("::ffff:10.1.2.3", [false, true]),
        ("64:ff9b::a01:203", [false, true]),
        ("::ffff:0:10.1.2.3", [false, true]),
        ("64:ff9b:1::a01:203", [false, true]),
        ("2002:a01:203::1", [false, true]),
        ("127.0.0.1", [false, false]),
        ("::1", [false, false]),
        ("::ffff:127.0.0.1", [false, false]),
        ("169.254.169.254", [false, false]),
        ("100.100.100.200", [false, false]),
        ("fd00:ec2::254", [false, false]),
        ("fe80::1", [false, false]),
        ("224.0.0.1", [false, false]),
        ("0.0.0.0", [false, false]),
    ] {
        let address: IpAddr = address.parse().unwrap();
        let found = [&public, &lan].map(|rules| rules.opens(address, 80, AddressOwner::Elsewhere, false));
        assert_eq!(found, open, "{address}");
        let own = [&public, &lan].map(|rules| rules.opens(address, 80, AddressOwner::Own, true));
        assert_eq!(own, [false, false], "{address}");
    }
}

#[test]
fn a_list_opens_what_it_has_or_what_answered_for_its_names_and_ports_of_the_loopback() {
    let list = rules("a.example:443 *.b.example 203.0.113.9:22 loopback:5432");
    let address: IpAddr = "203.0.113.7".parse().unwrap();
    assert!(!list.opens(address, 443, AddressOwner::Elsewhere, false));
    assert!(list.opens(address, 443, AddressOwner::Elsewhere, true));
    assert!(!list.opens("10.1.2.3".parse().unwrap(), 443, AddressOwner::Elsewhere, true));
    assert!(list.opens("203.0.113.9".parse().unwrap(), 22, AddressOwner::Elsewhere, false));
    assert!(!list.opens("203.0.113.9".parse().unwrap(), 23, AddressOwner::Elsewhere, false));
    assert_eq!(list.ports_of("a.example"), [443]);
    assert_eq!(list.ports_of("x.b.example"), [0]);
    assert_eq!(list.ports_of("c.example"), Vec::<u16>::new());
    assert!(list.opens_loopback(5432) && !list.opens_loopback(80));
    assert!(!list.opens("127.0.0.1".parse().unwrap(), 5432, AddressOwner::Own, true));
}
