package e2e

import (
	"regexp"
	"strings"
	"sync"
)

// frame is a line of an answer, as the contract has it.
var frame = regexp.MustCompile(`^#\d+\s+0x[0-9a-f]{16}\s+in\s+\S+\+0x[0-9a-f]+`)

// condition is one possible outcome of a call, with the texts in the code. Texts contain the verbs of format() in SQL
// and of package fmt in Go. TestWords compares the code with this table. TestContract produces each of the conditions
// on each version, except where elsewhere names another test.
type condition struct {
	name, level, state    string
	message, detail, hint string
	elsewhere             string
}

const (
	notice  = "NOTICE"
	warning = "WARNING"
	fault   = "ERROR"
)

// conditions are the texts of the SQL script, then the texts of the worker.
var conditions = []condition{
	{name: "denied function", level: fault, state: "42501", message: "permission denied for function %s"},
	{name: "denied view", level: fault, state: "42501", message: "permission denied for view pg_stat_backtrace"},
	{
		name: "too many at once", level: fault, state: "54000", message: "cannot ask for more than 5000 processes at once",
	},
	{
		name: "older worker", level: fault, state: "55000",
		message:   "the pg_stat_backtrace worker is older than the extension",
		detail:    "The worker (version %s) cannot do what is asked; pg_get_backtrace works.",
		hint:      "Install worker and extension of the same release, and restart the worker.",
		elsewhere: "spool: TestSQLFaults, with a worker that tells of fewer verbs",
	},
	{name: "no process", level: warning, state: "01000", message: "PID %s is not a PostgreSQL server process"},
	{
		name: "unknown barrier", level: warning, state: "01000",
		message:   "the processes that have not absorbed the barrier are not known",
		elsewhere: "barrier: TestUnknownMemory; a server of these versions has the memory that is expected",
	},
	{
		name: "own backend", level: fault, state: "55000", message: "cannot capture the backtrace of the current backend",
		hint: "Ask from another session, or query the view pg_stat_backtrace for many processes.",
	},
	{
		name: "bad timeout", level: fault, state: "22023",
		message: `invalid value for parameter "pg_stat_backtrace.timeout": "%s"`,
		hint:    "It is a number of milliseconds, from 1 to 99999.",
	},
	{
		name: "no worker", level: fault, state: "55000", message: "the pg_stat_backtrace worker is not running",
		hint: "An administrator can start it on the server's host: pg_stat_backtrace worker.",
	},
	{
		name: "no worker, for superusers", level: fault, state: "55000",
		message: "the pg_stat_backtrace worker is not running",
		hint: "Start it on the server's host, as the server's operating system user or as root: " +
			"pg_stat_backtrace worker -D %s",
	},
	{
		name: "no worker outside, for superusers", level: fault, state: "55000",
		message: "the pg_stat_backtrace worker is not running",
		hint: "The server cannot see its process, and it has given no sign of life for 10 seconds; " +
			"its log may say more.",
		elsewhere: "TestContainer of internal/places",
	},
	{
		name: "other version", level: fault, state: "55000",
		message: "the pg_stat_backtrace worker is not of the extension's version",
		detail:  "The worker (version %s) speaks protocol version %s, the extension protocol version %s.",
		hint: "Install worker and extension of the same release, restart the worker, " +
			"and use ALTER EXTENSION UPDATE.",
	},
	{
		name: "not now", level: fault, state: "55000",
		message: "the pg_stat_backtrace worker takes no requests at the moment",
		hint: "It is ending, its spool directory is full or being replaced, or the server cannot see it; " +
			"its log may say more.",
	},
	{
		name: "no answer", level: fault, state: "55000", message: "the pg_stat_backtrace worker did not answer within %s ms",
		hint: "It is stopped or overloaded; its log may say more.",
	},
	{
		name: "not logged", level: warning, state: "01000", message: "backtrace of PID %s cannot be logged",
		hint: "The server log takes no LOG messages: see log_min_messages.",
	},
	{
		name: "none logged", level: warning, state: "01000", message: "backtraces cannot be logged",
		hint: "The server log takes no LOG messages: see log_min_messages.",
	},
	{
		name: "no such samples", level: fault, state: "22023", message: "number of samples must be between 1 and 100000",
	},
	{
		name: "no such interval", level: fault, state: "22023",
		message: "interval between samples must be between 0 and 1 hour",
	},
	{name: "progress", level: notice, state: "00000", message: "sample %s of %s"},
	{
		name: "samples missing", level: notice, state: "00000", message: "sampling ended after %s of %s samples: %s",
		elsewhere: "spool: TestSQLMany; the detail is the error's detail and hint",
	},
	{
		name: "some not taken", level: notice, state: "00000", message: "%s of %s stacks could not be taken",
		detail: "%s times: %s.",
	},
	{
		name: "foreign trigger", level: fault, state: "55000",
		message:   "table backtrace.request has a trigger, rule or child table that is not the extension's",
		detail:    "The extension's owner would run its code.",
		hint:      "Drop it.",
		elsewhere: "queue: TestForeignTrigger",
	},
	{
		name: "results on a standby", level: fault, state: "55000", message: "there are no queued requests on a standby",
		hint:      "pg_get_backtrace and pg_log_backtrace work here.",
		elsewhere: "queue: TestStandby",
	},
	{
		name: "read-only", level: fault, state: "25006",
		message: "cannot queue a request for a backtrace in a read-only transaction",
		hint:    "pg_get_backtrace and pg_log_backtrace work here, and on a standby.",
	},
	{
		name: "too many in one request", level: fault, state: "54000",
		message: "cannot request more than %s backtraces at once", hint: "Ask for the others in another call.",
	},
	{
		name: "queue full", level: fault, state: "53400", message: "too many backtrace requests are waiting",
		detail: "A role that is not a superuser may have %s requests waiting.", hint: "Try again later.",
	},
	{
		name: "queue full without a worker", level: fault, state: "53400", message: "too many backtrace requests are waiting",
		detail: "A role that is not a superuser may have %s requests waiting.",
		hint:   "No pg_stat_backtrace worker is running.",
	},
	{
		name: "long settings", level: fault, state: "22023", message: "the settings pg_stat_backtrace.* are too long",
		hint: "They may have 1000 characters together.",
	},
	{
		name: "request without a worker", level: notice, state: "00000",
		message: "the pg_stat_backtrace worker is not running; the request waits for it",
	},
	{
		name: "requests without a worker", level: notice, state: "00000",
		message: "the pg_stat_backtrace worker is not running; the requests wait for it",
	},

	{
		name: "postmaster", level: fault, state: "42501",
		message: "cannot capture the backtrace of the postmaster, process %d",
		detail:  "No connection is accepted, and no process started or restarted, while the postmaster is stopped.",
		hint:    `On the server's host, "pg_stat_backtrace capture --nonstop" captures the postmaster without stopping it.`,
	},
	{
		name: "bad setting", level: fault, state: "22023", message: `invalid value for parameter "pg_stat_backtrace.%s": %q`,
		hint: "It is a number from 1 to %d%s.",
	},
	{
		name: "bad switch", level: fault, state: "22023", message: `invalid value for parameter "pg_stat_backtrace.%s": %q`,
		hint: "It is on or off.",
	},
	{
		name: "other verb", level: fault, state: "55000", message: "the pg_stat_backtrace worker cannot %q",
		hint:      "Install worker and extension of the same release.",
		elsewhere: "worker: TestAnswer; the extension of this release asks nothing else",
	},

	denial("Only roles with privileges of the role whose process this is may see its backtrace.", "other role", ""),
	denial(only+"processes of roles with the SUPERUSER attribute.", "superuser's process", ""),
	denial(only+"autovacuum processes.", "autovacuum", ""),
	denial(only+"auxiliary processes.", "auxiliary process", ""),
	denial(only+"processes that are not authenticated yet.", "unauthenticated",
		"policy: TestDecide; before 18 such a process is not listed"),
	denial(only+"processes that do not run for a role.", "no role's process", ""),
	denial("The calling role no longer exists.", "dropped role",
		"authz: TestDecide, and the queue; a waiting call of such a role ends with PostgreSQL's own error"),
	{
		name: "unchecked", level: fault, state: "55000",
		message: "could not check permission to get backtrace of process %d",
		detail:  "The backtrace worker cannot query the server at the moment.",
		hint:    "Try again later, or ask a superuser: superusers are answered without this check.",
	},
	{
		name: "failed check", level: fault, state: "XX000",
		message:   "could not check permission to get backtrace of process %d",
		detail:    "The backtrace worker's query failed with SQLSTATE %s.",
		hint:      "See the log of the backtrace worker.",
		elsewhere: "policy: TestAllow; the query fails on no server",
	},
	{
		name: "too often", level: fault, state: "53400", message: "too many backtrace requests",
		detail: "A role that is not a superuser may make %g requests per second, and %d at once.", hint: "Try again later.",
	},
	{
		name: "too many", level: fault, state: "53400",
		message:   "too many requests are waiting for the pg_stat_backtrace worker",
		hint:      "Try again later.",
		elsewhere: "spool: TestBusy; it takes more callers than the machine can serve in time",
	},

	{
		name: "exited", level: fault, state: "55000", message: "process with PID %d has exited",
		detail:    "It ended before its stack was copied.",
		elsewhere: "fault: TestOf, and t/004: between the look at the process and its capture there are some microseconds",
	},
	{
		name: "recycled", level: fault, state: "42501", message: "PID %d now belongs to another process",
		detail:    "The process that it belonged to has exited.",
		elsewhere: "ptrace: TestCapture, with another start time than that of the process",
	},
	{
		name: "traced", level: fault, state: "42501", message: "process with PID %d is already being traced",
		detail: "Its tracer is process %d (%s). It could not be captured without a stop either: %s.",
		hint:   "Wait until the debugger has ended, or end it; a process can have only one tracer.",
	},
	{
		name: "traced, on the command line", level: fault, state: "42501",
		message:   "process with PID %d is already being traced",
		detail:    "Its tracer is process %d (%s).",
		hint:      "Wait until the debugger has ended, or end it; a process can have only one tracer.",
		elsewhere: "fault: TestOf; SQL tries without a stop",
	},
	{
		name: "traced by a stranger", level: fault, state: "42501", message: "process with PID %d is already being traced",
		detail:    "Its tracer is process %d.",
		hint:      "Wait until the debugger has ended, or end it; a process can have only one tracer.",
		elsewhere: "fault: TestOf; the tracer's name is unknown when it ends in that moment",
	},
	{
		name: "traced from another namespace", level: fault, state: "42501",
		message:   "process with PID %d is already being traced",
		detail:    "Its tracer is in another PID namespace.",
		hint:      "Wait until the debugger has ended, or end it; a process can have only one tracer.",
		elsewhere: "fault: TestOf; ptrace: TestTracerOutsideNamespace",
	},
	{
		name: "writing its core file", level: fault, state: "55000",
		message:   "process with PID %d has crashed and is writing its core file",
		hint:      "Read the stack from the core file with pg_stat_backtrace capture --core.",
		elsewhere: "fault: TestOf; ptrace: TestDumping; nearly always its stack is had without a stop",
	},
	refusal("no such capability", "Give the worker CAP_SYS_PTRACE.",
		"fault: TestOf; a worker that lacks a capability of the server's does not start"),
	refusal("undumpable, on the command line", "The process has made itself untraceable. Give the worker CAP_SYS_PTRACE.",
		"fault: TestOf; in SQL the worker compares the rights of the process first"),
	{
		name: "undumpable", level: fault, state: "42501", message: "process with PID %d has other rights than the server",
		detail: "%s", // from ptrace/process: it is not dumpable, so the kernel denies it to its own user
		hint:   "The worker examines only processes that the server's user could trace.",
	},
	refusal("seccomp", inProfile, ""),
	refusal("yama", "Give the worker CAP_SYS_PTRACE (its systemd unit does), or set kernel.yama.ptrace_scope to 0. "+
		"At 3, only a reboot permits tracing again.", "fault: TestOf, where the kernel has no Yama"),
	refusal("other user", "Run the worker as the operating system user that the server runs as, or as root.",
		"fault: TestOf; the worker becomes the server's user, or does not start"),
	refusal("other namespace", "Run the worker in the user namespace of the process.",
		"fault: TestOf; a worker that does not share the server's namespaces does not start"),
	refusal("kernel thread", "Root can read its kernel stack in /proc/PID/stack.",
		"fault: TestOf, for the command line: SQL asks for children of the postmaster only"),
	refusal("hidden", "Mount /proc without hidepid for the worker, or run it as the server's operating system user.",
		"fault: TestOf; nothing hides a user's own processes"),
	refusal("security module", "A security module such as SELinux or AppArmor may forbid it; see the kernel's audit log.",
		"fault: TestOf; the kernels of most test machines have none"),

	{
		name: "not seen", level: fault, state: "55000",
		message:   "process with PID %d could not be captured without stopping it",
		detail:    "After %d attempts in %s: %s.",
		hint:      "Retry, or turn nonstop off to let the worker stop the process.",
		elsewhere: "fault: TestOf; a process that neither sleeps nor runs for long enough comes by chance",
	},
	{
		name: "not to be read", level: fault, state: "55000",
		message: "process with PID %d could not be captured without stopping it",
		hint: "Retry when its threads no longer wait in the kernel " +
			"(as root, see /proc/%d/task/*/stack; ps may hang too).",
		elsewhere: "fault: TestOf; ptrace: TestLocked, with a file system that does not answer",
	},
	{
		name: "no sampling", level: fault, state: "42501",
		message: "process with PID %d could not be captured without stopping it",
		detail:  "After %d attempts in %s: %s.", hint: inProfile,
	},
	{
		name: "no sampling for anybody", level: fault, state: "42501",
		message: "process with PID %d could not be captured without stopping it",
		detail:  "After %d attempts in %s: %s.",
		hint: "Give the worker CAP_PERFMON, set kernel.perf_event_paranoid to 2 or less, " +
			"or let the process be stopped.",
		elsewhere: "fault: TestOf, where kernel.perf_event_paranoid is 2 or less",
	},

	{
		name: "memory changes", level: warning, state: "01000",
		message:   "memory contexts of process %d changed while they were read",
		elsewhere: "worker: TestMemoryWarning; pgmemory has the tests with a process that changes",
	},
	{
		name: "much memory", level: warning, state: "01000",
		message:   "process %d has too many memory contexts: some, or their free space, are left out",
		elsewhere: "worker: TestMemoryWarning; it takes 50,000 contexts",
	},
	{
		name: "deep memory", level: warning, state: "01000",
		message:   "process %d has %d memory contexts below level %d: their bytes count in their ancestors on that level",
		elsewhere: "worker: TestMemoryWarning; it takes 200 nested savepoints",
	},
	{
		name: "memory of an assertion build", level: warning, state: "01000",
		message:   "free space is not known in a server that was built with assertions",
		elsewhere: "worker: TestMemoryWarning; no server of the tests is such a build",
	},
	{
		name: "no memory contexts", level: fault, state: "55000", message: "process with PID %d has no memory contexts",
		detail:    "It is starting or ending, or its memory cannot be read.",
		elsewhere: "worker: TestMemoryFailure; a process is in that state for some milliseconds",
	},
	{
		name: "memory of an unknown version", level: fault, state: "55000",
		message:   "memory contexts of process with PID %d are not known",
		detail:    "It runs no PostgreSQL server of version 14 to 19.",
		elsewhere: "worker: TestMemoryFailure; the tests have no server of another version",
	},
	{
		name: "slow memory", level: fault, state: "55000",
		message:   "memory contexts of process with PID %d could not be read in time",
		hint:      "Increase pg_stat_backtrace.timeout.",
		elsewhere: "worker: TestMemoryFailure; it takes a tree that is read for seconds",
	},
	{
		name: "not one process", level: fault, state: "22023", message: "this request must name one process",
		elsewhere: "worker: tests of answers; the extension's functions name one",
	},
	{
		name: "too many processes", level: fault, state: "53400", message: "too many backtrace requests",
		detail:    "A role that is not a superuser may make %g requests per second, and %d at once.",
		hint:      "Try again later, or ask for fewer processes: each of them counts as a request.",
		elsewhere: "authz: tests of the limit",
	},
	{
		name: "hung handler", level: fault, state: "55000",
		message:   "the pg_stat_backtrace worker could not finish the request in time",
		hint:      "Retry without the process that may hang in the kernel.",
		elsewhere: "spool: TestHandlerThatHangs",
	},
	{
		name: "main thread exited", level: fault, state: "55000",
		message:   "main thread of process with PID %d has exited",
		detail:    "It still runs %d other {thread|threads}.",
		hint:      "Capture all threads: set pg_stat_backtrace.threads to on, or use capture --threads.",
		elsewhere: "capture: TestMainThreadExited; no process of PostgreSQL ends its main thread alone",
	},
	{
		name: "deadline", level: fault, state: "55000", message: "process with PID %d could not be stopped in time",
		hint:      "Retry. The process is unaffected.",
		elsewhere: "fault: TestOf; a process that runs stops within microseconds",
	},
	{
		name: "slow", level: fault, state: "55000", message: "process with PID %d could not be stopped within %s",
		hint:      "Retry. The process is unaffected.",
		elsewhere: "fault: TestOf; a process that runs stops within microseconds",
	},
	{
		name: "no processor", level: fault, state: "55000", message: "process with PID %d could not be stopped within %s",
		detail: "It is runnable but got no processor, or it runs in the kernel.",
		hint: "Retry. The process is unaffected. " +
			"On an overloaded machine (see /proc/loadavg) a process may wait seconds for a processor.",
		elsewhere: "fault: TestOf; only on a machine with far too much to do",
	},
	{
		name: "in the kernel", level: fault, state: "55000", message: "process with PID %d could not be stopped within %s",
		detail: "It is in uninterruptible sleep in the kernel, in %s.", hint: inKernel,
		elsewhere: "fault: TestOf; what sleeps there is seen without a stop",
	},
	{
		name: "in the kernel, somewhere", level: fault, state: "55000",
		message: "process with PID %d could not be stopped within %s",
		detail:  "It is in uninterruptible sleep in the kernel.", hint: inKernel,
		elsewhere: "fault: TestOf, where the kernel does not tell the place",
	},
	{
		name: "unread", level: fault, state: "55000", message: "the stack of process with PID %d could not be read within %s",
		detail:    `It was copied, but file %q, which is needed to unwind it, is still being read.`,
		hint:      "Retry when the file system has responded; the worker then has the file.",
		elsewhere: "fault: TestOf, and capture: TestSlowUnwinding, on a disk that does not answer",
	},
	{
		name: "canceled capture", level: fault, state: "57014", message: "capture of process with PID %d was canceled",
		elsewhere: "fault: TestOf; a worker that ends finishes what it has begun",
	},
	{
		name: "own stack", level: fault, state: "55000", message: "a process cannot capture its own stack",
		elsewhere: "fault: TestOf, for the command line",
	},
	{
		name: "no process ID", level: fault, state: "22023", message: "%d is not the ID of a process", detail: "%s.",
		elsewhere: "fault: TestOf, for the command line: SQL asks for children of the postmaster only",
	},
	{
		name: "unexpected", level: fault, state: "XX000", message: "could not capture process with PID %d",
		hint:      "The log of the pg_stat_backtrace worker says more.",
		elsewhere: "worker: TestFailure; known errors have words of their own",
	},
	{
		name: "unexpected, on the command line", level: fault, state: "XX000",
		message: "could not capture process with PID %d: %v", elsewhere: "fault: TestOf",
	},
	{
		name: "no server", level: fault, state: "55000", message: "the server is shutting down or starting",
		elsewhere: "worker: TestFailure; a backend outlives its postmaster for an instant only",
	},
	{
		name: "panic", level: fault, state: "XX000", message: "internal error of the pg_stat_backtrace worker",
		hint: "See the log of the worker.", elsewhere: "spool: TestPanic",
	},
	{
		name: "another role's plan", level: fault, state: "42501", message: "permission denied to get the plan of process %d",
		detail:    "Only roles that see the query of this process in pg_stat_activity may see its plan.",
		hint:      "An administrator can grant pg_read_all_stats, with which a role sees the queries of all processes.",
		elsewhere: "TestRunningPlan",
	},
	{
		name: "large answer", level: fault, state: "54000", message: "the answer is larger than %d bytes",
		hint: "Ask for fewer frames.", elsewhere: "spool: TestEncode; the text of a stack is cut before",
	},
	{
		name: "no room for the answer", level: fault, state: "53100",
		message:   "no space left for the answer of the pg_stat_backtrace worker",
		detail:    "",
		hint:      "The file system of its spool directory is full.",
		elsewhere: "spool: TestFull; the file system must fill up between request and answer",
	},
	{
		name: "answer larger than the limit of files", level: fault, state: "53100",
		message:   "no space left for the answer of the pg_stat_backtrace worker",
		hint:      "The size of the worker's files is limited, as by LimitFSIZE= or ulimit -f.",
		elsewhere: "spool: TestFileSizeLimit",
	},
	{
		name: "unexpected answer", level: fault, state: "XX000", message: "unexpected answer %q %q: %s",
		elsewhere: "spool: TestSQLContract, with a worker that answers so",
	},

	{name: "canceled by user", level: fault, state: "57014", message: "canceling statement due to user request"},
	{name: "canceled by timeout", level: fault, state: "57014", message: "canceling statement due to statement timeout"},
}

