//! What a decision of a budget in a file costs: alone, rejected, and while another process asks without a pause.

fn main() {
    #[cfg(unix)]
    unix::main();
}

#[cfg(unix)]
mod unix {
    use std::path::PathBuf;
    use std::process::{Child, Command};
    use std::{env, fs, process};

    use criterion::Criterion;
    use tidegate::Budget;

    /// Says to a process of this bench that it is the other one, and which budget it uses.
    const OTHER: &str = "TIDEGATE_BENCH_BUDGET";
    /// It never rejects at the speed of a file.
    const PLENTY: &str = "1000000000/s";

    #[expect(clippy::unwrap_used, reason = "a bench stops at the first surprise")]
    fn open(path: &PathBuf, quota: &str) -> Budget {
        Budget::open(path, quota.parse().unwrap()).unwrap()
    }

    /// Asks until it is killed, or for at most a minute or so.
    #[expect(clippy::unwrap_used, reason = "a bench stops at the first surprise")]
    fn ask(path: &PathBuf) {
        let budget = open(path, PLENTY);
        for _ in 0..20_000_000_u32 {
            assert!(budget.check().unwrap().is_allowed());
        }
    }

    #[expect(clippy::unwrap_used, reason = "a bench stops at the first surprise")]
    fn other(path: &PathBuf) -> Child {
        Command::new(env::current_exe().unwrap()).env(OTHER, path).spawn().unwrap()
    }

    #[expect(clippy::unwrap_used, reason = "a bench stops at the first surprise")]
    pub(super) fn main() {
        if let Some(path) = env::var_os(OTHER) {
            return ask(&path.into());
        }
        let folder = env::temp_dir().join(format!("tidegate-bench-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        let mut criterion = Criterion::default().configure_from_args();

        let path = folder.join("plenty");
        let budget = open(&path, PLENTY).with_max_in_flight(8.try_into().unwrap()).unwrap();
        criterion.bench_function("budget/allowed/1-process", |b| b.iter(|| budget.check().unwrap()));
        criterion.bench_function("budget/enter/1-process", |b| b.iter(|| budget.enter().unwrap()));
        let mut child = other(&path);
        criterion.bench_function("budget/allowed/2-processes", |b| b.iter(|| budget.check().unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();

        let scarce = open(&folder.join("scarce"), "1 per 300d");
        assert!(scarce.check().unwrap().is_allowed());
        criterion.bench_function("budget/rejected/1-process", |b| b.iter(|| scarce.check().unwrap()));

        criterion.final_summary();
        fs::remove_dir_all(folder).unwrap();
    }
}
