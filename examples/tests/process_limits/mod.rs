//! Limits that a process sets itself, as its machine, its container or its user would.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Limits this process. `value` is in MiB beyond what is used for memory, and beyond the user's tasks.
pub(crate) fn set(limit: &str, value: u64) {
    match limit {
        "nothing" => {}
        "files" => limit_to(Resource::Nofile, value),
        "file size" => limit_to(Resource::Fsize, value),
        "tasks" | "further tasks" => limit_to(Resource::Nproc, tasks_of_user() + value),
        "locked memory" => limit_to(Resource::Memlock, value),
        "address space" => limit_to(Resource::As, mapped() + (value << 20)),
        "locked memory, after mlockall" => {
            // Many machines permit no more than 8 MiB.
            let most = getrlimit(Resource::Memlock).maximum.unwrap_or(u64::MAX);
            limit_to(Resource::Memlock, most.min(value << 20));
            // SAFETY: it changes no memory.
            let result = unsafe { libc::mlockall(libc::MCL_FUTURE) };
            assert_eq!(result, 0, "{}", io::Error::last_os_error());
        }
        "cores" => {
            let mut one = CpuSet::new();
            one.set(first_core());
            sched_setaffinity(None, &one).unwrap();
        }
        "memfd_create" => refuse(&[libc::SYS_memfd_create], libc::EPERM),
        "sched_setaffinity" => refuse(&[libc::SYS_sched_setaffinity], libc::EPERM),
        other => panic!("there is no limit {other}"),
    }
}

fn limit_to(resource: Resource, value: u64) {
    let limit = Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    setrlimit(resource, limit).expect("no more than the hard limit of this user");
}

pub(crate) fn first_core() -> usize {
    let allowed = sched_getaffinity(None).unwrap();
    let mut cores = 0..CpuSet::MAX_CPU;
    cores.find(|core| allowed.is_set(*core)).unwrap()
}

/// Bytes of this process's address space.
fn mapped() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// The number of tasks that the system compares with the limit: those of this process's real user.
fn tasks_of_user() -> u64 {
    let user = format!("\nUid:\t{}\t", getuid().as_raw());
    let entries = |path: &str| fs::read_dir(path).into_iter().flatten().flatten();
    let processes = entries("/proc").filter(|entry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok())
    });
    let tasks = processes.flat_map(|process| {
        let tasks = process.path().join("task");
        let tasks: Vec<_> = fs::read_dir(tasks)
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        tasks
    });
    // A task may have ended since.
    let is_the_users = |task: &fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status"));
        status.is_ok_and(|status| status.contains(&user))
    };
    tasks.filter(is_the_users).count() as u64
}

/// Makes this process another user's if it is root's, whom limits of tasks and of locked memory do not
/// bind.
pub(crate) fn leave_root() {
    if !getuid().is_root() {
        return;
    }
    let user = std::env::var("LIMITED_USER").unwrap().parse().unwrap();
    // SAFETY: the calls have no pointers. A process that has changed its user may not read its own
    // files in /proc, until it says that it may be dumped.
    let results = unsafe {
        let result = libc::setresuid(user, user, user);
        [result, libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0)]
    };
    assert_eq!(results, [0, 0], "{}", io::Error::last_os_error());
}

/// Has the kernel refuse system calls of all threads of this process, as the filter of a container
/// does.
fn refuse(calls: &[libc::c_long], error: i32) {
    let statement = |code: u32, k: u32, jt: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    // Loads the number of the call, and compares it with each.
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let mut program = vec![statement(load, 0, 0)];
    for (index, call) in calls.iter().enumerate() {
        let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(statement(
            compare,
            *call as u32,
            (calls.len() - index) as u8,
        ));
    }
    program.push(statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0));
    program.push(statement(
        libc::BPF_RET,
        libc::SECCOMP_RET_ERRNO | error as u32,
        0,
    ));
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the first call has no pointer; the second one reads the program, which lives until it
    // has returned.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}