const (
	only      = "Only roles with the SUPERUSER attribute may see backtraces of "
	inProfile = "Allow ptrace, process_vm_readv and perf_event_open in the worker's seccomp profile " +
		"(in a container, its runtime's)."
	inKernel = "Retry when the device or file system for which it waits has responded; " +
		"until then, the process cannot be stopped or ended."
)

func denial(detail, name, elsewhere string) condition {
	hint := "An administrator can grant EXECUTE on function pg_get_backtrace_on_call(int), which shows the stack of any process."
	if strings.Contains(detail, "no longer exists") {
		hint = ""
	}
	return condition{
		name: name, level: fault, state: "42501", message: "permission denied to get backtrace of process %d",
		detail: detail, elsewhere: elsewhere,
		hint: hint,
	}
}

func refusal(name, hint, elsewhere string) condition {
	return condition{
		name: name, level: fault, state: "42501", message: "the kernel refuses to let process with PID %d be traced",
		detail: "%s.", hint: hint, elsewhere: elsewhere,
	}
}

var verbs = regexp.MustCompile(`%[dsqvg]`)

// matches compares words with a template.
func matches(template, words string) bool {
	pattern := verbs.ReplaceAllStringFunc(regexp.QuoteMeta(template), func(verb string) string {
		switch verb {
		case "%d":
			return `-?\d+`
		case "%g":
			return `[0-9.e+-]+`
		}
		return `.+`
	})
	return regexp.MustCompile("^" + pattern + "$").MatchString(words)
}

// record records the conditions that a server's sessions have met.
type record struct {
	mu  sync.Mutex
	met map[string]bool
	// unknown are messages about backtraces that no condition matches.
	unknown []said
}

// name returns the condition of a message, or "". Two matches would be a mistake in the table.
func (*record) name(m said) string {
	var found []string
	for _, c := range conditions {
		if c.level == m.level && c.state == m.state && matches(c.message, m.message) &&
			matches(c.detail, m.detail) && matches(c.hint, m.hint) {
			found = append(found, c.name)
		}
	}
	return strings.Join(found, " or ")
}

func (r *record) note(m said) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.met == nil {
		r.met = make(map[string]bool)
	}
	name := r.name(m)
	r.met[name] = true
	own := strings.Contains(m.message, " file \"") // PostgreSQL's own message about a file; see unwritable
	if name == "" && !own && strings.Contains(m.message+m.detail+m.hint, "backtrace") {
		r.unknown = append(r.unknown, m)
	}
}

func (r *record) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.met[name]
}
