//! That tests are skipped aloud where rights are missing, and named with what is missing.

use std::process::Command;

use l4_tests::may_run;

/// Two tests of this binary, run again without some capabilities.
#[test]
fn without_rights_tests_are_skipped_and_counted() {
    if !may_run("without_rights_tests_are_skipped_and_counted") {
        return;
    }
    let tests =
        ["vlan::other_tags_are_left_to_the_stack", "forward::padding_behind_the_packet_stays_outside"];
    for (without, missing) in [
        ("-bpf,-net_admin,-perfmon,-sys_admin", "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN ("),
        ("-bpf,-sys_admin", "missing is CAP_BPF, CAP_SYS_ADMIN ("),
        ("-perfmon,-sys_admin", "missing is CAP_PERFMON, CAP_SYS_ADMIN ("),
    ] {
        let output = Command::new("setpriv")
            .args(["--inh-caps=-all", "--bounding-set", without])
            .arg(std::env::current_exe().expect("it runs"))
            .args(["--exact", "--test-threads", "1"])
            .args(tests)
            .output()
            .expect("setpriv runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{without}: {said}");
        for test in tests {
            let name = test.rsplit("::").next().expect("a name");
            let line = said.lines().find(|line| line.contains(&format!("SKIPPED {name}: ")));
            assert!(line.is_some_and(|line| line.contains(missing)), "{without}: {said}");
        }
        assert!(said.contains("(2 skipped in this binary so far)"), "{without}: {said}");
    }
}
