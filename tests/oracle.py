"""What `fastprobe list` should choose, worked out by other means from the same kernel's files.

Usage: oracle.py GLOB... Prints lines of a glob and the address of a function to attach to. No code, no order of
steps and no data structure is shared with fastprobe: globs by fnmatch, one dictionary for each file, the
blacklist checked range by range. What it can't know is which symbol a record without an address belongs to
when several have its name; it leaves those to fastprobe and prints `?` for the address.
"""

import fnmatch
import re
import sys

TRACING = "/sys/kernel/tracing/"
DENIED = """arch_cpu_idle default_idle rcu_* bpf_dispatcher_xdp_func migrate_disable migrate_enable
___migrate_enable preempt_count_add preempt_count_sub __rcu_read_lock __rcu_read_unlock
bpf_get_numa_node_id bpf_get_smp_processor_id bpf_spin_lock bpf_spin_unlock __bpf_prog_enter*
__bpf_prog_exit* __bpf_tramp_enter* __bpf_tramp_exit* update_prog_stats inc_misses_counter
bpf_prog_start_time""".split()


def base(name):
    return re.sub(r"(\.(isra|constprop|part|llvm)(\.\w+)?)+$", "", name)


def no_function(name, module):
    generated = module in ("[bpf]", "[__builtin__ftrace]", "[__builtin__kprobes]")
    return generated or name.startswith(("__pfx_", "__cfi_")) or ".cold" in name


def lines(path):
    with open(path, encoding="latin-1") as file:
        return [line.split() for line in file]


def records():
    """Addresses of ftrace records, or where there are none the (name, module) of each record."""
    try:
        return {int(fields[0], 16) for fields in lines(TRACING + "available_filter_functions_addrs")}, None
    except FileNotFoundError:
        names = lines(TRACING + "available_filter_functions")
        return None, {(fields[0], fields[1] if len(fields) > 1 else "") for fields in names}


def traceable_functions():
    """Every function that could be attached to, by name and base name, and the names that can't be decided."""
    addresses, names = records()
    blacklist = []
    for fields in lines("/sys/kernel/debug/kprobes/blacklist"):
        start, end = fields[0].split("-")
        blacklist.append((int(start, 16), int(end, 16)))
    symbols = {}
    for address, kind, name, *module in lines("/proc/kallsyms"):
        if kind in "tTwW":
            symbols.setdefault((name, module[0] if module else ""), set()).add(int(address, 16))
    for (name, module), places in symbols.items():
        if no_function(name, module):
            continue
        if addresses is not None:
            places = {place for place in places if place in addresses or place + 4 in addresses}
        elif (name, module) not in names:
            continue
        elif len(places) > 1:
            yield name, base(name), None
            continue
        if places and not any(fnmatch.fnmatchcase(base(name), denied) for denied in DENIED):
            yield name, base(name), {p for p in places if not any(s <= p < e for s, e in blacklist)}


def main(globs):
    functions = list(traceable_functions())
    for glob in globs:
        matches = re.compile(fnmatch.translate(glob)).match
        for name, short, places in functions:
            if matches(name) or matches(short):
                for place in ["?"] if places is None else places:
                    print(glob, place if place == "?" else hex(place))


main(sys.argv[1:])
