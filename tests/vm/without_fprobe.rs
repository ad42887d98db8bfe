//! True on kernels that have no kprobe-multi.

use fastprobe_tests::{enabled_functions, run};

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn the_error_names_the_missing_option_and_nothing_stays() {
    let output = run(&["-d", "1", "kvm*"]).expect("it runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{words}");
    assert!(words.contains("CONFIG_FPROBE"), "{words}");
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
}
