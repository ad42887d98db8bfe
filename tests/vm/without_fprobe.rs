//! True on kernels that have no kprobe-multi.

use fastprobe_tests::{RARE_FUNCTION, Running, call_rare_system_call, enabled_functions, hits, run};

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn where_multi_is_asked_for_the_error_names_the_missing_option_and_nothing_stays() {
    let output = run(&["--backend", "multi", "-d", "1", "kvm*"]).expect("it runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{words}");
    assert!(words.contains("CONFIG_FPROBE"), "{words}");
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_kprobe_for_each_is_chosen_and_the_reason_told() {
    let output = run(&["--json", "-d", "0", RARE_FUNCTION]).expect("it runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    assert!(words.contains("this kernel was built without CONFIG_FPROBE"), "{words}");
    assert_eq!(words.lines().count(), 1, "{words}");

    let running = Running::start(&[RARE_FUNCTION]).expect("it attaches");
    assert_eq!(running.attach["backend"], "single");
    call_rare_system_call(321);
    let (counts, _) = running.finish().expect("it ends well");
    assert_eq!(hits(&counts, RARE_FUNCTION), 321);
}
